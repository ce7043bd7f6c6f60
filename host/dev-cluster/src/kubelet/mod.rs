//! A kubelet without containers: it registers drivers, mounts what the pods of its node want, in kubelet's
//! order and with kubelet's pauses, says of pods that they run, and undoes everything when they go. It calls
//! the real Node service, on its socket.

mod expand;
mod mount;
mod node_calls;
mod paths;
mod plugins;
mod pods;
mod retries;
pub mod rules;
mod unmount;
mod volume;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_cluster::{
    ApiError,
    queue::{Action, ExponentialBackoff, Queue},
};
use cofferdam_domain::{
    AccessMode, Claim, ClaimKey, ClaimPhase, DriverName, NodeName, PodKey, Quantity, Uid, UniqueVolumeName,
};
use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

pub use self::plugins::has_node_service;
pub(crate) use self::pods::host_address;

use self::{
    paths::{VolumePaths, inline_handle},
    retries::Retries,
    rules::{MountInput, MountState},
};
use crate::{
    client::{ClusterClient, PatchType, pod_reference},
    files::Files,
    kinds::{NodeObject, PodObject, VolumeObject},
    observer::ClusterStepResult,
    scheduler::rules::has_claim,
};

/// Kubelet's back-off of operations on volumes and of registrations.
const BACKOFF: ExponentialBackoff =
    ExponentialBackoff { initial: Duration::from_millis(500), max: Duration::from_secs(122) };
/// Operations at once; of one volume there is one at a time.
const WORKERS: usize = 32;
/// How kubelet calls itself in events.
const COMPONENT: &str = "kubelet";

/// A volume on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum VolumeId {
    /// Of a PersistentVolume.
    Persistent(UniqueVolumeName),
    /// Of a pod that describes it by itself: the pod, and the volume's name in it.
    Inline(Uid, Box<str>),
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Persistent(name) => name.fmt(f),
            Self::Inline(pod, name) => write!(f, "{pod}/{name}"),
        }
    }
}

/// What is worked on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Key {
    /// The socket on which a driver registers.
    Plugin(PathBuf),
    /// The node's status.
    Node,
    Pod(PodKey),
    Volume(VolumeId),
}

/// A pod's volume, with what it leads to.
#[derive(Clone)]
struct VolumeToMount {
    id: VolumeId,
    pod: Arc<PodObject>,
    driver: DriverName,
    handle: String,
    volume: Option<Arc<VolumeObject>>,
    claim: Option<Arc<Claim>>,
    inline: Option<core::CSIVolumeSource>,
    /// Whether the pod, or the volume, wants it for reading only.
    read_only: bool,
    attachable: bool,
}

/// A volume that is mounted, or may be.
#[derive(Clone)]
struct MountedVolume {
    paths: VolumePaths,
    driver: DriverName,
    claim: Option<ClaimKey>,
    attachable: bool,
    device_state: MountState,
    /// Whether the driver was asked to stage it.
    stage_attempted: bool,
    pod_mounts: BTreeMap<Uid, PodMount>,
    /// How large it was when it was mounted, or has grown to since.
    size: Option<Quantity>,
    /// Whether the driver does not grow it while it is in use.
    expansion_refused: bool,
}

impl MountedVolume {
    /// Whether something of it is mounted, or may be.
    fn is_possibly_mounted(&self) -> bool {
        self.device_state != MountState::NotMounted || !self.pod_mounts.is_empty()
    }
}

/// A mount for a pod.
#[derive(Clone)]
struct PodMount {
    state: MountState,
    /// What the pod wanted when it was mounted: it keeps that whatever becomes of the claim.
    desired: VolumeToMount,
    /// Of its own PersistentVolume: several may be of one handle.
    paths: VolumePaths,
}

/// A driver that is registered.
#[derive(Clone)]
struct Plugin {
    endpoint: PathBuf,
    root_dir: RootDir,
}

/// Where the files of a driver's volumes are.
#[derive(Clone)]
pub(crate) struct RootDir {
    /// Kubelet's root there.
    pub(crate) path: String,
    /// Its files there.
    pub(crate) files: Arc<dyn Files>,
}

