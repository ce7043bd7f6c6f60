//! `state`: keyed blobs with compare-and-swap, in memory, bounded in bytes.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Bound::{Excluded, Included, Unbounded},
    sync::{Mutex, PoisonError},
};

use super::Capabilities;
use crate::bindings::cofferdam::storage::state::{
    Bound, Change, Entry, Expected, Found, Host, Page, Put, Remove, StateError,
};

/// Longest key in bytes, as the contract says.
const MAX_KEY: usize = 512;
/// Largest value in bytes, as the contract says.
const MAX_VALUE: usize = 64 << 10;
/// Most changes at once, as the contract says.
const MAX_CHANGES: usize = 16;
/// Most bytes of one page, as the contract says.
const MAX_PAGE: usize = 1 << 20;
/// What an entry costs beside its key and value: the tree's node and the allocations.
const ENTRY: usize = 64;

/// The blobs of one backend.
#[derive(Debug)]
pub(crate) struct Store {
    limit: usize,
    content: Mutex<Content>,
}

#[derive(Debug, Default)]
struct Content {
    entries: BTreeMap<String, Blob>,
    bytes: usize,
    version: u64,
}

#[derive(Clone, Debug)]
struct Blob {
    value: Vec<u8>,
    version: u64,
}

impl Store {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, content: Mutex::default() }
    }

    /// How many entries there are, and how many bytes they take.
    pub(crate) fn usage(&self) -> (usize, usize) {
        let content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        (content.entries.len(), content.bytes)
    }

    /// The keys, in their order.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner).entries.keys().cloned().collect()
    }

    fn get(&self, key: &str) -> Result<Option<Entry>, StateError> {
        check_key(key)?;
        let content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(content.entries.get(key).map(|blob| Entry { value: blob.value.clone(), version: blob.version }))
    }

    fn commit(&self, changes: Vec<Change>) -> Result<u64, StateError> {
        check_batch(&changes)?;
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = content.bytes_after(&changes)?;
        if bytes > self.limit && bytes > content.bytes {
            return Err(StateError::Full(bound(self.limit, bytes)));
        }
        content.version = content.version.saturating_add(1);
        let version = content.version;
        for change in changes {
            match change {
                Change::Put(Put { key, value, .. }) => {
                    content.entries.insert(key, Blob { value, version });
                }
                Change::Remove(Remove { key, .. }) => {
                    content.entries.remove(&key);
                }
            }
        }
        content.bytes = bytes;
        Ok(version)
    }

    fn scan(&self, prefix: &str, after: Option<String>, limit: u32) -> Result<Page, StateError> {
        if prefix.len() > MAX_KEY {
            return Err(StateError::KeySize(bound(MAX_KEY, prefix.len())));
        }
        let start = match after {
            Some(after) if after.as_str() >= prefix => Excluded(after),
            Some(_) | None => Included(prefix.to_owned()),
        };
        let content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        let mut page = Page { entries: Vec::new(), more: false };
        let mut bytes = 0_usize;
        for (key, blob) in
            content.entries.range((start, Unbounded)).take_while(|(key, _)| key.starts_with(prefix))
        {
            bytes = bytes.saturating_add(cost(key, &blob.value));
            let full = u32::try_from(page.entries.len()).unwrap_or(u32::MAX) >= limit || bytes > MAX_PAGE;
            if full {
                page.more = true;
                break;
            }
            page.entries.push(Found { key: key.clone(), value: blob.value.clone(), version: blob.version });
        }
        Ok(page)
    }
}

impl Content {
    /// Checks what the changes expect, and counts what the store would hold after them.
    fn bytes_after(&self, changes: &[Change]) -> Result<usize, StateError> {
        let mut bytes = self.bytes;
        for change in changes {
            let key = key_of(change);
            let found = self.entries.get(key);
            let version = found.map(|blob| blob.version);
            let (met, added) = match change {
                Change::Put(Put { value, expected, .. }) => {
                    let met = match expected {
                        Expected::Absent => version.is_none(),
                        Expected::At(expected) => version == Some(*expected),
                    };
                    (met, cost(key, value))
                }
                Change::Remove(Remove { version: expected, .. }) => (version == Some(*expected), 0),
            };
            if !met {
                return Err(StateError::Conflict(key.to_owned()));
            }
            let removed = found.map_or(0, |blob| cost(key, &blob.value));
            bytes = bytes.saturating_sub(removed).saturating_add(added);
        }
        Ok(bytes)
    }
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
        self.faults.around(|| self.state.get(&key))
    }

    async fn commit(&mut self, changes: Vec<Change>) -> wasmtime::Result<Result<u64, StateError>> {
        self.faults.around(|| self.state.commit(changes))
    }

    async fn scan(
        &mut self,
        prefix: String,
        after: Option<String>,
        limit: u32,
    ) -> wasmtime::Result<Result<Page, StateError>> {
        self.faults.around(|| self.state.scan(&prefix, after, limit))
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
