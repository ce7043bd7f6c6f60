//! A kubelet without containers. It registers drivers, mounts and expands the volumes of its pods in
//! kubelet's order and with kubelet's back-off, reports the pods as Running, and unmounts the volumes of
//! deleted and terminated pods. It calls each driver's real Node service on the driver's socket.

mod error;
mod expand;
mod mount;
mod node_calls;
mod paths;
mod plugins;
mod pods;
mod retries;
pub mod rules;
mod state;
mod unmount;
mod volume;
mod volume_id;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use cofferdam_cluster::{
    ApiError,
    observer::StepResult,
    queue::{Action, Queue},
};
use cofferdam_domain::{
    AccessMode, ClaimKey, ClaimPhase, DriverName, NodeName, Uid, UniqueVolumeName, VolumeName,
};
use k8s_openapi::api::core::v1 as core;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::{error::RpcError, plugins::has_node_service};
pub(crate) use self::{
    pods::host_address,
    state::{Kubelet, RootDir},
};

use self::{
    error::VolumeError,
    paths::inline_handle,
    retries::{BACKOFF, Retries},
    rules::{MountInput, MountState},
    state::{COMPONENT, Key, MountedVolume, Plugin, VolumeToMount},
    volume_id::VolumeId,
};
use crate::{
    client::{ClusterClient, PatchType, WatchedKind, pod_reference},
    kinds::{FullNode, FullPod},
    scheduler::rules::has_claim,
};

/// Maximum number of concurrent reconciles of one kubelet; at most one per [`Key`].
const WORKERS: usize = 32;

impl Kubelet {
    /// Creates the kubelet of a node and subscribes it to changes.
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