/// The kubelet of one node.
pub(crate) struct Kubelet {
    client: Arc<ClusterClient>,
    node_name: NodeName,
    node_index: usize,
    queue: Queue<Key>,
    plugins: Mutex<HashMap<DriverName, Plugin>>,
    /// Sockets that register drivers, and where the volumes of those are.
    registration_sockets: Mutex<BTreeMap<PathBuf, RootDir>>,
    registered: watch::Sender<BTreeSet<PathBuf>>,
    mounted_volumes: Mutex<BTreeMap<VolumeId, MountedVolume>>,
    retries: Retries,
    /// How many volumes are held.
    mounted_count: watch::Sender<usize>,
    /// Since when a pod waits for its volumes.
    waiting_since: Mutex<HashMap<PodKey, (Uid, Instant)>>,
    /// Who writes what a driver says of the node.
    registration_lock: tokio::sync::Mutex<()>,
}

impl Kubelet {
    /// The kubelet of a node; it hears of every change from now on.
    pub(crate) fn new(client: Arc<ClusterClient>, node_name: NodeName, node_index: usize) -> Arc<Self> {
        let kubelet = Arc::new(Self {
            queue: Queue::new("dev_kubelet", BACKOFF, &client.metrics),
            client,
            node_name,
            node_index,
            plugins: Mutex::default(),
            registration_sockets: Mutex::default(),
            registered: watch::Sender::default(),
            mounted_volumes: Mutex::default(),
            retries: Retries::default(),
            mounted_count: watch::Sender::default(),
            waiting_since: Mutex::default(),
            registration_lock: tokio::sync::Mutex::default(),
        });
        kubelet.subscribe();
        kubelet
    }

