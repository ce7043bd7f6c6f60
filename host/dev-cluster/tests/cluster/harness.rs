//! Test fixture: a running cluster and its API client.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};

use cofferdam_apiserver::{ApiServer, Options as ApiOptions};
use cofferdam_backend::Backend as _;
use cofferdam_cluster::observer::NoopStepObserver;
use cofferdam_controllers::{ControllerManager, Dependencies, ProvisionerSettings, Role, Settings};
use cofferdam_csi::Address;
use cofferdam_dev_cluster::{
    DevCluster, DevClusterOptions, Mounts, NodeDriver, NodeOptions, NodePlugin, NodesView,
};
use cofferdam_domain::{Uid, VolumeName, storage::Ability};
use cofferdam_node::DriverManifest;
use cofferdam_wasm::{BackendConfig, CompiledCache, ComponentSource, Engine, EngineOptions, WasmBackend};
use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::{
    core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSIDriver, StorageClass, VolumeAttachment},
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, WatchEvent, WatchParams},
};
use prometheus_client::registry::Registry;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Timeout of waits. They take milliseconds, or seconds on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running cluster.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) driver: Arc<WasmBackend>,
    pub(crate) view: NodesView,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    /// Directory of sockets, volume records, and kubelet's files and real mounts.
    pub(crate) directory: TempDir,
}

impl Cluster {
    /// Starts a cluster with this many nodes and the memory driver with these settings.
    pub(crate) async fn start(nodes: usize, settings: &[(&str, &str)]) -> Self {
        Self::start_with(nodes, settings, None, Mounts::Recorded).await
    }

    /// Starts a cluster, waits until the memory driver is registered on its nodes, and creates the CSIDriver.
    /// If `external_plugin` is set, the Node service on this socket replaces Cofferdam's, and the memory
    /// driver's node plugin is on the first node only.
    pub(crate) async fn start_with(
        nodes: usize,
        settings: &[(&str, &str)],
        external_plugin: Option<Address>,
        mounts: Mounts,
    ) -> Self {
        let engine =
            Engine::new(EngineOptions { cache: CompiledCache::User, ..EngineOptions::default() }).unwrap();
        let settings: BTreeMap<String, String> =
            settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let source = ComponentSource::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
        let driver =
            engine.load(source, BackendConfig { settings, ..BackendConfig::default() }).await.unwrap();
        let api = ApiServer::new(ApiOptions::default());
        let client = Client::new(api.service(), "default");
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();

        let directory = TempDir::new().unwrap();
        let manifest =
            DriverManifest::from_description(driver.description().clone(), driver.abilities().clone())
                .unwrap();
        let nodes = DevCluster::new(DevClusterOptions {
            client: client.clone(),
            clock: cofferdam_cluster::system_clock(),
            observer: Arc::new(NoopStepObserver),
            nodes: (1..=nodes).map(|number| NodeOptions::new(format!("node-{number}"))).collect(),
            directory: directory.path().to_owned(),
            drivers: vec![NodeDriver {
                name: driver.description().name.to_string(),
                on_every_node: external_plugin.is_none(),
                plugin: match external_plugin {
                    Some(address) => NodePlugin::External(address),
                    None => NodePlugin::BuiltIn { manifest: Box::new(manifest), root: None },
                },
            }],
            mounts,
        })
        .await
        .unwrap();
        let view = nodes.view();
        let running = nodes.run(stop.clone());
        tasks.spawn(async move { running.await.unwrap() });

        let parts = Dependencies {
            client: client.clone(),
            backends: vec![Arc::clone(&driver) as _],
            clock: cofferdam_cluster::system_clock(),
            observer: Arc::new(NoopStepObserver),
        };
        let settings = Settings {
            roles: Role::ALL.into(),
            provisioner: ProvisionerSettings { immediate_topology: false, ..Default::default() },
            ..Settings::default()
        };
        let process = ControllerManager::new(settings, parts, &mut Registry::default()).unwrap();
        let stopping = stop.clone();
        tasks.spawn(async move { process.run(stopping).await.unwrap() });
        let cluster = Self { client, driver, view, stop, tasks, directory };
        tokio::time::timeout(TIMEOUT, cluster.view.wait_until_registered()).await.unwrap();
        let name = cluster.driver.description().name.to_string();
        cluster
            .create::<CSIDriver>(json!({
                "metadata": {"name": name},
                "spec": {"attachRequired": cluster.driver.abilities().contains(&Ability::Publishing)},
            }))
            .await;
        cluster
    }

    pub(crate) fn driver_name(&self) -> String {
        self.driver.description().name.to_string()
    }

    /// Stops the cluster. Returns what remains on its nodes, and the rules that were violated there.
    pub(crate) async fn stop(mut self) -> Vec<String> {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        self.view.leftovers()
    }

    /// Waits for an event with this reason in the namespace `default` and returns its message.
    pub(crate) async fn wait_for_event(&self, reason: &str) -> String {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let wait = async {
            let events_list = events.list(&ListParams::default()).await.unwrap();
            let version = events_list.metadata.resource_version.clone().unwrap();
            let is = |event: &Event| event.reason.as_deref() == Some(reason);
            if let Some(event) = events_list.items.into_iter().find(|event| is(event)) {
                return event.message.unwrap();
            }
            let later = events.watch(&WatchParams::default(), &version).await.unwrap();
            pin_mut!(later);
            while let Some(event) = later.next().await {
                if let WatchEvent::Added(event) = event.unwrap()
                    && is(&event)
                {
                    return event.message.unwrap();
                }
            }
            panic!("the watch of events ended");
        };
        tokio::time::timeout(TIMEOUT, wait).await.unwrap()
    }

