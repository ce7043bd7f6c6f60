//! Reasons for which a pod or a node is rejected, in the words of kube-scheduler.

use cofferdam_domain::{ClaimKey, PodKey};

/// A claim keeps a pod from being scheduled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClaimError {
    /// The claim of a generic ephemeral volume has not been created.
    #[error("waiting for ephemeral volume controller to create the persistentvolumeclaim {0:?}")]
    EphemeralNotFound(String),
    /// The claim does not exist.
    #[error("persistentvolumeclaim {0:?} not found")]
    NotFound(String),
    /// The claim's phase is Lost, such as after its PersistentVolume was deleted.
    #[error("persistentvolumeclaim {claim:?} bound to non-existent persistentvolume {volume:?}")]
    Lost { claim: String, volume: String },
    /// The claim is being deleted.
    #[error("persistentvolumeclaim {0:?} is being deleted")]
    Deleting(String),
    /// The claim has the name of a generic ephemeral volume of the pod, but the pod does not control it.
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    NotOwner { claim: ClaimKey, pod: PodKey },
    /// The binding of the claim is not complete and does not wait for this pod: its class is missing or has
    /// immediate binding, or its `volumeName` is set although no node is assumed for the pod.
    #[error("pod has unbound immediate PersistentVolumeClaims")]
    UnboundImmediate,
}

/// A node is not suitable for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NodeRejection {
    /// The node is cordoned.
    #[error("node(s) were unschedulable")]
    Unschedulable,
    /// The pod does not tolerate a taint of the node.
    #[error("node(s) had untolerated taint(s)")]
    UntoleratedTaint,
    /// The pod's node selector or required node affinity does not match the node.
    #[error("node(s) didn't match Pod's node affinity/selector")]
    PodAffinity,
    /// A ReadWriteOncePod claim is used by another pod.
    #[error("node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode")]
    ReadWriteOncePod,
    /// The pod would exceed a driver's limit of volumes on the node.
    #[error("node(s) exceed max volume count")]
    VolumeLimit,
    /// The node affinity of a bound claim's PersistentVolume does not match the node.
    #[error("node(s) didn't match PersistentVolume's node affinity")]
    VolumeAffinity,
    /// No volume matches and none can be provisioned, or another node is selected for the claim.
    #[error("node(s) didn't find available persistent volumes to bind")]
    BindConflict,
    /// No CSIStorageCapacity that includes the node is large enough for the claim.
    #[error("node(s) did not have enough free storage")]
    NotEnoughSpace,
    /// The PersistentVolume of a bound claim does not exist.
    #[error("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")]
    VolumeNotFound,
    /// A zone or region label of a bound claim's PersistentVolume does not include the value of the node's
    /// label.
    #[error("node(s) had no available volume zone")]
    ZoneConflict,
}
