//! The volumes of one driver on this node: staged, published, grown, measured, and undone.
//!
//! Nothing here waits for another call: the caller keeps two calls for one volume apart.

mod active_volumes;
mod publish;
mod stage;
mod stats;

use cofferdam_domain::storage::{AccessType, ConnectionInfo, VolumeCapability};

pub use stats::{ExpandRequest, NodeVolumeCondition, VolumeStats};

use crate::{
    connector::BLOCK_FILE_NAME,
    error::{NodeError, StepContext as _},
    mounter::{Mounter, PathInfo, PathKind},
    path::{KubeletPath, KubeletRoots},
    policy::NodePolicy,
    record::VolumeRecord,
};

/// Arguments of NodeStageVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageRequest {
    /// The volume's handle.
    pub volume: String,
    /// Where it is staged: an absolute path of kubelet's, which is there.
    pub staging_path: String,
    /// How it is used.
    pub capability: VolumeCapability,
    /// How it is reached.
    pub connection_info: ConnectionInfo,
    /// Whether its content was made of another volume or of a snapshot.
    pub has_content_source: bool,
}

/// Arguments of NodePublishVolume for a volume that was staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishRequest {
    /// The volume's handle.
    pub volume: String,
    /// Where it is staged.
    pub staging_path: String,
    /// Where it is published: an absolute path of kubelet's, whose parent is there.
    pub target_path: String,
    /// How it is used.
    pub capability: VolumeCapability,
    /// Whether for reading only.
    pub read_only: bool,
}

/// Arguments of NodePublishVolume for a volume that a pod describes by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishInlineRequest {
    /// The handle that kubelet made for it.
    pub volume: String,
    /// Where it is published.
    pub target_path: String,
    /// How it is used.
    pub capability: VolumeCapability,
    /// Whether for reading only.
    pub read_only: bool,
    /// Bytes; absent for the most that the policy allows.
    pub size: Option<u64>,
}

/// The volumes of one driver on this node.
#[derive(Debug)]
pub struct NodeVolumes<M> {
    mounter: M,
    roots: KubeletRoots,
    policy: NodePolicy,
    active_volumes: active_volumes::ActiveVolumes,
}

impl<M: Mounter> NodeVolumes<M> {
    /// A node whose kubelet has these roots.
    pub fn new(mounter: M, roots: KubeletRoots, policy: NodePolicy) -> Self {
        Self { mounter, roots, policy, active_volumes: active_volumes::ActiveVolumes::default() }
    }

    /// The machine.
    pub const fn mounter(&self) -> &M {
        &self.mounter
    }

    /// The policy.
    pub const fn policy(&self) -> &NodePolicy {
        &self.policy
    }

    fn record(&self, volume: &str) -> Result<Option<VolumeRecord>, NodeError> {
        self.mounter.record(volume).step("read the volume's record")
    }

    fn inspect(&self, path: &KubeletPath) -> Result<Option<PathInfo>, NodeError> {
        self.mounter.inspect(path).step("look at a path of kubelet")
    }

    fn is_mounted(&self, path: &KubeletPath) -> Result<bool, NodeError> {
        Ok(self.inspect(path)?.is_some_and(|found| !found.mounts.is_empty()))
    }

    /// Where a staged volume is: its staging path, or the device's file in it. Absent when nothing is mounted
    /// there.
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

    /// The targets at which something of a volume is mounted.
    fn mounted_targets(&self, record: &VolumeRecord) -> Result<Vec<String>, NodeError> {
        let mut mounted = Vec::new();
        for path in record.targets.keys() {
            if self.is_mounted(&self.roots.resolve("target_path", path)?)? {
                mounted.push(path.clone());
            }
        }
        Ok(mounted)
    }

    /// Unmounts what is at a target, and removes what was made for it. Data is never removed: what is not
    /// empty stays, and is an error.
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
                    "{path} holds what no volume left there: it is not removed"
                )))
            }
        }
    }
}
