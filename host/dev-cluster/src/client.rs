//! The cluster as the simulated parts see it: tables that a watch each keeps, and writes that say what they
//! depend on.

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{
    ApiError, Cache, Clock, Event, EventSink, EventType, Kind, ObjectReference, ObjectStore, Writer, decode,
    events::EventLoop,
    index::Indexed,
    metrics::Metrics,
    reflector::{Scope, run_reflector_into},
    secrets,
};
use cofferdam_domain::{
    Claim, PodKey, StorageClass, Uid, VolumeAttachment, storage::Secrets, volume::SecretRef,
};
use http::Method;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    kinds::{CsiDriverObject, CsiNodeObject, CsiStorageCapacity, NodeObject, PodObject, VolumeObject},
    observer::{ClusterStep, ClusterStepObserver, ClusterStepResult},
};

/// Everything that is watched, and the way to write.
pub(crate) struct ClusterClient {
    pub(crate) pods: ObjectStore<PodObject>,
    pub(crate) nodes: ObjectStore<NodeObject>,
    pub(crate) claims: ObjectStore<Claim>,
    pub(crate) volumes: ObjectStore<VolumeObject>,
    pub(crate) classes: ObjectStore<StorageClass>,
    pub(crate) volume_attachments: ObjectStore<VolumeAttachment>,
    pub(crate) csi_nodes: ObjectStore<CsiNodeObject>,
    pub(crate) csi_drivers: ObjectStore<CsiDriverObject>,
    pub(crate) capacities: ObjectStore<CsiStorageCapacity>,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
    writer: Writer,
    events: EventSink,
    observer: Arc<dyn ClusterStepObserver>,
}

/// A kind that is watched.
pub(crate) trait WatchedKind: Indexed {
    /// Where its objects are.
    fn store(world: &ClusterClient) -> &ObjectStore<Self>;
}

macro_rules! impl_watched {
    ($($kind:ty => $field:ident),*) => {$(
        impl WatchedKind for $kind {
            fn store(world: &ClusterClient) -> &ObjectStore<Self> {
                &world.$field
            }
        }
    )*};
}
impl_watched!(
    PodObject => pods, NodeObject => nodes, Claim => claims, VolumeObject => volumes, StorageClass => classes,
    VolumeAttachment => volume_attachments, CsiNodeObject => csi_nodes, CsiDriverObject => csi_drivers,
    CsiStorageCapacity => capacities
);

/// How a patch changes an object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PatchType {
    /// A merge patch.
    Merge,
    /// A strategic merge patch: members of lists that have a key are changed one by one.
    Strategic,
}

impl PatchType {
    const fn content_type(self) -> &'static str {
        match self {
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
        }
    }
}

const JSON_CONTENT_TYPE: &str = "application/json";

impl ClusterClient {
    /// An empty world, and what sends its events.
    pub(crate) fn new(
        client: kube::Client,
        clock: Clock,
        observer: Arc<dyn ClusterStepObserver>,
    ) -> (Self, EventLoop) {
        // These are not the metrics of a role: nobody reads them.
        let metrics = Metrics::register(&mut Registry::default());
        let writer = Writer::new(client, Arc::new(Cache::default()), metrics.clone());
        let (events, event_loop) = EventSink::new(&writer, Arc::clone(&clock), metrics.clone());
        let cluster_client = Self {
            pods: ObjectStore::default(),
            nodes: ObjectStore::default(),
            claims: ObjectStore::default(),
            volumes: ObjectStore::default(),
            classes: ObjectStore::default(),
            volume_attachments: ObjectStore::default(),
            csi_nodes: ObjectStore::default(),
            csi_drivers: ObjectStore::default(),
            capacities: ObjectStore::default(),
            metrics,
            clock,
            writer,
            events,
            observer,
        };
        (cluster_client, event_loop)
    }

