//! The state of the driver in the host's key-value store: one entry, so that every change is atomic. If a
//! rule about crashes or deadlines is broken, further entries, the markers, record calls that have begun.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_guest::{
    Result, StorageError, ambient,
    state::{self, StateError, Store as _, Versioned},
};
use serde::{Deserialize, Serialize};

const KEY: &str = "db";
/// Maximum attempts of a transaction.
const ATTEMPTS: usize = 256;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct BrokenDriverState {
    pub(crate) volumes: BTreeMap<String, VolumeEntry>,
    pub(crate) snapshots: BTreeMap<String, SnapshotEntry>,
    pub(crate) groups: BTreeMap<String, GroupEntry>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct VolumeEntry {
    pub(crate) name: String,
    pub(crate) size: u64,
    /// Size at creation, in bytes.
    pub(crate) first_size: u64,
    pub(crate) parameters: BTreeMap<String, String>,
    pub(crate) first_mutable_parameters: BTreeMap<String, String>,
    pub(crate) mutable_parameters: BTreeMap<String, String>,
    pub(crate) capabilities: BTreeSet<String>,
    pub(crate) is_multi_node: bool,
    pub(crate) origin: Option<String>,
    pub(crate) owner: Option<OwnerEntry>,
    /// The capability of each publication as text, with ` read-only` if it is read-only; by node.
    pub(crate) published: BTreeMap<String, String>,
    pub(crate) changed_at_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OwnerEntry {
    pub(crate) cluster: String,
    pub(crate) claim: String,
    pub(crate) volume: String,
    pub(crate) is_retained: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SnapshotEntry {
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) size: u64,
    pub(crate) created_at_ms: u64,
    pub(crate) group: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GroupEntry {
    pub(crate) sources: BTreeSet<String>,
    pub(crate) members: BTreeSet<String>,
    pub(crate) created_at_ms: u64,
}

/// Now, in milliseconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    u64::try_from(ambient::now().as_millis()).unwrap_or(u64::MAX)
}

fn read() -> Result<(BrokenDriverState, Option<state::Version>)> {
    Ok(match state::read::<BrokenDriverState>(&state::HostStore, KEY)? {
        Some(Versioned { value, version }) => (value, Some(version)),
        None => (BrokenDriverState::default(), None),
    })
}

/// Reads the state.
pub(crate) fn load() -> Result<BrokenDriverState> {
    read().map(|(db, _)| db)
}

/// Changes the state in a transaction, repeated on conflicts.
pub(crate) fn update<T>(decide: impl FnMut(&mut BrokenDriverState) -> Result<T>) -> Result<T> {
    update_with_retry(true, decide)
}

/// Changes the state in a transaction. Without `retries`, the transaction takes at least 100 ms, and a
/// conflict is an error.
pub(crate) fn update_with_retry<T>(
    retries: bool,
    mut decide: impl FnMut(&mut BrokenDriverState) -> Result<T>,
) -> Result<T> {
    for _ in 0..ATTEMPTS {
        let (before, version) = read()?;
        let mut after = before.clone();
        let answer = decide(&mut after)?;
        if !retries {
            crate::busy_wait();
        }
        let state_change = match version {
            _ if after == before => return Ok(answer),
            Some(version) if after == BrokenDriverState::default() => state::remove(KEY, version),
            version => state::put(KEY, &after, version)?,
        };
        match state::HostStore.commit(&[state_change]) {
            Ok(_) => return Ok(answer),
            Err(StateError::Conflict(_)) if retries => {}
            Err(StateError::Conflict(_)) => {
                return Err(StorageError::failed_precondition("another call was faster"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(StorageError::aborted("too many others write").without_effect())
}

/// Writes a marker. The key may exist.
pub(crate) fn write_marker(key: &str) -> Result<()> {
    let replaces = state::read::<u8>(&state::HostStore, key)?.map(|found| found.version);
    state::HostStore.commit(&[state::put(key, &1_u8, replaces)?])?;
    Ok(())
}

/// Removes a marker, if it exists.
pub(crate) fn remove_marker(key: &str) -> Result<()> {
    if let Some(found) = state::read::<u8>(&state::HostStore, key)? {
        state::HostStore.commit(&[state::remove(key, found.version)])?;
    }
    Ok(())
}

/// Returns true if a marker exists.
pub(crate) fn has_marker(key: &str) -> Result<bool> {
    Ok(state::read::<u8>(&state::HostStore, key)?.is_some())
}

/// Writes a marker before an operation and removes it after its success. A repetition after a crash or an
/// error fails.
pub(crate) fn with_marker<T>(key: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    if has_marker(key)? {
        return Err(StorageError::failed_precondition("it was begun before"));
    }
    write_marker(key)?;
    let answer = work()?;
    remove_marker(key)?;
    Ok(answer)
}

/// The name of a volume; empty if the volume does not exist.
pub(crate) fn name_of(handle: &str) -> Result<String> {
    Ok(load()?.volumes.get(handle).map(|found| found.name.clone()).unwrap_or_default())
}
