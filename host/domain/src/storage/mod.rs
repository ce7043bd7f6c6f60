//! Requests to a storage driver and their responses, based on CSI 1.12.
//!
//! A driver is a WebAssembly component or an existing CSI driver, which Cofferdam calls over gRPC. The
//! `csi-server` is Cofferdam's gRPC server that offers a driver of either kind as a CSI driver.

use serde::{Deserialize, Serialize};

use crate::{
    ids::{ClusterId, NodeId, SnapshotHandle, Uid, VolumeHandle, VolumeName},
    volume::ReclaimPolicy,
};

pub mod ability;
pub mod connection_info;
mod description;
mod error;
mod feature;
mod secrets;
mod snapshot;
mod status;
mod topology;

pub use ability::Ability;
pub use description::{Description, Placement, Readiness};
pub use error::{ErrorKind, Finality, StorageError};
pub use feature::Feature;
pub use secrets::{Secret, Secrets};
pub use snapshot::{
    CreateGroupSnapshot, CreateSnapshot, GroupSnapshot, Snapshot, SnapshotOwner, SnapshotPage,
};
pub use status::{Capacity, CapacityQuery, VolumeCondition, VolumePage, VolumeStatus};
pub use topology::TopologyRequirement;

pub use crate::parameters::{Parameters, Segments, total_bytes};

/// CSI `CapacityRange`: the requested size in bytes, with `required ≤ limit`. Without bounds, the driver
/// chooses the size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapacityRange {
    /// Minimum size in bytes; `None` for no minimum.
    pub required: Option<u64>,
    /// Maximum size in bytes; `None` for no maximum.
    pub limit: Option<u64>,
}

/// CSI `VolumeCapability.AccessMode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CsiAccessMode {
    /// Read-write on one node, without a limit of workloads there.
    SingleNodeWriter,
    /// Read-only on one node.
    SingleNodeReaderOnly,
    /// Read-only on many nodes.
    MultiNodeReaderOnly,
    /// Read-write on one node, read-only on others.
    MultiNodeSingleWriter,
    /// Read-write on many nodes.
    MultiNodeMultiWriter,
    /// Read-write for one workload on one node.
    SingleNodeSingleWriter,
    /// Read-write for many workloads on one node.
    SingleNodeMultiWriter,
}

/// CSI `VolumeCapability.access_type`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessType {
    /// A raw block device.
    Block,
    /// A mounted filesystem.
    Filesystem {
        /// Filesystem type; `None` leaves the choice to the driver or to the node service.
        fs_type: Option<String>,
        /// Mount options, in the order of the StorageClass or PersistentVolume.
        mount_flags: Vec<String>,
        /// CSI `volume_mount_group`: the group that owns the files of the mounted volume.
        mount_group: Option<String>,
    },
}

/// CSI `VolumeCapability`: access mode and access type.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeCapability {
    /// Access mode.
    pub access_mode: CsiAccessMode,
    /// Block device or filesystem.
    pub access_type: AccessType,
}

/// The Kubernetes objects for which a volume was created. A driver that stores the owner returns it in
/// [`VolumeStatus`]. The scan for volumes without a PersistentVolume then ignores volumes of other clusters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeOwner {
    /// Id of the cluster.
    pub cluster_id: ClusterId,
    /// `metadata.uid` of the claim.
    pub claim_uid: Uid,
    /// Name of the PersistentVolume.
    pub pv_name: VolumeName,
    /// Reclaim policy of the StorageClass at the time of the request. A WebAssembly component receives
    /// every policy other than Delete as Retain, and returns that value.
    pub reclaim_policy: ReclaimPolicy,
}

/// Arguments of CreateVolume. They are serializable, because a retry must repeat the identical request, even
/// after a restart or a change of the class.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Idempotency key: the same name and arguments yield the same volume.
    pub name: String,
    /// Requested size.
    pub capacity: CapacityRange,
    /// Required capabilities; at least one.
    pub capabilities: Vec<VolumeCapability>,
    /// Parameters of the StorageClass without those for the provisioner. With `--extra-create-metadata`, also
    /// the claim's name and namespace and the PersistentVolume's name.
    pub parameters: Parameters,
    /// Mutable parameters (VolumeAttributesClass); empty for drivers without [`Ability::Modification`].
    /// Requests that older versions of Cofferdam recorded do not have this field.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    pub mutable_parameters: Parameters,
    /// Topology requirement; `None` for drivers without topology, and if every segment is allowed.
    pub topology: Option<TopologyRequirement>,
    /// The owner; `None` if it is unknown, as for a request that the csi-server received.
    pub owner: Option<VolumeOwner>,
    /// Source of the volume's content; `None` for an empty volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ContentSource>,
}

