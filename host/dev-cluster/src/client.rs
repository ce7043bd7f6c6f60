//! API client of the simulated components: a watch cache per kind, writes, events, and reports to the step
//! observer.

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{
    ApiError, Cache, Clock, Event, EventSink, EventType, Kind, ObjectReference, ObjectStore, SecretError,
    SecretNamespaces, SecretReader, Writer, decode,
    events::EventLoop,
    index::Indexed,
    metrics::Metrics,
    observer::{Step, StepObject, StepObserver, StepResult},
    reflector::{Scope, run_reflector_into},
};
use cofferdam_domain::{
    Claim, PodKey, StorageClass, Uid, VolumeAttachment, storage::Secrets, volume::SecretRef,
};
use http::Method;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::kinds::{CsiStorageCapacity, FullCsiDriver, FullCsiNode, FullNode, FullPod, FullVolume};

/// The watch caches and the API client of the simulated components.
pub(crate) struct ClusterClient {
    pub(crate) pods: ObjectStore<FullPod>,
    pub(crate) nodes: ObjectStore<FullNode>,
    pub(crate) claims: ObjectStore<Claim>,
    pub(crate) volumes: ObjectStore<FullVolume>,
    pub(crate) classes: ObjectStore<StorageClass>,
    pub(crate) volume_attachments: ObjectStore<VolumeAttachment>,
    pub(crate) csi_nodes: ObjectStore<FullCsiNode>,
    pub(crate) csi_drivers: ObjectStore<FullCsiDriver>,
    pub(crate) capacities: ObjectStore<CsiStorageCapacity>,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
    writer: Writer,
    events: EventSink,
    observer: Arc<dyn StepObserver>,
}

/// A kind whose objects [`ClusterClient`] watches.
pub(crate) trait WatchedKind: Indexed {
    /// The cache of the kind's objects.
    fn store(client: &ClusterClient) -> &ObjectStore<Self>;
}

macro_rules! impl_watched {
    ($($kind:ty => $field:ident),*) => {$(
        impl WatchedKind for $kind {
            fn store(client: &ClusterClient) -> &ObjectStore<Self> {
                &client.$field
            }
        }
    )*};
}
impl_watched!(
    FullPod => pods, FullNode => nodes, Claim => claims, FullVolume => volumes, StorageClass => classes,
    VolumeAttachment => volume_attachments, FullCsiNode => csi_nodes, FullCsiDriver => csi_drivers,
    CsiStorageCapacity => capacities
);

