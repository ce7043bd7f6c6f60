//! The cluster as the simulated parts see it: tables that a watch each keeps, and writes that say what they depend on.

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{
    Cache, Clock, Event, EventSink, EventType, Kind, Subject, Table, WriteError, Writer, decode,
    events::EventLoop,
    metrics::Metrics,
    secrets,
    watch::{Scope, follow_into},
};
use cofferdam_domain::{Attachment, Claim, PodKey, StorageClass, Uid, storage::Secrets, volume::SecretRef};
use http::Method;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    kinds::{Capacity, CsiDriverObject, CsiNodeObject, NodeObject, PodObject, VolumeObject},
    observer::{Observer, Step, StepKind},
};

/// Everything that is watched, and the way to write.
pub(crate) struct World {
    pub(crate) pods: Table<PodObject>,
    pub(crate) nodes: Table<NodeObject>,
    pub(crate) claims: Table<Claim>,
    pub(crate) volumes: Table<VolumeObject>,
    pub(crate) classes: Table<StorageClass>,
    pub(crate) attachments: Table<Attachment>,
    pub(crate) csi_nodes: Table<CsiNodeObject>,
    pub(crate) csi_drivers: Table<CsiDriverObject>,
    pub(crate) capacities: Table<Capacity>,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
    writer: Writer,
    events: EventSink,
    observer: Arc<dyn Observer>,
}

/// A kind that is watched.
pub(crate) trait Watched: Kind {
    /// Where its objects are.
    fn table(world: &World) -> &Table<Self>;
}

macro_rules! watched {
    ($($kind:ty => $field:ident),*) => {$(
        impl Watched for $kind {
            fn table(world: &World) -> &Table<Self> {
                &world.$field
            }
        }
    )*};
}
watched!(
    PodObject => pods, NodeObject => nodes, Claim => claims, VolumeObject => volumes, StorageClass => classes,
    Attachment => attachments, CsiNodeObject => csi_nodes, CsiDriverObject => csi_drivers,
    Capacity => capacities
);

/// How a patch changes an object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patch {
    /// A merge patch.
    Merge,
    /// A strategic merge patch: members of lists that have a key are changed one by one.
    Strategic,
}

impl Patch {
    const fn content_type(self) -> &'static str {
        match self {
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
        }
    }
}

const JSON: &str = "application/json";

impl World {
    /// An empty world, and what sends its events.
    pub(crate) fn new(client: kube::Client, clock: Clock, observer: Arc<dyn Observer>) -> (Self, EventLoop) {
        // These are not the metrics of a role: nobody reads them.
        let metrics = Metrics::register(&mut Registry::default());
        let writer = Writer::new(client, Arc::new(Cache::default()), metrics.clone());
        let (events, event_loop) = EventSink::new(writer.clone(), Arc::clone(&clock), metrics.clone());
        let world = Self {
            pods: Table::default(),
            nodes: Table::default(),
            claims: Table::default(),
            volumes: Table::default(),
            classes: Table::default(),
            attachments: Table::default(),
            csi_nodes: Table::default(),
            csi_drivers: Table::default(),
            capacities: Table::default(),
            metrics,
            clock,
            writer,
            events,
            observer,
        };
        (world, event_loop)
    }

    /// Keeps the tables equal to the cluster until `stop`. A cluster that was restored from a backup is told in the log, and is watched
    /// no longer: dev mode's is never restored.
    pub(crate) async fn follow(&self, stop: &CancellationToken) {
        let first = futures::future::join5(
            self.one::<PodObject>(stop),
            self.one::<NodeObject>(stop),
            self.one::<Claim>(stop),
            self.one::<VolumeObject>(stop),
            self.one::<StorageClass>(stop),
        );
        let second = futures::future::join4(
            self.one::<Attachment>(stop),
            self.one::<CsiNodeObject>(stop),
            self.one::<CsiDriverObject>(stop),
            self.one::<Capacity>(stop),
        );
        futures::future::join(first, second).await;
    }

    async fn one<K: Watched>(&self, stop: &CancellationToken) {
        let scope = Scope::default();
        let followed =
            follow_into(K::table(self), &self.writer, &self.events, &self.metrics, scope, stop.clone());
        if let Err(restored) = followed.await {
            tracing::error!("{restored}; what is simulated does not see the cluster any more");
        }
    }

    /// Waits for the first list of every kind.
    pub(crate) async fn synced(&self) {
        self.pods.synced().await;
        self.nodes.synced().await;
        self.claims.synced().await;
        self.volumes.synced().await;
        self.classes.synced().await;
        self.attachments.synced().await;
        self.csi_nodes.synced().await;
        self.csi_drivers.synced().await;
        self.capacities.synced().await;
    }

