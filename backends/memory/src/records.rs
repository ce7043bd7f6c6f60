//! State entries and their changes.
//!
//! Each volume, snapshot, group and node with published volumes has an entry. One more entry stores the total
//! usage. A change of the usage is committed together with the entries that cause it. Therefore the sums are
//! correct whenever a call dies, and the cost of a create does not depend on the number of volumes. The
//! counters of injected faults are further entries, which the module `faults` reads and writes.

use std::collections::BTreeMap;

use cofferdam_guest::{
    ReclaimPolicy, Result, StorageError, handle,
    state::{self, Change, ScanEntry, Store, Version, Versioned},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    settings::MemorySettings,
    topology::TopologySegment,
    values::{MAX_OBJECT_NAME, access_type_of, check_text},
};

/// Key of the usage entry.
pub(crate) const USAGE_KEY: &str = "ledger";
/// Key prefix of volumes.
pub(crate) const VOLUME_PREFIX: &str = "volume/";
/// Access type of a filesystem in a capability string.
pub(crate) const FILESYSTEM_ACCESS: &str = "filesystem";
/// Key prefix of snapshots.
pub(crate) const SNAPSHOT_PREFIX: &str = "snapshot/";

/// Context of a call.
#[derive(Debug)]
pub(crate) struct MemoryCall<'a, S> {
    /// The state.
    pub(crate) store: &'a S,
    /// The operator's settings.
    pub(crate) settings: &'a MemorySettings,
    /// The time of the call, in milliseconds since 1970-01-01T00:00:00Z.
    pub(crate) now_ms: u64,
}

/// Total usage of the storage: the content of the usage entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StorageUsage {
    /// Sum of the sizes of all volumes, in bytes.
    pub(crate) bytes: u64,
    /// Number of volumes.
    pub(crate) volumes: u64,
    /// Number of snapshots, including members of groups.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) snapshots: u64,
    /// Bytes of the volumes in each topology segment, by its label.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) segments: BTreeMap<String, u64>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl StorageUsage {
    /// Used bytes of a segment; without a segment, those of all volumes.
    pub(crate) fn used_bytes(&self, segment: Option<&TopologySegment>) -> u64 {
        match segment {
            Some(segment) => self.segments.get(&segment.label).copied().unwrap_or_default(),
            None => self.bytes,
        }
    }

    /// Adds bytes to the total and, if the volume has one, to its segment.
    pub(crate) fn add_bytes(&mut self, segment: Option<&TopologySegment>, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(segment) = segment {
            let used = self.segments.entry(segment.label.clone()).or_default();
            *used = used.saturating_add(bytes);
        }
    }

    /// Subtracts bytes from the total and, if the volume has one, from its segment.
    pub(crate) fn remove_bytes(&mut self, segment: Option<&TopologySegment>, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(segment) = segment
            && let Some(used) = self.segments.get_mut(&segment.label)
        {
            *used = used.saturating_sub(bytes);
            if *used == 0 {
                self.segments.remove(&segment.label);
            }
        }
    }

    /// Adds new snapshots, unless there would be too many.
    pub(crate) fn add_snapshots(&mut self, new: usize, settings: &MemorySettings) -> Result<()> {
        let count = self.snapshots.saturating_add(new.try_into().unwrap_or(u64::MAX));
        match settings.max_snapshots {
            Some(limit) if count > limit => Err(StorageError::resource_exhausted(format!(
                "{new} snapshots do not fit: there are {}, and at most {limit} are allowed",
                self.snapshots
            ))),
            _ => {
                self.snapshots = count;
                Ok(())
            }
        }
    }
}

/// The usage entry as one attempt of a transaction read it. Callers change `usage`; the change that
/// `to_change` returns replaces the version that was read, and conflicts if another call has changed it.
#[derive(Debug)]
pub(crate) struct VersionedStorageUsage {
    /// The usage.
    pub(crate) usage: StorageUsage,
    replaces: Option<Version>,
}

impl VersionedStorageUsage {
    /// Reads the usage entry.
    pub(crate) fn read(store: &impl Store) -> Result<Self> {
        Ok(match state::read::<StorageUsage>(store, USAGE_KEY)? {
            Some(Versioned { value, version }) => Self { usage: value, replaces: Some(version) },
            None => Self { usage: StorageUsage::default(), replaces: None },
        })
    }

    /// The change that stores the new usage. Empty usage removes the entry, so no entry is left when all
    /// volumes and snapshots are deleted.
    pub(crate) fn to_change(&self) -> Result<Change> {
        match self.replaces {
            Some(replaced) if self.usage == StorageUsage::default() => Ok(state::remove(USAGE_KEY, replaced)),
            replaced => state::put(USAGE_KEY, &self.usage, replaced),
        }
    }
}

/// The source of a volume's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MemorySource {
    /// Another volume, by its handle: the new volume is a clone.
    Volume(String),
    /// A snapshot.
    Snapshot(String),
}

/// Arguments that must be equal in repeated requests for a name. The size and the topology segment must
/// satisfy the request and are compared separately; the owner is not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeArguments {
    /// The class parameters.
    pub(crate) parameters: BTreeMap<String, String>,
    /// The mutable parameters at creation.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) mutable: BTreeMap<String, String>,
    /// All capability strings, sorted.
    pub(crate) capabilities: Vec<String>,
    /// The source of the content; `None` for a volume that was created empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<MemorySource>,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryVolume {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) arguments: VolumeArguments,
    pub(crate) owner: Option<MemoryOwner>,
    /// Time of the creation or the last expansion, modification or change of a publication, in milliseconds
    /// since the Unix epoch.
    pub(crate) changed_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) segment: Option<TopologySegment>,
    /// The current mutable parameters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) mutable: BTreeMap<String, String>,
    /// The publications of the volume, by node id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) nodes: BTreeMap<String, MemoryPublication>,
}

