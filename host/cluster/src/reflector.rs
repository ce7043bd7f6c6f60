//! List and watch of one kind into its table.
//!
//! Written here rather than with a ready-made watcher because three things need the bare protocol: an object
//! that does not decode must not fail its list, a list version below the highest one seen means a restored
//! cluster, and objects are read from the answer's bytes straight into slim domain values.

use std::{fmt, time::Duration};

use bytes::BytesMut;
use cofferdam_domain::ids::{InvalidResourceVersion, ResourceVersion};
use form_urlencoded::Serializer;
use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::{
    decode,
    deletion_freeze::RestoreDetected,
    events::{Event, EventSink, EventType, ObjectReference},
    kind::{ApiResource, Kind},
    metrics::Metrics,
    queue::ExponentialBackoff,
    store::{DecodeResult, ObjectStore},
    writer::{CachedKind, Writer},
};

/// Objects per page of a list: the page that the API server's own clients use.
const LIST_PAGE_SIZE: u32 = 500;
/// How long a watch lives before it is opened anew. Below the API server's default minimum of 30 minutes, so
/// that connections spread over its replicas again.
const WATCH_SECONDS: u64 = 290;
/// A watch that has not ended by itself this long after [`WATCH_SECONDS`] hangs on a dead connection.
const WATCH_DEADLINE: Duration = Duration::from_secs(WATCH_SECONDS + 15);
/// A watch that ends sooner, and not by itself, has not worked: lists at its pace would be a flood.
const MIN_WATCH_DURATION: Duration = Duration::from_secs(1);
/// One page of a list must come within this time.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest page of a list: 500 objects at the API's limit for one would be more, but none are near it.
const MAX_PAGE_BYTES: usize = 256 << 20;
/// The longest watch line that is read: the API's limit for an object is 1.5 MiB, twice, and room for
/// escapes.
const MAX_EVENT_BYTES: usize = 8 << 20;
/// Pause before a kind that the cluster does not have is looked for again: an API appears with an upgrade of
/// the cluster.
const MISSING_KIND_RETRY_DELAY: Duration = Duration::from_secs(60);
const RETRY_BACKOFF: ExponentialBackoff =
    ExponentialBackoff { initial: Duration::from_millis(500), max: Duration::from_secs(30) };

/// Which objects of a kind are watched.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// One namespace, or all of them.
    pub namespace: Option<String>,
    /// `fieldSelector`
    pub field_selector: Option<String>,
    /// `labelSelector`
    pub label_selector: Option<String>,
}

impl Scope {
    /// The collection of a kind in this scope, with a query.
    pub(crate) fn path<'q>(
        &self,
        resource: ApiResource,
        query: impl IntoIterator<Item = (&'q str, &'q str)>,
    ) -> String {
        let mut serializer = Serializer::new(String::new());
        serializer.extend_pairs(query);
        serializer.extend_pairs(self.field_selector.iter().map(|fields| ("fieldSelector", fields)));
        serializer.extend_pairs(self.label_selector.iter().map(|labels| ("labelSelector", labels)));
        format!("{}?{}", resource.collection_path(self.namespace.as_deref()), serializer.finish())
    }
}

/// Why a list or a watch ended.
#[derive(Debug)]
enum WatchEnd {
    /// In the normal way: open the next one.
    Completed,
    /// Without a word, not even a bookmark, or with a bookmark from before where it began: that is how a
    /// watch from a version behaves that the cluster has not reached, so the list must tell.
    Uncertain,
    /// The version is too old (410): list anew.
    Expired,
    /// Something went wrong; wait, then go on.
    Failed(String),
}

/// Keeps a kind's table equal to the cluster until `stop`.
///
/// # Errors
/// [`Restored`], once; everything else is waited out.
pub async fn run_reflector<K: CachedKind>(
    writer: &Writer,
    events: &EventSink,
    metrics: &Metrics,
    scope: Scope,
    stop: CancellationToken,
) -> Result<(), RestoreDetected> {
    let result = run_reflector_into(K::store(writer.cache()), writer, events, metrics, scope, stop).await;
    // Who works with the cache hears of it before anybody tells them to stop.
    result.inspect_err(|restored| writer.cache().restore_detector.report(restored.clone()))
}

