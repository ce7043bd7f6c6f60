//! The content of the array.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// The name.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The storage tier: `fast` or `cheap`.
    pub tier: String,
    /// The source of the content; `None` for a volume that was created empty.
    pub source: Option<VolumeSource>,
    /// Labels set by the creator.
    pub labels: BTreeMap<String, String>,
    /// The world-wide name of the device, as the name of its link in `/dev/disk/by-id` on a node: `wwn-0x`
    /// and 32 hexadecimal digits.
    pub wwn: String,
    /// The exports to nodes.
    pub exports: Vec<Export>,
    /// Time of the creation or the last resize, in milliseconds since 1970-01-01T00:00:00Z. Exports do not
    /// change it.
    pub changed_ms: u64,
}

/// The source of a volume's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeSource {
    /// A volume.
    Volume(String),
    /// A snapshot.
    Snapshot(String),
}

/// An export of a volume to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// The node.
    pub node: String,
    /// True if the node may only read.
    pub read_only: bool,
    /// True if no other node may reach the volume.
    pub exclusive: bool,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The name.
    pub name: String,
    /// The source volume.
    pub volume: String,
    /// The size of the source volume in bytes, at the creation of the snapshot.
    pub bytes: u64,
    /// Creation time, in milliseconds since 1970-01-01T00:00:00Z.
    pub created_ms: u64,
}

/// The capacity of the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayPool {
    /// Total bytes.
    pub total_bytes: u64,
    /// Total bytes minus the sizes of all volumes. Snapshots need no space.
    pub free_bytes: u64,
    /// Maximum volume size in bytes.
    pub max_volume_bytes: u64,
}

/// The content of the array.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrayContent {
    /// The volumes by name.
    pub volumes: BTreeMap<String, Volume>,
    /// The snapshots by name.
    pub snapshots: BTreeMap<String, Snapshot>,
}

/// Counters of the array.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Successful logins.
    pub logins: u64,
    /// Logins rejected because of wrong credentials or too many sessions.
    pub refused_logins: u64,
    /// Open sessions. An expired session counts until the next request.
    pub sessions: usize,
    /// Processed requests by method and kind, such as `PUT volumes` or `DELETE exports`, including those with
    /// an error response. Requests with the injected fault `Status` or `LostRequest` are not counted.
    pub requests: BTreeMap<String, u64>,
}
