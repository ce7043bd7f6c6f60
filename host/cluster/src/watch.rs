//! List and watch of one kind into its table.
//!
//! Written here rather than with a ready-made watcher because three things need the bare protocol: an object that does not
//! decode must not fail its list, a list version below the highest one seen means a restored cluster, and objects are read
//! from the answer's bytes straight into slim domain values.

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
    events::{Event, EventSink, EventType, Subject},
    hold::Restored,
    kind::{Kind, Resource},
    metrics::Metrics,
    queue::Backoff,
    table::{Decoded, Table},
    writer::{Cached, Writer},
};

/// Objects per page of a list: the page that the API server's own clients use.
const PAGE: u32 = 500;
/// How long a watch lives before it is opened anew. Below the API server's default minimum of 30 minutes, so that
/// connections spread over its replicas again.
const WATCH_SECONDS: u64 = 290;
/// A watch that has not ended by itself this long after [`WATCH_SECONDS`] hangs on a dead connection.
const DEAD_AFTER: Duration = Duration::from_secs(WATCH_SECONDS + 15);
/// A watch that ends sooner, and not by itself, has not worked: lists at its pace would be a flood.
const SHORT: Duration = Duration::from_secs(1);
/// One page of a list must come within this time.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest page of a list: 500 objects at the API's limit for one would be more, but none are near it.
const MAX_PAGE: usize = 256 << 20;
/// The longest watch line that is read: the API's limit for an object is 1.5 MiB, twice, and room for escapes.
const MAX_LINE: usize = 8 << 20;
/// Pause before a kind that the cluster does not have is looked for again: an API appears with an upgrade of the cluster.
const ABSENT: Duration = Duration::from_secs(60);
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), most: Duration::from_secs(30) };

/// Which objects of a kind are watched.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// One namespace, or all of them.
    pub namespace: Option<String>,
    /// `fieldSelector`
    pub fields: Option<String>,
    /// `labelSelector`
    pub labels: Option<String>,
}

impl Scope {
    /// The collection of a kind in this scope, with a query.
    pub(crate) fn path<'q>(
        &self,
        resource: Resource,
        query: impl IntoIterator<Item = (&'q str, &'q str)>,
    ) -> String {
        let mut serializer = Serializer::new(String::new());
        serializer.extend_pairs(query);
        serializer.extend_pairs(self.fields.iter().map(|fields| ("fieldSelector", fields)));
        serializer.extend_pairs(self.labels.iter().map(|labels| ("labelSelector", labels)));
        format!("{}?{}", resource.collection(self.namespace.as_deref()), serializer.finish())
    }
}

/// Why a list or a watch ended.
#[derive(Debug)]
enum Ended {
    /// In the normal way: open the next one.
    Normally,
    /// Without a word, not even a bookmark, or with a bookmark from before where it began: that is how a watch from a
    /// version behaves that the cluster has not reached, so the list must tell.
    InDoubt,
    /// The version is too old (410): list anew.
    Expired,
    /// Something went wrong; wait, then go on.
    Failed(String),
}

/// Keeps a kind's table equal to the cluster until `stop`.
///
/// # Errors
/// [`Restored`], once; everything else is waited out.
pub async fn follow<K: Cached>(
    writer: &Writer,
    events: &EventSink,
    metrics: &Metrics,
    scope: Scope,
    stop: CancellationToken,
) -> Result<(), Restored> {
    let followed = follow_into(K::table(writer.cache()), writer, events, metrics, scope, stop).await;
    // Who works with the cache hears of it before anybody tells them to stop.
    followed.inspect_err(|restored| writer.cache().restoration.tell(restored.clone()))
}

/// The same for a table that is not of the writer's cache: for what needs more of a kind than the roles do.
///
/// # Errors
/// [`Restored`], once; everything else is waited out.
pub async fn follow_into<K: Kind>(
    table: &Table<K>,
    writer: &Writer,
    events: &EventSink,
    metrics: &Metrics,
    scope: Scope,
    stop: CancellationToken,
) -> Result<(), Restored> {
    let follower = Follower { writer, events, metrics, scope, table };
    tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        restored = follower.run() => Err(restored),
    }
}

struct Follower<'a, K: Kind> {
    writer: &'a Writer,
    events: &'a EventSink,
    metrics: &'a Metrics,
    scope: Scope,
    table: &'a Table<K>,
}

/// `metadata` of a list.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// A list, or a part of it.
#[derive(Deserialize)]
pub(crate) struct Page<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

impl<'a> Page<'a> {
    /// `metadata.resourceVersion`.
    ///
    /// # Errors
    /// When that is no number.
    pub(crate) fn version(&self) -> Result<ResourceVersion, InvalidResourceVersion> {
        self.metadata.resource_version.parse()
    }