    /// Keeps the tables equal to the cluster until `stop`. A cluster that was restored from a backup is told
    /// in the log, and is watched no longer: dev mode's is never restored.
    pub(crate) async fn run_reflectors(&self, stop: &CancellationToken) {
        let first = futures::future::join5(
            self.run_reflector::<PodObject>(stop),
            self.run_reflector::<NodeObject>(stop),
            self.run_reflector::<Claim>(stop),
            self.run_reflector::<VolumeObject>(stop),
            self.run_reflector::<StorageClass>(stop),
        );
        let second = futures::future::join4(
            self.run_reflector::<VolumeAttachment>(stop),
            self.run_reflector::<CsiNodeObject>(stop),
            self.run_reflector::<CsiDriverObject>(stop),
            self.run_reflector::<CsiStorageCapacity>(stop),
        );
        futures::future::join(first, second).await;
    }

    async fn run_reflector<K: WatchedKind>(&self, stop: &CancellationToken) {
        let scope = Scope::default();
        let reflector = run_reflector_into(
            K::store(self),
            &self.writer,
            &self.events,
            &self.metrics,
            scope,
            stop.clone(),
        );
        if let Err(rollback) = reflector.await {
            tracing::error!("{rollback}; what is simulated does not see the cluster any more");
        }
    }

    /// Waits for the first list of every kind.
    pub(crate) async fn wait_until_synced(&self) {
        self.pods.wait_synced().await;
        self.nodes.wait_synced().await;
        self.claims.wait_synced().await;
        self.volumes.wait_synced().await;
        self.classes.wait_synced().await;
        self.volume_attachments.wait_synced().await;
        self.csi_nodes.wait_synced().await;
        self.csi_drivers.wait_synced().await;
        self.capacities.wait_synced().await;
    }

