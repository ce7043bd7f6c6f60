//! `state`: keyed blobs with compare-and-swap, in memory or in a file, bounded in bytes.
//!
//! The policy is here, the same for both; [`memory`] and [`file`](mod@file) keep the blobs.

mod file;
mod memory;

use std::{collections::HashSet, path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Capabilities, workers::Workers};
use crate::bindings::cofferdam::storage::state::{
    Bound, Change, Entry, Expected, Found, Host, Page, Put, Remove, StateError,
};
use cofferdam_backend::guard::Guard;

/// Longest key in bytes, as the contract says.
const MAX_KEY: usize = 512;
/// Largest value in bytes, as the contract says.
const MAX_VALUE: usize = 64 << 10;
/// Most changes at once, as the contract says.
const MAX_CHANGES: usize = 16;
/// Most bytes of one page, as the contract says.
const MAX_PAGE: usize = 1 << 20;
/// What an entry costs beside its key and value: in memory the tree's node, two allocations and what they are rounded up by.
const ENTRY: usize = 160;

/// Where the blobs of the `state` import are kept: `[backend.NAME.state]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct StateConfig {
    /// A file that they outlive the process in; made when it does not exist, in a directory that does. Absent keeps them in
    /// memory.
    pub file: Option<PathBuf>,
}

/// The blobs of one backend.
#[derive(Debug)]
pub(crate) struct Store {
    blobs: Blobs,
    workers: Workers,
}

#[derive(Debug)]
enum Blobs {
    Memory(memory::Memory),
    File(file::File),
}

/// Why a commit has no version.
#[derive(Debug)]
enum Failed {
    /// Nothing was written.
    Refused(StateError),
    /// The disk failed in the middle: whether the write is there shows after a restart only.
    Unknown(String),
}

impl From<StateError> for Failed {
    fn from(error: StateError) -> Self {
        Self::Refused(error)
    }
}

impl Store {
    /// Opens the store that an operator wants, of at most `limit` bytes. Blocks on the disk.
    ///
    /// # Errors
    /// What is wrong with the file, to be read after its name.
    pub(crate) fn open(config: &StateConfig, limit: usize) -> Result<Self, String> {
        let blobs = match &config.file {
            None => Blobs::Memory(memory::Memory::new(limit)),
            Some(path) => Blobs::File(file::File::open(path, limit)?),
        };
        Ok(Self { blobs, workers: Workers::default() })
    }

    /// How many entries there are, and how many bytes they take.
    pub(crate) fn usage(&self) -> (usize, usize) {
        match &self.blobs {
            Blobs::Memory(memory) => memory.usage(),
            Blobs::File(file) => file.usage(),
        }
    }

    /// The keys, in their order. Those of a file are read from it.
    pub(crate) fn keys(&self) -> Vec<String> {
        match &self.blobs {
            Blobs::Memory(memory) => memory.keys(),
            Blobs::File(file) => file.keys().unwrap_or_else(|error| {
                tracing::warn!(?error, "the state file cannot be read");
                Vec::new()
            }),
        }
    }

    fn get(&self, key: &str) -> Result<Option<Entry>, StateError> {
        check_key(key)?;
        match &self.blobs {
            Blobs::Memory(memory) => Ok(memory.get(key)),
            Blobs::File(file) => file.get(key),
        }
    }

    fn commit(&self, changes: Vec<Change>) -> Result<u64, Failed> {
        check_batch(&changes)?;
        match &self.blobs {
            Blobs::Memory(memory) => Ok(memory.commit(changes)?),
            Blobs::File(file) => file.commit(&changes),
        }
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Page, StateError> {
        if prefix.len() > MAX_KEY {
            return Err(StateError::KeySize(bound(MAX_KEY, prefix.len())));
        }
        let after = after.filter(|after| *after >= prefix);
        let pager = Pager::new(limit);
        match &self.blobs {
            Blobs::Memory(memory) => Ok(memory.scan(prefix, after, pager)),
            Blobs::File(file) => file.scan(prefix, after, pager),
        }
    }

    /// Does something with the store: here in memory, and on a thread that may wait with a disk. What has begun runs to its
    /// end and keeps its volume guarded until then, also when the call is over.
    async fn perform<T: Send + 'static>(
        self: &Arc<Self>,
        guard: Option<Arc<Guard>>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> wasmtime::Result<T> {
        if let Blobs::Memory(_) = self.blobs {
            return Ok(work(self));
        }
        let store = Arc::clone(self);
        let done = self.workers.run(guard, move || work(&store)).await;
        done.map_err(|error| wasmtime::Error::msg(format!("the state file failed: {error}")))
    }
}

/// Fills a page as far as the bounds allow.
struct Pager {
    page: Page,
    limit: usize,
    bytes: usize,
}

impl Pager {
    fn new(limit: u32) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self { page: Page { entries: Vec::new(), more: false }, limit, bytes: 0 }
    }

