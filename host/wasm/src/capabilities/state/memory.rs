//! State entries in memory, which end with the process.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Included, Unbounded},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::rules::{ExistingEntry, PageBuilder, check_limit, cost, key_of, size_after_change};
use crate::bindings::cofferdam::storage::state::{Change, Entry, Page, Put, Remove, StateError};

/// Blobs in memory.
#[derive(Debug)]
pub(super) struct MemoryBlobs {
    limit: usize,
    content: Mutex<MemoryContent>,
}

#[derive(Debug, Default)]
struct MemoryContent {
    entries: BTreeMap<String, Blob>,
    bytes: usize,
    version: u64,
}

#[derive(Clone, Debug)]
struct Blob {
    value: Vec<u8>,
    version: u64,
}

impl MemoryBlobs {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, content: Mutex::default() }
    }

    pub(super) fn usage(&self) -> (usize, usize) {
        let content = self.lock();
        (content.entries.len(), content.bytes)
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.lock().entries.keys().cloned().collect()
    }

    pub(super) fn get(&self, key: &str) -> Option<Entry> {
        let content = self.lock();
        content.entries.get(key).map(|blob| Entry { value: blob.value.clone(), version: blob.version })
    }

    pub(super) fn commit(&self, changes: Vec<Change>) -> Result<u64, StateError> {
        let mut content = self.lock();
        let bytes = changes.iter().try_fold(content.bytes, |bytes, change| {
            let key = key_of(change);
            let blob = content.entries.get(key);
            let present =
                blob.map(|blob| ExistingEntry { version: blob.version, cost: cost(key, &blob.value) });
            size_after_change(bytes, change, present)
        })?;
        check_limit(self.limit, content.bytes, bytes)?;
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

    pub(super) fn scan(&self, prefix: &str, after: Option<&str>, mut pager: PageBuilder) -> Page {
        let start = after.map_or(Included(prefix), Excluded);
        let content = self.lock();
        let entries = content.entries.range::<str, _>((start, Unbounded));
        for (key, blob) in entries.take_while(|(key, _)| key.starts_with(prefix)) {
            if !pager.try_push(key, &blob.value, blob.version) {
                break;
            }
        }
        pager.page
    }

    fn lock(&self) -> MutexGuard<'_, MemoryContent> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
