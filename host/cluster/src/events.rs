//! Kubernetes Events. They are sent in the background. Equal events (same uid of the object, reason and note)
//! are aggregated for a limited time: only `count` and `lastTimestamp` of the first one are updated. Requests
//! for the events of one object and reason are limited, whatever the note.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hasher as _,
    sync::Arc,
    time::Duration,
};

use cofferdam_domain::{Uid, ids::ResourceVersion, text::printable};
use fnv::FnvHasher;
use http::Method;
use serde_json::json;
use tokio::{
    sync::{Semaphore, mpsc},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    api::{ApiClient, ApiError, ApiResource},
    clock::Clock,
    metrics::Metrics,
    objects::Kind,
    writer::Writer,
};

/// Maximum number of queued events: one for each claim of a large namespace. Further events are dropped and
/// counted, which bounds the memory.
const QUEUE_CAPACITY: usize = 8192;
/// Maximum number of event requests in flight. It is low so that events do not delay requests for claims.
const MAX_IN_FLIGHT: usize = 8;
/// Maximum number of event requests in flight after the work has stopped. No other requests wait for them,
/// but the next leader does.
const MAX_IN_FLIGHT_AT_STOP: usize = 32;
/// Maximum number of events that are kept for aggregation.
const MAX_REMEMBERED: usize = 4096;
/// Minimum interval between updates of an aggregated event.
const MIN_UPDATE_INTERVAL: Duration = Duration::from_secs(60);
/// Time after the first event within which equal events are aggregated: as long as client-go's window for
/// similar events.
const AGGREGATION_WINDOW: Duration = Duration::from_secs(600);

/// Number of requests for the events of one object and reason without a wait. Source: client-go's
/// `defaultSpamBurst`, which counts all reasons of an object together.
const MAX_BURST: u32 = 25;
/// Time after which one more request is allowed. Source: client-go's `defaultSpamQPS`.
const BURST_REFILL: Duration = Duration::from_secs(300);

/// Format of `metav1.Time`.
const EVENT_TIME: &str = "%Y-%m-%dT%H:%M:%SZ";

/// `type` of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// An expected change.
    Normal,
    /// A problem that may need attention.
    Warning,
}

impl EventType {
    /// The value in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// `involvedObject` of an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectReference {
    /// Kind of the object.
    pub resource: ApiResource,
    /// Namespace of the object; empty for cluster-scoped objects, whose events are created in `default`.
    pub namespace: Box<str>,
    /// Name of the object.
    pub name: Box<str>,
    /// Uid of the object.
    pub uid: Uid,
    /// The object's resourceVersion at the time of the event.
    pub resource_version: ResourceVersion,
}

impl ObjectReference {
    /// A reference to an object.
    pub fn from_object<K: Kind>(object: &K) -> Self {
        let key = object.key();
        let (namespace, name) = K::key_parts(key);
        Self {
            resource: K::RESOURCE,
            namespace: namespace.unwrap_or_default().into(),
            name: name.into(),
            uid: object.meta().uid.clone(),
            resource_version: object.resource_version(),
        }
    }
}

/// An Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `involvedObject`
    pub involved_object: ObjectReference,
    /// Normal or Warning.
    pub event_type: EventType,
    /// `reason`: one word in UpperCamelCase.
    pub reason: &'static str,
    /// `message`. It never contains secret values. It is sent as one line of at most 1,000 bytes without
    /// control and format characters ([`printable`]), because `kubectl` shows it.
    pub note: String,
    /// `source.component` and `reportingComponent`
    pub component: Box<str>,
}

/// Queues events for an [`EventLoop`]. Clones share the queue.
#[derive(Clone, Debug)]
pub struct EventSink {
    sender: mpsc::Sender<Event>,
    metrics: Metrics,
}

impl EventSink {
    /// A sink and the loop that sends its events.
    pub fn new(writer: &Writer, clock: Clock, metrics: Metrics) -> (Self, EventLoop) {
        let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
        let sink = Self { sender, metrics: metrics.clone() };
        let sent_events = HashMap::new();
        (
            sink,
            EventLoop {
                receiver,
                api: writer.api().clone(),
                clock,
                metrics,
                sent_events,
                insertion_order: VecDeque::new(),
                limits: RequestLimits::default(),
                serial: 0,
            },
        )
    }

    /// Queues an event without waiting. If the queue is full or the [`EventLoop`] has ended, the event is
    /// dropped and counted.
    pub fn publish(&self, event: Event) {
        if self.sender.try_send(event).is_err() {
            self.metrics.event("dropped");
        }
    }
}

