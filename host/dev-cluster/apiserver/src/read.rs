//! Get, list and watch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::base64;
use crate::descriptors::ResourceKind;
use crate::inner::Inner;
use crate::render::{ListMeta, Renderer, error_frame};
use crate::request::{Query, Target};
use crate::selector::Selector;
use crate::status::{FieldError, Status};
use crate::store::{self, HistoryError, HistoryEvent, StoredObject, WatchEventType};

/// Time between the last bookmark and the end of a watch.
const LAST_BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// Default timeout of a watch. kube-apiserver selects a time between 30 and 60 minutes.
const DEFAULT_WATCH_TIMEOUT: Duration = Duration::from_secs(30 * 60);

const EXPIRED_TOKEN_MESSAGE: &str = "The provided continue parameter is too old to display a consistent list \
    result. You can start a new list without the continue parameter, or use the continue token in this \
    response to retrieve the remainder of the results. Continuing with the provided token results in an \
    inconsistent list - objects that were created, modified, or deleted between the time the first chunk was \
    returned and now may show up in the list.";

impl Inner {
    /// Returns one object.
    pub(crate) fn get(&self, target: &Target, query: &Query) -> Result<Arc<StoredObject>, Status> {
        self.check_not_future(query.version().map_err(|error| Status::internal(error.to_string()))?)?;
        self.find(target)
    }

    /// Finds the object of a target.
    pub(crate) fn find(&self, target: &Target) -> Result<Arc<StoredObject>, Status> {
        self.store
            .get(target.resource.id, &store::key(&target.namespace, target.name()))
            .ok_or_else(|| Status::not_found(target.resource, target.name()))
    }

