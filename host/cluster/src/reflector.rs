//! Lists and watches one kind into its store.
//!
//! This is not kube's watcher, because three requirements need the bare protocol (ADR 0004): an undecodable
//! object must not fail its list, a list version below the highest observed one means a restored cluster, and
//! objects are decoded from the response's bytes directly into small domain values.

use std::{fmt, time::Duration};

use bytes::BytesMut;
use cofferdam_domain::ids::ResourceVersion;
use http_body_util::BodyExt;
use kube::core::Status;
use memchr::memchr;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

pub use crate::api::Scope;
use crate::{
    api::{ApiClient, ApiError, ListPage, PageRequests},
    events::{Event, EventSink, EventType, ObjectReference},
    index::Indexed,
    metrics::Metrics,
    objects::{DecodeResult, Kind, decode},
    queue::ExponentialBackoff,
    store::{CachedKind, ListedObject, ObjectStore, RestoreDetected},
    writer::Writer,
};

/// Default of [`Writer::with_watch_timeout`]. It is below kube-apiserver's default minimum of 30 minutes,
/// because a restored cluster is detected before the next watch at the latest, and a dead connection 15 s
/// later.
pub const WATCH_TIMEOUT: Duration = Duration::from_secs(290);
/// A watch that has not ended this long after its timeout has a dead connection.
const WATCH_GRACE_PERIOD: Duration = Duration::from_secs(15);
/// A shorter watch counts as a failure, so that a back-off precedes the next watch or list.
const MIN_WATCH_DURATION: Duration = Duration::from_secs(1);
/// Timeout of one list page.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of an incomplete watch event in bytes. It is well above the API server's limit of 1.5 MiB per
/// object, because JSON escapes enlarge an object.
const MAX_EVENT_BYTES: usize = 8 << 20;
/// Delay between lists of a kind that the API server does not serve. It may serve it after an upgrade.
const MISSING_KIND_RETRY_DELAY: Duration = Duration::from_secs(60);
const RETRY_BACKOFF: ExponentialBackoff =
    ExponentialBackoff { initial: Duration::from_millis(500), max: Duration::from_secs(30) };

/// The end of a watch.
#[derive(Debug)]
enum WatchEnd {
    /// The normal end. Open the next watch.
    Completed,
    /// No event, not even a bookmark, or a bookmark below the last observed version. A watch from a version
    /// that the cluster has not reached behaves like this, so list again.
    Uncertain,
    /// The version is too old (410 Gone). List again.
    Expired,
    /// The watch failed. Back off, then watch from the last observed version, or list after a repeated
    /// failure.
    Failed(ApiError),
}

impl From<ApiError> for WatchEnd {
    fn from(error: ApiError) -> Self {
        if error.is_expired() { Self::Expired } else { Self::Failed(error) }
    }
}

/// Keeps the cached objects of a kind up to date until `stop`.
///
/// # Errors
/// [`RestoreDetected`]. All other errors are retried.
pub async fn run_reflector<K: CachedKind>(
    writer: &Writer,
    events: &EventSink,
    metrics: &Metrics,
    scope: Scope,
    stop: CancellationToken,
) -> Result<(), RestoreDetected> {
    let result = run_reflector_into(K::store(writer.cache()), writer, events, metrics, scope, stop).await;
    // Users of the cache see the restore before they are stopped.
    result.inspect_err(|restored| writer.cache().restore_detector.report(restored.clone()))
}

/// As [`run_reflector`], for any store, such as one outside the writer's cache. A restore is returned, but
/// not reported to the writer's cache.
///
/// # Errors
/// [`RestoreDetected`]. All other errors are retried.
pub async fn run_reflector_into<K: Indexed>(
    store: &ObjectStore<K>,
    writer: &Writer,
    events: &EventSink,
    metrics: &Metrics,
    scope: Scope,
    stop: CancellationToken,
) -> Result<(), RestoreDetected> {
    let reflector = Reflector { writer, events, metrics, scope, store };
    tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        restored = reflector.run() => Err(restored),
    }
}

