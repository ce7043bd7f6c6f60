//! What is kept, and how it is changed.
//!
//! One key for each volume, snapshot, group and node in use, and one for the ledger: what all of them
//! together use. Whatever a call changes, it changes in one commit with the ledger, so the sums are right
//! whenever a call dies, and a create costs the same with one volume or many.

use std::collections::BTreeMap;

use cofferdam_guest::{
    ReclaimPolicy, Result, StorageError, handle,
    state::{self, Change, Found, Store, Version, Versioned},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{request, settings::MemorySettings, topology::TopologySegment};

/// Key of the ledger.
pub(crate) const USAGE_KEY: &str = "ledger";
/// Where volumes stand.
pub(crate) const VOLUME_PREFIX: &str = "volume/";
/// The word of a use as a filesystem.
pub(crate) const FILESYSTEM_ACCESS: &str = "filesystem";
/// Where snapshots stand.
pub(crate) const SNAPSHOT_PREFIX: &str = "snapshot/";

/// What a call works with.
#[derive(Debug)]
pub(crate) struct MemoryCall<'a, S> {
    /// Where everything is kept.
    pub(crate) store: &'a S,
    /// The operator's choices.
    pub(crate) settings: &'a MemorySettings,
    /// The time of the call, in milliseconds since 1970-01-01T00:00:00Z.
    pub(crate) now_ms: u64,
}

/// What everything together uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StorageUsage {
    /// Bytes of all volumes.
    pub(crate) bytes: u64,
    /// Number of volumes.
    pub(crate) volumes: u64,
    /// Number of snapshots, members of groups among them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) snapshots: u64,
    /// Bytes of the volumes of each place, by its label.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) segments: BTreeMap<String, u64>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl StorageUsage {
    /// Bytes in use of a place, or of all when there are no places.
    pub(crate) fn used_bytes(&self, segment: Option<&TopologySegment>) -> u64 {
        match segment {
            Some(segment) => self.segments.get(&segment.label).copied().unwrap_or_default(),
            None => self.bytes,
        }
    }

    /// Adds bytes to a place.
    pub(crate) fn add_bytes(&mut self, segment: Option<&TopologySegment>, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(segment) = segment {
            let used = self.segments.entry(segment.label.clone()).or_default();
            *used = used.saturating_add(bytes);
        }
    }

    /// Takes bytes from a place.
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

    /// Counts new snapshots, unless they are too many.
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

/// The ledger as it was read, with the version that a change of it replaces.
#[derive(Debug)]
pub(crate) struct VersionedStorageUsage {
    /// What it says.
    pub(crate) usage: StorageUsage,
    replaces: Option<Version>,
}

impl VersionedStorageUsage {
    /// Reads the ledger.
    pub(crate) fn read(store: &impl Store) -> Result<Self> {
        Ok(match state::read::<StorageUsage>(store, USAGE_KEY)? {
            Some(Versioned { value, version }) => Self { usage: value, replaces: Some(version) },
            None => Self { usage: StorageUsage::default(), replaces: None },
        })
    }

    /// The change that makes the ledger what it has become here. The last thing that is kept takes the ledger
    /// with it: nothing is left of a backend that holds nothing.
    pub(crate) fn to_change(&self) -> Result<Change> {
        match self.replaces {
            Some(replaced) if self.usage == StorageUsage::default() => Ok(state::remove(USAGE_KEY, replaced)),
            replaced => state::put(USAGE_KEY, &self.usage, replaced),
        }
    }
}

/// What a volume's content comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MemorySource {
    /// Another volume.
    Volume(String),
    /// A snapshot.
    Snapshot(String),
}

/// What makes two requests of one name the same: everything but the size, of which a range is asked, the
/// place, and the owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeArguments {
    /// The parameters of the class.
    pub(crate) parameters: BTreeMap<String, String>,
    /// The mutable parameters that it was created with.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) mutable: BTreeMap<String, String>,
    /// Every way of use, written out, sorted.
    pub(crate) capabilities: Vec<String>,
    /// What it was made of.
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
    pub(crate) changed_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) segment: Option<TopologySegment>,
    /// The mutable parameters as they are now.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) mutable: BTreeMap<String, String>,
    /// Where it is published.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) nodes: BTreeMap<String, MemoryPublication>,
}

