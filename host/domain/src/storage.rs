//! What a role asks of a storage backend and what it hears back, in the terms of CSI 1.12 with its sharp edges taken off.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{ClusterId, DriverName, Uid, VolumeHandle, VolumeName},
    volume::ReclaimPolicy,
};

/// Opaque key-value pairs between a class, a driver and a volume, in the order of their keys.
pub type Parameters = BTreeMap<String, String>;

/// One place where a volume can be reached: topology keys with their values.
pub type Segments = BTreeMap<String, String>;

/// How large a volume shall be, in bytes. CSI `CapacityRange`: at least one bound is given, and `required ≤ limit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
pub enum CapabilityMode {
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeCapability {
    /// Who may read and write, from where.
    pub mode: CapabilityMode,
    /// Device or filesystem.
    pub access: AccessType,
}

/// Where a volume must be reachable. CSI `TopologyRequirement`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologyRequirement {
    /// The volume must be reachable from at least one of these.
    pub requisite: Vec<Segments>,
    /// In the order of preference.
    pub preferred: Vec<Segments>,
}

/// Who asked for a volume: kept by drivers that can, so that an orphan can be told from a stranger's volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// The cluster.
    pub cluster: ClusterId,
    /// `metadata.uid` of the claim.
    pub claim: Uid,
    /// Name of the PersistentVolume.
    pub volume: VolumeName,
    /// What shall happen to the volume when its claim is gone.
    pub reclaim_policy: ReclaimPolicy,
}

/// Arguments of CreateVolume. Serialisable because a retry must repeat the very same request, also after a restart and
/// when the class has changed meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Where the volume must be reachable, for drivers with topology.
    pub topology: Option<TopologyRequirement>,
    /// Who asked.
    pub owner: Option<Owner>,
}

/// How a node reaches a volume. An open record: kinds are added without a change of the contract, and the node's own
/// parser decides what it accepts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentRecord {
    /// Kind, such as `directory` or `none`.
    pub kind: String,
    /// Version of the kind's fields.
    pub version: u32,
    /// Fields of the kind.
    pub fields: Parameters,
}

/// Answer of CreateVolume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    pub attachment: Option<AttachmentRecord>,
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
}

/// Answer of ValidateVolumeCapabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Validation {
    /// Every capability holds.
    Confirmed,
    /// At least one does not; the message says which and why.
    Refused(String),
}

/// Closed kind of a failed call: the gRPC codes that CSI uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The arguments can never succeed.
    InvalidArgument,
    /// The volume does not exist.
    NotFound,
    /// The name exists with other arguments.
    AlreadyExists,
    /// The driver lacks a right.
    PermissionDenied,
    /// The driver's credentials were refused.
    Unauthenticated,
    /// No space, no quota, too many.
    ResourceExhausted,
    /// The volume is in a state that forbids the call.
    FailedPrecondition,
    /// Another call for the volume is running.
    Aborted,
    /// A size outside what the driver offers.
    OutOfRange,
    /// The driver does not have the function.
    Unimplemented,
    /// A bug in the driver or the array.
    Internal,
    /// The array cannot be reached now.
    Unavailable,
    /// The deadline passed first.
    DeadlineExceeded,
    /// The call was cancelled.
    Cancelled,
    /// Data is gone.
    DataLoss,
    /// Anything else.
    Unknown,
}

impl ErrorKind {
    /// The gRPC code's name, as the sidecars' metric label `grpc_status_code` spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "InvalidArgument",
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::PermissionDenied => "PermissionDenied",
            Self::Unauthenticated => "Unauthenticated",
            Self::ResourceExhausted => "ResourceExhausted",
            Self::FailedPrecondition => "FailedPrecondition",
            Self::Aborted => "Aborted",
            Self::OutOfRange => "OutOfRange",
            Self::Unimplemented => "Unimplemented",
            Self::Internal => "Internal",
            Self::Unavailable => "Unavailable",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::Cancelled => "Canceled",
            Self::DataLoss => "DataLoss",
            Self::Unknown => "Unknown",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a failed call may still have an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Finality {
    /// Nothing happened and nothing will.
    Final,
    /// It may still complete: the same call again tells.
    InProgress,
    /// Nobody knows.
    Unknown,
}

/// A failed call to a backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct StorageError {
    /// Closed kind.
    pub kind: ErrorKind,
    /// For people.
    pub message: String,
    /// The backend's wish for the next try, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// Whether the call may still have an effect.
    pub finality: Finality,
}

impl StorageError {
    /// A failure after which nothing happened and nothing will.
    pub fn last(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after_ms: None, finality: Finality::Final }
    }

    /// A failure whose outcome nobody knows.
    pub fn unknown(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after_ms: None, finality: Finality::Unknown }
    }
}

/// Where a backend's controller calls run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Anywhere in the cluster.
    #[default]
    Central,
    /// In a process on the node that holds the storage.
    Node,
}

/// What a backend says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Name, as a StorageClass' `provisioner` spells it.
    pub name: DriverName,
    /// The vendor's version.
    pub version: String,
    /// Topology keys that it understands.
    pub topology_keys: Vec<String>,
    /// Where its controller calls run.
    pub placement: Placement,
    /// How many volumes fit a node; absent when unlimited.
    pub volumes_per_node: Option<u32>,
    /// What CSI can only express as behaviour, by name.
    pub features: Vec<String>,
}

/// Whether a backend is ready. CSI `Probe`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It can be called.
    Ready,
    /// It is still starting; the message says why.
    NotReady(String),
}
