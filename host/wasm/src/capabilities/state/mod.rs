//! `state`: keyed blobs with compare-and-swap, in memory or in a file, bounded in bytes.
//!
//! The rules are the same for both stores: [`memory`] and [`file`](mod@file) store the entries.

mod file;
mod memory;

use std::{collections::HashSet, path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Capabilities, workers::Workers};
use crate::bindings::cofferdam::storage::state::{
    Bound, Change, Entry, Host, Page, Precondition, Put, Remove, ScanEntry, StateError,
};
use cofferdam_backend::in_flight::OperationPermit;

/// Longest key in bytes, by contract.
const MAX_KEY: usize = 512;
/// Largest value in bytes, by contract.
const MAX_VALUE: usize = 64 << 10;
/// Maximum changes of one commit, by contract.
const MAX_CHANGES: usize = 16;
/// Maximum bytes of one page, by contract.
const MAX_PAGE_BYTES: usize = 1 << 20;
/// Memory of an entry beside its key and value: the tree's node and two allocations with their rounding.
const ENTRY_OVERHEAD: usize = 160;

/// Storage of the `state` import: `[backend.NAME.state]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct StateConfig {
    /// The state file. It is created if it does not exist; its directory must exist. Without a file the state
    /// is in memory and ends with the process.
    pub file: Option<PathBuf>,
}

/// The blobs of one backend.
#[derive(Debug)]
pub(crate) struct StateStore {
    blobs: BlobStore,
    workers: Workers,
}

#[derive(Debug)]
enum BlobStore {
    Memory(memory::MemoryBlobs),
    File(file::FileBlobs),
}

/// Why a commit has no version.
#[derive(Debug)]
enum StateCommitError {
    /// Nothing was written.
    Rejected(StateError),
    /// The disk failed in the middle: whether the write is there shows after a restart only.
    Unknown(String),
}

impl From<StateError> for StateCommitError {
    fn from(error: StateError) -> Self {
        Self::Rejected(error)
    }
}

impl StateStore {
    /// Opens the store that an operator wants, of at most `limit` bytes. Blocks on the disk.
    ///
    /// # Errors
    /// What is wrong with the file, to be read after its name.
    pub(crate) fn open(config: &StateConfig, limit: usize) -> Result<Self, String> {
        let blobs = match &config.file {
            None => BlobStore::Memory(memory::MemoryBlobs::new(limit)),
            Some(path) => BlobStore::File(file::FileBlobs::open(path, limit)?),
        };
        Ok(Self { blobs, workers: Workers::default() })
    }

    /// Number of entries, and their size in bytes.
    pub(crate) fn usage(&self) -> (usize, usize) {
        match &self.blobs {
            BlobStore::Memory(memory) => memory.usage(),
            BlobStore::File(file) => file.usage(),
        }
    }

    /// The keys, in their order. Those of a file are read from it.
    pub(crate) fn keys(&self) -> Vec<String> {
        match &self.blobs {
            BlobStore::Memory(memory) => memory.keys(),
            BlobStore::File(file) => file.keys().unwrap_or_else(|error| {
                tracing::warn!(?error, "the state file cannot be read");
                Vec::new()
            }),
        }
    }

    fn get(&self, key: &str) -> Result<Option<Entry>, StateError> {
        check_key(key)?;
        match &self.blobs {
            BlobStore::Memory(memory) => Ok(memory.get(key)),
            BlobStore::File(file) => file.get(key),
        }
    }