    /// The token of the next part; there is none after the last.
    pub(crate) fn next(&mut self) -> Option<String> {
        self.metadata.next.take().filter(|token| !token.is_empty())
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
enum Unlisted {
    /// The API answered something else.
    #[error("{1}")]
    Refused(StatusCode, String),
    /// There was no answer, or none that can be read.
    #[error("{0}")]
    Failed(String),
}

impl<K: Kind> Follower<'_, K> {
    async fn run(&self) -> Restored {
        let mut failures = 0;
        loop {
            match self.list().await {
                Ok(Ok(version)) => {
                    if let Err(restored) = self.stay(version, &mut failures).await {
                        return restored;
                    }
                }
                Ok(Err(restored)) => return restored,
                Err(Unlisted::Refused(StatusCode::NOT_FOUND, _)) if K::OPTIONAL => {
                    self.table.clear();
                    tokio::time::sleep(ABSENT).await;
                }
                Err(error) => self.pause(&mut failures, "list", &error).await,
            }
        }
    }

    /// Watches, one watch after the other, until only a list can tell how things are.
    async fn stay(&self, mut version: ResourceVersion, failures: &mut u32) -> Result<(), Restored> {
        let mut listed = true;
        loop {
            // Time has passed since the last list, and a restored cluster opens a watch from a version that it does not have
            // yet as if nothing were wrong.
            if !std::mem::take(&mut listed) {
                let seen = self.table.highest();
                match self.writer.version::<K>(&self.scope).await {
                    // Told here: by the time of a list it may have caught up.
                    Ok(now) => {
                        Restored::compare(K::RESOURCE.kind, seen, now)?;
                        self.table.saw(now);
                    }
                    Err(error) => {
                        self.pause(failures, "watch", &error).await;
                        if *failures > 1 {
                            return Ok(());
                        }
                        continue;
                    }
                }
            }
            let begun = tokio::time::Instant::now();
            let ended = self.watch(&mut version).await;
            let short = begun.elapsed() < SHORT;
            if !short {
                *failures = 0;
            }
            match ended {
                // Whoever ends each watch after its first event would be asked all the time.
                Ended::Normally if short => self.pause(failures, "watch", &"it ended at once").await,
                Ended::Normally => {}
                Ended::InDoubt | Ended::Expired => {
                    if short {
                        self.pause(failures, "watch", &"it ended at once").await;
                    }
                    return Ok(());
                }
                Ended::Failed(message) => {
                    self.pause(failures, "watch", &message).await;
                    // A broken connection heals by the next watch. What does not is something else, and a list says what.
                    if *failures > 1 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// One failure more, told and waited out.
    async fn pause(&self, failures: &mut u32, what: &str, problem: &impl fmt::Display) {
        *failures += 1;
        let pause = BACKOFF.pause(*failures);
        tracing::warn!(kind = K::RESOURCE.kind, "{what} failed, again in {pause:?}: {problem}");
        tokio::time::sleep(pause).await;
    }

    async fn list(&self) -> Result<Result<ResourceVersion, Restored>, Unlisted> {
        // Taken before the request: what is written while the list travels must not look like a future.
        let seen = self.table.highest();
        let mut items: Vec<Decoded<K>> = Vec::new();
        let mut next: Option<String> = None;
        let mut version = None;
        loop {
            let limit = PAGE.to_string();
            let token = next.as_deref().map(|token| ("continue", token));
            let path = self.path([("limit", limit.as_str())].into_iter().chain(token));
            let body = tokio::time::timeout(LIST_TIMEOUT, self.fetch(&path))
                .await
                .map_err(|_| Unlisted::Failed(format!("no answer within {LIST_TIMEOUT:?}")))?;
            let body = match body {
                Ok(body) => body,
                // A page token that expired: the list starts over, on a newer version.
                Err(Unlisted::Refused(StatusCode::GONE, _)) if next.is_some() => {
                    (items, next, version) = (Vec::new(), None, None);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let unreadable =
                |reason: &dyn fmt::Display| Unlisted::Failed(format!("unreadable list: {reason}"));
            let mut page: Page<'_> = serde_json::from_slice(&body).map_err(|error| unreadable(&error))?;
            // Later pages show the state of the first one.
            let version = *version.get_or_insert(page.version().map_err(|error| unreadable(&error))?);
            next = page.next();
            items.extend(page.items().filter_map(|item| self.decode(item)));
            if next.is_some() {
                continue;
            }
            if let Err(restored) = Restored::compare(K::RESOURCE.kind, seen, version) {
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

    async fn fetch(&self, path: &str) -> Result<bytes::Bytes, Unlisted> {
        let response = self.open(path).await.map_err(Unlisted::Failed)?;
        let status = response.status();
        let body = http_body_util::Limited::new(response.into_body(), MAX_PAGE).collect().await;
        let body = body.map_err(|error| Unlisted::Failed(error.to_string()))?.to_bytes();
        if status.is_success() {
            Ok(body)
        } else {
            Err(Unlisted::Refused(status, status_message(status, &body)))
        }
    }

    async fn open(&self, path: &str) -> Result<http::Response<Body>, String> {
        let request = Request::get(path).header(header::ACCEPT, "application/json");
        let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
        self.writer.client().send(request).await.map_err(|error| error.to_string())
    }

    async fn watch(&self, version: &mut ResourceVersion) -> Ended {
        match tokio::time::timeout(DEAD_AFTER, self.stream(version)).await {
            Ok(ended) => ended,
            Err(_) => {
                Ended::Failed(format!("nothing ended the watch within {DEAD_AFTER:?}: dead connection"))
            }
        }
    }

    async fn stream(&self, version: &mut ResourceVersion) -> Ended {
        let (timeout, from) = (WATCH_SECONDS.to_string(), version.to_string());
        let path = self.path([
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", timeout.as_str()),
            ("resourceVersion", from.as_str()),
        ]);
        let response = match self.open(&path).await {
            Ok(response) => response,
            Err(message) => return Ended::Failed(message),
        };
        let status = response.status();
        let mut body = response.into_body();
        if status == StatusCode::GONE {
            return Ended::Expired;
        }
        if !status.is_success() {
            let text = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            return Ended::Failed(status_message(status, &text));
        }
        let mut buffer = BytesMut::new();
        let mut silent = true;
        loop {
            let frame = match body.frame().await {
                None if silent => return Ended::InDoubt,
                None => return Ended::Normally,
                Some(Err(error)) => return Ended::Failed(error.to_string()),
                Some(Ok(frame)) => frame,
            };
            if let Ok(data) = frame.into_data() {
                silent &= data.is_empty();
                buffer.extend_from_slice(&data);
            }
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line = buffer.split_to(end + 1);
                if let Err(ended) = self.take_in(&line, version) {
                    return ended;
                }
            }
            if buffer.len() > MAX_LINE {
                return Ended::Failed(format!("a watch event is longer than {MAX_LINE} bytes"));
            }
        }
    }

    fn take_in(&self, line: &[u8], version: &mut ResourceVersion) -> Result<(), Ended> {
        let event: WatchEvent<'_> = match serde_json::from_slice(line) {
            Ok(event) => event,
            Err(_) if line.trim_ascii().is_empty() => return Ok(()),
            Err(error) => return Err(Ended::Failed(format!("unreadable watch event: {error}"))),
        };
        match event.kind {
            "ADDED" | "MODIFIED" => {
                if let Some(decoded) = self.decode(event.object) {
                    *version = decoded.as_ref().map_or_else(|o| o.version, Kind::version).max(*version);
                    self.table.apply(decoded);
                }
            }
            "DELETED" => {
                if let Some(decoded) = self.decode(event.object) {
                    let (key, uid, at) = match &decoded {
                        Ok(object) => (object.key(), &object.meta().uid, object.version()),
                        Err(opaque) => (opaque.key.clone(), &opaque.uid, opaque.version),
                    };
                    *version = at.max(*version);
                    self.table.delete(&key, uid, at);
                }
            }
            "BOOKMARK" => {
                if let Ok(at) = version_of(event.object.get()) {
                    if at < *version {
                        return Err(Ended::InDoubt);
                    }
                    *version = at.max(*version);
                    self.table.saw(at);
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
                    Ended::Expired
                } else {
                    Ended::Failed(format!("{} ({})", status.message, status.code))
                });
            }
            // A type that this build does not know carries nothing that it could use.
            _ => {}
        }
        Ok(())
    }

    fn decode(&self, item: &RawValue) -> Option<Decoded<K>> {
        match decode::object::<K>(item.get()) {
            Ok(Ok(object)) => Some(Ok(object)),
            Ok(Err(opaque)) => {
                self.metrics.undecodable(K::RESOURCE.kind);
                let (namespace, name) = K::locate(&opaque.key);
                tracing::warn!(kind = K::RESOURCE.kind, object = %opaque.key, "left alone: {}", opaque.reason);
                self.events.publish(Event {
                    subject: Subject {
                        resource: K::RESOURCE,
                        namespace: namespace.unwrap_or_default().into(),
                        name: name.into(),
                        uid: opaque.uid.clone(),
                        version: opaque.version,
                    },
                    kind: EventType::Warning,
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
pub(crate) fn version_of(json: &str) -> Result<ResourceVersion, String> {
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