/// Type of a patch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PatchType {
    /// A JSON merge patch (RFC 7386).
    Merge,
    /// A strategic merge patch: lists with a merge key are merged by it.
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
    /// Creates a client with empty caches, and the loop that sends its events.
    pub(crate) fn new(
        client: kube::Client,
        clock: Clock,
        observer: Arc<dyn StepObserver>,
    ) -> (Self, EventLoop) {
        // These metrics are not exported.
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

    /// Runs the reflectors until `stop`. A reflector that detects that the API server was restored from a
    /// backup logs an error and ends: dev mode's cluster is never restored.
    pub(crate) async fn run_reflectors(&self, stop: &CancellationToken) {
        let first = futures::future::join5(
            self.run_reflector::<FullPod>(stop),
            self.run_reflector::<FullNode>(stop),
            self.run_reflector::<Claim>(stop),
            self.run_reflector::<FullVolume>(stop),
            self.run_reflector::<StorageClass>(stop),
        );
        let second = futures::future::join4(
            self.run_reflector::<VolumeAttachment>(stop),
            self.run_reflector::<FullCsiNode>(stop),
            self.run_reflector::<FullCsiDriver>(stop),
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
            tracing::error!("{rollback}: the simulated components no longer watch the cluster");
        }
    }

    /// Waits until every kind has been listed once.
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

    /// The current time in RFC 3339.
    pub(crate) fn now(&self) -> String {
        let now = (self.clock)();
        now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// Creates an object and stores the response in the cache.
    pub(crate) async fn create<K: WatchedKind>(&self, body: &Value) -> Result<K, ApiError> {
        let text = |pointer| body.pointer(pointer).and_then(Value::as_str);
        let namespace = text("/metadata/namespace");
        let path = K::RESOURCE.collection_path(namespace);
        let target = describe_object::<K>(namespace, text("/metadata/name").unwrap_or_default());
        let response =
            self.writer.api().send_json(Method::POST, &path, JSON_CONTENT_TYPE, body, &target).await?;
        self.decode_and_store(&response, &target)
    }

    /// Patches an object or one of its subresources, such as `/status`, with its resource version as a
    /// precondition, and stores the response in the cache.
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
        let (path, target) = path_and_target::<K>(known.key());
        let path = format!("{path}{subresource}");
        let response = self
            .writer
            .api()
            .send_json(Method::PATCH, &path, patch_type.content_type(), &patch, &target)
            .await?;
        self.decode_and_store(&response, &target)
    }

    /// Reads an object from the API server and stores it in the cache. None if it does not exist; the cache
    /// is unchanged then.
    pub(crate) async fn get<K: WatchedKind>(&self, key: &K::Key) -> Result<Option<K>, ApiError> {
        let (path, target) = path_and_target::<K>(key);
        match self.writer.api().read(&path, &target).await {
            Ok(response) => self.decode_and_store(&response, &target).map(Some),
            Err(ApiError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads an object as JSON without the cache; None if it does not exist.
    pub(crate) async fn read(&self, path: &str, target: &str) -> Result<Option<Value>, ApiError> {
        let response = match self.writer.api().read(path, target).await {
            Err(ApiError::NotFound(_)) => return Ok(None),
            response => response?,
        };
        serde_json::from_str(&response).map(Some).map_err(|error| ApiError::InvalidResponse {
            target: target.to_owned(),
            message: error.to_string(),
        })
    }

    /// Reads a Secret from the API server; Secrets are never cached. Like kubelet, it reads any namespace.
    pub(crate) async fn secret(&self, secret: &SecretRef) -> Result<Secrets, SecretError> {
        SecretReader::new(&self.writer, SecretNamespaces::All).read(secret).await
    }

    /// Binds a pod to a node.
    pub(crate) async fn bind(&self, pod: &FullPod, node: &str) -> Result<(), ApiError> {
        let (path, target) = path_and_target::<FullPod>(&pod.slim.key);
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

    /// Deletes the pod with this UID, without a grace period. Succeeds if no pod has the key, and fails if a
    /// pod with the key has another UID.
    pub(crate) async fn delete_pod(&self, key: &PodKey, uid: &Uid) -> Result<(), ApiError> {
        let (path, target) = path_and_target::<FullPod>(key);
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

    /// Emits an event on an object.
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

    /// Reports a step to the observer.
    pub(crate) fn record_step(
        &self,
        component: &'static str,
        object: String,
        kind: StepResult,
        text: impl Into<String>,
    ) {
        self.record_timed_step(component, object, kind, text.into(), None);
    }

    /// Reports a step with its duration to the observer.
    pub(crate) fn record_timed_step(
        &self,
        component: &'static str,
        object: String,
        kind: StepResult,
        text: String,
        duration: Option<Duration>,
    ) {
        tracing::debug!(component, object, ?kind, "{text}");
        self.observer.on_step(Step {
            component,
            object: StepObject::Other(object),
            result: kind,
            text,
            duration,
        });
    }

    /// Performs an effect, such as a write to the API server, and reports it to the observer as an applied or
    /// failed step with its duration. `text` describes the effect.
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
            Ok(_) => {
                self.record_timed_step(component, object, StepResult::Applied, text.to_owned(), duration)
            }
            Err(error) => self.record_timed_step(
                component,
                object,
                StepResult::Failed,
                format!("{text}: {error}"),
                duration,
            ),
        }
        result
    }

    fn decode_and_store<K: WatchedKind>(&self, response: &str, target: &str) -> Result<K, ApiError> {
        let object = decode::object::<K>(response)
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

/// A pod in the form of [`StepObject::Other`].
pub(crate) fn pod_reference(key: &PodKey) -> String {
    format!("pod/{key}")
}