    /// Now.
    pub(crate) fn now(&self) -> String {
        let now = (self.clock)();
        now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// Creates an object.
    pub(crate) async fn create<K: WatchedKind>(&self, body: &Value) -> Result<K, ApiError> {
        let text = |pointer| body.pointer(pointer).and_then(Value::as_str);
        let namespace = text("/metadata/namespace");
        let path = K::RESOURCE.collection_path(namespace);
        let target = describe_object::<K>(namespace, text("/metadata/name").unwrap_or_default());
        let answer =
            self.writer.api().send_json(Method::POST, &path, JSON_CONTENT_TYPE, body, &target).await?;
        self.decode_and_store(&answer, &target)
    }

    /// Patches an object, or a part of it such as `/status`; it must be the one that is known.
    pub(crate) async fn patch<K: WatchedKind>(
        &self,
        known: &K,
        subresource: &str,
        patch_type: PatchType,
        mut patch: Value,
    ) -> Result<K, ApiError> {
        if let Value::Object(patch) = &mut patch
            && let Value::Object(meta) = patch.entry("metadata").or_insert_with(|| json!({}))
        {
            meta.insert("resourceVersion".to_owned(), json!(known.resource_version().to_string()));
        }
        let (path, target) = path_and_target::<K>(&known.key());
        let path = format!("{path}{subresource}");
        let answer = self
            .writer
            .api()
            .send_json(Method::PATCH, &path, patch_type.content_type(), &patch, &target)
            .await?;
        self.decode_and_store(&answer, &target)
    }

    /// Reads an object past the table.
    pub(crate) async fn get<K: WatchedKind>(&self, key: &K::Key) -> Result<Option<K>, ApiError> {
        let (path, target) = path_and_target::<K>(key);
        match self.writer.api().read(&path, &target).await {
            Ok(answer) => self.decode_and_store(&answer, &target).map(Some),
            Err(ApiError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads something that is not watched; absent where there is none.
    pub(crate) async fn read(&self, path: &str, target: &str) -> Result<Option<Value>, ApiError> {
        let answer = match self.writer.api().read(path, target).await {
            Err(ApiError::NotFound(_)) => return Ok(None),
            answer => answer?,
        };
        serde_json::from_str(&answer).map(Some).map_err(|error| ApiError::InvalidResponse {
            target: target.to_owned(),
            message: error.to_string(),
        })
    }

    /// Reads a secret, past any table: none is kept.
    pub(crate) async fn secret(&self, secret: &SecretRef) -> Result<Secrets, ApiError> {
        secrets::read(&self.writer, secret).await
    }

    /// Puts a pod on a node.
    pub(crate) async fn bind(&self, pod: &PodObject, node: &str) -> Result<(), ApiError> {
        let (path, target) = path_and_target::<PodObject>(&pod.slim.key);
        let PodKey { namespace, name } = &pod.slim.key;
        let body = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": &**name, "namespace": &**namespace, "uid": pod.slim.meta.uid},
            "target": {"kind": "Node", "name": node},
        });
        self.writer
            .api()
            .send_json(Method::POST, &format!("{path}/binding"), JSON_CONTENT_TYPE, &body, &target)
            .await
            .map(drop)
    }

    /// Deletes a pod whose time is over.
    pub(crate) async fn delete_pod(&self, key: &PodKey, uid: &Uid) -> Result<(), ApiError> {
        let (path, target) = path_and_target::<PodObject>(key);
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": uid},
        });
        match self.writer.api().send_json(Method::DELETE, &path, JSON_CONTENT_TYPE, &body, &target).await {
            Ok(_) | Err(ApiError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sends an event on an object.
    pub(crate) fn emit_event<K: Kind>(
        &self,
        object: &K,
        component: &str,
        kind: EventType,
        reason: &'static str,
        note: impl Into<String>,
    ) {
        let (subject, note) = (ObjectReference::from_object(object), note.into());
        self.events.publish(Event {
            involved_object: subject,
            event_type: kind,
            reason,
            note,
            component: component.into(),
        });
    }

    /// Tells the observer.
    pub(crate) fn record_step(
        &self,
        component: &'static str,
        object: String,
        kind: ClusterStepResult,
        text: impl Into<String>,
    ) {
        self.record_timed_step(component, object, kind, text.into(), None);
    }

    /// The same of something that took a time.
    pub(crate) fn record_timed_step(
        &self,
        component: &'static str,
        object: String,
        kind: ClusterStepResult,
        text: String,
        duration: Option<Duration>,
    ) {
        tracing::debug!(component, object, ?kind, "{text}");
        self.observer.on_step(ClusterStep { component, object, result: kind, text, duration });
    }

    /// Does something and tells how it went.
    pub(crate) async fn perform<T, E: std::fmt::Display>(
        &self,
        component: &'static str,
        object: String,
        text: &str,
        effect: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let started = Instant::now();
        let result = effect.await;
        let duration = Some(started.elapsed());
        match &result {
            Ok(_) => self.record_timed_step(
                component,
                object,
                ClusterStepResult::Applied,
                text.to_owned(),
                duration,
            ),
            Err(error) => self.record_timed_step(
                component,
                object,
                ClusterStepResult::Failed,
                format!("{text}: {error}"),
                duration,
            ),
        }
        result
    }

    fn decode_and_store<K: WatchedKind>(&self, answer: &str, target: &str) -> Result<K, ApiError> {
        let object = decode::object::<K>(answer)
            .and_then(|object| object.map_err(|undecodable| undecodable.reason))
            .map_err(|error| ApiError::invalid_response(target, error))?;
        K::store(self).apply(Ok(object.clone()));
        Ok(object)
    }
}

fn describe_object<K: Kind>(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{} {namespace}/{name}", K::RESOURCE.kind),
        None => format!("{} {name}", K::RESOURCE.kind),
    }
}

fn path_and_target<K: Kind>(key: &K::Key) -> (String, String) {
    let (namespace, name) = K::key_parts(key);
    (format!("{}/{name}", K::RESOURCE.collection_path(namespace)), describe_object::<K>(namespace, name))
}

/// How a pod is named to people.
pub(crate) fn pod_reference(key: &PodKey) -> String {
    format!("pod/{key}")
}
