//! What is kept, and how it is changed.
//!
//! One key for each volume, snapshot, group and node in use, and one for the ledger: what all of them together use. Whatever a
//! call changes, it changes in one commit with the ledger, so the sums are right whenever a call dies, and a create costs the
//! same with one volume or many.

use std::collections::BTreeMap;

use cofferdam_guest::{
    ReclaimPolicy, Result, StorageError, handle,
    state::{self, Change, Found, Store, Version, Versioned},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{request, settings::Settings, topology::Place};

/// Key of the ledger.
pub(crate) const LEDGER: &str = "ledger";
/// Where volumes stand.
pub(crate) const VOLUMES: &str = "volume/";
/// The word of a use as a filesystem.
pub(crate) const FILESYSTEM: &str = "filesystem";
/// Where snapshots stand.
pub(crate) const SNAPSHOTS: &str = "snapshot/";

/// What a call works with.
#[derive(Debug)]
pub(crate) struct Call<'a, S> {
    /// Where everything is kept.
    pub(crate) store: &'a S,
    /// The operator's choices.
    pub(crate) settings: &'a Settings,
    /// The time of the call, in milliseconds since 1970-01-01T00:00:00Z.
    pub(crate) now_ms: u64,
}

/// What everything together uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ledger {
    /// Bytes of all volumes.
    pub(crate) bytes: u64,
    /// Number of volumes.
    pub(crate) volumes: u64,
    /// Number of snapshots, members of groups among them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) snapshots: u64,
    /// Bytes of the volumes of each place, by its label.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) places: BTreeMap<String, u64>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Ledger {
    /// Bytes in use of a place, or of all when there are no places.
    pub(crate) fn used(&self, place: Option<&Place>) -> u64 {
        match place {
            Some(place) => self.places.get(&place.label).copied().unwrap_or_default(),
            None => self.bytes,
        }
    }

    /// Adds bytes to a place.
    pub(crate) fn charge(&mut self, place: Option<&Place>, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(place) = place {
            let used = self.places.entry(place.label.clone()).or_default();
            *used = used.saturating_add(bytes);
        }
    }

    /// Takes bytes from a place.
    pub(crate) fn release(&mut self, place: Option<&Place>, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(place) = place
            && let Some(used) = self.places.get_mut(&place.label)
        {
            *used = used.saturating_sub(bytes);
            if *used == 0 {
                self.places.remove(&place.label);
            }
        }
    }

    /// Counts new snapshots, unless they are too many.
    pub(crate) fn count_snapshots(&mut self, new: usize, settings: &Settings) -> Result<()> {
        let count = self.snapshots.saturating_add(new.try_into().unwrap_or(u64::MAX));
        match settings.max_snapshots {
            Some(most) if count > most => Err(StorageError::resource_exhausted(format!(
                "{new} snapshots do not fit: there are {}, and at most {most} are allowed",
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
pub(crate) struct Books {
    /// What it says.
    pub(crate) ledger: Ledger,
    replaces: Option<Version>,
}

impl Books {
    /// Reads the ledger.
    pub(crate) fn read(store: &impl Store) -> Result<Self> {
        Ok(match state::read::<Ledger>(store, LEDGER)? {
            Some(Versioned { value, version }) => Self { ledger: value, replaces: Some(version) },
            None => Self { ledger: Ledger::default(), replaces: None },
        })
    }

    /// The change that makes the ledger what it has become here. The last thing that is kept takes the ledger with it: nothing
    /// is left of a backend that holds nothing.
    pub(crate) fn change(&self) -> Result<Change> {
        match self.replaces {
            Some(replaced) if self.ledger == Ledger::default() => Ok(state::remove(LEDGER, replaced)),
            replaced => state::put(LEDGER, &self.ledger, replaced),
        }
    }
}

/// What a volume's content comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Source {
    /// Another volume.
    Volume(String),
    /// A snapshot.
    Snapshot(String),
}

/// What makes two requests of one name the same: everything but the size, of which a range is asked, the place, and the owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// The parameters of the class.
    pub(crate) parameters: BTreeMap<String, String>,
    /// The mutable parameters that it was created with.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) mutable: BTreeMap<String, String>,
    /// Every way of use, written out, sorted.
    pub(crate) uses: Vec<String>,
    /// What it was made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<Source>,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) shape: Shape,
    pub(crate) owner: Option<Owner>,
    pub(crate) changed_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) place: Option<Place>,
    /// The mutable parameters as they are now.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) mutable: BTreeMap<String, String>,
    /// Where it is published.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) nodes: BTreeMap<String, Publication>,
}

impl Volume {
    /// Whether it was created for use as a filesystem, so that a node has to do its part when it grows.
    pub(crate) fn is_filesystem(&self) -> bool {
        self.shape.uses.iter().any(|using| request::kind_of(using) == FILESYSTEM)
    }
}

/// How a volume is published to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Publication {
    /// Digest of the way of use.
    pub(crate) using: String,
    /// Whether that way leaves room for other nodes.
    pub(crate) shared: bool,
    /// Whether the only writer among many nodes is here.
    pub(crate) sole_writer: bool,
    pub(crate) read_only: bool,
}

/// How many volumes are published to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) volumes: u64,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
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
    pub(crate) owner: Option<Owner>,
}