/// The same for a table that is not of the writer's cache: for what needs more of a kind than the roles do.
///
/// # Errors
/// [`Restored`], once; everything else is waited out.
pub async fn run_reflector_into<K: Kind>(
    table: &ObjectStore<K>,
    writer: &Writer,
    events: &EventSink,
    metrics: &Metrics,
    scope: Scope,
    stop: CancellationToken,
) -> Result<(), RestoreDetected> {
    let reflector = Reflector { writer, events, metrics, scope, table };
    tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        restored = reflector.run() => Err(restored),
    }
}

struct Reflector<'a, K: Kind> {
    writer: &'a Writer,
    events: &'a EventSink,
    metrics: &'a Metrics,
    scope: Scope,
    table: &'a ObjectStore<K>,
}

/// `metadata` of a list.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

/// A list, or a part of it.
#[derive(Deserialize)]
pub(crate) struct ListPage<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

impl<'a> ListPage<'a> {
    /// `metadata.resourceVersion`.
    ///
    /// # Errors
    /// When that is no number.
    pub(crate) fn version(&self) -> Result<ResourceVersion, InvalidResourceVersion> {
        self.metadata.resource_version.parse()
    }

    /// The token of the next part; there is none after the last.
    pub(crate) fn take_continue_token(&mut self) -> Option<String> {
        self.metadata.continue_token.take().filter(|token| !token.is_empty())
    }

    /// The objects of this part.
    pub(crate) fn items(self) -> impl Iterator<Item = &'a RawValue> {
        self.items.into_iter().flatten()
    }
}

#[derive(Deserialize)]
struct WatchEvent<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Why a list did not come.
#[derive(Debug, thiserror::Error)]
enum ListError {
    /// The API answered something else.
    #[error("{1}")]
    Refused(StatusCode, String),
    /// There was no answer, or none that can be read.
    #[error("{0}")]
    Failed(String),
}

