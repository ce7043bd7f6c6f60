//! Snapshots and group snapshots.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::{
    ids::{ClusterId, GroupSnapshotHandle, SnapshotHandle, Uid, VolumeHandle},
    storage::Parameters,
};

/// The Kubernetes objects for which a snapshot or a group snapshot was created.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotOwner {
    /// Id of the cluster.
    pub cluster_id: ClusterId,
    /// Uid of the VolumeSnapshot or VolumeGroupSnapshot.
    pub snapshot_uid: Uid,
    /// Name of the VolumeSnapshotContent or VolumeGroupSnapshotContent.
    pub content_name: String,
    /// True if the snapshot is retained after the deletion of the content object (deletion policy Retain).
    pub retain: bool,
}

/// Arguments of CreateSnapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CreateSnapshot {
    /// Idempotency key: the same name and source yield the same snapshot.
    pub name: String,
    /// The source volume.
    pub source: VolumeHandle,
    /// Parameters of the class.
    pub parameters: Parameters,
    /// The owner; `None` if it is unknown, as for a request that Cofferdam's csi-server received.
    pub owner: Option<SnapshotOwner>,
}

/// A snapshot. CSI `Snapshot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The driver's id of the snapshot.
    pub handle: SnapshotHandle,
    /// The source volume.
    pub source: VolumeHandle,
    /// Minimum size in bytes of a volume from the snapshot, if known.
    pub size: Option<u64>,
    /// Creation time in milliseconds since the Unix epoch; 0 if the driver does not report it.
    pub created_at_ms: u64,
    /// CSI `ready_to_use`: whether volumes can be created from the snapshot.
    pub ready: bool,
    /// The group snapshot of which the snapshot is a member; `None` if it is a member of none.
    pub group: Option<GroupSnapshotHandle>,
    /// The owner, if the driver stored it.
    pub owner: Option<SnapshotOwner>,
}

/// Response of ListSnapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotPage {
    /// Snapshots.
    pub snapshots: Vec<Snapshot>,
    /// Token of the next page; `None` on the last page.
    pub next_token: Option<String>,
}

/// Arguments of CreateVolumeGroupSnapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CreateGroupSnapshot {
    /// Idempotency key: the same name and sources yield the same group.
    pub name: String,
    /// The source volumes.
    pub sources: BTreeSet<VolumeHandle>,
    /// Parameters of the class.
    pub parameters: Parameters,
    /// The owner; `None` if it is unknown, as for a request that Cofferdam's csi-server received.
    pub owner: Option<SnapshotOwner>,
}

/// A group snapshot. CSI `VolumeGroupSnapshot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupSnapshot {
    /// The driver's id of the group.
    pub handle: GroupSnapshotHandle,
    /// The snapshots, one for each source volume.
    pub snapshots: Vec<Snapshot>,
    /// Creation time in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// True if all snapshots are ready.
    pub ready: bool,
}
