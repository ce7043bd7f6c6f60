//! Snapshots and groups of them, in the terms of CSI.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::{
    ids::{ClusterId, GroupSnapshotHandle, SnapshotHandle, Uid, VolumeHandle},
    storage::Parameters,
};

/// For whom a snapshot or a group of them is cut.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotOwner {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The VolumeSnapshot or VolumeGroupSnapshot.
    pub snapshot_uid: Uid,
    /// Name of the object that stands for what is cut.
    pub content_name: String,
    /// Whether it stays when that object is gone.
    pub retain: bool,
}

/// Arguments of CreateSnapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CreateSnapshot {
    /// Idempotency key: the same name with the same source is the same snapshot.
    pub name: String,
    /// The volume.
    pub source: VolumeHandle,
    /// The class' parameters.
    pub parameters: Parameters,
    /// For whom.
    pub owner: Option<SnapshotOwner>,
}

/// A snapshot. CSI `Snapshot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The driver's id of the snapshot.
    pub handle: SnapshotHandle,
    /// The volume that it was taken of.
    pub source: VolumeHandle,
    /// The size that a volume needs at least to hold it, in bytes; absent when the driver does not know it.
    pub size: Option<u64>,
    /// When it was cut, in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Whether a volume can be made of it already.
    pub ready: bool,
    /// The group that it belongs to.
    pub group: Option<GroupSnapshotHandle>,
    /// For whom it was cut, when the driver has kept that.
    pub owner: Option<SnapshotOwner>,
}

/// Answer of ListSnapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotPage {
    /// Snapshots.
    pub snapshots: Vec<Snapshot>,
    /// Where the next part begins; absent at the end.
    pub next_token: Option<String>,
}

/// Arguments of CreateVolumeGroupSnapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CreateGroupSnapshot {
    /// Idempotency key: the same name with the same sources is the same group.
    pub name: String,
    /// The volumes.
    pub sources: BTreeSet<VolumeHandle>,
    /// The class' parameters.
    pub parameters: Parameters,
    /// For whom.
    pub owner: Option<SnapshotOwner>,
}

/// A group snapshot. CSI `VolumeGroupSnapshot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupSnapshot {
    /// The driver's id of the group.
    pub handle: GroupSnapshotHandle,
    /// Its members, one for each source.
    pub snapshots: Vec<Snapshot>,
    /// When they were cut, in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Whether all members are ready.
    pub ready: bool,
}