    fn commit(&self, changes: Vec<Change>) -> Result<u64, StateCommitError> {
        check_batch(&changes)?;
        match &self.blobs {
            BlobStore::Memory(memory) => Ok(memory.commit(changes)?),
            BlobStore::File(file) => file.commit(&changes),
        }
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Page, StateError> {
        if prefix.len() > MAX_KEY {
            return Err(StateError::KeySize(bound(MAX_KEY, prefix.len())));
        }
        let after = after.filter(|after| *after >= prefix);
        let pager = PageBuilder::new(limit);
        match &self.blobs {
            BlobStore::Memory(memory) => Ok(memory.scan(prefix, after, pager)),
            BlobStore::File(file) => file.scan(prefix, after, pager),
        }
    }

    /// Runs an operation on the store: in memory directly, on a file in a blocking thread. An operation that
    /// has started runs to its end and stays in flight until then, also after its call has ended.
    async fn run_blocking<T: Send + 'static>(
        self: &Arc<Self>,
        operation_permit: Option<Arc<OperationPermit>>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> wasmtime::Result<T> {
        if let BlobStore::Memory(_) = self.blobs {
            return Ok(work(self));
        }
        let store = Arc::clone(self);
        let done = self.workers.run(operation_permit, move || work(&store)).await;
        done.map_err(|error| wasmtime::Error::msg(format!("the state file failed: {error}")))
    }
}

/// Fills a page as far as the bounds allow.
struct PageBuilder {
    page: Page,
    limit: usize,
    bytes: usize,
}

impl PageBuilder {
    fn new(limit: u32) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self { page: Page { entries: Vec::new(), more: false }, limit, bytes: 0 }
    }

    /// Adds the next entry; false if the page is full.
    fn try_push(&mut self, key: &str, value: &[u8], version: u64) -> bool {
        self.bytes = self.bytes.saturating_add(cost(key, value));
        if self.page.entries.len() >= self.limit || self.bytes > MAX_PAGE_BYTES {
            self.page.more = true;
            return false;
        }
        self.page.entries.push(ScanEntry { key: key.to_owned(), value: value.to_vec(), version });
        true
    }
}

/// Metadata of a stored value.
#[derive(Clone, Copy, Debug)]
struct ExistingEntry {
    version: u64,
    cost: usize,
}

/// Checks a change's expectation. Returns the store's size after the change; `bytes` is its size before.
fn size_after_change(
    bytes: usize,
    change: &Change,
    existing: Option<ExistingEntry>,
) -> Result<usize, StateError> {
    let version = existing.map(|existing| existing.version);
    let (is_met, added) = match change {
        Change::Put(Put { key, value, precondition }) => {
            let is_met = match precondition {
                Precondition::Absent => version.is_none(),
                Precondition::At(expected) => version == Some(*expected),
            };
            (is_met, cost(key, value))
        }
        Change::Remove(Remove { version: expected, .. }) => (version == Some(*expected), 0),
    };
    if !is_met {
        return Err(StateError::Conflict(key_of(change).to_owned()));
    }
    let removed = existing.map_or(0, |existing| existing.cost);
    Ok(bytes.saturating_sub(removed).saturating_add(added))
}

/// Rejects growth above the limit. A store that is above it may shrink.
fn check_limit(limit: usize, before: usize, after: usize) -> Result<(), StateError> {
    if after > limit && after > before { Err(StateError::Full(bound(limit, after))) } else { Ok(()) }
}

fn cost(key: &str, value: &[u8]) -> usize {
    key.len().saturating_add(value.len()).saturating_add(ENTRY_OVERHEAD)
}

fn key_of(change: &Change) -> &str {
    match change {
        Change::Put(Put { key, .. }) | Change::Remove(Remove { key, .. }) => key,
    }
}

fn bound(limit: usize, actual: usize) -> Bound {
    Bound { limit: limit.try_into().unwrap_or(u64::MAX), given: actual.try_into().unwrap_or(u64::MAX) }
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
        self.faults
            .wrap(
                self.state.run_blocking(self.context.operation_permit.clone(), move |store| store.get(&key)),
            )
            .await
    }

    async fn commit(&mut self, changes: Vec<Change>) -> wasmtime::Result<Result<u64, StateError>> {
        let work = self
            .state
            .run_blocking(self.context.operation_permit.clone(), move |store| store.commit(changes));
        match self.faults.wrap(work).await? {
            Ok(version) => Ok(Ok(version)),
            Err(StateCommitError::Rejected(error)) => Ok(Err(error)),
            // The contract has no word for it among the errors, all of which mean that nothing was written.
            // Ending the call leaves its outcome open, which is the truth.
            Err(StateCommitError::Unknown(reason)) => {
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
        let scan = move |store: &StateStore| store.scan(&prefix, after.as_deref(), limit);
        self.faults.wrap(self.state.run_blocking(self.context.operation_permit.clone(), scan)).await
    }
}

#[cfg(test)]
mod tests;
