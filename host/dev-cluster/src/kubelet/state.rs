//! State of a kubelet: its volumes, drivers and work queue.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
};

use cofferdam_cluster::queue::Queue;
use cofferdam_domain::{Claim, ClaimKey, DriverName, NodeName, PodKey, Quantity, Uid};
use k8s_openapi::api::core::v1 as core;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::{paths::VolumePaths, retries::Retries, rules::MountState, volume_id::VolumeId};
use crate::{
    client::ClusterClient,
    files::Files,
    kinds::{FullPod, FullVolume},
};

/// Component name in events and steps.
pub(super) const COMPONENT: &str = "kubelet";

/// Key of kubelet's work queue: what to reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    /// The registration socket of a driver.
    Plugin(PathBuf),
    /// `volumesInUse` in the Node's status.
    Node,
    Pod(PodKey),
    Volume(VolumeId),
}

/// A volume of a pod, resolved to its PersistentVolume or inline source.
#[derive(Clone)]
pub(super) struct VolumeToMount {
    pub(super) id: VolumeId,
    pub(super) pod: Arc<FullPod>,
    pub(super) driver: DriverName,
    pub(super) handle: String,
    /// The PersistentVolume; None for an inline volume.
    pub(super) volume: Option<Arc<FullVolume>>,
    /// The claim; None for an inline volume, and if the claim or its PersistentVolume can no longer be
    /// resolved.
    pub(super) claim: Option<Arc<Claim>>,
    pub(super) inline: Option<core::CSIVolumeSource>,
    /// True if the pod's volume source or the PersistentVolume is read-only.
    pub(super) read_only: bool,
    pub(super) attachable: bool,
}

/// A volume that is or may be mounted. The entry of a volume that was unmounted, or whose mount failed,
/// remains until kubelet has no further step for the volume.
#[derive(Clone)]
pub(super) struct MountedVolume {
    pub(super) paths: VolumePaths,
    pub(super) driver: DriverName,
    pub(super) claim: Option<ClaimKey>,
    pub(super) attachable: bool,
    pub(super) device_state: MountState,
    /// True if NodeStageVolume was called and may have taken effect: NodeUnstageVolume is required.
    pub(super) stage_attempted: bool,
    pub(super) pod_mounts: BTreeMap<Uid, PodMount>,
    /// Capacity of the PersistentVolume when it was staged or last expanded on the node. None for an inline
    /// volume.
    pub(super) size: Option<Quantity>,
    /// True if NodeExpandVolume returned FAILED_PRECONDITION: the driver does not expand a volume in use.
    /// Kubelet does not repeat the call before the volume was unmounted completely.
    pub(super) expansion_refused: bool,
}

impl MountedVolume {
    /// Returns true if the volume is staged or published, or may be.
    pub(super) fn is_possibly_mounted(&self) -> bool {
        self.device_state != MountState::NotMounted || !self.pod_mounts.is_empty()
    }
}

/// A mount of a volume for a pod.
#[derive(Clone)]
pub(super) struct PodMount {
    pub(super) state: MountState,
    /// The pod's volume as it was resolved for this mount. The mount stays even if the pod's volume can no
    /// longer be resolved.
    pub(super) desired: VolumeToMount,
    /// Paths with the name of the pod's own PersistentVolume. They can differ from the entry's paths, because
    /// several PersistentVolumes may have the same driver and handle.
    pub(super) paths: VolumePaths,
}

/// A driver that is registered, or whose registration is in progress.
#[derive(Clone)]
pub(super) struct Plugin {
    pub(super) endpoint: PathBuf,
    pub(super) root_dir: RootDir,
}

/// Kubelet's root directory for the volumes of a driver.
#[derive(Clone)]
pub(crate) struct RootDir {
    /// Path of the root directory.
    pub(crate) path: String,
    /// Access to its files.
    pub(crate) files: Arc<dyn Files>,
}

/// The kubelet of one node.
pub(crate) struct Kubelet {
    pub(super) client: Arc<ClusterClient>,
    pub(super) node_name: NodeName,
    pub(super) node_index: usize,
    pub(super) queue: Queue<Key>,
    pub(super) plugins: Mutex<HashMap<DriverName, Plugin>>,
    /// Registration sockets, and the root directories of their drivers' volumes.
    pub(super) registration_sockets: Mutex<BTreeMap<PathBuf, RootDir>>,
    /// Registration sockets whose drivers have been registered at least once.
    pub(super) registered: watch::Sender<BTreeSet<PathBuf>>,
    pub(super) mounted_volumes: Mutex<BTreeMap<VolumeId, MountedVolume>>,
    pub(super) retries: Retries,
    /// Number of entries of `mounted_volumes`.
    pub(super) mounted_count: watch::Sender<usize>,
    /// Each pod that waits for its volumes: its UID, and the start of the wait or of the current interval
    /// between FailedMount events.
    pub(super) waiting_since: Mutex<HashMap<PodKey, (Uid, Instant)>>,
    /// Serializes updates of Node and CSINode by registrations.
    pub(super) registration_lock: tokio::sync::Mutex<()>,
}