    pub(crate) async fn create_class(&self, name: &str, mode: &str, extra: Value) {
        let mut class = json!({
            "metadata": {"name": name},
            "provisioner": self.driver.description().name,
            "volumeBindingMode": mode,
            "allowVolumeExpansion": true,
        });
        class.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        self.create::<StorageClass>(class).await;
    }

    pub(crate) async fn create_claim(&self, name: &str, class: &str) {
        let claim = json!({
            "metadata": {"name": name},
            "spec": {
                "storageClassName": class,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        self.create::<PersistentVolumeClaim>(claim).await;
    }

    /// Creates a pod with these volumes. `extra` has further fields of its spec.
    pub(crate) async fn create_pod(&self, name: &str, volumes: Value, extra: Value) {
        let mut spec = json!({
            "containers": [{"name": "c", "image": "none", "volumeMounts": []}],
            "volumes": volumes,
        });
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        self.create::<Pod>(json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    /// The UID of a pod and the PersistentVolume of a claim.
    pub(crate) async fn pod_and_volume(&self, pod: &str, claim: &str) -> (Uid, VolumeName) {
        let (pod, claim) = (self.pods().get(pod).await.unwrap(), self.claims().get(claim).await.unwrap());
        (Uid::from(pod.uid().unwrap()), VolumeName::from(claim.spec.unwrap().volume_name.unwrap()))
    }

    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub(crate) fn attachments(&self) -> Api<VolumeAttachment> {
        Api::all(self.client.clone())
    }

    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: Clone + Debug + DeserializeOwned + Serialize + Resource<DynamicType = ()>,
    {
        let in_namespaces = ["pods", "persistentvolumeclaims", "csistoragecapacities", "secrets"];
        let namespaced = in_namespaces.contains(&&*K::plural(&()));
        let path = K::url_path(&(), namespaced.then_some("default"));
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes())
            .unwrap();
        self.client.request(request).await.unwrap()
    }

    pub(crate) async fn patch<K>(&self, api: &Api<K>, name: &str, patch: Value) -> K
    where
        K: Clone + Debug + DeserializeOwned,
    {
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
    }

    pub(crate) async fn delete<K>(&self, api: &Api<K>, name: &str)
    where
        K: Clone + Debug + DeserializeOwned,
    {
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until a pod is Running and returns its node.
    pub(crate) async fn wait_until_running(&self, name: &str) -> String {
        let is_running = |pod: Option<&Pod>| {
            let phase = pod.and_then(|pod| pod.status.as_ref()?.phase.clone());
            phase.as_deref() == Some("Running")
        };
        let pod = wait_until(&self.pods(), name, is_running).await.unwrap();
        pod.spec.unwrap().node_name.unwrap()
    }

    /// Waits until a pod is unschedulable with this text in its message.
    pub(crate) async fn wait_until_unschedulable(&self, name: &str, text: &str) {
        let is_unschedulable = |pod: Option<&Pod>| {
            let conditions = pod.and_then(|pod| pod.status.as_ref()?.conditions.clone()).unwrap_or_default();
            conditions.iter().any(|condition| {
                condition.type_ == "PodScheduled"
                    && condition.status == "False"
                    && condition.message.as_deref().is_some_and(|message| message.contains(text))
            })
        };
        wait_until(&self.pods(), name, is_unschedulable).await;
    }

    /// Waits until the objects of a kind that exist at the time of the call are deleted.
    pub(crate) async fn wait_until_empty<K>(&self, api: &Api<K>)
    where
        K: Clone + Debug + DeserializeOwned + Resource<DynamicType = ()> + Send + 'static,
    {
        for object in api.list(&ListParams::default()).await.unwrap() {
            wait_until(api, &object.name_any(), |object| object.is_none()).await;
        }
    }
}

/// Waits with a watch until the object with this name meets a condition, as `kubectl wait` does. `is_met`
/// gets None if the object does not exist. Returns the object in the state that meets the condition.
pub(crate) async fn wait_until<K>(api: &Api<K>, name: &str, is_met: impl Fn(Option<&K>) -> bool) -> Option<K>
where
    K: Clone + Debug + DeserializeOwned + Resource<DynamicType = ()> + Send + 'static,
{
    let last = std::sync::Mutex::new(None);
    let waiting = async {
        let field = format!("metadata.name={name}");
        let list = api.list(&ListParams::default().fields(&field)).await.unwrap();
        let version = list.metadata.resource_version.clone().unwrap();
        let mut current = list.items.into_iter().next();
        if is_met(current.as_ref()) {
            return current;
        }
        let events = api.watch(&WatchParams::default().fields(&field), &version).await.unwrap();
        pin_mut!(events);
        while let Some(event) = events.next().await {
            current = match event.unwrap() {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => Some(object),
                WatchEvent::Deleted(_) => None,
                WatchEvent::Bookmark(_) => continue,
                WatchEvent::Error(error) => panic!("{error:?}"),
            };
            if is_met(current.as_ref()) {
                return current;
            }
            *last.lock().unwrap() = current.clone();
        }
        panic!("the watch of {name} ended");
    };
    match tokio::time::timeout(TIMEOUT, waiting).await {
        Ok(found) => found,
        Err(_) => panic!("{name}: timed out waiting for the condition: {:#?}", last.lock().unwrap()),
    }
}

/// Volumes of a pod with one claim.
pub(crate) fn claim_volume(claim: &str) -> Value {
    json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}])
}
