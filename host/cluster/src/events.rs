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
    kind::{Kind, Resource},
    metrics::Metrics,
    writer::{WriteError, Writer},
};

/// Events that wait to be sent. A burst of one event per claim of a large namespace fits; beyond it the newest are dropped
/// and counted, for a flood of events must not take the memory that the volumes need.
const WAITING: usize = 8192;
/// Events in flight at once: enough to keep up with the claims, few enough to leave the API to them.
const IN_FLIGHT: usize = 8;
/// Distinct events that are remembered for folding.
const REMEMBERED: usize = 4096;
/// An event that comes again is written at most this often, with its count.
const FOLD: Duration = Duration::from_secs(60);
/// How long an event is remembered: what client-go aggregates over.
const REMEMBER: Duration = Duration::from_secs(600);

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
pub struct Subject {
    /// Its kind.
    pub resource: Resource,
    /// Its namespace; empty for cluster-scoped objects, whose events stand in `default`.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// Its uid.
    pub uid: Uid,
    /// Its version when the event happened.
    pub version: ResourceVersion,
}

impl Subject {
    /// The subject for a cached object.
    pub fn of<K: Kind>(object: &K) -> Self {
        let key = object.key();
        let (namespace, name) = K::locate(&key);
        Self {
            resource: K::RESOURCE,
            namespace: namespace.unwrap_or_default().into(),
            name: name.into(),
            uid: object.meta().uid.clone(),
            version: object.version(),
        }
    }
}

/// Something that happened to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The object.
    pub subject: Subject,
    /// Normal or Warning.
    pub kind: EventType,
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
        let (sender, receiver) = mpsc::channel(WAITING);
        let sink = Self { sender, metrics: metrics.clone() };
        let sent = HashMap::new();
        (sink, EventLoop { receiver, writer, clock, metrics, sent, order: VecDeque::new(), serial: 0 })
    }

    /// Leaves an event; dropped, and counted, when too many wait.
    pub fn publish(&self, event: Event) {
        if self.sender.try_send(event).is_err() {
            self.metrics.event("dropped");
        }
    }
}

type Identity = (Uid, &'static str, String);

struct Sent {
    namespace: Box<str>,
    name: String,
    count: u64,
    first: Instant,
    written: Instant,
}

/// Sends events until it is stopped.
pub struct EventLoop {
    receiver: mpsc::Receiver<Event>,
    writer: Writer,
    clock: Clock,
    metrics: Metrics,
    sent: HashMap<Identity, Sent>,
    order: VecDeque<Identity>,
    serial: u64,
}

impl EventLoop {
    /// Sends until `stop`, then what is left, and returns when the last one is answered.
    pub async fn run(mut self, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(IN_FLIGHT));
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
    fn request(&mut self, event: Event) -> Option<Write> {
        let namespace = match &*event.subject.namespace {
            "" => "default".into(),
            _ => event.subject.namespace.clone(),
        };
        let now = (self.clock)();
        let stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let identity = (event.subject.uid.clone(), event.reason, event.note.clone());
        if let Some(sent) = self.sent.get_mut(&identity)
            && sent.first.elapsed() < REMEMBER
        {
            sent.count += 1;
            if sent.written.elapsed() < FOLD {
                self.metrics.event("folded");
                return None;
            }
            sent.written = Instant::now();
            return Some(Write {
                method: Method::PATCH,
                path: format!("/api/v1/namespaces/{}/events/{}", sent.namespace, sent.name),
                content_type: "application/merge-patch+json",
                body: json!({"count": sent.count, "lastTimestamp": stamp}),
            });
        }
        self.serial += 1;
        // As client-go names them: the object and a number that grows with time; the serial keeps equal times apart.
        let unique = (now.as_nanosecond() as u64).wrapping_add(self.serial);
        let name = format!("{}.{unique:x}", event.subject.name);
        let body = body(&event, &namespace, &name, &stamp);
        let path = format!("/api/v1/namespaces/{namespace}/events");
        let (first, written) = (Instant::now(), Instant::now());
        if self.sent.insert(identity.clone(), Sent { namespace, name, count: 1, first, written }).is_none() {
            self.order.push_back(identity);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.sent.remove(&oldest);
            }
        }
        Some(Write { method: Method::POST, path, content_type: "application/json", body })
    }
}

struct Write {
    method: Method,
    path: String,
    content_type: &'static str,
    body: serde_json::Value,
}

async fn send(writer: &Writer, metrics: &Metrics, write: Write) {
    let Write { method, path, content_type, body } = write;
    match writer.send_json(method, &path, content_type, &body, "an event").await {
        Ok(_) => metrics.event("sent"),
        // The namespace or the folded event went away: nobody reads it any more.
        Err(WriteError::NotFound(_)) => metrics.event("dropped"),
        Err(error) => {
            metrics.event("dropped");
            tracing::debug!(%error, "an event was lost");
        }
    }
}

fn body(event: &Event, namespace: &str, name: &str, stamp: &str) -> serde_json::Value {
    let subject = &event.subject;
    let mut involved = json!({
        "apiVersion": subject.resource.api_version(),
        "kind": subject.resource.kind,
        "name": subject.name,
        "uid": subject.uid,
        "resourceVersion": subject.version.to_string(),
    });
    if let Some(involved) = involved.as_object_mut().filter(|_| !subject.namespace.is_empty()) {
        involved.insert("namespace".to_owned(), json!(subject.namespace));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": involved,
        "type": event.kind.as_str(),
        "reason": event.reason,
        "message": event.note,
        "source": {"component": event.component},
        "reportingComponent": event.component,
        "reportingInstance": "",
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    })
}
