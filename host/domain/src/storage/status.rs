//! What a driver tells of its volumes and of its room.

use serde::Serialize;

use crate::{
    ids::NodeId,
    storage::{CreatedVolume, Parameters, Segments, VolumeCapability, VolumeOwner},
};

/// How healthy a volume is. CSI `VolumeCondition`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeCondition {
    /// Whether something is wrong with it.
    pub abnormal: bool,
    /// What, for people.
    pub message: String,
}

/// A volume as it stands now. CSI's entries of ListVolumes and answer of ControllerGetVolume, with what only
/// our contract has: the owner and the time of the last change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// The volume with its present size.
    pub volume: CreatedVolume,
    /// Who asked for it, when the driver has kept that.
    pub owner: Option<VolumeOwner>,
    /// The nodes that it is published to.
    pub published_node_ids: Vec<NodeId>,
    /// Its condition, when the driver knows.
    pub condition: Option<VolumeCondition>,
    /// When it was created or changed last, in milliseconds since the Unix epoch, when the driver knows.
    pub changed_at_ms: Option<u64>,
}

/// Answer of ListVolumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumePage {
    /// Volumes.
    pub volumes: Vec<VolumeStatus>,
    /// Where the next part begins; absent at the end.
    pub next_token: Option<String>,
}

/// Arguments of GetCapacity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CapacityQuery {
    /// How the volumes would be used; empty when it does not matter.
    pub capabilities: Vec<VolumeCapability>,
    /// The class' parameters.
    pub parameters: Parameters,
    /// Where they would have to be reachable; absent for the whole storage.
    pub topology: Option<Segments>,
}

/// Answer of GetCapacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Bytes that volumes can still be created with.
    pub available: u64,
    /// The largest volume that can be created, in bytes; absent when the driver does not know.
    pub maximum_volume_size: Option<u64>,
    /// The smallest volume that can be created, in bytes; absent when the driver does not know.
    pub minimum_volume_size: Option<u64>,
}
