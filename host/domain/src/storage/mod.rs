//! What a role asks of a storage backend and what it hears back, in the terms of CSI 1.12 with its sharp
//! edges taken off.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    ids::{ClusterId, NodeId, SnapshotHandle, Uid, VolumeHandle, VolumeName},
    volume::ReclaimPolicy,
};

pub mod ability;
pub mod connection_info;
mod description;
mod error;
mod secrets;
mod snapshot;
mod status;

pub use ability::{Ability, Feature};
pub use description::{Description, Placement, Readiness};
pub use error::{ErrorKind, Finality, StorageError};
pub use secrets::{Secret, Secrets};
pub use snapshot::{
    CreateGroupSnapshot, CreateSnapshot, GroupSnapshot, Snapshot, SnapshotOwner, SnapshotPage,
};
pub use status::{Capacity, CapacityQuery, VolumeCondition, VolumePage, VolumeStatus};

/// Opaque key-value pairs between a class, a driver and a volume, in the order of their keys.
pub type Parameters = BTreeMap<String, String>;

/// Bytes of all keys and values of a map.
pub fn total_bytes(map: &Parameters) -> usize {
    map.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// One place where a volume can be reached: topology keys with their values.
pub type Segments = BTreeMap<String, String>;

/// How large a volume shall be, in bytes. CSI `CapacityRange`: at least one bound is given, and `required ≤
/// limit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapacityRange {
    /// At least this many bytes.
    pub required: Option<u64>,
    /// At most this many bytes.
    pub limit: Option<u64>,
}

/// CSI `VolumeCapability.AccessMode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CsiAccessMode {
    /// Read and write on one node.
    SingleNodeWriter,
    /// Read only, on one node.
    SingleNodeReaderOnly,
    /// Read only, on many nodes.
    MultiNodeReaderOnly,
    /// Written on one node, read on others.
    MultiNodeSingleWriter,
    /// Read and write on many nodes.
    MultiNodeMultiWriter,
    /// One writer on one node.
    SingleNodeSingleWriter,
    /// Many writers on one node.
    SingleNodeMultiWriter,
}

/// CSI `VolumeCapability.access_type`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessType {
    /// The raw device.
    Block,
    /// A mounted filesystem.
    Filesystem {
        /// Filesystem type; absent leaves the choice to the driver.
        fs_type: Option<String>,
        /// Mount options, in the order of the class.
        mount_flags: Vec<String>,
        /// Group that shall own the mounted volume.
        mount_group: Option<String>,
    },
}

/// One way in which a volume shall be usable. CSI `VolumeCapability`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeCapability {
    /// Who may read and write, from where.
    pub access_mode: CsiAccessMode,
    /// Device or filesystem.
    pub access_type: AccessType,
}

/// Where a volume must be reachable. CSI `TopologyRequirement`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologyRequirement {
    /// The volume must be reachable from at least one of these.
    pub requisite: Vec<Segments>,
    /// In the order of preference.
    pub preferred: Vec<Segments>,
}

/// Who asked for a volume: kept by drivers that can, so that an orphan can be told from a stranger's volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeOwner {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// `metadata.uid` of the claim.
    pub claim_uid: Uid,
    /// Name of the PersistentVolume.
    pub pv_name: VolumeName,
    /// What shall happen to the volume when its claim is gone.
    pub reclaim_policy: ReclaimPolicy,
}

/// Arguments of CreateVolume. Serialisable because a retry must repeat the very same request, also after a
/// restart and when the class has changed meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Idempotency key: the same name with the same arguments is the same volume.
    pub name: String,
    /// Size.
    pub capacity: CapacityRange,
    /// Every way in which the volume shall be usable; at least one.
    pub capabilities: Vec<VolumeCapability>,
    /// The class' parameters without the reserved ones.
    pub parameters: Parameters,
    /// Parameters that can be changed later (VolumeAttributesClass); empty for drivers without
    /// [`Ability::Modification`]. Entries written before there were any do not have them.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    pub mutable_parameters: Parameters,
    /// Where the volume must be reachable, for drivers with topology.
    pub topology: Option<TopologyRequirement>,
    /// Who asked.
    pub owner: Option<VolumeOwner>,
    /// Source of the volume's content; an empty volume without one.
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

    /// The kind of the source: its value in a volume context under [`names::CONTENT_SOURCE`].
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Volume(_) => "volume",
            Self::Snapshot(_) => "snapshot",
        }
    }
}

/// How a node reaches a volume. An open record: kinds are added without a change of the contract, and the
/// node's own parser decides what it accepts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConnectionInfo {
    /// Kind, such as `directory` or `none`.
    pub kind: String,
    /// Version of the kind's fields.
    pub version: u32,
    /// Fields of the kind.
    pub fields: Parameters,
}

/// Answer of CreateVolume.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CreatedVolume {
    /// The driver's id of the volume.
    pub handle: VolumeHandle,
    /// Actual size in bytes; absent when the driver does not know it.
    pub capacity: Option<u64>,
    /// Attributes that every later call for the volume receives.
    pub context: Parameters,
    /// Where the volume can be reached; empty when from everywhere.
    pub topology: Vec<Segments>,
    /// How a node reaches the volume, for drivers without a publish step.
    pub connection_info: Option<ConnectionInfo>,
}

/// Arguments of ValidateVolumeCapabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidateVolume {
    /// The volume.
    pub handle: VolumeHandle,
    /// Its attributes, as CreateVolume returned them.
    pub context: Parameters,
    /// The ways in question.
    pub capabilities: Vec<VolumeCapability>,
    /// The class' parameters.
    pub parameters: Parameters,
    /// Parameters that can be changed later.
    pub mutable_parameters: Parameters,
}

/// Answer of ValidateVolumeCapabilities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Validation {
    /// Every capability holds.
    Confirmed,
    /// At least one does not; the message says which and why.
    Refused(String),
}

/// Arguments of ControllerPublishVolume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PublishVolume {
    /// The volume.
    pub handle: VolumeHandle,
    /// The node, by its CSI node id.
    pub node_id: NodeId,
    /// What the node is called in the protocols that storage speaks, such as `iscsi-initiator`.
    pub node_identities: Parameters,
    /// How it will be used there.
    pub capability: VolumeCapability,
    /// Whether for reading only; needs [`Feature::PublishReadonly`].
    pub read_only: bool,
    /// The volume's attributes, as CreateVolume returned them.
    pub context: Parameters,
}

/// Arguments of ControllerExpandVolume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExpandVolume {
    /// The volume.
    pub handle: VolumeHandle,
    /// The size that it shall have.
    pub capacity: CapacityRange,
    /// How it is used, when the caller knows.
    pub capability: Option<VolumeCapability>,
}

/// Answer of ControllerExpandVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExpandedVolume {
    /// Size now, in bytes.
    pub capacity: u64,
    /// Whether the node has to do its part.
    pub node_expansion_required: bool,
}

/// A part of a listing: from where, and how many at most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageRequest {
    /// Where an earlier part ended, in the driver's words; absent for the beginning.
    pub starting_token: Option<String>,
    /// At most this many; absent leaves it to the driver.
    pub max_entries: Option<u32>,
}