    /// Now.
    pub(crate) fn now(&self) -> String {
        let now = (self.clock)();
        now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// Creates an object.
    pub(crate) async fn create<K: Watched>(&self, body: &Value) -> Result<K, WriteError> {
        let text = |pointer| body.pointer(pointer).and_then(Value::as_str);
        let namespace = text("/metadata/namespace");
        let path = K::RESOURCE.collection(namespace);
        let target = target::<K>(namespace, text("/metadata/name").unwrap_or_default());
        let answer = self.writer.send_json(Method::POST, &path, JSON, body, &target).await?;
        self.take_in(&answer, &target)
    }

    /// Patches an object, or a part of it such as `/status`; it must be the one that is known.
    pub(crate) async fn patch<K: Watched>(
        &self,
        known: &K,
        part: &str,
        how: Patch,
        mut patch: Value,
    ) -> Result<K, WriteError> {
        if let Value::Object(patch) = &mut patch
            && let Value::Object(meta) = patch.entry("metadata").or_insert_with(|| json!({}))
        {
            meta.insert("resourceVersion".to_owned(), json!(known.version().to_string()));
        }
        let (path, target) = place::<K>(&known.key());
        let path = format!("{path}{part}");
        let answer = self.writer.send_json(Method::PATCH, &path, how.content_type(), &patch, &target).await?;
        self.take_in(&answer, &target)
    }

    /// Reads an object past the table.
    pub(crate) async fn get<K: Watched>(&self, key: &K::Key) -> Result<Option<K>, WriteError> {
        let (path, target) = place::<K>(key);
        match self.writer.read(&path, &target).await {
            Ok(answer) => self.take_in(&answer, &target).map(Some),
            Err(WriteError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads something that is not watched; absent where there is none.
    pub(crate) async fn read(&self, path: &str, target: &str) -> Result<Option<Value>, WriteError> {
        let answer = match self.writer.read(path, target).await {
            Err(WriteError::NotFound(_)) => return Ok(None),
            answer => answer?,
        };
        serde_json::from_str(&answer)
            .map(Some)
            .map_err(|error| WriteError::Answer { target: target.to_owned(), message: error.to_string() })
    }

    /// Reads a secret, past any table: none is kept.
    pub(crate) async fn secret(&self, secret: &SecretRef) -> Result<Secrets, WriteError> {
        secrets::read(&self.writer, secret).await
    }

    /// Puts a pod on a node.
    pub(crate) async fn bind(&self, pod: &PodObject, node: &str) -> Result<(), WriteError> {
        let (path, target) = place::<PodObject>(&pod.slim.key);
        let PodKey { namespace, name } = &pod.slim.key;
        let body = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": &**name, "namespace": &**namespace, "uid": pod.slim.meta.uid},
            "target": {"kind": "Node", "name": node},
        });
        self.writer.send_json(Method::POST, &format!("{path}/binding"), JSON, &body, &target).await.map(drop)
    }

    /// Deletes a pod whose time is over.
    pub(crate) async fn remove_pod(&self, key: &PodKey, uid: &Uid) -> Result<(), WriteError> {
        let (path, target) = place::<PodObject>(key);
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": uid},
        });
        match self.writer.send_json(Method::DELETE, &path, JSON, &body, &target).await {
            Ok(_) | Err(WriteError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sends an event on an object.
    pub(crate) fn note<K: Kind>(
        &self,
        object: &K,
        component: &str,
        kind: EventType,
        reason: &'static str,
        note: impl Into<String>,
    ) {
        let (subject, note) = (Subject::of(object), note.into());
        self.events.publish(Event { subject, kind, reason, note, component: component.into() });
    }

    /// Tells the observer.
    pub(crate) fn tell(&self, who: &'static str, object: String, kind: StepKind, text: impl Into<String>) {
        self.told(who, object, kind, text.into(), None);
    }

    /// The same of something that took a time.
    pub(crate) fn told(
        &self,
        who: &'static str,
        object: String,
        kind: StepKind,
        text: String,
        took: Option<Duration>,
    ) {
        tracing::debug!(who, object, ?kind, "{text}");
        self.observer.step(Step { who, object, kind, text, took });
    }

    /// Does something and tells how it went.
    pub(crate) async fn act<T, E: std::fmt::Display>(
        &self,
        who: &'static str,
        object: String,
        text: &str,
        effect: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let started = Instant::now();
        let result = effect.await;
        let took = Some(started.elapsed());
        match &result {
            Ok(_) => self.told(who, object, StepKind::Acts, text.to_owned(), took),
            Err(error) => self.told(who, object, StepKind::Fails, format!("{text}: {error}"), took),
        }
        result
    }

    fn take_in<K: Watched>(&self, answer: &str, target: &str) -> Result<K, WriteError> {
        let unreadable = |message| WriteError::Answer { target: target.to_owned(), message };
        let object = decode::object::<K>(answer).map_err(unreadable)?;
        let object = object.map_err(|opaque| unreadable(opaque.reason))?;
        K::table(self).apply(Ok(object.clone()));
        Ok(object)
    }
}

fn target<K: Kind>(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{} {namespace}/{name}", K::RESOURCE.kind),
        None => format!("{} {name}", K::RESOURCE.kind),
    }
}

fn place<K: Kind>(key: &K::Key) -> (String, String) {
    let (namespace, name) = K::locate(key);
    (format!("{}/{name}", K::RESOURCE.collection(namespace)), target::<K>(namespace, name))
}

/// How a pod is named to people.
pub(crate) fn pod_name(key: &PodKey) -> String {
    format!("pod/{key}")
}