struct Reflector<'a, K: Indexed> {
    writer: &'a Writer,
    events: &'a EventSink,
    metrics: &'a Metrics,
    scope: Scope,
    store: &'a ObjectStore<K>,
}

#[derive(Deserialize)]
struct WatchEvent<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl<K: Indexed> Reflector<'_, K> {
    async fn run(&self) -> RestoreDetected {
        let mut failures = 0;
        let mut is_missing = false;
        loop {
            match self.list().await {
                Ok(Ok(version)) => {
                    if std::mem::take(&mut is_missing) {
                        tracing::info!(kind = K::RESOURCE.kind, "the API server serves the kind now");
                    }
                    if let Err(restored) = self.watch_loop(version, &mut failures).await {
                        return restored;
                    }
                }
                Ok(Err(restored)) => return restored,
                Err(ApiError::NotServed(_)) if K::OPTIONAL => {
                    if !std::mem::replace(&mut is_missing, true) {
                        self.log_missing_kind();
                    }
                    self.store.clear();
                    tokio::time::sleep(MISSING_KIND_RETRY_DELAY).await;
                }
                Err(error) => self.back_off(&mut failures, "list", &error).await,
            }
        }
    }

    /// Logs that the API server does not serve the kind in this version. Call it before the store is cleared.
    fn log_missing_kind(&self) {
        let (kind, version) = (K::RESOURCE.kind, K::RESOURCE.api_version());
        let consequence = "no object of it is found, and work that needs one waits";
        let delay = MISSING_KIND_RETRY_DELAY;
        if self.store.is_served() {
            tracing::warn!(
                kind,
                "the API server no longer serves the kind in version {version}: {consequence}; checking \
                 every {delay:?}"
            );
        } else {
            tracing::info!(
                kind,
                "the API server does not serve the kind in version {version}, and other versions are not \
                 used: {consequence}; checking every {delay:?}"
            );
        }
    }

    /// Runs watches until a list is needed or a restore is detected.
    async fn watch_loop(
        &self,
        mut version: ResourceVersion,
        failures: &mut u32,
    ) -> Result<(), RestoreDetected> {
        let mut just_listed = true;
        loop {
            // A restored cluster accepts a watch from a version that it has not reached, so compare versions
            // before each watch.
            if !std::mem::take(&mut just_listed) {
                let highest_seen = self.store.highest_version();
                match self.api().current_version(K::RESOURCE, &self.scope).await {
                    // Compare now: by the next list, the restored cluster may have reached `highest_seen`.
                    Ok(now) => {
                        RestoreDetected::check_version(K::RESOURCE.kind, highest_seen, now)?;
                        self.store.observe_version(now);
                    }
                    // The kind may be removed: the list tells.
                    Err(ApiError::NotServed(_)) if K::OPTIONAL => return Ok(()),
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
                // An API server that ends each watch after one event would otherwise cause a busy loop.
                WatchEnd::Completed if is_short => {
                    self.back_off(failures, "watch", &"it ended immediately").await
                }
                WatchEnd::Completed => {}
                WatchEnd::Uncertain | WatchEnd::Expired => {
                    if is_short {
                        self.back_off(failures, "watch", &"it ended immediately").await;
                    }
                    return Ok(());
                }
                WatchEnd::Failed(error) => {
                    self.back_off(failures, "watch", &error).await;
                    // The next watch recovers from a broken connection. Other failures need a list.
                    if *failures > 1 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Counts and logs a failure, then sleeps for the back-off.
    async fn back_off(&self, failures: &mut u32, operation: &str, problem: &impl fmt::Display) {
        *failures += 1;
        let delay = RETRY_BACKOFF.delay(*failures);
        tracing::warn!(kind = K::RESOURCE.kind, "{operation} failed, retrying in {delay:?}: {problem}");
        tokio::time::sleep(delay).await;
    }

    async fn list(&self) -> Result<Result<ResourceVersion, RestoreDetected>, ApiError> {
        // Read before the request: a write during the list must not look like a rollback.
        let highest_seen = self.store.highest_version();
        let target = K::RESOURCE.plural;
        let mut pages = PageRequests::new(self.api(), K::RESOURCE, &self.scope, target, LIST_TIMEOUT);
        let mut items: Vec<Option<ListedObject<K>>> = Vec::new();
        let mut version = None;
        loop {
            let body = match pages.read_next().await {
                Ok(body) => body,
                // The page token expired: restart the list at a newer version.
                Err(error) if error.is_expired() && pages.has_next() => {
                    pages.restart();
                    (items, version) = (Vec::new(), None);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let page = pages.decode(&body)?;
            let page_version = page.version().map_err(|error| ApiError::invalid_response(target, error))?;
            // Later pages have the state of the first page.
            let version = *version.get_or_insert(page_version);
            let decoded = page.items().map(|item| self.decode(item));
            items.extend(decoded.map(|item| item.map(|item| self.store.listed(item))));
            if pages.has_next() {
                continue;
            }
            if let Err(restored) = RestoreDetected::check_version(K::RESOURCE.kind, highest_seen, version) {
                return Ok(Err(restored));
            }
            self.metrics.relist(K::RESOURCE.kind);
            self.apply_list(items, version);
            return Ok(Ok(version));
        }
    }

    /// Applies a list. `None` is an object whose metadata cannot be decoded: it exists, but its key is not
    /// known, so a cached object that seems to be missing from the list may be this one.
    fn apply_list(&self, items: Vec<Option<ListedObject<K>>>, version: ResourceVersion) {
        let count = items.len();
        let decoded: Vec<_> = items.into_iter().flatten().collect();
        let dropped = count - decoded.len();
        if dropped == 0 {
            self.store.replace(decoded, version);
        } else {
            tracing::warn!(
                kind = K::RESOURCE.kind,
                "the metadata of {dropped} of {count} listed objects cannot be decoded; \
                 no object is removed from the cache"
            );
            self.store.merge(decoded, version);
        }
    }

    /// Path of the collection in the reflector's scope, with a query.
    fn path<'q>(&self, query: impl IntoIterator<Item = (&'q str, &'q str)>) -> String {
        self.scope.path(K::RESOURCE, query)
    }

    fn api(&self) -> &ApiClient {
        self.writer.api()
    }

    async fn watch(&self, version: &mut ResourceVersion) -> WatchEnd {
        let deadline = self.api().watch_timeout() + WATCH_GRACE_PERIOD;
        match tokio::time::timeout(deadline, self.read_events(version)).await {
            Ok(ended) => ended,
            Err(_) => {
                let message = format!("the watch did not end within {deadline:?}: dead connection");
                WatchEnd::Failed(ApiError::Unavailable { target: K::RESOURCE.plural.to_owned(), message })
            }
        }
    }

    async fn read_events(&self, version: &mut ResourceVersion) -> WatchEnd {
        let (timeout, start_version) =
            (self.api().watch_timeout().as_secs().to_string(), version.to_string());
        let path = self.path([
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", timeout.as_str()),
            ("resourceVersion", start_version.as_str()),
        ]);
        let mut body = match self.api().open(&path, K::RESOURCE.plural).await {
            Ok(response) => response.into_body(),
            Err(error) => return error.into(),
        };
        let mut buffer = BytesMut::new();
        // Length of the buffer's part without a line break.
        let mut searched = 0;
        let mut is_empty = true;
        loop {
            let frame = match body.frame().await {
                None if is_empty => return WatchEnd::Uncertain,
                None => return WatchEnd::Completed,
                Some(Err(error)) => return ApiError::unavailable(K::RESOURCE.plural, &error).into(),
                Some(Ok(frame)) => frame,
            };
            if let Ok(data) = frame.into_data() {
                is_empty &= data.is_empty();
                buffer.extend_from_slice(&data);
            }
            while let Some(end) = memchr(b'\n', buffer.get(searched..).unwrap_or_default()) {
                let line = buffer.split_to(searched + end + 1);
                searched = 0;
                if let Err(ended) = self.handle_event(&line, version) {
                    return ended;
                }
            }
            searched = buffer.len();
            if searched > MAX_EVENT_BYTES {
                let message =
                    format!("a watch event has {searched} bytes: expected at most {MAX_EVENT_BYTES}");
                return ApiError::invalid_response(K::RESOURCE.plural, message).into();
            }
        }
    }

    fn handle_event(&self, line: &[u8], version: &mut ResourceVersion) -> Result<(), WatchEnd> {
        let event: WatchEvent<'_> = match serde_json::from_slice(line) {
            Ok(event) => event,
            Err(_) if line.trim_ascii().is_empty() => return Ok(()),
            Err(error) => {
                let message = format!("malformed watch event: {error}");
                return Err(ApiError::invalid_response(K::RESOURCE.plural, message).into());
            }
        };
        match event.kind {
            "ADDED" | "MODIFIED" => {
                if let Some(decoded) = self.decode(event.object) {
                    *version = decoded
                        .as_ref()
                        .map_or_else(|o| o.resource_version, Kind::resource_version)
                        .max(*version);
                    self.store.apply_watch_event(decoded, event.object.get());
                }
            }
            "DELETED" => {
                if let Some(decoded) = self.decode(event.object) {
                    let (key, uid, at) = match &decoded {
                        Ok(object) => (object.key(), &object.meta().uid, object.resource_version()),
                        Err(undecodable) => {
                            (&undecodable.key, &undecodable.uid, undecodable.resource_version)
                        }
                    };
                    *version = at.max(*version);
                    self.store.delete(key, uid, at);
                }
            }
            "BOOKMARK" => {
                let bookmark = serde_json::from_str::<ListPage<'_>>(event.object.get());
                if let Ok(Ok(at)) = bookmark.map(|bookmark| bookmark.version()) {
                    if at < *version {
                        return Err(WatchEnd::Uncertain);
                    }
                    *version = at.max(*version);
                    self.store.observe_version(at);
                }
            }
            "ERROR" => {
                let status: Status = serde_json::from_str(event.object.get()).unwrap_or_default();
                return Err(ApiError::from_watch_event(status, K::RESOURCE.plural).into());
            }
            // Unknown event types are ignored.
            _ => {}
        }
        Ok(())
    }

    fn decode(&self, item: &RawValue) -> Option<DecodeResult<K>> {
        match decode::object::<K>(item.get()) {
            Ok(Ok(object)) => Some(Ok(object)),
            Ok(Err(undecodable)) => {
                self.metrics.undecodable(K::RESOURCE.kind);
                let (namespace, name) = K::key_parts(&undecodable.key);
                tracing::warn!(
                    kind = K::RESOURCE.kind,
                    object = %undecodable.key,
                    "ignoring an undecodable object: {}",
                    undecodable.reason
                );
                self.events.publish(Event {
                    involved_object: ObjectReference {
                        resource: K::RESOURCE,
                        namespace: namespace.unwrap_or_default().into(),
                        name: name.into(),
                        uid: undecodable.uid.clone(),
                        resource_version: undecodable.resource_version,
                    },
                    event_type: EventType::Warning,
                    reason: "Undecodable",
                    note: format!("Cofferdam ignores this object: {}", undecodable.reason),
                    component: "cofferdam".into(),
                });
                Some(Err(undecodable))
            }
            Err(reason) => {
                self.metrics.undecodable(K::RESOURCE.kind);
                tracing::warn!("{reason}");
                None
            }
        }
    }
}
