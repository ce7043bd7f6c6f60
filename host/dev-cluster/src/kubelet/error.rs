//! Errors of the simulated kubelet's operations. An error that a real kubelet has, too, has the same text.

use cofferdam_cluster::{ApiError, SecretError};
use cofferdam_domain::{ClaimKey, DriverName, PodKey, VolumeAttachmentName, VolumeName};
use tonic::{Code, Status};

use crate::files::FileError;

/// A failed call to a driver, in the format of kubelet.
#[derive(Clone, Debug, thiserror::Error)]
#[error("rpc error: code = {:?} desc = {}", .0.code(), .0.message())]
pub struct RpcError(Box<Status>);

impl RpcError {
    /// The status code of the call.
    pub(super) fn code(&self) -> Code {
        self.0.code()
    }

    /// The status of the call.
    pub(super) fn status(&self) -> &Status {
        &self.0
    }
}

impl From<Status> for RpcError {
    fn from(status: Status) -> Self {
        Self(Box::new(status))
    }
}

/// A volume operation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    /// A request to the API server failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A Secret cannot be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The API server returned a claim that cannot be decoded.
    #[error("cannot decode claim {claim}: {message}")]
    InvalidClaim { claim: ClaimKey, message: String },
    /// Kubelet's files could not be changed.
    #[error(transparent)]
    File(#[from] FileError),
    /// NodePublishVolume, NodeExpandVolume or NodeGetCapabilities failed.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// NodeStageVolume failed.
    #[error("MountVolume.MountDevice failed: {0}")]
    Stage(RpcError),
    /// NodeUnpublishVolume failed.
    #[error("UnmountVolume.TearDown failed: {0}")]
    Unpublish(RpcError),
    /// NodeUnstageVolume failed.
    #[error("UnmountDevice failed: {0}")]
    Unstage(RpcError),
    /// The driver is not registered on the node.
    #[error("driver name {0} not found in the list of registered CSI drivers")]
    UnknownDriver(DriverName),
    /// The claim does not exist.
    #[error("claim {0} does not exist")]
    ClaimNotFound(ClaimKey),
    /// The claim has the name of a generic ephemeral volume of the pod, but the pod does not control it.
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    NotOwner { claim: ClaimKey, pod: PodKey },
    /// The claim is not bound.
    #[error("claim {0} is not bound")]
    ClaimNotBound(ClaimKey),
    /// The PersistentVolume does not exist.
    #[error("volume {0} does not exist")]
    VolumeNotFound(VolumeName),
    /// The `claimRef` of the PersistentVolume is absent or does not name the claim with its UID.
    #[error("volume {0} is bound to another claim")]
    BoundToOtherClaim(VolumeName),
    /// The node affinity of the PersistentVolume does not match the node.
    #[error("no matching NodeSelectorTerms: the volume cannot be reached from this node")]
    NodeAffinity,
    /// The volume is not in the Node's `volumesAttached`, or the Node does not exist.
    #[error("Volume not attached according to node status")]
    NotInNodeStatus,
    /// The VolumeAttachment is not attached, or is being deleted.
    #[error("VolumeAttachment {0} is not attached")]
    NotAttached(VolumeAttachmentName),
    /// The VolumeAttachment does not exist.
    #[error("VolumeAttachment {0} does not exist")]
    AttachmentNotFound(VolumeAttachmentName),
    /// The CSIDriver does not list the volume's lifecycle mode, or the volume is inline and the CSIDriver
    /// does not exist.
    #[error("volume mode {mode:?} not supported by driver {driver}")]
    UnsupportedMode { mode: &'static str, driver: DriverName },
}

/// The information of a plugin is not valid.
#[derive(Debug, thiserror::Error)]
pub(super) enum PluginInfoError {
    /// The plugin is not a CSI driver.
    #[error("no handler registered for plugin type: {0}")]
    UnknownType(String),
    /// The plugin reports no version with a major version that can be parsed.
    #[error("plugin does not specify supported versions")]
    NoVersions,
    /// The highest supported version of the plugin is 2 or later.
    #[error("version {0} is not supported: expected below 2")]
    UnsupportedVersion(u32),
}

/// The node information of a driver could not be read from the driver or written to Node and CSINode.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeInfoError {
    /// NodeGetInfo failed.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// The driver returned no node ID.
    #[error("driver returned an empty node id")]
    EmptyNodeId,
    /// The Node does not exist.
    #[error("node {0} does not exist")]
    NodeNotFound(cofferdam_domain::NodeName),
    /// A label of the Node has another value than the topology segment with this key that the driver
    /// reported.
    #[error("detected topology value collision: driver reported {key:?}:{value:?}")]
    TopologyCollision { key: String, value: String },
    /// A request to the API server failed.
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// The registration of a driver failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegistrationError {
    /// The plugin's information is not valid.
    #[error("plugin validation failed with err: {0}")]
    Validation(#[from] PluginInfoError),
    /// The driver's node information could not be read or written.
    #[error("plugin registration failed with err: {0}")]
    Registration(#[from] NodeInfoError),
    /// NotifyRegistrationStatus failed.
    #[error(transparent)]
    Notification(#[from] RpcError),
}