impl<K: Kind> Reflector<'_, K> {
    async fn run(&self) -> RestoreDetected {
        let mut failures = 0;
        loop {
            match self.list().await {
                Ok(Ok(version)) => {
                    if let Err(restored) = self.watch_loop(version, &mut failures).await {
                        return restored;
                    }
                }
                Ok(Err(restored)) => return restored,
                Err(ListError::Refused(StatusCode::NOT_FOUND, _)) if K::OPTIONAL => {
                    self.table.clear();
                    tokio::time::sleep(MISSING_KIND_RETRY_DELAY).await;
                }
                Err(error) => self.back_off(&mut failures, "list", &error).await,
            }
        }
    }

    /// Watches, one watch after the other, until only a list can tell how things are.
    async fn watch_loop(
        &self,
        mut version: ResourceVersion,
        failures: &mut u32,
    ) -> Result<(), RestoreDetected> {
        let mut just_listed = true;
        loop {
            // Time has passed since the last list, and a restored cluster opens a watch from a version that
            // it does not have yet as if nothing were wrong.
            if !std::mem::take(&mut just_listed) {
                let highest_seen = self.table.highest_version();
                match self.writer.current_version::<K>(&self.scope).await {
                    // Told here: by the time of a list it may have caught up.
                    Ok(now) => {
                        RestoreDetected::detect_rollback(K::RESOURCE.kind, highest_seen, now)?;
                        self.table.observe_version(now);
                    }
                    Err(error) => {
                        self.back_off(failures, "watch", &error).await;
                        if *failures > 1 {
                            return Ok(());
                        }
                        continue;
                    }
                }
            }
            let started = tokio::time::Instant::now();
            let end = self.watch(&mut version).await;
            let is_short = started.elapsed() < MIN_WATCH_DURATION;
            if !is_short {
                *failures = 0;
            }
            match end {
                // Whoever ends each watch after its first event would be asked all the time.
                WatchEnd::Completed if is_short => {
                    self.back_off(failures, "watch", &"it ended at once").await
                }
                WatchEnd::Completed => {}
                WatchEnd::Uncertain | WatchEnd::Expired => {
                    if is_short {
                        self.back_off(failures, "watch", &"it ended at once").await;
                    }
                    return Ok(());
                }
                WatchEnd::Failed(message) => {
                    self.back_off(failures, "watch", &message).await;
                    // A broken connection heals by the next watch. What does not is something else, and a
                    // list says what.
                    if *failures > 1 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// One failure more, told and waited out.
    async fn back_off(&self, failures: &mut u32, operation: &str, problem: &impl fmt::Display) {
        *failures += 1;
        let delay = RETRY_BACKOFF.delay(*failures);
        tracing::warn!(kind = K::RESOURCE.kind, "{operation} failed, again in {delay:?}: {problem}");
        tokio::time::sleep(delay).await;
    }

    async fn list(&self) -> Result<Result<ResourceVersion, RestoreDetected>, ListError> {
        // Taken before the request: what is written while the list travels must not look like a future.
        let highest_seen = self.table.highest_version();
        let mut items: Vec<DecodeResult<K>> = Vec::new();
        let mut continue_token: Option<String> = None;
        let mut version = None;
        loop {
            let limit = LIST_PAGE_SIZE.to_string();
            let token = continue_token.as_deref().map(|token| ("continue", token));
            let path = self.path([("limit", limit.as_str())].into_iter().chain(token));
            let body = tokio::time::timeout(LIST_TIMEOUT, self.fetch(&path))
                .await
                .map_err(|_| ListError::Failed(format!("no answer within {LIST_TIMEOUT:?}")))?;
            let body = match body {
                Ok(body) => body,
                // A page token that expired: the list starts over, on a newer version.
                Err(ListError::Refused(StatusCode::GONE, _)) if continue_token.is_some() => {
                    (items, continue_token, version) = (Vec::new(), None, None);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let unreadable =
                |reason: &dyn fmt::Display| ListError::Failed(format!("unreadable list: {reason}"));
            let mut page: ListPage<'_> = serde_json::from_slice(&body).map_err(|error| unreadable(&error))?;
            // Later pages show the state of the first one.
            let version = *version.get_or_insert(page.version().map_err(|error| unreadable(&error))?);
            continue_token = page.take_continue_token();
            items.extend(page.items().filter_map(|item| self.decode(item)));
            if continue_token.is_some() {
                continue;
            }
            if let Err(restored) = RestoreDetected::detect_rollback(K::RESOURCE.kind, highest_seen, version) {
                return Ok(Err(restored));
            }
            self.metrics.relist(K::RESOURCE.kind);
            self.table.replace(items, version);
            return Ok(Ok(version));
        }
    }

    /// The collection in this follower's scope, with a query.
    fn path<'q>(&self, query: impl IntoIterator<Item = (&'q str, &'q str)>) -> String {
        self.scope.path(K::RESOURCE, query)
    }

    async fn fetch(&self, path: &str) -> Result<bytes::Bytes, ListError> {
        let response = self.open(path).await.map_err(ListError::Failed)?;
        let status = response.status();
        let body = http_body_util::Limited::new(response.into_body(), MAX_PAGE_BYTES).collect().await;
        let body = body.map_err(|error| ListError::Failed(error.to_string()))?.to_bytes();
        if status.is_success() {
            Ok(body)
        } else {
            Err(ListError::Refused(status, status_message(status, &body)))
        }
    }

    async fn open(&self, path: &str) -> Result<http::Response<Body>, String> {
        let request = Request::get(path).header(header::ACCEPT, "application/json");
        let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
        self.writer.client().send(request).await.map_err(|error| error.to_string())
    }

    async fn watch(&self, version: &mut ResourceVersion) -> WatchEnd {
        match tokio::time::timeout(WATCH_DEADLINE, self.read_events(version)).await {
            Ok(ended) => ended,
            Err(_) => WatchEnd::Failed(format!(
                "nothing ended the watch within {WATCH_DEADLINE:?}: dead connection"
            )),
        }
    }

    async fn read_events(&self, version: &mut ResourceVersion) -> WatchEnd {
        let (timeout, start_version) = (WATCH_SECONDS.to_string(), version.to_string());
        let path = self.path([
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", timeout.as_str()),
            ("resourceVersion", start_version.as_str()),
        ]);
        let response = match self.open(&path).await {
            Ok(response) => response,
            Err(message) => return WatchEnd::Failed(message),
        };
        let status = response.status();
        let mut body = response.into_body();
        if status == StatusCode::GONE {
            return WatchEnd::Expired;
        }
        if !status.is_success() {
            let text = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            return WatchEnd::Failed(status_message(status, &text));
        }
        let mut buffer = BytesMut::new();
        let mut is_empty = true;
        loop {
            let frame = match body.frame().await {
                None if is_empty => return WatchEnd::Uncertain,
                None => return WatchEnd::Completed,
                Some(Err(error)) => return WatchEnd::Failed(error.to_string()),
                Some(Ok(frame)) => frame,
            };
            if let Ok(data) = frame.into_data() {
                is_empty &= data.is_empty();
                buffer.extend_from_slice(&data);
            }
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line = buffer.split_to(end + 1);
                if let Err(ended) = self.handle_event(&line, version) {
                    return ended;
                }
            }
            if buffer.len() > MAX_EVENT_BYTES {
                return WatchEnd::Failed(format!("a watch event is longer than {MAX_EVENT_BYTES} bytes"));
            }
        }
    }

    fn handle_event(&self, line: &[u8], version: &mut ResourceVersion) -> Result<(), WatchEnd> {
        let event: WatchEvent<'_> = match serde_json::from_slice(line) {
            Ok(event) => event,
            Err(_) if line.trim_ascii().is_empty() => return Ok(()),
            Err(error) => return Err(WatchEnd::Failed(format!("unreadable watch event: {error}"))),
        };
        match event.kind {
            "ADDED" | "MODIFIED" => {
                if let Some(decoded) = self.decode(event.object) {
                    *version = decoded
                        .as_ref()
                        .map_or_else(|o| o.resource_version, Kind::resource_version)
                        .max(*version);
                    self.table.apply(decoded);
                }
            }
            "DELETED" => {
                if let Some(decoded) = self.decode(event.object) {
                    let (key, uid, at) = match &decoded {
                        Ok(object) => (object.key(), &object.meta().uid, object.resource_version()),
                        Err(opaque) => (opaque.key.clone(), &opaque.uid, opaque.resource_version),
                    };
                    *version = at.max(*version);
                    self.table.delete(&key, uid, at);
                }
            }
            "BOOKMARK" => {
                if let Ok(at) = parse_list_version(event.object.get()) {
                    if at < *version {
                        return Err(WatchEnd::Uncertain);
                    }
                    *version = at.max(*version);
                    self.table.observe_version(at);
                }
            }
            "ERROR" => {
                #[derive(Deserialize, Default)]
                #[serde(default)]
                struct Status {
                    code: u16,
                    message: String,
                }
                let status: Status = serde_json::from_str(event.object.get()).unwrap_or_default();
                return Err(if status.code == StatusCode::GONE.as_u16() {
                    WatchEnd::Expired
                } else {
                    WatchEnd::Failed(format!("{} ({})", status.message, status.code))
                });
            }
            // A type that this build does not know carries nothing that it could use.
            _ => {}
        }
        Ok(())
    }

    fn decode(&self, item: &RawValue) -> Option<DecodeResult<K>> {
        match decode::object::<K>(item.get()) {
            Ok(Ok(object)) => Some(Ok(object)),
            Ok(Err(opaque)) => {
                self.metrics.undecodable(K::RESOURCE.kind);
                let (namespace, name) = K::key_parts(&opaque.key);
                tracing::warn!(kind = K::RESOURCE.kind, object = %opaque.key, "left alone: {}", opaque.reason);
                self.events.publish(Event {
                    involved_object: ObjectReference {
                        resource: K::RESOURCE,
                        namespace: namespace.unwrap_or_default().into(),
                        name: name.into(),
                        uid: opaque.uid.clone(),
                        resource_version: opaque.resource_version,
                    },
                    event_type: EventType::Warning,
                    reason: "Undecodable",
                    note: format!("Cofferdam leaves this object alone: {}", opaque.reason),
                    component: "cofferdam".into(),
                });
                Some(Err(opaque))
            }
            Err(reason) => {
                self.metrics.undecodable(K::RESOURCE.kind);
                tracing::warn!("{reason}");
                None
            }
        }
    }
}

/// `metadata.resourceVersion` of a bookmark or a list.
pub(crate) fn parse_list_version(json: &str) -> Result<ResourceVersion, String> {
    #[derive(Deserialize)]
    struct Object {
        metadata: ListMeta,
    }
    let object: Object = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let version = object.metadata.resource_version.parse();
    version.map_err(|error: InvalidResourceVersion| error.to_string())
}

fn status_message(status: StatusCode, body: &[u8]) -> String {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Status {
        message: String,
    }
    let parsed: Status = serde_json::from_slice(body).unwrap_or_default();
    format!("{} ({status})", parsed.message)
}