    /// Takes the next entry; `false` when it belongs to the next page.
    fn take(&mut self, key: &str, value: &[u8], version: u64) -> bool {
        self.bytes = self.bytes.saturating_add(cost(key, value));
        if self.page.entries.len() >= self.limit || self.bytes > MAX_PAGE {
            self.page.more = true;
            return false;
        }
        self.page.entries.push(Found { key: key.to_owned(), value: value.to_vec(), version });
        true
    }
}

/// What there is under a key.
#[derive(Clone, Copy, Debug)]
struct Present {
    version: u64,
    cost: usize,
}

/// Checks what a change expects, and says what the store holds after it when it held `bytes` before.
fn apply(bytes: usize, change: &Change, present: Option<Present>) -> Result<usize, StateError> {
    let version = present.map(|present| present.version);
    let (met, added) = match change {
        Change::Put(Put { key, value, expected }) => {
            let met = match expected {
                Expected::Absent => version.is_none(),
                Expected::At(expected) => version == Some(*expected),
            };
            (met, cost(key, value))
        }
        Change::Remove(Remove { version: expected, .. }) => (version == Some(*expected), 0),
    };
    if !met {
        return Err(StateError::Conflict(key_of(change).to_owned()));
    }
    let removed = present.map_or(0, |present| present.cost);
    Ok(bytes.saturating_sub(removed).saturating_add(added))
}

/// Refuses to grow above a limit; a store that is above it already may shrink.
fn check_room(limit: usize, before: usize, after: usize) -> Result<(), StateError> {
    if after > limit && after > before { Err(StateError::Full(bound(limit, after))) } else { Ok(()) }
}

fn cost(key: &str, value: &[u8]) -> usize {
    key.len().saturating_add(value.len()).saturating_add(ENTRY)
}

fn key_of(change: &Change) -> &str {
    match change {
        Change::Put(Put { key, .. }) | Change::Remove(Remove { key, .. }) => key,
    }
}

fn bound(limit: usize, given: usize) -> Bound {
    Bound { limit: limit.try_into().unwrap_or(u64::MAX), given: given.try_into().unwrap_or(u64::MAX) }
}

fn check_key(key: &str) -> Result<(), StateError> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(StateError::KeySize(bound(MAX_KEY, key.len())));
    }
    Ok(())
}

fn check_batch(changes: &[Change]) -> Result<(), StateError> {
    if changes.is_empty() || changes.len() > MAX_CHANGES {
        return Err(StateError::BatchSize(bound(MAX_CHANGES, changes.len())));
    }
    let mut keys = HashSet::with_capacity(changes.len());
    for change in changes {
        let key = key_of(change);
        check_key(key)?;
        if !keys.insert(key) {
            return Err(StateError::RepeatedKey(key.to_owned()));
        }
        if let Change::Put(Put { value, .. }) = change
            && value.len() > MAX_VALUE
        {
            return Err(StateError::ValueSize(bound(MAX_VALUE, value.len())));
        }
    }
    Ok(())
}

impl Host for Capabilities {
    async fn get(&mut self, key: String) -> wasmtime::Result<Result<Option<Entry>, StateError>> {
        self.faults.around(self.state.perform(self.context.guard.clone(), move |store| store.get(&key))).await
    }

    async fn commit(&mut self, changes: Vec<Change>) -> wasmtime::Result<Result<u64, StateError>> {
        let work = self.state.perform(self.context.guard.clone(), move |store| store.commit(changes));
        match self.faults.around(work).await? {
            Ok(version) => Ok(Ok(version)),
            Err(Failed::Refused(error)) => Ok(Err(error)),
            // The contract has no word for it among the errors, all of which mean that nothing was written. Ending the call
            // leaves its outcome open, which is the truth.
            Err(Failed::Unknown(reason)) => {
                Err(wasmtime::Error::msg(format!("the state file failed: {reason}")))
            }
        }
    }

    async fn scan(
        &mut self,
        prefix: String,
        after: Option<String>,
        limit: u32,
    ) -> wasmtime::Result<Result<Page, StateError>> {
        let scan = move |store: &Store| store.scan(&prefix, after.as_deref(), limit);
        self.faults.around(self.state.perform(self.context.guard.clone(), scan)).await
    }
}

#[cfg(test)]
mod tests;