    fn check_not_future(&self, requested: Option<u64>) -> Result<(), Status> {
        let current = self.store.version();
        match requested {
            Some(requested) if requested > current => Err(Status::future_version(requested, current)),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns a list or one page of it.
    pub(crate) fn list(&self, target: &Target, query: &Query, renderer: &Renderer) -> Result<Bytes, Status> {
        let kind = target.resource.id;
        let selector = selector(kind, query)?;
        let page = ListOptions::parse(query)?;
        self.check_not_future(page.exact_version.or(page.min_version))?;
        let prefix = prefix(target);
        let listing = self.store.list(kind, &prefix, page.exact_version).map_err(|_| {
            page.continue_after.as_ref().map_or_else(
                || Status::expired("The resourceVersion for the provided list is too old."),
                |after| {
                    Status::expired(EXPIRED_TOKEN_MESSAGE).with_continue(encode_continue_token(None, after))
                },
            )
        })?;
        let skip = page.continue_after.as_ref().map_or(0, |after| {
            listing.objects.partition_point(|object| key_of(object).as_str() <= after.as_str())
        });
        let mut rest = listing.objects.get(skip..).unwrap_or_default().iter();
        let Some(limit) = page.limit else {
            let selected: Vec<&StoredObject> =
                rest.map(AsRef::as_ref).filter(|object| selector.matches(&object.value)).collect();
            let meta =
                ListMeta { version: listing.version, continue_token: None, remaining_item_count: None };
            return Ok(renderer.list(&meta, selected.into_iter()));
        };
        let mut selected: Vec<&StoredObject> = Vec::new();
        let mut next = None;
        let mut remaining = None;
        while let Some(object) = rest.next() {
            if selector.matches(&object.value) {
                selected.push(object);
            }
            if selected.len() >= limit && rest.len() > 0 {
                next = Some(encode_continue_token(Some(listing.version), &key_of(object)));
                // The number of remaining objects is unknown with a selector.
                remaining = selector.is_empty().then_some(rest.len());
                break;
            }
        }
        let meta =
            ListMeta { version: listing.version, continue_token: next, remaining_item_count: remaining };
        Ok(renderer.list(&meta, selected.into_iter()))
    }

    /// Returns a stream of watch frames.
    pub(crate) fn watch(
        self: &Arc<Self>,
        target: &Target,
        query: &Query,
        renderer: Renderer,
    ) -> Result<impl Stream<Item = Bytes> + Send + use<>, Status> {
        let kind = target.resource.id;
        let selector = selector(kind, query)?;
        let start = WatchStart::parse(query)?;
        // Subscribe before the first read, so that no change is missed.
        let (changed, epoch) = self.store.subscribe(kind);
        let seconds = query.number("timeoutSeconds")?.filter(|seconds| *seconds > 0);
        let timeout =
            seconds.map_or(DEFAULT_WATCH_TIMEOUT, Duration::from_secs).min(DEFAULT_WATCH_TIMEOUT * 2);
        let now = Instant::now();
        let deadline = now + timeout;
        let mut watcher = Watcher {
            inner: Arc::clone(self),
            kind,
            prefix: prefix(target),
            selector,
            renderer,
            pending: VecDeque::new(),
            last_version: 0,
            epoch,
            changed,
            deadline,
            next_bookmark_at: query
                .flag("allowWatchBookmarks")
                .then(|| next_bookmark(now, self.bookmark_interval, deadline)),
            is_ended: false,
        };
        watcher.start(start)?;
        Ok(futures::stream::unfold(watcher, |mut watcher| async move {
            watcher.next().await.map(|frame| (frame, watcher))
        }))
    }
}

fn key_of(object: &StoredObject) -> String {
    store::key(crate::meta::namespace(&object.value), object.name())
}

fn prefix(target: &Target) -> String {
    if target.namespace.is_empty() { String::new() } else { format!("{}/", target.namespace) }
}

pub(crate) fn selector(kind: ResourceKind, query: &Query) -> Result<Selector, Status> {
    Selector::parse(kind, query.get("labelSelector"), query.get("fieldSelector"))
}

/// Version in a continue token with which the list continues in the current state.
const ANY_VERSION: i64 = -1;

/// Encodes a continue token, in the format of kube-apiserver. Without a version, the list continues in the
/// current state.
fn encode_continue_token(version: Option<u64>, after: &str) -> String {
    let version = version.map_or_else(|| json!(ANY_VERSION), |version| json!(version));
    let token = json!({"v": "meta.k8s.io/v1", "rv": version, "start": format!("{after}\u{0}")});
    base64::encode_url(token.to_string().as_bytes())
}

/// A malformed continue token. The messages are those of kube-apiserver.
#[derive(Debug, thiserror::Error)]
enum ContinueTokenError {
    /// Not base64. Has the index of the first invalid byte.
    #[error("illegal base64 data at input byte {0}")]
    Base64(usize),
    /// Not JSON. Has the first character, as Go prints it.
    #[error("invalid character '{0}' looking for beginning of value")]
    Json(String),
    /// No start key or version.
    #[error("incorrect encoded start resourceVersion")]
    Start,
}

fn parse_continue_token(token: &str) -> Result<(Option<u64>, String), ContinueTokenError> {
    let bytes = base64::decode_url(token).map_err(ContinueTokenError::Base64)?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|_| {
        // Go prints a byte above 127 as a character.
        let first = bytes.first().map_or('\u{0}', |byte| char::from(*byte));
        let shown =
            if first.is_control() { format!("\\u{:04x}", u32::from(first)) } else { first.to_string() };
        ContinueTokenError::Json(shown)
    })?;
    let start =
        value.get("start").and_then(Value::as_str).map(|start| start.trim_end_matches('\u{0}').to_owned());
    let version = value.get("rv");
    let version = match version.and_then(Value::as_u64) {
        None if version.and_then(Value::as_i64) == Some(ANY_VERSION) => Some(None),
        version => version.map(Some),
    };
    version.zip(start).ok_or(ContinueTokenError::Start)
}

/// The requested page and version of a list. Without an exact version, the list is of the current state.
/// `continue_after` is the key of the last object of the previous page.
#[derive(Debug, Default)]
struct ListOptions {
    exact_version: Option<u64>,
    min_version: Option<u64>,
    continue_after: Option<String>,
    limit: Option<usize>,
}

fn invalid_list_options(field: &str, detail: &str) -> Status {
    Status::invalid_options("ListOptions", &[FieldError::forbidden(field, detail)])
}

impl ListOptions {
    fn parse(query: &Query) -> Result<Self, Status> {
        let limit = query.number("limit")?.filter(|limit| *limit > 0);
        let limit = limit.and_then(|limit| usize::try_from(limit).ok());
        let version =
            query.version().map_err(|why| Status::bad_request(format!("invalid resource version: {why}")))?;
        let version_match = query.get("resourceVersionMatch");
        let token = query.get("continue");
        if !query.get("sendInitialEvents").is_empty() {
            return Err(invalid_list_options("sendInitialEvents", "sendInitialEvents is forbidden for list"));
        }
        // A list at version 0 may be served from the cache, without pages.
        let limit = limit.filter(|_| version != Some(0) || !token.is_empty());
        if !version_match.is_empty() && version.is_none() {
            return Err(invalid_list_options(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        if !token.is_empty() {
            if version.is_some_and(|version| version != 0) {
                return Err(Status::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            let (at, after) = parse_continue_token(token).map_err(|why| {
                Status::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
            })?;
            return Ok(Self { exact_version: at, min_version: None, continue_after: Some(after), limit });
        }
        match version_match {
            // A list with a limit and a version is exact by default.
            "" if limit.is_some() && version.is_some_and(|version| version > 0) => {
                Ok(Self { exact_version: version, limit, ..Self::default() })
            }
            "" | "NotOlderThan" => Ok(Self { min_version: version, limit, ..Self::default() }),
            "Exact" if version == Some(0) => Err(invalid_list_options(
                "resourceVersionMatch",
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            )),
            "Exact" => Ok(Self { exact_version: version, limit, ..Self::default() }),
            other => Err(Status::invalid_options(
                "ListOptions",
                &[FieldError::not_supported("resourceVersionMatch", other, &["Exact", "NotOlderThan", ""])],
            )),
        }
    }
}

/// The first events of a watch, from its `resourceVersion` and options.
#[derive(Debug, Clone, Copy)]
enum WatchStart {
    /// All objects as ADDED, then changes. With `closing_bookmark`, a bookmark follows the last of these
    /// initial events. The start fails if the store has not reached `min_version`.
    CurrentState { min_version: u64, closing_bookmark: bool },
    /// Changes from now on.
    Now,
    /// Changes after a version.
    AfterVersion(u64),
}

impl WatchStart {
    fn parse(query: &Query) -> Result<Self, Status> {
        let version = query.version().map_err(|error| Status::internal(error.to_string()))?;
        let version_match = query.get("resourceVersionMatch");
        let initial = query.get("sendInitialEvents");
        if initial.is_empty() {
            if !version_match.is_empty() {
                return Err(invalid_list_options(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            return Ok(match version {
                None | Some(0) => Self::CurrentState { min_version: 0, closing_bookmark: false },
                Some(version) => Self::AfterVersion(version),
            });
        }
        if version_match != "NotOlderThan" {
            return Err(invalid_list_options(
                "resourceVersionMatch",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
        if query.flag("sendInitialEvents") {
            let closing_bookmark = query.flag("allowWatchBookmarks");
            return Ok(Self::CurrentState { min_version: version.unwrap_or(0), closing_bookmark });
        }
        Ok(match version {
            None | Some(0) => Self::Now,
            Some(version) => Self::AfterVersion(version),
        })
    }
}

/// Time of the next bookmark: periodic, and shortly before the end, so that the next watch continues there.
fn next_bookmark(now: Instant, interval: Duration, deadline: Instant) -> Instant {
    let regular = now + interval;
    match deadline.checked_sub(LAST_BOOKMARK_BEFORE_END) {
        Some(last) if last > now => regular.min(last),
        Some(_) | None => regular,
    }
}

struct Watcher {
    inner: Arc<Inner>,
    kind: ResourceKind,
    prefix: String,
    selector: Selector,
    renderer: Renderer,
    pending: VecDeque<Bytes>,
    /// All events up to this version were processed.
    last_version: u64,
    /// Epoch of the store at the start of the watch. A restore of the store begins a new epoch.
    epoch: u64,
    changed: watch::Receiver<u64>,
    deadline: Instant,
    next_bookmark_at: Option<Instant>,
    is_ended: bool,
}

impl Watcher {
    fn start(&mut self, start: WatchStart) -> Result<(), Status> {
        match start {
            WatchStart::CurrentState { min_version: at_least, closing_bookmark } => {
                self.inner.check_not_future(Some(at_least))?;
                // The current state is always available.
                let Ok(listing) = self.inner.store.list(self.kind, &self.prefix, None) else { return Ok(()) };
                self.last_version = listing.version;
                for object in &listing.objects {
                    if self.selector.matches(&object.value) {
                        let frame = self.renderer.frame(WatchEventType::Added, object);
                        self.pending.push_back(frame);
                    }
                }
                if closing_bookmark {
                    self.pending.push_back(self.renderer.bookmark(self.last_version, true));
                }
            }
            WatchStart::Now => self.last_version = self.inner.store.version(),
            // A future version is not an error. As in kube-apiserver, the watch has no events until the
            // counter passes it.
            WatchStart::AfterVersion(version) => self.last_version = version,
        }
        Ok(())
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.pending.pop_front() {
                return Some(frame);
            }
            if self.is_ended {
                return None;
            }
            self.changed.borrow_and_update();
            self.read_events();
            if !self.pending.is_empty() || self.is_ended {
                continue;
            }
            let bookmark = self.next_bookmark_at.unwrap_or(self.deadline);
            tokio::select! {
                biased;
                changed = self.changed.changed() => self.is_ended |= changed.is_err(),
                () = tokio::time::sleep_until(bookmark.min(self.deadline)) => self.handle_timer(),
            }
        }
    }

    fn handle_timer(&mut self) {
        let now = Instant::now();
        if now >= self.deadline {
            self.is_ended = true;
        } else if self.next_bookmark_at.is_some() {
            self.next_bookmark_at = Some(next_bookmark(now, self.inner.bookmark_interval, self.deadline));
            // A watch from a future version gets no bookmarks.
            if self.last_version <= self.inner.store.version() {
                self.pending.push_back(self.renderer.bookmark(self.last_version, false));
            }
        }
    }

    fn read_events(&mut self) {
        match self.inner.store.events(self.kind, self.last_version, self.epoch) {
            Ok((events, complete)) => {
                for event in &events {
                    if let Some(frame) = self.frame(event) {
                        self.pending.push_back(frame);
                    }
                }
                self.last_version = self.last_version.max(complete);
            }
            Err(HistoryError::Compacted(oldest)) => {
                self.pending.push_back(error_frame(&Status::too_old(self.last_version, oldest)));
                self.is_ended = true;
            }
            Err(HistoryError::Restored) => self.is_ended = true,
        }
    }

    /// The frame of an event for this watch. An object that starts to match the selector is ADDED, one that
    /// no longer matches is DELETED. `None` if the object is in another namespace, or matches neither before
    /// nor after the event.
    fn frame(&mut self, event: &HistoryEvent) -> Option<Bytes> {
        if !event.key.starts_with(&self.prefix) {
            return None;
        }
        let before = event.previous.as_ref().is_some_and(|object| self.selector.matches(&object.value));
        let after = event.event_type != WatchEventType::Deleted && self.selector.matches(&event.object.value);
        let event_type = match (before, after) {
            (false, false) => return None,
            (false, true) => WatchEventType::Added,
            (true, true) => WatchEventType::Modified,
            (true, false) => WatchEventType::Deleted,
        };
        if event_type == event.event_type && self.renderer.is_object_format() {
            return Some(event.frame());
        }
        self.renderer.set_time((self.inner.now)());
        if event_type == event.event_type || event_type == WatchEventType::Added {
            return Some(self.renderer.frame(event_type, &event.object));
        }
        // The object no longer matches: its last matching state, at the version of the change.
        let previous = event.previous.as_ref()?;
        let mut value = previous.value.clone();
        crate::meta::edit_meta(&mut value, |meta| {
            meta.insert("resourceVersion".to_owned(), event.object.version.to_string().into());
        });
        let last_selected =
            StoredObject::transient(self.kind, event.object.version, value, previous.managed_fields.clone());
        Some(self.renderer.frame(event_type, &last_selected))
    }
}
