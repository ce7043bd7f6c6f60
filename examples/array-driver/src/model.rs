//! The JSON objects of the array's API.

use std::collections::BTreeMap;

use cofferdam_guest::{Owner, ReclaimPolicy};
use serde::{Deserialize, Serialize};

/// A volume.
#[derive(Debug, Deserialize)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) tier: String,
    pub(crate) source: Option<VolumeSource>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) wwn: String,
    pub(crate) exports: Vec<Export>,
    pub(crate) changed_ms: u64,
}

/// Request body of a volume creation.
#[derive(Debug, Serialize)]
pub(crate) struct NewVolume<'a> {
    pub(crate) bytes: u64,
    pub(crate) tier: &'a str,
    pub(crate) source: Option<&'a VolumeSource>,
    pub(crate) labels: BTreeMap<&'a str, &'a str>,
}

/// The source of a volume's content.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum VolumeSource {
    Volume(String),
    Snapshot(String),
}

/// An export: a node that can reach a volume, and how.
#[derive(Debug, Deserialize)]
pub(crate) struct Export {
    pub(crate) node: String,
    pub(crate) read_only: bool,
    pub(crate) exclusive: bool,
}

/// Request body of an export to a node.
#[derive(Debug, Serialize)]
pub(crate) struct NewExport {
    pub(crate) read_only: bool,
    pub(crate) exclusive: bool,
}

/// Request body of an expansion.
#[derive(Debug, Serialize)]
pub(crate) struct Resize {
    pub(crate) bytes: u64,
}

/// A snapshot.
#[derive(Debug, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) name: String,
    pub(crate) volume: String,
    pub(crate) bytes: u64,
    pub(crate) created_ms: u64,
}

/// Request body of a snapshot creation.
#[derive(Debug, Serialize)]
pub(crate) struct NewSnapshot<'a> {
    pub(crate) volume: &'a str,
}

/// A page of volumes.
#[derive(Debug, Deserialize)]
pub(crate) struct VolumeList {
    pub(crate) volumes: Vec<Volume>,
    pub(crate) more: bool,
}

/// A page of snapshots.
#[derive(Debug, Deserialize)]
pub(crate) struct SnapshotList {
    pub(crate) snapshots: Vec<Snapshot>,
    pub(crate) more: bool,
}

/// The capacity of the array.
#[derive(Debug, Deserialize)]
pub(crate) struct ArrayPool {
    pub(crate) free_bytes: u64,
    pub(crate) max_volume_bytes: u64,
}

const CLUSTER: &str = "cofferdam-cluster";
const CLAIM: &str = "cofferdam-claim";
const PERSISTENT_VOLUME: &str = "cofferdam-pv";
const RECLAIM_POLICY: &str = "cofferdam-reclaim";
const CAPABILITIES: &str = "cofferdam-uses";

/// The labels of a volume: its capabilities and its owner.
pub(crate) fn labels<'a>(capabilities: &'a str, owner: Option<&'a Owner>) -> BTreeMap<&'a str, &'a str> {
    let mut labels = BTreeMap::from([(CAPABILITIES, capabilities)]);
    let Some(owner) = owner else { return labels };
    let reclaim = match owner.reclaim_policy {
        ReclaimPolicy::Delete => "delete",
        ReclaimPolicy::Retain => "retain",
    };
    labels.extend([
        (CLUSTER, owner.cluster_id.as_str()),
        (CLAIM, &owner.claim_uid),
        (PERSISTENT_VOLUME, &owner.pv_name),
        (RECLAIM_POLICY, reclaim),
    ]);
    labels
}

/// The capability strings in a volume's labels, sorted and separated by line breaks. `None` for volumes that
/// this driver did not create.
pub(crate) fn capabilities(labels: &BTreeMap<String, String>) -> Option<&str> {
    labels.get(CAPABILITIES).map(String::as_str)
}

/// The cluster ID in a volume's labels. `None` for volumes that this driver did not create, or created for a
/// request without an owner.
pub(crate) fn cluster(labels: &BTreeMap<String, String>) -> Option<&str> {
    labels.get(CLUSTER).map(String::as_str)
}

/// The owner in a volume's labels. `None` for volumes that this driver did not create, or created for a
/// request without an owner.
pub(crate) fn owner(labels: &BTreeMap<String, String>) -> Option<Owner> {
    Some(Owner {
        cluster_id: labels.get(CLUSTER)?.clone(),
        claim_uid: labels.get(CLAIM)?.clone(),
        pv_name: labels.get(PERSISTENT_VOLUME)?.clone(),
        // An unknown value counts as `Retain`, so that the volume is never deleted as an orphan.
        reclaim_policy: match labels.get(RECLAIM_POLICY)?.as_str() {
            "delete" => ReclaimPolicy::Delete,
            _ => ReclaimPolicy::Retain,
        },
    })
}
