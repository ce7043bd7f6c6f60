//! Input of scheduling decisions.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use cofferdam_domain::{Claim, ClaimKey, NodeName, StorageClass, Uid, VolumeAttachment, VolumeName};

use crate::kinds::{CsiStorageCapacity, FullCsiDriver, FullCsiNode, FullNode, FullPod, FullVolume};

/// State of the cluster that a decision depends on.
#[derive(Clone, Debug, Default)]
pub struct SchedulerInput {
    /// Nodes, by name.
    pub nodes: BTreeMap<NodeName, Arc<FullNode>>,
    /// Claims.
    pub claims: HashMap<ClaimKey, Arc<Claim>>,
    /// PersistentVolumes, by name. If several of the same size match a claim, the first by name is used.
    pub volumes: BTreeMap<VolumeName, Arc<FullVolume>>,
    /// StorageClasses.
    pub classes: HashMap<String, Arc<StorageClass>>,
    /// VolumeAttachments.
    pub volume_attachments: Vec<Arc<VolumeAttachment>>,
    /// CSINodes.
    pub csi_nodes: HashMap<NodeName, Arc<FullCsiNode>>,
    /// CSIDrivers.
    pub csi_drivers: HashMap<String, Arc<FullCsiDriver>>,
    /// CSIStorageCapacities.
    pub capacities: Vec<Arc<CsiStorageCapacity>>,
    /// Pods other than the one to schedule that have not terminated, each with the node that it is bound to
    /// or with its assumed node.
    pub assigned_pods: Vec<(NodeName, Arc<FullPod>)>,
    /// Assumed node of the pod to schedule; None before a node is selected.
    pub assumed: Option<AssumedNode>,
}

/// The node that was selected for a pod that is not bound yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssumedNode {
    /// The node.
    pub node: NodeName,
    /// UIDs of the claims whose selected-node annotation the scheduler set to this node.
    pub annotated_claims: BTreeSet<Uid>,
}

/// A claim of a pod, by its binding.
#[derive(Clone, Debug)]
pub(crate) enum PodClaim {
    /// A bound claim and its volume.
    Bound(Arc<Claim>, VolumeName),
    /// A claim with WaitForFirstConsumer whose binding is not complete.
    DelayedBinding(Arc<Claim>, Arc<StorageClass>),
}
