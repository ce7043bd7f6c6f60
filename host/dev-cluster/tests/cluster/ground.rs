//! A cluster, and a user of it.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};

use cofferdam_apiserver::{ApiServer, Options as ApiOptions};
use cofferdam_backend::Backend as _;
use cofferdam_controllers::{Parts, Process, Settings};
use cofferdam_csi::Address;
use cofferdam_dev_cluster::{Driver, DriverNode, Mounts, Nodes, Options, Silent, View};
use cofferdam_domain::storage::Ability;
use cofferdam_node::Manifest;
use cofferdam_wasm::{BackendConfig, CompiledCache, Engine, EngineOptions, Source, WasmBackend};
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

/// Everything takes milliseconds; on a machine that is busy with a build it may take seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// A cluster that runs.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) driver: Arc<WasmBackend>,
    pub(crate) view: View,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    /// Of sockets, and of what is mounted for real.
    pub(crate) directory: TempDir,
}

impl Cluster {
    /// So many nodes, and the memory driver with these settings.
    pub(crate) async fn start(nodes: usize, settings: &[(&str, &str)]) -> Self {
        Self::with(nodes, settings, None, Mounts::Recorded).await
    }

    /// The same, where somebody else may serve kubelet for the driver, and mounts may be real.
    pub(crate) async fn with(
        nodes: usize,
        settings: &[(&str, &str)],
        own: Option<Address>,
        mounts: Mounts,
    ) -> Self {
        let engine =
            Engine::new(EngineOptions { cache: CompiledCache::User, ..EngineOptions::default() }).unwrap();
        let settings: BTreeMap<String, String> =
            settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let source = Source::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
        let driver =
            engine.load(source, BackendConfig { settings, ..BackendConfig::default() }).await.unwrap();
        let api = ApiServer::new(ApiOptions::default());
        let client = Client::new(api.service(), "default");
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();

        let directory = TempDir::new().unwrap();
        let manifest = Manifest::of(driver.description().clone(), driver.abilities().clone()).unwrap();
        let nodes = Nodes::new(Options {
            client: client.clone(),
            clock: cofferdam_cluster::system_clock(),
            observer: Arc::new(Silent),
            nodes: (1..=nodes).map(|number| format!("node-{number}")).collect(),
            directory: directory.path().to_owned(),
            drivers: vec![Driver {
                name: driver.description().name.to_string(),
                everywhere: own.is_none(),
                node: match own {
                    Some(address) => DriverNode::Own(address),
                    None => DriverNode::Ours { manifest: Box::new(manifest), root: None },
                },
            }],
            mounts,
        })
        .await
        .unwrap();
        let view = nodes.view();
        let running = nodes.run(stop.clone());
        tasks.spawn(async move { running.await.unwrap() });

        let parts = Parts {
            client: client.clone(),
            backends: vec![Arc::clone(&driver) as _],
            clock: cofferdam_cluster::system_clock(),
            observer: Arc::new(cofferdam_controllers::Silent),
        };
        let settings = Settings { immediate_topology: false, ..Settings::default() };
        let process = Process::new(settings, parts, &mut Registry::default()).unwrap();
        let stopping = stop.clone();
        tasks.spawn(async move { process.run(stopping).await.unwrap() });
        let cluster = Self { client, driver, view, stop, tasks, directory };
        tokio::time::timeout(LIMIT, cluster.view.registered()).await.unwrap();
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

    /// Ends it; what is left on the nodes.
    pub(crate) async fn stop(mut self) -> Vec<String> {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        self.view.left()
    }

    /// Events of a reason, as soon as there is one.
    pub(crate) async fn told(&self, reason: &str) -> String {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let watching = async {
            let found = events.list(&ListParams::default()).await.unwrap();
            let version = found.metadata.resource_version.clone().unwrap();
            let is = |event: &Event| event.reason.as_deref() == Some(reason);
            if let Some(event) = found.items.into_iter().find(|event| is(event)) {
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
        tokio::time::timeout(LIMIT, watching).await.unwrap()
    }

    pub(crate) async fn class(&self, name: &str, mode: &str, more: Value) {
        let mut class = json!({
            "metadata": {"name": name},
            "provisioner": self.driver.description().name,
            "volumeBindingMode": mode,
            "allowVolumeExpansion": true,
        });
        class.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.create::<StorageClass>(class).await;
    }

    pub(crate) async fn claim(&self, name: &str, class: &str) {
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

    /// A pod with these volumes.
    pub(crate) async fn pod(&self, name: &str, volumes: Value, more: Value) {
        let mut spec = json!({
            "containers": [{"name": "c", "image": "none", "volumeMounts": []}],
            "volumes": volumes,
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.create::<Pod>(json!({"metadata": {"name": name}, "spec": spec})).await;
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

    /// Waits until a pod runs; its node.
    pub(crate) async fn runs(&self, name: &str) -> String {
        let running = |pod: Option<&Pod>| {
            let phase = pod.and_then(|pod| pod.status.as_ref()?.phase.clone());
            phase.as_deref() == Some("Running")
        };
        let pod = until(&self.pods(), name, running).await.unwrap();
        pod.spec.unwrap().node_name.unwrap()
    }

    /// Waits until a pod waits for a place; why.
    pub(crate) async fn waits(&self, name: &str, text: &str) {
        let said = |pod: Option<&Pod>| {
            let conditions = pod.and_then(|pod| pod.status.as_ref()?.conditions.clone()).unwrap_or_default();
            conditions.iter().any(|condition| {
                condition.type_ == "PodScheduled"
                    && condition.status == "False"
                    && condition.message.as_deref().is_some_and(|message| message.contains(text))
            })
        };
        until(&self.pods(), name, said).await;
    }

    /// Waits until there is no object of a kind.
    pub(crate) async fn none<K>(&self, api: &Api<K>)
    where
        K: Clone + Debug + DeserializeOwned + Resource<DynamicType = ()> + Send + 'static,
    {
        for object in api.list(&ListParams::default()).await.unwrap() {
            until(api, &object.name_any(), |object| object.is_none()).await;
        }
    }
}

/// Waits by watching, as `kubectl wait` does.
pub(crate) async fn until<K>(api: &Api<K>, name: &str, holds: impl Fn(Option<&K>) -> bool) -> Option<K>
where
    K: Clone + Debug + DeserializeOwned + Resource<DynamicType = ()> + Send + 'static,
{
    let last = std::sync::Mutex::new(None);
    let waiting = async {
        let field = format!("metadata.name={name}");
        let list = api.list(&ListParams::default().fields(&field)).await.unwrap();
        let version = list.metadata.resource_version.clone().unwrap();
        let mut current = list.items.into_iter().next();
        if holds(current.as_ref()) {
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
            if holds(current.as_ref()) {
                return current;
            }
            *last.lock().unwrap() = current.clone();
        }
        panic!("the watch of {name} ended");
    };
    match tokio::time::timeout(LIMIT, waiting).await {
        Ok(found) => found,
        Err(_) => panic!("{name} did not come to it: {:#?}", last.lock().unwrap()),
    }
}

/// A pod's volume of a claim.
pub(crate) fn volume(claim: &str) -> Value {
    json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}])
}