/// A group of snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) parameters: BTreeMap<String, String>,
    /// Its members' handles by their sources.
    pub(crate) members: BTreeMap<String, String>,
    pub(crate) created_ms: u64,
}

/// Who asked for a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    cluster: String,
    claim: String,
    volume: String,
    retain: bool,
}

impl Owner {
    /// Reads a request's owner.
    pub(crate) fn read(owner: &cofferdam_guest::Owner) -> Result<Self> {
        for (what, text) in [
            ("the owner's cluster", &owner.cluster_id),
            ("the owner's claim", &owner.claim_uid),
            ("the owner's volume", &owner.pv_name),
        ] {
            request::text(what, text, request::MAX_OBJECT_NAME)?;
        }
        Ok(Self {
            cluster: owner.cluster_id.clone(),
            claim: owner.claim_uid.clone(),
            volume: owner.pv_name.clone(),
            retain: matches!(owner.reclaim_policy, ReclaimPolicy::Retain),
        })
    }

    /// Reads the owner of a snapshot: the same four things under other names.
    pub(crate) fn read_snapshot(owner: &cofferdam_guest::SnapshotOwner) -> Result<Self> {
        Self::read(&cofferdam_guest::Owner {
            cluster_id: owner.cluster_id.clone(),
            claim_uid: owner.snapshot_uid.clone(),
            pv_name: owner.content_name.clone(),
            reclaim_policy: owner.reclaim_policy,
        })
    }

    /// The owner of a snapshot as the contract spells it.
    pub(crate) fn write_snapshot(&self) -> cofferdam_guest::SnapshotOwner {
        let owner = self.write();
        cofferdam_guest::SnapshotOwner {
            cluster_id: owner.cluster_id,
            snapshot_uid: owner.claim_uid,
            content_name: owner.pv_name,
            reclaim_policy: owner.reclaim_policy,
        }
    }

    /// As the contract spells it.
    pub(crate) fn write(&self) -> cofferdam_guest::Owner {
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
    format!("{VOLUMES}{handle}")
}

/// Key of a snapshot.
pub(crate) fn snapshot_key(handle: &str) -> String {
    format!("{SNAPSHOTS}{handle}")
}

/// Key of a group.
pub(crate) fn group_key(handle: &str) -> String {
    format!("group/{handle}")
}

/// Key of a node.
pub(crate) fn node_key(node: &str) -> String {
    format!("node/{node}")
}

/// What stands under the key of a handle. A handle longer than any of ours is nobody's, and is not worth a key.
pub(crate) fn find<T: DeserializeOwned>(
    store: &impl Store,
    handle: &str,
    key: fn(&str) -> String,
) -> Result<Option<Versioned<T>>> {
    if handle.len() > handle::MAX { Ok(None) } else { state::read(store, &key(handle)) }
}

/// The volume of a handle, which must exist.
pub(crate) fn volume(store: &impl Store, handle: &str) -> Result<Versioned<Volume>> {
    find(store, handle, volume_key)?
        .ok_or_else(|| StorageError::not_found(format!("there is no volume {handle:?}")))
}

/// What a scan found, read.
pub(crate) fn decode<T: DeserializeOwned>(found: &Found) -> Result<T> {
    serde_json::from_slice(&found.value).map_err(|error| {
        StorageError::internal(format!("the state {:?} is not readable: {error}", found.key))
    })
}
