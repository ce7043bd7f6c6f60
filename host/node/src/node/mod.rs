//! The volumes of one driver on this node: stage, publish, expand, statistics, and the inverse operations.
//!
//! These methods do not lock volumes: the caller serializes the operations that change one volume. Statistics
//! may be read at any time.

mod active_volumes;
mod memory;
mod publish;
mod stage;
mod stats;

use cofferdam_domain::storage::{AccessType, ConnectionInfo, Secrets, VolumeCapability};

pub use stats::{ExpandRequest, VolumeStats};

use crate::{
    connector::BLOCK_FILE_NAME,
    error::{NodeError, StepContext as _},
    file::PathKind,
    locks::KeyLocks,
    mounter::{Mounter, PathInfo},
    path::{KubeletPath, KubeletRoots},
    policy::NodePolicy,
    record::VolumeRecord,
};

/// Arguments of NodeStageVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageRequest {
    /// The volume's handle.
    pub volume: String,
    /// The staging path: an absolute path below a kubelet root. kubelet has created the directory.
    pub staging_path: String,
    /// The requested capability.
    pub capability: VolumeCapability,
    /// The connection info.
    pub connection_info: ConnectionInfo,
    /// True if the volume was created from a volume or a snapshot.
    pub has_content_source: bool,
    /// The node-stage secrets. They are neither recorded nor logged.
    pub secrets: Secrets,
}

/// Arguments of NodePublishVolume for a staged volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishRequest {
    /// The volume's handle.
    pub volume: String,
    /// The staging path.
    pub staging_path: String,
    /// The target path: an absolute path below a kubelet root. Its parent exists.
    pub target_path: String,
    /// The requested capability.
    pub capability: VolumeCapability,
    /// CSI's `readonly`. A read-only access mode or a volume that is staged read-only also makes the target
    /// read-only.
    pub read_only: bool,
}

/// Arguments of NodePublishVolume for an inline volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishInlineRequest {
    /// The handle that kubelet generated.
    pub volume: String,
    /// The target path.
    pub target_path: String,
    /// The requested capability.
    pub capability: VolumeCapability,
    /// CSI's `readonly`. A read-only access mode or the mount flag `ro` also makes the target read-only.
    pub read_only: bool,
    /// Size in bytes. If absent, the maximum that the policy allows.
    pub size: Option<u64>,
}

/// The volumes of one driver on this node.
#[derive(Debug)]
pub struct NodeVolumes<M> {
    mounter: M,
    roots: KubeletRoots,
    policy: NodePolicy,
    active_volumes: active_volumes::ActiveVolumes,
    subsystem_locks: KeyLocks,
}

impl<M: Mounter> NodeVolumes<M> {
    /// Creates the volumes of one driver. `roots` are kubelet's root directories.
    pub fn new(mounter: M, roots: KubeletRoots, policy: NodePolicy) -> Self {
        let (active_volumes, subsystem_locks) = Default::default();
        Self { mounter, roots, policy, active_volumes, subsystem_locks }
    }

    /// Returns the mounter.
    pub const fn mounter(&self) -> &M {
        &self.mounter
    }

    /// Returns the policy.
    pub const fn policy(&self) -> &NodePolicy {
        &self.policy
    }

    fn record(&self, volume: &str) -> Result<Option<VolumeRecord>, NodeError> {
        self.mounter.record(volume).step("read the volume's record")
    }

    fn inspect(&self, path: &KubeletPath) -> Result<Option<PathInfo>, NodeError> {
        self.mounter.inspect(path).step("inspect a path of kubelet")
    }

    fn is_mounted(&self, path: &KubeletPath) -> Result<bool, NodeError> {
        Ok(self.inspect(path)?.is_some_and(|found| !found.mounts.is_empty()))
    }

    /// The mount of a staged volume: at the staging path, or for a raw block volume at the device file in it.
    /// Absent if nothing is mounted there, for inline volumes, and for a raw block volume if something is
    /// mounted at the staging path itself.
    fn staged_mount(&self, record: &VolumeRecord) -> Result<Option<(KubeletPath, PathInfo)>, NodeError> {
        let Some(staging) = &record.staging_path else { return Ok(None) };
        let path = self.roots.resolve("staging_target_path", staging)?;
        let path = match record.capability.access_type {
            AccessType::Filesystem { .. } => path,
            AccessType::Block if self.is_mounted(&path)? => return Ok(None),
            AccessType::Block => path.join(BLOCK_FILE_NAME),
        };
        let found = self.inspect(&path)?.filter(|found| !found.mounts.is_empty());
        Ok(found.map(|found| (path, found)))
    }

    /// Returns true if the volume is mounted at its staging path or a target path.
    fn is_live(&self, record: &VolumeRecord) -> Result<bool, NodeError> {
        Ok(self.staged_mount(record)?.is_some() || !self.mounted_targets(record)?.is_empty())
    }

    /// Returns the target paths of a volume at which something is mounted.
    fn mounted_targets(&self, record: &VolumeRecord) -> Result<Vec<String>, NodeError> {
        let mut mounted = Vec::new();
        for path in record.targets.keys() {
            if self.is_mounted(&self.roots.resolve("target_path", path)?)? {
                mounted.push(path.clone());
            }
        }
        Ok(mounted)
    }

    /// Unmounts all mounts at a target path and removes the empty file or empty directory that they covered.
    /// Anything else there is not removed; it is an error.
    fn remove_target(&self, path: &KubeletPath) -> Result<(), NodeError> {
        while self.is_mounted(path)? {
            self.mounter.unmount(path).step("unmount the target path")?;
        }
        match self.inspect(path)?.map(|found| found.kind) {
            None => Ok(()),
            Some(PathKind::Directory | PathKind::File(0)) => {
                self.mounter.remove_if_empty(path).step("remove the target path")
            }
            Some(PathKind::File(_) | PathKind::Device(_) | PathKind::Other) => {
                Err(NodeError::FailedPrecondition(format!(
                    "{path} is not an empty file or directory: it is not removed"
                )))
            }
        }
    }
}
