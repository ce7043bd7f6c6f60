//! Rules that the store in memory and the store in a file share: versions, sizes and pages. Nothing here
//! accesses a store.

use std::collections::HashSet;

use crate::bindings::cofferdam::storage::state::{
    Bound, Change, Page, Precondition, Put, Remove, ScanEntry, StateError,
};

/// Longest key in bytes, by contract.
pub(super) const MAX_KEY: usize = 512;
/// Largest value in bytes, by contract.
pub(super) const MAX_VALUE: usize = 64 << 10;
/// Maximum changes of one commit, by contract.
pub(super) const MAX_CHANGES: usize = 16;
/// Maximum bytes of one page, by contract. Each entry counts with [`ENTRY_OVERHEAD`], as for `state-bytes`.
pub(super) const MAX_PAGE_BYTES: usize = 1 << 20;
/// Bytes that an entry counts in both stores beside its key and value: in memory, the tree's node and two
/// allocations with their rounding.
pub(super) const ENTRY_OVERHEAD: usize = 160;

/// Error of a commit.
#[derive(Debug)]
pub(super) enum StateCommitError {
    /// Nothing was written.
    Rejected(StateError),
    /// The disk failed during the commit: it is unknown until a restart whether the changes were written.
    Unknown(String),
}

impl From<StateError> for StateCommitError {
    fn from(error: StateError) -> Self {
        Self::Rejected(error)
    }
}

/// Collects a page, up to its maximum entries and bytes.
pub(super) struct PageBuilder {
    pub(super) page: Page,
    limit: usize,
    bytes: usize,
}

impl PageBuilder {
    pub(super) fn new(limit: u32) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self { page: Page { entries: Vec::new(), more: false }, limit, bytes: 0 }
    }

    /// Adds the next entry; false if the page is full.
    pub(super) fn try_push(&mut self, key: &str, value: &[u8], version: u64) -> bool {
        self.bytes = self.bytes.saturating_add(cost(key, value));
        if self.page.entries.len() >= self.limit || self.bytes > MAX_PAGE_BYTES {
            self.page.more = true;
            return false;
        }
        self.page.entries.push(ScanEntry { key: key.to_owned(), value: value.to_vec(), version });
        true
    }
}

/// Version of a stored entry, and its bytes as counted against the limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExistingEntry {
    pub(super) version: u64,
    pub(super) cost: usize,
}

/// Checks the precondition of a change. Returns the store's size after it; `bytes` is the size before.
pub(super) fn size_after_change(
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
pub(super) fn check_limit(limit: usize, before: usize, after: usize) -> Result<(), StateError> {
    if after > limit && after > before { Err(StateError::Full(bound(limit, after))) } else { Ok(()) }
}

pub(super) fn cost(key: &str, value: &[u8]) -> usize {
    key.len().saturating_add(value.len()).saturating_add(ENTRY_OVERHEAD)
}

pub(super) fn key_of(change: &Change) -> &str {
    match change {
        Change::Put(Put { key, .. }) | Change::Remove(Remove { key, .. }) => key,
    }
}

pub(super) fn bound(limit: usize, actual: usize) -> Bound {
    Bound { limit: limit.try_into().unwrap_or(u64::MAX), given: actual.try_into().unwrap_or(u64::MAX) }
}

pub(super) fn check_key(key: &str) -> Result<(), StateError> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(StateError::KeySize(bound(MAX_KEY, key.len())));
    }
    Ok(())
}

pub(super) fn check_batch(changes: &[Change]) -> Result<(), StateError> {
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
