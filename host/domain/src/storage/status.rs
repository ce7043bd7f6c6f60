//! Volume status and available capacity.

use serde::Serialize;

use crate::{
    ids::NodeId,
    storage::{CreatedVolume, Parameters, Segments, VolumeCapability, VolumeOwner},
};

/// CSI `VolumeCondition`: the health of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeCondition {
    /// True if the volume is unhealthy.
    pub abnormal: bool,
    /// Description of the condition.
    pub message: String,
}

/// The status of a volume: an entry of CSI ListVolumes or the response of ControllerGetVolume, plus the owner
/// and the time of the creation or last change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// The volume with its current size.
    pub volume: CreatedVolume,
    /// The owner, if the driver stored it.
    pub owner: Option<VolumeOwner>,
    /// The nodes to which the volume is published. Empty if the driver does not report them.
    pub published_node_ids: Vec<NodeId>,
    /// The condition, if known.
    pub condition: Option<VolumeCondition>,
    /// Time of the creation or last change in milliseconds since the Unix epoch. `None` if the driver does
    /// not know it, and for existing CSI drivers.
    pub changed_at_ms: Option<u64>,
}

/// Response of ListVolumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumePage {
    /// Volumes.
    pub volumes: Vec<VolumeStatus>,
    /// Token of the next page; `None` on the last page.
    pub next_token: Option<String>,
}

/// Arguments of GetCapacity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CapacityQuery {
    /// Required capabilities; empty for any.
    pub capabilities: Vec<VolumeCapability>,
    /// Parameters of the StorageClass.
    pub parameters: Parameters,
    /// Required topology segment; `None` for the total capacity.
    pub topology: Option<Segments>,
}

/// Response of GetCapacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Capacity in bytes that is available for new volumes.
    pub available: u64,
    /// Maximum volume size in bytes, if known.
    pub maximum_volume_size: Option<u64>,
    /// Minimum volume size in bytes, if known.
    pub minimum_volume_size: Option<u64>,
}