    /// Works until `stop`.
    pub(crate) async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let kubelet = Arc::clone(self);
        let work = move |key: Key| {
            let kubelet = Arc::clone(&kubelet);
            async move { kubelet.reconcile(key).await }
        };
        self.queue.run(WORKERS, stop, work).await;
    }

    /// A socket is there that registers a driver; the files of its volumes are on that ground.
    pub(crate) fn add_registration_socket(&self, socket: PathBuf, root_dir: RootDir) {
        lock(&self.registration_sockets).insert(socket.clone(), root_dir);
        self.queue.add(Key::Plugin(socket));
    }

    /// The sockets whose drivers are registered, now and later.
    pub(crate) fn registered_sockets(&self) -> watch::Receiver<BTreeSet<PathBuf>> {
        self.registered.subscribe()
    }

    /// What is still mounted, for people.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        lock(&self.mounted_volumes)
            .keys()
            .map(|id| format!("{}: {id} is still mounted", self.node_name))
            .collect()
    }

    /// Waits until nothing is mounted.
    pub(crate) async fn wait_until_unmounted(&self) {
        // The sender lives as long as the kubelet: waiting cannot fail.
        let _ = self.mounted_count.subscribe().wait_for(|count| *count == 0).await;
    }

    fn subscribe(self: &Arc<Self>) {
        let client = &self.client;
        let me = Arc::downgrade(self);
        client.pods.subscribe(move |change| {
            let Some(me) = me.upgrade() else { return };
            let pods = [&change.old, &change.new];
            for pod in pods.into_iter().flatten().filter(|pod| pod.slim.node.as_ref() == Some(&me.node_name))
            {
                me.enqueue_pod(pod);
            }
        });
        let me = Arc::downgrade(self);
        client.claims.subscribe(move |change| {
            let Some(me) = me.upgrade() else { return };
            me.pods().iter().filter(|pod| has_claim(pod, &change.key)).for_each(|pod| me.enqueue_pod(pod));
        });
        let me = Arc::downgrade(self);
        client.volumes.subscribe(move |change| {
            let Some(me) = me.upgrade() else { return };
            let claim = change.new.as_ref().and_then(|volume| volume.slim.claim_ref.as_ref());
            let Some(claim) = claim.map(|claim| &claim.key) else { return };
            me.pods().iter().filter(|pod| has_claim(pod, claim)).for_each(|pod| me.enqueue_pod(pod));
        });
        // They say which volumes are attached.
        let me = Arc::downgrade(self);
        client.csi_drivers.subscribe(move |_| {
            if let Some(me) = me.upgrade() {
                me.enqueue_all();
            }
        });
        let me = Arc::downgrade(self);
        client.nodes.subscribe(move |change| {
            if let Some(me) = me.upgrade().filter(|me| me.node_name == change.key) {
                me.enqueue_all();
            }
        });
    }

    fn enqueue_pod(&self, pod: &Arc<PodObject>) {
        self.queue.add(Key::Pod(pod.slim.key.clone()));
        // What it waited for may be in use no longer.
        self.queue.add(Key::Node);
        self.volumes_to_mount(pod).into_iter().for_each(|wanted| self.queue.add(Key::Volume(wanted.id)));
        let mounted_ids: Vec<VolumeId> = lock(&self.mounted_volumes)
            .iter()
            // What is mounted for no pod yet may be what this one does not lead to any more.
            .filter(|(_, mounted_ids)| {
                mounted_ids.pod_mounts.is_empty() || mounted_ids.pod_mounts.contains_key(&pod.slim.meta.uid)
            })
            .map(|(id, _)| id.clone())
            .collect();
        mounted_ids.into_iter().for_each(|id| self.queue.add(Key::Volume(id)));
    }

    /// Looks at everything anew.
    fn enqueue_all(&self) {
        self.queue.add(Key::Node);
        self.pods().iter().for_each(|pod| self.enqueue_pod(pod));
        let mounted_ids: Vec<VolumeId> = lock(&self.mounted_volumes).keys().cloned().collect();
        mounted_ids.into_iter().for_each(|id| self.queue.add(Key::Volume(id)));
    }

    /// The pods of the node.
    fn pods(&self) -> Vec<Arc<PodObject>> {
        let is_on_node = |pod: &Arc<PodObject>| pod.slim.node.as_ref() == Some(&self.node_name);
        self.client.pods.list().into_iter().filter(is_on_node).collect()
    }

    fn node(&self) -> Option<Arc<NodeObject>> {
        self.client.nodes.get(&self.node_name).into_object()
    }

    async fn reconcile(&self, key: Key) -> Action {
        match key {
            Key::Plugin(socket) => self.register(&socket).await,
            Key::Node => self.report_volumes_in_use().await,
            Key::Pod(key) => self.reconcile_pod(&key).await,
            Key::Volume(id) => self.reconcile_volume(&id).await,
        }
    }

    /// The volumes of a pod that have to be mounted and can be; what keeps another one from it is left to
    /// [`Self::lead`].
    fn volumes_to_mount(&self, pod: &Arc<PodObject>) -> Vec<VolumeToMount> {
        if pod.slim.terminated {
            return Vec::new();
        }
        pod.volumes().iter().filter_map(|volume| self.resolve_volume(pod, volume).ok().flatten()).collect()
    }

    /// What a pod's volume leads to; absent for volumes that are not simulated, such as `emptyDir`.
    ///
    /// # Errors
    /// Why it leads to nothing yet.
    fn resolve_volume(
        &self,
        pod: &Arc<PodObject>,
        volume: &core::Volume,
    ) -> Result<Option<VolumeToMount>, String> {
        if let Some(inline) = &volume.csi {
            return Ok(Some(self.inline_volume(pod, volume, inline)));
        }
        let Some(name) = pod.claim_name(volume) else { return Ok(None) };
        let key = ClaimKey::new(pod.slim.key.namespace.clone(), name);
        let claim = self
            .client
            .claims
            .get(&key)
            .into_object()
            .ok_or_else(|| format!("claim {key} does not exist"))?;
        if volume.ephemeral.is_some() && claim.controller_uid.as_ref() != Some(&pod.slim.meta.uid) {
            return Err(format!("PVC {key} was not created for pod {} (pod is not owner)", pod.slim.key));
        }
        let bound = claim.volume.as_ref().filter(|_| claim.phase == ClaimPhase::Bound);
        let bound = bound.ok_or_else(|| format!("claim {key} is not bound"))?;
        let object = self.client.volumes.get(bound).into_object();
        let object = object.ok_or_else(|| format!("volume {bound} does not exist"))?;
        if !object.slim.is_bound_to(&claim.key, &claim.meta.uid) {
            return Err(format!("volume {bound} belongs to another claim"));
        }
        let Some(csi) = object.slim.csi.clone() else { return Ok(None) };
        Ok(Some(VolumeToMount {
            id: VolumeId::Persistent(UniqueVolumeName::from_csi(&csi.driver, &csi.handle)),
            pod: Arc::clone(pod),
            read_only: csi.read_only
                || volume.persistent_volume_claim.as_ref().and_then(|source| source.read_only) == Some(true),
            attachable: self.is_attachable(&csi.driver),
            driver: csi.driver,
            handle: csi.handle.to_string(),
            volume: Some(object),
            claim: Some(claim),
            inline: None,
        }))
    }

    fn inline_volume(
        &self,
        pod: &Arc<PodObject>,
        volume: &core::Volume,
        source: &core::CSIVolumeSource,
    ) -> VolumeToMount {
        let uid = pod.slim.meta.uid.clone();
        VolumeToMount {
            handle: inline_handle(&uid, &volume.name),
            id: VolumeId::Inline(uid, volume.name.as_str().into()),
            pod: Arc::clone(pod),
            driver: source.driver.as_str().into(),
            volume: None,
            claim: None,
            inline: Some(source.clone()),
            read_only: source.read_only == Some(true),
            attachable: false,
        }
    }

    /// Volumes of a driver that says nothing of it are attached.
    fn is_attachable(&self, driver: &DriverName) -> bool {
        self.client.csi_drivers.get(driver).into_object().is_none_or(|driver| driver.slim.attach_required)
    }

    /// The pods of the node that want a volume, and those that have it until they end: a claim that is lost,
    /// or a volume that is removed by force, takes nothing from a container.
    fn desired_mounts(&self, id: &VolumeId) -> Vec<VolumeToMount> {
        let pods = self.pods();
        let desired = pods.iter().flat_map(|pod| self.volumes_to_mount(pod));
        let mut desired: Vec<VolumeToMount> = desired.filter(|wanted| wanted.id == *id).collect();
        let mounted_volumes = lock(&self.mounted_volumes);
        for (uid, mounted) in
            mounted_volumes.get(id).into_iter().flat_map(|mounted_volumes| &mounted_volumes.pod_mounts)
        {
            let pod = pods.iter().find(|pod| pod.slim.meta.uid == *uid && !pod.slim.terminated);
            let Some(pod) = pod.filter(|_| !desired.iter().any(|wanted| wanted.pod.slim.meta.uid == *uid))
            else {
                continue;
            };
            // Without the claim: what is known of it is old.
            desired.push(VolumeToMount { pod: Arc::clone(pod), claim: None, ..mounted.desired.clone() });
        }
        desired
    }

    fn mount_input(&self, id: &VolumeId, desired: &[VolumeToMount]) -> MountInput {
        let mounted_volume = lock(&self.mounted_volumes).get(id).cloned();
        let node = self.node();
        let entry = match id {
            VolumeId::Persistent(name) => node.as_ref().and_then(|node| node.slim.volume(name)),
            VolumeId::Inline(..) => None,
        };
        let first = desired.first();
        let exclusive = first
            .and_then(|wanted| wanted.volume.as_ref())
            .is_some_and(|volume| volume.slim.access_modes.iter().eq([AccessMode::ReadWriteOncePod]));
        MountInput {
            desired_pods: desired.iter().map(|wanted| wanted.pod.slim.meta.uid.clone()).collect(),
            device_state: mounted_volume
                .as_ref()
                .map(|mounted_volume| mounted_volume.device_state)
                .unwrap_or_default(),
            pod_mounts: mounted_volume.as_ref().map_or_else(BTreeMap::new, |mounted_volume| {
                mounted_volume.pod_mounts.iter().map(|(pod, mounted)| (pod.clone(), mounted.state)).collect()
            }),
            inline: matches!(id, VolumeId::Inline(..)),
            attachable: match (&mounted_volume, first) {
                (Some(mounted_volume), _) if mounted_volume.is_possibly_mounted() => {
                    mounted_volume.attachable
                }
                // What was reported and never mounted is free again.
                (_, None) => matches!(id, VolumeId::Persistent(_)),
                (_, Some(wanted)) => wanted.attachable,
            },
            attached: entry.is_some_and(|entry| entry.attached),
            reported_in_use: entry.is_some_and(|entry| entry.in_use),
            exclusive,
            expansion_due: first
                .is_some_and(|wanted| expand::is_expansion_due(wanted, mounted_volume.as_ref())),
        }
    }

    fn record_pod_step(&self, pod: &PodObject, kind: ClusterStepResult, text: &str) {
        self.client.record_step(
            COMPONENT,
            pod_reference(&pod.slim.key),
            kind,
            format!("{}: {text}", self.node_name),
        );
    }

    /// Nothing is left of a volume that nobody wants: it is forgotten.
    fn remove_unmounted(&self, id: &VolumeId) {
        let mut mounted_volumes = lock(&self.mounted_volumes);
        if mounted_volumes.get(id).is_some_and(|mounted_volumes| !mounted_volumes.is_possibly_mounted()) {
            mounted_volumes.remove(id);
        }
        if !mounted_volumes.contains_key(id) {
            self.retries.remove(id);
        }
        self.mounted_count.send_replace(mounted_volumes.len());
        drop(mounted_volumes);
        self.queue.add(Key::Node);
    }

    /// Says in the node's status which volumes are in use: those that are wanted, and those that are still
    /// mounted.
    async fn report_volumes_in_use(&self) -> Action {
        let Some(node) = self.node() else { return Action::Done };
        let pods = self.pods();
        let desired =
            pods.iter().flat_map(|pod| self.volumes_to_mount(pod)).filter(|desired| desired.attachable);
        let mut in_use: BTreeSet<UniqueVolumeName> =
            desired.filter_map(|desired| unique_volume_name(&desired.id)).collect();
        let is_in_use = |held: &MountedVolume| held.attachable && held.is_possibly_mounted();
        in_use.extend(
            lock(&self.mounted_volumes)
                .iter()
                .filter(|(_, held)| is_in_use(held))
                .filter_map(|(id, _)| unique_volume_name(id)),
        );
        let reported: BTreeSet<UniqueVolumeName> =
            node.slim.volumes.iter().filter(|one| one.in_use).map(|one| one.name.clone()).collect();
        if in_use == reported {
            return Action::Done;
        }
        let list = if in_use.is_empty() { Value::Null } else { json!(in_use) };
        let patch = json!({"status": {"volumesInUse": list}});
        match self.client.patch::<NodeObject>(&node, "/status", PatchType::Merge, patch).await {
            // What waited for it goes on by the change of the node.
            Ok(_) => Action::Done,
            Err(error) => self.outcome_for_write_error::<NodeObject>(&self.node_name, &error).await,
        }
    }

    /// How a run ends whose write has failed.
    async fn outcome_for_write_error<K: crate::client::WatchedKind>(
        &self,
        key: &K::Key,
        error: &ApiError,
    ) -> Action {
        match error {
            ApiError::Conflict(_) | ApiError::NotFound(_) | ApiError::AlreadyExists(_) => {
                match self.client.get::<K>(key).await {
                    Ok(_) => Action::Requeue,
                    Err(_) => Action::Backoff,
                }
            }
            ApiError::Refused { .. } | ApiError::Unavailable { .. } | ApiError::InvalidResponse { .. } => {
                tracing::warn!(%error, node = %self.node_name, "kubelet tries again");
                Action::Backoff
            }
        }
    }

    fn plugin(&self, driver: &DriverName) -> Result<Plugin, String> {
        let found = lock(&self.plugins).get(driver).cloned();
        found.ok_or_else(|| format!("driver name {driver} not found in the list of registered CSI drivers"))
    }
}

fn unique_volume_name(id: &VolumeId) -> Option<UniqueVolumeName> {
    match id {
        VolumeId::Persistent(name) => Some(name.clone()),
        VolumeId::Inline(..) => None,
    }
}

/// What is behind a lock; a panic while it was held leaves nothing half done that matters.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
