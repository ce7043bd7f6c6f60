//! The volumes of one driver on this node: staged, published, grown, measured, and undone.
//!
//! Nothing here waits for another call: the caller keeps two calls for one volume apart.

mod measure;
mod publish;
mod stage;
mod turns;

use cofferdam_domain::storage::{AccessType, ConnectionInfo, VolumeCapability};

pub use measure::{Expand, Health, Statistics};

use crate::{
    error::{NodeError, Step as _},
    executor::BLOCK,
    machine::{Found, FoundKind, Machine},
    path::{Place, Roots},
    policy::Policy,
    record::VolumeRecord,
};

/// Arguments of NodeStageVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The volume's handle.
    pub volume: String,
    /// Where it is staged: an absolute path of kubelet's, which is there.
    pub staging_path: String,
    /// How it is used.
    pub capability: VolumeCapability,
    /// How it is reached.
    pub attachment: ConnectionInfo,
    /// Whether its content was made of another volume or of a snapshot.
    pub cloned: bool,
}

/// Arguments of NodePublishVolume for a volume that was staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
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
pub struct PublishInline {
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
pub struct Node<M> {
    machine: M,
    roots: Roots,
    policy: Policy,
    turns: turns::Turns,
}

impl<M: Machine> Node<M> {
    /// A node whose kubelet has these roots.
    pub fn new(machine: M, roots: Roots, policy: Policy) -> Self {
        Self { machine, roots, policy, turns: turns::Turns::default() }
    }

    /// The machine.
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// The policy.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    fn record(&self, volume: &str) -> Result<Option<VolumeRecord>, NodeError> {
        self.machine.record(volume).step("read the volume's record")
    }

    fn look(&self, place: &Place) -> Result<Option<Found>, NodeError> {
        self.machine.look(place).step("look at a path of kubelet")
    }

    fn is_mounted(&self, place: &Place) -> Result<bool, NodeError> {
        Ok(self.look(place)?.is_some_and(|found| !found.mounts.is_empty()))
    }

    /// Where a staged volume is: its staging path, or the device's file in it. Absent when nothing is mounted
    /// there.
    fn staged_at(&self, record: &VolumeRecord) -> Result<Option<(Place, Found)>, NodeError> {
        let Some(staging) = &record.staging else { return Ok(None) };
        let place = self.roots.place("staging_target_path", staging)?;
        let place = match record.capability.access_type {
            AccessType::Filesystem { .. } => place,
            AccessType::Block if self.is_mounted(&place)? => return Ok(None),
            AccessType::Block => place.join(BLOCK),
        };
        let found = self.look(&place)?.filter(|found| !found.mounts.is_empty());
        Ok(found.map(|found| (place, found)))
    }

    /// The targets at which something of a volume is mounted.
    fn live_targets(&self, record: &VolumeRecord) -> Result<Vec<String>, NodeError> {
        let mut live = Vec::new();
        for path in record.targets.keys() {
            if self.is_mounted(&self.roots.place("target_path", path)?)? {
                live.push(path.clone());
            }
        }
        Ok(live)
    }

    /// Unmounts what is at a target, and removes what was made for it. Data is never removed: what is not
    /// empty stays, and is an error.
    fn clear(&self, place: &Place) -> Result<(), NodeError> {
        while self.is_mounted(place)? {
            self.machine.unmount(place).step("unmount the target path")?;
        }
        match self.look(place)?.map(|found| found.kind) {
            None => Ok(()),
            Some(FoundKind::Directory | FoundKind::File(0)) => {
                self.machine.remove_empty(place).step("remove the target path")
            }
            Some(FoundKind::File(_) | FoundKind::Device(_) | FoundKind::Other) => {
                Err(NodeError::Precondition(format!(
                    "{place} holds what no volume left there: it is not removed"
                )))
            }
        }
    }
}