    /// Runs until `stop`.
    pub(crate) async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let kubelet = Arc::clone(self);
        let work = move |key: Key| {
            let kubelet = Arc::clone(&kubelet);
            async move { kubelet.reconcile(key).await }
        };
        self.queue.run(WORKERS, stop, work).await;
    }

    /// Enqueues the registration of the driver that listens on a registration socket. `root_dir` is kubelet's
    /// root directory for the driver's volumes.
    pub(crate) fn add_registration_socket(&self, socket: PathBuf, root_dir: RootDir) {
        self.registration_sockets.lock().insert(socket.clone(), root_dir);
        self.queue.add(Key::Plugin(socket));
    }

    /// The registration sockets whose drivers have been registered at least once.
    pub(crate) fn registered_sockets(&self) -> watch::Receiver<BTreeSet<PathBuf>> {
        self.registered.subscribe()
    }

    /// Volumes that are or may be mounted, and unmounted ones for which kubelet has a step left; for display.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        self.mounted_volumes
            .lock()
            .keys()
            .map(|id| format!("{}: {id} is still mounted", self.node_name))
            .collect()
    }

    /// The target path on this machine at which a PersistentVolume is published for a pod. `None` if it is
    /// not published on this node, and if its mounts are recorded.
    pub(crate) fn published_path(&self, pod: &Uid, volume: &VolumeName) -> Option<PathBuf> {
        let mounted_volumes = self.mounted_volumes.lock();
        let mut pod_mounts = mounted_volumes.values().filter_map(|mounted| mounted.pod_mounts.get(pod));
        let mount = pod_mounts
            .find(|mount| mount.state == MountState::Mounted && mount.paths.name == volume.as_str())?;
        let plugin = self.plugins.lock().get(&mount.desired.driver).cloned()?;
        plugin.root_dir.files.is_local().then(|| PathBuf::from(mount.paths.target_path(pod)))
    }

    /// Waits until no volume is or may be mounted on the node, and kubelet has no step left for an unmounted
    /// volume.
    pub(crate) async fn wait_until_unmounted(&self) {
        // The kubelet owns the sender, so waiting cannot fail.
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
        // CSIDrivers determine which volumes are attachable.
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

    fn enqueue_pod(&self, pod: &Arc<FullPod>) {
        self.queue.add(Key::Pod(pod.slim.key.clone()));
        // Its volumes may no longer be in use.
        self.queue.add(Key::Node);
        self.volumes_to_mount(pod).into_iter().for_each(|desired| self.queue.add(Key::Volume(desired.id)));
        let mounted_ids: Vec<VolumeId> = self
            .mounted_volumes
            .lock()
            .iter()
            // A volume that is mounted for no pod yet may be a former volume of this pod.
            .filter(|(_, mounted_ids)| {
                mounted_ids.pod_mounts.is_empty() || mounted_ids.pod_mounts.contains_key(&pod.slim.meta.uid)
            })
            .map(|(id, _)| id.clone())
            .collect();
        mounted_ids.into_iter().for_each(|id| self.queue.add(Key::Volume(id)));
    }

    /// Enqueues the Node, and all pods and volumes of the node.
    fn enqueue_all(&self) {
        self.queue.add(Key::Node);
        self.pods().iter().for_each(|pod| self.enqueue_pod(pod));
        let mounted_ids: Vec<VolumeId> = self.mounted_volumes.lock().keys().cloned().collect();
        mounted_ids.into_iter().for_each(|id| self.queue.add(Key::Volume(id)));
    }

    /// The pods of the node.
    fn pods(&self) -> Vec<Arc<FullPod>> {
        let is_on_node = |pod: &Arc<FullPod>| pod.slim.node.as_ref() == Some(&self.node_name);
        self.client.pods.list().into_iter().filter(is_on_node).collect()
    }

    fn node(&self) -> Option<Arc<FullNode>> {
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

    /// The volumes of a pod that have to be mounted and can be resolved to a PersistentVolume or inline
    /// source of a CSI driver; empty if the pod has terminated.
    /// The event of [`Self::wait_for_volumes`] names volumes that cannot be resolved, too.
    fn volumes_to_mount(&self, pod: &Arc<FullPod>) -> Vec<VolumeToMount> {
        if pod.slim.terminated {
            return Vec::new();
        }
        pod.volumes().iter().filter_map(|volume| self.resolve_volume(pod, volume).ok().flatten()).collect()
    }

    /// Resolves a volume of a pod; None for volumes without a CSI driver, such as `emptyDir`.
    ///
    /// # Errors
    /// If the claim or the PersistentVolume does not exist, if they are not bound to each other, or if the
    /// pod does not control the claim of its generic ephemeral volume.
    fn resolve_volume(
        &self,
        pod: &Arc<FullPod>,
        volume: &core::Volume,
    ) -> Result<Option<VolumeToMount>, VolumeError> {
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
            .ok_or_else(|| VolumeError::ClaimNotFound(key.clone()))?;
        if volume.ephemeral.is_some() && claim.controller_uid.as_ref() != Some(&pod.slim.meta.uid) {
            return Err(VolumeError::NotOwner { claim: key, pod: pod.slim.key.clone() });
        }
        let bound = claim.volume.as_ref().filter(|_| claim.phase == ClaimPhase::Bound);
        let bound = bound.ok_or(VolumeError::ClaimNotBound(key))?;
        let object = self.client.volumes.get(bound).into_object();
        let object = object.ok_or_else(|| VolumeError::VolumeNotFound(bound.clone()))?;
        if !object.slim.is_bound_to(&claim.key, &claim.meta.uid) {
            return Err(VolumeError::BoundToOtherClaim(bound.clone()));
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
        pod: &Arc<FullPod>,
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

    /// Returns `attachRequired` of the driver's CSIDriver; true if the CSIDriver does not exist.
    fn is_attachable(&self, driver: &DriverName) -> bool {
        self.client.csi_drivers.get(driver).into_object().is_none_or(|driver| driver.slim.attach_required)
    }

    /// The mounts of a volume that are required: one for each pod volume that resolves to this volume. An
    /// existing mount for a pod that has not terminated stays required even if the pod's volume can no longer
    /// be resolved, such as after the PersistentVolume was deleted.
    fn desired_mounts(&self, id: &VolumeId) -> Vec<VolumeToMount> {
        let pods = self.pods();
        let desired = pods.iter().flat_map(|pod| self.volumes_to_mount(pod));
        let mut desired: Vec<VolumeToMount> = desired.filter(|to_mount| to_mount.id == *id).collect();
        let mounted_volumes = self.mounted_volumes.lock();
        for (uid, mounted) in
            mounted_volumes.get(id).into_iter().flat_map(|mounted_volumes| &mounted_volumes.pod_mounts)
        {
            let pod = pods.iter().find(|pod| pod.slim.meta.uid == *uid && !pod.slim.terminated);
            let Some(pod) =
                pod.filter(|_| !desired.iter().any(|to_mount| to_mount.pod.slim.meta.uid == *uid))
            else {
                continue;
            };
            // Omit the claim, which may be outdated, so that the volume is not expanded.
            desired.push(VolumeToMount { pod: Arc::clone(pod), claim: None, ..mounted.desired.clone() });
        }
        desired
    }

    fn mount_input(&self, id: &VolumeId, desired: &[VolumeToMount]) -> MountInput {
        let mounted_volume = self.mounted_volumes.lock().get(id).cloned();
        let node = self.node();
        let entry = match id {
            VolumeId::Persistent(name) => node.as_ref().and_then(|node| node.slim.volume(name)),
            VolumeId::Inline(..) => None,
        };
        let first = desired.first();
        let exclusive = first
            .and_then(|to_mount| to_mount.volume.as_ref())
            .is_some_and(|volume| volume.slim.access_modes.iter().eq([AccessMode::ReadWriteOncePod]));
        MountInput {
            desired_pods: desired.iter().map(|to_mount| to_mount.pod.slim.meta.uid.clone()).collect(),
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
                // A volume that was reported in use and never mounted is no longer in use.
                (_, None) => matches!(id, VolumeId::Persistent(_)),
                (_, Some(to_mount)) => to_mount.attachable,
            },
            attached: entry.is_some_and(|entry| entry.attached),
            reported_in_use: entry.is_some_and(|entry| entry.in_use),
            exclusive,
            expansion_due: first
                .is_some_and(|to_mount| expand::is_expansion_due(to_mount, mounted_volume.as_ref())),
        }
    }

    fn record_pod_step(&self, pod: &FullPod, kind: StepResult, text: &str) {
        self.client.record_step(
            COMPONENT,
            pod_reference(&pod.slim.key),
            kind,
            format!("{}: {text}", self.node_name),
        );
    }

    /// Forgets a volume unless it is or may be mounted, and requeues the Node to update `volumesInUse`.
    fn remove_unmounted(&self, id: &VolumeId) {
        let mut mounted_volumes = self.mounted_volumes.lock();
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

    /// Sets `volumesInUse` of the Node to the attachable volumes that pods of the node require, and those
    /// that are or may be mounted.
    async fn report_volumes_in_use(&self) -> Action {
        let Some(node) = self.node() else { return Action::Done };
        let pods = self.pods();
        let desired =
            pods.iter().flat_map(|pod| self.volumes_to_mount(pod)).filter(|desired| desired.attachable);
        let mut in_use: BTreeSet<UniqueVolumeName> =
            desired.filter_map(|desired| unique_volume_name(&desired.id)).collect();
        let is_in_use = |mounted: &MountedVolume| mounted.attachable && mounted.is_possibly_mounted();
        in_use.extend(
            self.mounted_volumes
                .lock()
                .iter()
                .filter(|(_, mounted)| is_in_use(mounted))
                .filter_map(|(id, _)| unique_volume_name(id)),
        );
        let reported: BTreeSet<UniqueVolumeName> =
            node.slim.volumes.iter().filter(|one| one.in_use).map(|one| one.name.clone()).collect();
        if in_use == reported {
            return Action::Done;
        }
        let list = if in_use.is_empty() { Value::Null } else { json!(in_use) };
        let patch = json!({"status": {"volumesInUse": list}});
        match self.client.patch::<FullNode>(&node, "/status", PatchType::Merge, patch).await {
            // The change of the Node enqueues the waiting volumes.
            Ok(_) => Action::Done,
            Err(error) => self.outcome_for_write_error::<FullNode>(&self.node_name, &error).await,
        }
    }

    /// The work queue's action after a failed write. If another client changed, created or deleted the
    /// object, this function first reads the object from the API server. A changed or created object is
    /// stored in the cache. A deleted one stays in the cache until the watch removes it.
    async fn outcome_for_write_error<K: WatchedKind>(&self, key: &K::Key, error: &ApiError) -> Action {
        match error {
            ApiError::Conflict(_) | ApiError::NotFound(_) | ApiError::AlreadyExists(_) => {
                match self.client.get::<K>(key).await {
                    Ok(_) => Action::Requeue,
                    Err(_) => Action::Backoff,
                }
            }
            ApiError::TermEnded(_)
            | ApiError::NotServed(_)
            | ApiError::Refused { .. }
            | ApiError::Unavailable { .. }
            | ApiError::InvalidResponse { .. } => {
                tracing::warn!(%error, node = %self.node_name, "kubelet retries");
                Action::Backoff
            }
        }
    }

    fn plugin(&self, driver: &DriverName) -> Result<Plugin, VolumeError> {
        let found = self.plugins.lock().get(driver).cloned();
        found.ok_or_else(|| VolumeError::UnknownDriver(driver.clone()))
    }
}

fn unique_volume_name(id: &VolumeId) -> Option<UniqueVolumeName> {
    match id {
        VolumeId::Persistent(name) => Some(name.clone()),
        VolumeId::Inline(..) => None,
    }
}
