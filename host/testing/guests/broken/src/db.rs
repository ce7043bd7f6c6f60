//! What the driver keeps: one blob, so that every change is whole.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_guest::{
    Result, StorageError, ambient,
    state::{self, StateError, Store as _, Versioned},
};
use serde::{Deserialize, Serialize};

const KEY: &str = "db";
/// How often a decision is made anew after a foreign write.
const ATTEMPTS: usize = 256;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Db {
    pub(crate) volumes: BTreeMap<String, Vol>,
    pub(crate) snapshots: BTreeMap<String, Snap>,
    pub(crate) groups: BTreeMap<String, Group>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Vol {
    pub(crate) name: String,
    pub(crate) size: u64,
    /// The size that it was created with.
    pub(crate) first_size: u64,
    pub(crate) parameters: BTreeMap<String, String>,
    pub(crate) first_mutable: BTreeMap<String, String>,
    pub(crate) mutable: BTreeMap<String, String>,
    pub(crate) uses: BTreeSet<String>,
    pub(crate) many_nodes: bool,
    pub(crate) origin: Option<String>,
    pub(crate) owner: Option<Owner>,
    /// Node → how it is published there.
    pub(crate) published: BTreeMap<String, String>,
    pub(crate) changed: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Owner {
    pub(crate) cluster: String,
    pub(crate) claim: String,
    pub(crate) volume: String,
    pub(crate) retain: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snap {
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) size: u64,
    pub(crate) created: u64,
    pub(crate) group: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) sources: BTreeSet<String>,
    pub(crate) members: BTreeSet<String>,
    pub(crate) created: u64,
}

/// Now, in milliseconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    u64::try_from(ambient::now().as_millis()).unwrap_or(u64::MAX)
}

fn read() -> Result<(Db, Option<state::Version>)> {
    Ok(match state::read::<Db>(&state::Host, KEY)? {
        Some(Versioned { value, version }) => (value, Some(version)),
        None => (Db::default(), None),
    })
}

/// Looks at what is kept.
pub(crate) fn look() -> Result<Db> {
    read().map(|(db, _)| db)
}

/// Decides on what is kept and keeps what was decided, anew as long as others write in between.
pub(crate) fn change<T>(decide: impl FnMut(&mut Db) -> Result<T>) -> Result<T> {
    change_patiently(true, decide)
}

/// As [`change`]; the impatient take their time, and give up when another was faster.
pub(crate) fn change_patiently<T>(patient: bool, mut decide: impl FnMut(&mut Db) -> Result<T>) -> Result<T> {
    for _ in 0..ATTEMPTS {
        let (before, version) = read()?;
        let mut after = before.clone();
        let answer = decide(&mut after)?;
        if !patient {
            crate::dawdle();
        }
        let change = match version {
            _ if after == before => return Ok(answer),
            Some(version) if after == Db::default() => state::remove(KEY, version),
            version => state::put(KEY, &after, version)?,
        };
        match state::Host.commit(&[change]) {
            Ok(_) => return Ok(answer),
            Err(StateError::Conflict(_)) if patient => {}
            Err(StateError::Conflict(_)) => {
                return Err(StorageError::failed_precondition("another call was faster"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(StorageError::aborted("too many others write").nothing_happened())
}

/// Writes a key beside the blob, for rules about crashes. The key may exist.
pub(crate) fn scribble(key: &str) -> Result<()> {
    let replaces = state::read::<u8>(&state::Host, key)?.map(|found| found.version);
    state::Host.commit(&[state::put(key, &1_u8, replaces)?])?;
    Ok(())
}

/// Removes a key that was scribbled.
pub(crate) fn wipe(key: &str) -> Result<()> {
    if let Some(found) = state::read::<u8>(&state::Host, key)? {
        state::Host.commit(&[state::remove(key, found.version)])?;
    }
    Ok(())
}

/// Whether a key was scribbled.
pub(crate) fn scribbled(key: &str) -> Result<bool> {
    Ok(state::read::<u8>(&state::Host, key)?.is_some())
}

/// Does something that leaves a mark before it begins, and wipes it in the end: what died in between is refused when it comes
/// again.
pub(crate) fn marked<T>(key: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    if scribbled(key)? {
        return Err(StorageError::failed_precondition("it was begun before"));
    }
    scribble(key)?;
    let answer = work()?;
    wipe(key)?;
    Ok(answer)
}

/// The name of a volume.
pub(crate) fn name_of(handle: &str) -> Result<String> {
    Ok(look()?.volumes.get(handle).map(|found| found.name.clone()).unwrap_or_default())
}