impl MemoryVolume {
    /// Whether it was created for use as a filesystem, so that a node has to do its part when it grows.
    pub(crate) fn is_filesystem(&self) -> bool {
        self.arguments
            .capabilities
            .iter()
            .any(|capability| request::access_type_of(capability) == FILESYSTEM_ACCESS)
    }
}

/// How a volume is published to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryPublication {
    /// Digest of the way of use.
    pub(crate) capability: String,
    /// Whether that way leaves room for other nodes.
    pub(crate) shared: bool,
    /// Whether the only writer among many nodes is here.
    pub(crate) sole_writer: bool,
    pub(crate) read_only: bool,
}

/// How many volumes are published to a node.
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
    /// How often it has to be asked for before it is ready.
    pub(crate) polls_left: u32,
    /// The group that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    /// Who asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<MemoryOwner>,
}

/// A group of snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryGroup {
    pub(crate) name: String,
    pub(crate) parameters: BTreeMap<String, String>,
    /// Its members' handles by their sources.
    pub(crate) members: BTreeMap<String, String>,
    pub(crate) created_ms: u64,
}

/// Who asked for a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryOwner {
    cluster: String,
    claim: String,
    volume: String,
    retain: bool,
}

impl MemoryOwner {
    /// Reads a request's owner.
    pub(crate) fn from_volume_owner(owner: &cofferdam_guest::Owner) -> Result<Self> {
        for (what, text) in [
            ("the owner's cluster", &owner.cluster_id),
            ("the owner's claim", &owner.claim_uid),
            ("the owner's volume", &owner.pv_name),
        ] {
            request::check_text(what, text, request::MAX_OBJECT_NAME)?;
        }
        Ok(Self {
            cluster: owner.cluster_id.clone(),
            claim: owner.claim_uid.clone(),
            volume: owner.pv_name.clone(),
            retain: matches!(owner.reclaim_policy, ReclaimPolicy::Retain),
        })
    }

    /// Reads the owner of a snapshot: the same four things under other names.
    pub(crate) fn from_snapshot_owner(owner: &cofferdam_guest::SnapshotOwner) -> Result<Self> {
        Self::from_volume_owner(&cofferdam_guest::Owner {
            cluster_id: owner.cluster_id.clone(),
            claim_uid: owner.snapshot_uid.clone(),
            pv_name: owner.content_name.clone(),
            reclaim_policy: owner.reclaim_policy,
        })
    }

    /// The owner of a snapshot as the contract spells it.
    pub(crate) fn to_snapshot_owner(&self) -> cofferdam_guest::SnapshotOwner {
        let owner = self.to_volume_owner();
        cofferdam_guest::SnapshotOwner {
            cluster_id: owner.cluster_id,
            snapshot_uid: owner.claim_uid,
            content_name: owner.pv_name,
            reclaim_policy: owner.reclaim_policy,
        }
    }

    /// As the contract spells it.
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

/// What stands under the key of a handle. A handle longer than any of ours is nobody's, and is not worth a
/// key.
pub(crate) fn read_entry<T: DeserializeOwned>(
    store: &impl Store,
    handle: &str,
    key: fn(&str) -> String,
) -> Result<Option<Versioned<T>>> {
    if handle.len() > handle::MAX_LENGTH { Ok(None) } else { state::read(store, &key(handle)) }
}

/// The volume of a handle, which must exist.
pub(crate) fn read_volume(store: &impl Store, handle: &str) -> Result<Versioned<MemoryVolume>> {
    read_entry(store, handle, volume_key)?
        .ok_or_else(|| StorageError::not_found(format!("there is no volume {handle:?}")))
}

/// What a scan found, read.
pub(crate) fn decode_entry<T: DeserializeOwned>(found: &Found) -> Result<T> {
    serde_json::from_slice(&found.value).map_err(|error| {
        StorageError::internal(format!("the state {:?} is not readable: {error}", found.key))
    })
}