type EventKey = (Uid, &'static str, String);

/// Limits requests by object and reason: at most [`MAX_BURST`] at once, and one in each [`BURST_REFILL`].
#[derive(Default)]
struct RequestLimits {
    /// Time at which the whole burst is allowed again.
    refilled_at: HashMap<(Uid, &'static str), Instant>,
}

impl RequestLimits {
    /// Returns true and counts the request if it is allowed.
    fn try_acquire(&mut self, object: &Uid, reason: &'static str) -> bool {
        let now = Instant::now();
        if self.refilled_at.len() >= MAX_REMEMBERED {
            self.refilled_at.retain(|_, refilled_at| *refilled_at > now);
        }
        if self.refilled_at.len() >= MAX_REMEMBERED {
            // Only the objects with the fewest requests in the last time are forgotten.
            let mut times: Vec<Instant> = self.refilled_at.values().copied().collect();
            let (_, median, _) = times.select_nth_unstable(MAX_REMEMBERED / 2);
            let median = *median;
            self.refilled_at.retain(|_, refilled_at| *refilled_at > median);
        }
        let refilled_at = self.refilled_at.entry((object.clone(), reason)).or_insert(now);
        let next = (*refilled_at).max(now) + BURST_REFILL;
        let is_allowed = next.duration_since(now) <= BURST_REFILL * MAX_BURST;
        if is_allowed {
            *refilled_at = next;
        }
        is_allowed
    }
}

struct SentEvent {
    namespace: Box<str>,
    name: String,
    count: u64,
    first_sent: Instant,
    last_written: Instant,
}

/// Sends queued events.
pub struct EventLoop {
    receiver: mpsc::Receiver<Event>,
    api: ApiClient,
    clock: Clock,
    metrics: Metrics,
    sent_events: HashMap<EventKey, SentEvent>,
    insertion_order: VecDeque<EventKey>,
    limits: RequestLimits,
    serial: u64,
}

impl EventLoop {
    /// Sends events until `stop` is cancelled and the queue is empty, or until all sinks are dropped and the
    /// queue is empty. Then waits for the requests in flight.
    pub async fn run(mut self, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
        let tasks = TaskTracker::new();
        let mut is_stopping = false;
        loop {
            let event = tokio::select! {
                biased;
                event = self.receiver.recv() => event,
                () = stop.cancelled() => None,
            };
            let Some(event) = event else { break };
            if stop.is_cancelled() && !is_stopping {
                permits.add_permits(MAX_IN_FLIGHT_AT_STOP - MAX_IN_FLIGHT);
                is_stopping = true;
            }
            let Some(request) = self.request(event) else { continue };
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
            let (api, metrics) = (self.api.clone(), self.metrics.clone());
            tasks.spawn(async move {
                send(&api, &metrics, request).await;
                drop(permit);
            });
        }
        tasks.close();
        tasks.wait().await;
    }

    /// The request for an event; `None` if the event only adds to the count of an earlier one, or if the
    /// limit of its object and reason is reached.
    fn request(&mut self, event: Event) -> Option<EventRequest> {
        let namespace: Box<str> = namespace_of(&event).into();
        let now = (self.clock)();
        let timestamp = now.strftime(EVENT_TIME).to_string();
        let key = (event.involved_object.uid.clone(), event.reason, event.note.clone());
        if let Some(sent) = self.sent_events.get_mut(&key)
            && sent.first_sent.elapsed() < AGGREGATION_WINDOW
        {
            sent.count += 1;
            let is_due = sent.last_written.elapsed() >= MIN_UPDATE_INTERVAL;
            if !is_due || !self.limits.try_acquire(&event.involved_object.uid, event.reason) {
                self.metrics.event("aggregated");
                return None;
            }
            sent.last_written = Instant::now();
            return Some(EventRequest {
                method: Method::PATCH,
                path: format!("/api/v1/namespaces/{}/events/{}", sent.namespace, sent.name),
                content_type: "application/merge-patch+json",
                body: json!({"count": sent.count, "lastTimestamp": timestamp}),
            });
        }
        if !self.limits.try_acquire(&event.involved_object.uid, event.reason) {
            self.metrics.event("limited");
            return None;
        }
        self.serial += 1;
        let (name, request) = create_request(&event, &namespace, now, self.serial);
        let (first, written) = (Instant::now(), Instant::now());
        if self
            .sent_events
            .insert(
                key.clone(),
                SentEvent { namespace, name, count: 1, first_sent: first, last_written: written },
            )
            .is_none()
        {
            self.insertion_order.push_back(key);
        }
        while self.insertion_order.len() > MAX_REMEMBERED {
            if let Some(oldest) = self.insertion_order.pop_front() {
                self.sent_events.remove(&oldest);
            }
        }
        Some(request)
    }
}

/// Sends an event at once, without aggregation.
pub(crate) async fn send_once(api: &ApiClient, metrics: &Metrics, event: &Event, now: jiff::Timestamp) {
    let mut hasher = FnvHasher::default();
    hasher.write(event.note.as_bytes());
    let (_, request) = create_request(event, namespace_of(event), now, hasher.finish());
    send(api, metrics, request).await;
}

/// Namespace of an event: that of its object, or `default` for a cluster-scoped object.
fn namespace_of(event: &Event) -> &str {
    match &*event.involved_object.namespace {
        "" => "default",
        namespace => namespace,
    }
}

/// The name of a new event, and the request that creates it. The event is named as in client-go: the object's
/// name and the time. The serial number, or a hash of the message, makes equal times distinct.
fn create_request(
    event: &Event,
    namespace: &str,
    now: jiff::Timestamp,
    serial: u64,
) -> (String, EventRequest) {
    let timestamp = now.strftime(EVENT_TIME).to_string();
    let unique = (now.as_nanosecond() as u64).wrapping_add(serial);
    let name = format!("{}.{unique:x}", event.involved_object.name);
    let body = body(event, namespace, &name, &timestamp);
    let path = format!("/api/v1/namespaces/{namespace}/events");
    (name, EventRequest { method: Method::POST, path, content_type: "application/json", body })
}

struct EventRequest {
    method: Method,
    path: String,
    content_type: &'static str,
    body: serde_json::Value,
}

async fn send(api: &ApiClient, metrics: &Metrics, write: EventRequest) {
    let EventRequest { method, path, content_type, body } = write;
    match api.send_json(method, &path, content_type, &body, "an event").await {
        Ok(_) => metrics.event("sent"),
        // The namespace or the aggregated event was deleted.
        Err(ApiError::NotFound(_)) => metrics.event("dropped"),
        Err(error) => {
            metrics.event("dropped");
            tracing::debug!(%error, "an event was not sent");
        }
    }
}

fn body(event: &Event, namespace: &str, name: &str, timestamp: &str) -> serde_json::Value {
    let subject = &event.involved_object;
    let mut involved = json!({
        "apiVersion": subject.resource.api_version(),
        "kind": subject.resource.kind,
        "name": subject.name,
        "uid": subject.uid,
        "resourceVersion": subject.resource_version.to_string(),
    });
    if let Some(involved) = involved.as_object_mut().filter(|_| !subject.namespace.is_empty()) {
        involved.insert("namespace".to_owned(), json!(subject.namespace));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": involved,
        "type": event.event_type.as_str(),
        "reason": event.reason,
        "message": printable(&event.note),
        "source": {"component": event.component},
        "reportingComponent": event.component,
        "reportingInstance": "",
        "firstTimestamp": timestamp,
        "lastTimestamp": timestamp,
        "count": 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OrphanReport;

    #[tokio::test(start_paused = true)]
    async fn requests_are_limited_by_object_and_reason() {
        let mut limits = RequestLimits::default();
        let mut allowed = |object: &str, reason, attempts: u32| {
            (0..attempts).filter(|_| limits.try_acquire(&object.into(), reason)).count()
        };
        assert_eq!(allowed("a", "ProvisioningFailed", 100), 25);
        assert_eq!(allowed("a", "Provisioning", 1), 1, "one reason hides no other");
        assert_eq!(allowed("b", "ProvisioningFailed", 1), 1);
        tokio::time::advance(BURST_REFILL * 2).await;
        assert_eq!(allowed("a", "ProvisioningFailed", 100), 2);
        tokio::time::advance(BURST_REFILL * 100).await;
        assert_eq!(allowed("a", "ProvisioningFailed", 100), 25);
    }

    #[tokio::test(start_paused = true)]
    async fn the_limits_of_many_objects_forget_the_quiet_ones() {
        let mut limits = RequestLimits::default();
        while limits.try_acquire(&"noisy".into(), "Failed") {}
        for object in 0..3 * MAX_REMEMBERED {
            assert!(limits.try_acquire(&object.to_string().as_str().into(), "Failed"));
            assert!(limits.refilled_at.len() <= MAX_REMEMBERED);
        }
        assert!(!limits.try_acquire(&"noisy".into(), "Failed"));
    }

    #[test]
    fn messages_are_one_line_without_control_and_format_characters() {
        let event = Event {
            involved_object: ObjectReference {
                resource: OrphanReport::RESOURCE,
                namespace: "ns".into(),
                name: "n".into(),
                uid: "u".into(),
                resource_version: ResourceVersion::default(),
            },
            event_type: EventType::Normal,
            reason: "OrphanDeleted",
            note: "requested by a\u{1b}[2J\nb\u{202e}c".to_owned(),
            component: "provisioner".into(),
        };
        assert_eq!(body(&event, "ns", "n.1", "")["message"], "requested by a [2J b c");
    }
}
