//! Events on objects: sent in the background, repeated ones folded into a count.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use cofferdam_domain::{Uid, ids::ResourceVersion};
use http::Method;
use serde_json::json;
use tokio::{
    sync::{Semaphore, mpsc},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Clock,
    kind::{ApiResource, Kind},
    metrics::Metrics,
    writer::{ApiError, Writer},
};

/// Events that wait to be sent. A burst of one event per claim of a large namespace fits; beyond it the
/// newest are dropped and counted, for a flood of events must not take the memory that the volumes need.
const QUEUE_CAPACITY: usize = 8192;
/// Events in flight at once: enough to keep up with the claims, few enough to leave the API to them.
const MAX_IN_FLIGHT: usize = 8;
/// Distinct events that are remembered for folding.
const MAX_REMEMBERED: usize = 4096;
/// An event that comes again is written at most this often, with its count.
const MIN_UPDATE_INTERVAL: Duration = Duration::from_secs(60);
/// How long an event is remembered: what client-go aggregates over.
const AGGREGATION_WINDOW: Duration = Duration::from_secs(600);

/// Kubernetes' two types of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Something expected.
    Normal,
    /// Something that a person may have to look at.
    Warning,
}

impl EventType {
    /// The API's spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectReference {
    /// Its kind.
    pub resource: ApiResource,
    /// Its namespace; empty for cluster-scoped objects, whose events stand in `default`.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// Its uid.
    pub uid: Uid,
    /// Its version when the event happened.
    pub resource_version: ResourceVersion,
}

impl ObjectReference {
    /// The subject for a cached object.
    pub fn from_object<K: Kind>(object: &K) -> Self {
        let key = object.key();
        let (namespace, name) = K::key_parts(&key);
        Self {
            resource: K::RESOURCE,
            namespace: namespace.unwrap_or_default().into(),
            name: name.into(),
            uid: object.meta().uid.clone(),
            resource_version: object.resource_version(),
        }
    }
}

/// Something that happened to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The object.
    pub involved_object: ObjectReference,
    /// Normal or Warning.
    pub event_type: EventType,
    /// One word in UpperCamelCase.
    pub reason: &'static str,
    /// For people; never holds secret values.
    pub note: String,
    /// `source.component`
    pub component: Box<str>,
}

/// Where events are left. Clones share it; publishing never waits.
#[derive(Clone, Debug)]
pub struct EventSink {
    sender: mpsc::Sender<Event>,
    metrics: Metrics,
}

impl EventSink {
    /// A sink and the loop that sends what is left there.
    pub fn new(writer: Writer, clock: Clock, metrics: Metrics) -> (Self, EventLoop) {
        let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
        let sink = Self { sender, metrics: metrics.clone() };
        let sent_events = HashMap::new();
        (
            sink,
            EventLoop {
                receiver,
                writer,
                clock,
                metrics,
                sent_events,
                insertion_order: VecDeque::new(),
                serial: 0,
            },
        )
    }

    /// Leaves an event; dropped, and counted, when too many wait.
    pub fn publish(&self, event: Event) {
        if self.sender.try_send(event).is_err() {
            self.metrics.event("dropped");
        }
    }
}

type EventKey = (Uid, &'static str, String);

struct SentEvent {
    namespace: Box<str>,
    name: String,
    count: u64,
    first_sent: Instant,
    last_written: Instant,
}

/// Sends events until it is stopped.
pub struct EventLoop {
    receiver: mpsc::Receiver<Event>,
    writer: Writer,
    clock: Clock,
    metrics: Metrics,
    sent_events: HashMap<EventKey, SentEvent>,
    insertion_order: VecDeque<EventKey>,
    serial: u64,
}

impl EventLoop {
    /// Sends until `stop`, then what is left, and returns when the last one is answered.
    pub async fn run(mut self, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
        let tasks = TaskTracker::new();
        loop {
            let event = tokio::select! {
                biased;
                event = self.receiver.recv() => event,
                () = stop.cancelled() => None,
            };
            let Some(event) = event else { break };
            let Some(request) = self.request(event) else { continue };
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
            let (writer, metrics) = (self.writer.clone(), self.metrics.clone());
            tasks.spawn(async move {
                send(&writer, &metrics, request).await;
                drop(permit);
            });
        }
        tasks.close();
        tasks.wait().await;
    }

    /// The write that an event needs, if any.
    fn request(&mut self, event: Event) -> Option<EventRequest> {
        let namespace = match &*event.involved_object.namespace {
            "" => "default".into(),
            _ => event.involved_object.namespace.clone(),
        };
        let now = (self.clock)();
        let timestamp = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let key = (event.involved_object.uid.clone(), event.reason, event.note.clone());
        if let Some(sent) = self.sent_events.get_mut(&key)
            && sent.first_sent.elapsed() < AGGREGATION_WINDOW
        {
            sent.count += 1;
            if sent.last_written.elapsed() < MIN_UPDATE_INTERVAL {
                self.metrics.event("folded");
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
        self.serial += 1;
        // As client-go names them: the object and a number that grows with time; the serial keeps equal times
        // apart.
        let unique = (now.as_nanosecond() as u64).wrapping_add(self.serial);
        let name = format!("{}.{unique:x}", event.involved_object.name);
        let body = body(&event, &namespace, &name, &timestamp);
        let path = format!("/api/v1/namespaces/{namespace}/events");
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
        Some(EventRequest { method: Method::POST, path, content_type: "application/json", body })
    }
}

struct EventRequest {
    method: Method,
    path: String,
    content_type: &'static str,
    body: serde_json::Value,
}

async fn send(writer: &Writer, metrics: &Metrics, write: EventRequest) {
    let EventRequest { method, path, content_type, body } = write;
    match writer.send_json(method, &path, content_type, &body, "an event").await {
        Ok(_) => metrics.event("sent"),
        // The namespace or the folded event went away: nobody reads it any more.
        Err(ApiError::NotFound(_)) => metrics.event("dropped"),
        Err(error) => {
            metrics.event("dropped");
            tracing::debug!(%error, "an event was lost");
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
        "message": event.note,
        "source": {"component": event.component},
        "reportingComponent": event.component,
        "reportingInstance": "",
        "firstTimestamp": timestamp,
        "lastTimestamp": timestamp,
        "count": 1,
    })
}