/// Source of a new volume's content. CSI `VolumeContentSource`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ContentSource {
    /// Another volume.
    Volume(VolumeHandle),
    /// A snapshot.
    Snapshot(SnapshotHandle),
}

impl ContentSource {
    /// The ability that a driver needs for this source.
    pub const fn required_ability(&self) -> Ability {
        match self {
            Self::Volume(_) => Ability::Cloning,
            Self::Snapshot(_) => Ability::Restoring,
        }
    }

    /// The kind of the source: its value in a volume context under `names::CONTENT_SOURCE`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Volume(_) => "volume",
            Self::Snapshot(_) => "snapshot",
        }
    }
}

/// The information that a node needs to connect to a volume. New kinds need no change of the driver
/// interface; the node's parser defines which kinds it accepts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConnectionInfo {
    /// Kind, such as `directory` or `none`.
    pub kind: String,
    /// Version of the kind's fields.
    pub version: u32,
    /// Key-value pairs, whose keys the kind and its version define.
    pub fields: Parameters,
}

/// Response of CreateVolume.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CreatedVolume {
    /// The driver's id of the volume.
    pub handle: VolumeHandle,
    /// Actual size in bytes, if known.
    pub capacity: Option<u64>,
    /// CSI `volume_context` without Cofferdam's attributes, for all later calls that have a `volume_context`.
    pub context: Parameters,
    /// CSI `accessible_topology`; empty if accessible from everywhere.
    pub topology: Vec<Segments>,
    /// Connection info; `None` for drivers with ControllerPublishVolume, which return it from that call, and
    /// for existing CSI drivers other than a csi-server of Cofferdam.
    pub connection_info: Option<ConnectionInfo>,
}

/// Arguments of ValidateVolumeCapabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidateVolume {
    /// The volume.
    pub handle: VolumeHandle,
    /// CSI `volume_context` of the request, without Cofferdam's attributes.
    pub context: Parameters,
    /// Capabilities to validate.
    pub capabilities: Vec<VolumeCapability>,
    /// Parameters of the StorageClass.
    pub parameters: Parameters,
    /// Mutable parameters.
    pub mutable_parameters: Parameters,
}

/// Response of ValidateVolumeCapabilities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Validation {
    /// All capabilities are supported.
    Confirmed,
    /// The driver does not confirm all capabilities, or rejects the context or the parameters. The message
    /// has the reason, or says that the driver gives none.
    Refused(String),
}

/// The kind of [`PublishVolume::node_identities`] that is `spec.providerID` of the Node.
pub const PROVIDER_ID: &str = "provider-id";

/// Arguments of ControllerPublishVolume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PublishVolume {
    /// The volume.
    pub handle: VolumeHandle,
    /// CSI `node_id` of the node.
    pub node_id: NodeId,
    /// Other names of the node by kind of name, such as [`PROVIDER_ID`] or `iscsi-initiator`. Empty if unknown.
    pub node_identities: Parameters,
    /// Capability on the node.
    pub capability: VolumeCapability,
    /// True to publish read-only; requires [`Feature::PublishReadonly`].
    pub read_only: bool,
    /// CSI `volume_context`: the attributes of the PersistentVolume, or of the request that the csi-server
    /// received, without those with [`RESERVED_ATTRIBUTE_PREFIX`](crate::names::RESERVED_ATTRIBUTE_PREFIX).
    pub context: Parameters,
}

/// Arguments of ControllerExpandVolume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExpandVolume {
    /// The volume.
    pub handle: VolumeHandle,
    /// Requested size.
    pub capacity: CapacityRange,
    /// Capability in use, if known.
    pub capability: Option<VolumeCapability>,
}

/// Response of ControllerExpandVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExpandedVolume {
    /// New size in bytes.
    pub capacity: u64,
    /// True if NodeExpandVolume is required.
    pub node_expansion_required: bool,
}

/// Requests one page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageRequest {
    /// Token from the previous page; `None` for the first page.
    pub starting_token: Option<String>,
    /// Maximum number of entries; if `None` or 0, the driver chooses.
    pub max_entries: Option<u32>,
}
