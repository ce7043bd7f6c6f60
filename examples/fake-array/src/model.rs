//! What the array holds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// What it lies on: `fast` or `cheap`.
    pub tier: String,
    /// What its content was copied from.
    pub source: Option<VolumeSource>,
    /// Whatever its maker wrote beside it.
    pub labels: BTreeMap<String, String>,
    /// The name by which nodes see its device.
    pub wwn: String,
    /// Where it can be reached from.
    pub exports: Vec<Export>,
    /// When it was made or changed last, in milliseconds since 1970-01-01T00:00:00Z.
    pub changed_ms: u64,
}

/// What a content was copied from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeSource {
    /// A volume.
    Volume(String),
    /// A snapshot.
    Snapshot(String),
}

/// A node that can reach a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// The node.
    pub node: String,
    /// Whether it may only read.
    pub read_only: bool,
    /// Whether no other node may reach the volume.
    pub exclusive: bool,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// What it was cut of.
    pub volume: String,
    /// How large that was.
    pub bytes: u64,
    /// When it was cut, in milliseconds since 1970-01-01T00:00:00Z.
    pub created_ms: u64,
}

/// How much room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayPool {
    /// In all.
    pub total_bytes: u64,
    /// Not taken by any volume.
    pub free_bytes: u64,
    /// The largest volume that the array can have.
    pub max_volume_bytes: u64,
}

/// All that the array holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrayContent {
    /// The volumes by their names.
    pub volumes: BTreeMap<String, Volume>,
    /// The snapshots by their names.
    pub snapshots: BTreeMap<String, Snapshot>,
}

/// What the array has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Logins that were granted.
    pub logins: u64,
    /// Logins that were refused.
    pub refused_logins: u64,
    /// Sessions that are open now.
    pub sessions: usize,
    /// The requests that were processed, by method and kind, such as `PUT volumes` or `DELETE exports`. Those
    /// that an injected status answered are not among them.
    pub requests: BTreeMap<String, u64>,
}