impl MemoryVolume {
    /// Returns true if the volume was created for use as a filesystem, so that it needs NodeExpandVolume.
    pub(crate) fn is_filesystem(&self) -> bool {
        self.arguments.capabilities.iter().any(|capability| access_type_of(capability) == FILESYSTEM_ACCESS)
    }
}

/// The publication of a volume to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryPublication {
    /// Digest of the canonical string of the capability in the publish request.
    pub(crate) capability: String,
    /// True if the access mode allows that the volume is published to other nodes, too.
    pub(crate) shared: bool,
    /// True if this node is the only writer of a multi-node volume.
    pub(crate) sole_writer: bool,
    pub(crate) read_only: bool,
}

/// Number of volumes published to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryNode {
    pub(crate) volumes: u64,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemorySnapshot {
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) size: u64,
    pub(crate) created_ms: u64,
    /// Number of further create and get requests for the snapshot or its group until it is ready. Listings
    /// do not count.
    pub(crate) polls_left: u32,
    /// The handle of the snapshot's group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    /// The owner in the create request of the snapshot or its group; `None` if the request has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<MemoryOwner>,
}

/// A group of snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryGroup {
    pub(crate) name: String,
    pub(crate) parameters: BTreeMap<String, String>,
    /// The handle of each member snapshot, by the handle of its source volume.
    pub(crate) members: BTreeMap<String, String>,
    pub(crate) created_ms: u64,
}

/// The owner of a volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryOwner {
    cluster: String,
    /// UID of the PersistentVolumeClaim; of a snapshot, UID of the VolumeSnapshot or VolumeGroupSnapshot.
    claim: String,
    /// Name of the PersistentVolume; of a snapshot, name of its content object.
    volume: String,
    retain: bool,
}

impl MemoryOwner {
    /// Converts the owner of a volume request.
    pub(crate) fn from_volume_owner(owner: &cofferdam_guest::Owner) -> Result<Self> {
        for (what, text) in [
            ("the owner's cluster", &owner.cluster_id),
            ("the owner's claim", &owner.claim_uid),
            ("the owner's volume", &owner.pv_name),
        ] {
            check_text(what, text, MAX_OBJECT_NAME)?;
        }
        Ok(Self {
            cluster: owner.cluster_id.clone(),
            claim: owner.claim_uid.clone(),
            volume: owner.pv_name.clone(),
            retain: matches!(owner.reclaim_policy, ReclaimPolicy::Retain),
        })
    }

    /// Converts the owner of a snapshot request. `claim` stores the UID of the VolumeSnapshot or
    /// VolumeGroupSnapshot, and `volume` the name of its content object.
    pub(crate) fn from_snapshot_owner(owner: &cofferdam_guest::SnapshotOwner) -> Result<Self> {
        Self::from_volume_owner(&cofferdam_guest::Owner {
            cluster_id: owner.cluster_id.clone(),
            claim_uid: owner.snapshot_uid.clone(),
            pv_name: owner.content_name.clone(),
            reclaim_policy: owner.reclaim_policy,
        })
    }

    /// Converts to the contract's owner of a snapshot.
    pub(crate) fn to_snapshot_owner(&self) -> cofferdam_guest::SnapshotOwner {
        let owner = self.to_volume_owner();
        cofferdam_guest::SnapshotOwner {
            cluster_id: owner.cluster_id,
            snapshot_uid: owner.claim_uid,
            content_name: owner.pv_name,
            reclaim_policy: owner.reclaim_policy,
        }
    }

    /// Converts to the contract's owner of a volume.
    pub(crate) fn to_volume_owner(&self) -> cofferdam_guest::Owner {
        cofferdam_guest::Owner {
            cluster_id: self.cluster.clone(),
            claim_uid: self.claim.clone(),
            pv_name: self.volume.clone(),
            reclaim_policy: if self.retain { ReclaimPolicy::Retain } else { ReclaimPolicy::Delete },
        }
    }
}

/// Key of a volume.
pub(crate) fn volume_key(handle: &str) -> String {
    format!("{VOLUME_PREFIX}{handle}")
}

/// Key of a snapshot.
pub(crate) fn snapshot_key(handle: &str) -> String {
    format!("{SNAPSHOT_PREFIX}{handle}")
}

/// Key of a group.
pub(crate) fn group_key(handle: &str) -> String {
    format!("group/{handle}")
}

/// Key of a node.
pub(crate) fn node_key(node: &str) -> String {
    format!("node/{node}")
}

/// Reads the entry of a handle. A handle above the maximum length cannot exist and is not looked up.
pub(crate) fn read_entry<T: DeserializeOwned>(
    store: &impl Store,
    handle: &str,
    key: fn(&str) -> String,
) -> Result<Option<Versioned<T>>> {
    if handle.len() > handle::MAX_LENGTH { Ok(None) } else { state::read(store, &key(handle)) }
}

/// Reads the volume of a handle, which must exist.
pub(crate) fn read_volume(store: &impl Store, handle: &str) -> Result<Versioned<MemoryVolume>> {
    read_entry(store, handle, volume_key)?
        .ok_or_else(|| StorageError::not_found(format!("there is no volume {handle:?}")))
}

/// Decodes an entry of a scan.
pub(crate) fn decode_entry<T: DeserializeOwned>(found: &ScanEntry) -> Result<T> {
    serde_json::from_slice(&found.value).map_err(|error| {
        StorageError::internal(format!("the state {:?} is not readable: {error}", found.key))
    })
}
