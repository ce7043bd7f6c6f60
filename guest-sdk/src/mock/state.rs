//! State entries with the rules of the host.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Included, Unbounded},
};

use crate::state::{Bound, Change, Entry, Page, Precondition, Put, Remove, ScanEntry, StateError, Version};

const MAX_KEY: usize = 512;
const MAX_VALUE: usize = 64 << 10;
const MAX_CHANGES: usize = 16;
const MAX_PAGE: usize = 1 << 20;
/// Bytes that an entry counts in addition to key and value, as in the host.
const ENTRY_OVERHEAD: usize = 160;

/// The state entries.
#[derive(Debug)]
pub(super) struct MockStateStore {
    entries: BTreeMap<String, (Vec<u8>, Version)>,
    version: Version,
    limit: usize,
}

impl Default for MockStateStore {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), version: 0, limit: usize::MAX }
    }
}

impl MockStateStore {
    pub(super) fn set_limit(&mut self, bytes: usize) {
        self.limit = bytes;
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.entries.keys().cloned().collect()
    }

    pub(super) fn set(&mut self, key: &str, value: Option<Vec<u8>>) {
        self.version = self.version.saturating_add(1);
        match value {
            Some(value) => self.entries.insert(key.to_owned(), (value, self.version)),
            None => self.entries.remove(key),
        };
    }

    pub(super) fn get(&self, key: &str) -> Result<Option<Entry>, StateError> {
        check_key(key)?;
        let found = self.entries.get(key);
        Ok(found.map(|(value, version)| Entry { value: value.clone(), version: *version }))
    }

    pub(super) fn commit(&mut self, changes: &[Change]) -> Result<Version, StateError> {
        check_batch(changes)?;
        if let Some(change) = changes.iter().find(|change| !self.is_precondition_met(change)) {
            return Err(StateError::Conflict(key_of(change).to_owned()));
        }
        let before = self.total_bytes();
        let after = changes.iter().fold(before, |bytes, change| {
            let key = key_of(change);
            let removed = self.entries.get(key).map_or(0, |(value, _)| entry_bytes(key, value));
            let added = match change {
                Change::Put(put) => entry_bytes(key, &put.value),
                Change::Remove(_) => 0,
            };
            bytes.saturating_sub(removed).saturating_add(added)
        });
        if after > self.limit && after > before {
            return Err(StateError::Full(bound(self.limit, after)));
        }
        self.version = self.version.saturating_add(1);
        for change in changes {
            match change {
                Change::Put(Put { key, value, .. }) => {
                    self.entries.insert(key.clone(), (value.clone(), self.version));
                }
                Change::Remove(Remove { key, .. }) => {
                    self.entries.remove(key);
                }
            }
        }
        Ok(self.version)
    }

    pub(super) fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Page, StateError> {
        if prefix.len() > MAX_KEY {
            return Err(StateError::KeySize(bound(MAX_KEY, prefix.len())));
        }
        let start = match after {
            Some(after) if after >= prefix => Excluded(after.to_owned()),
            Some(_) | None => Included(prefix.to_owned()),
        };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut page = Page { entries: Vec::new(), more: false };
        let mut bytes = 0_usize;
        let matching = self.entries.range((start, Unbounded)).take_while(|(key, _)| key.starts_with(prefix));
        for (key, (value, version)) in matching {
            bytes = bytes.saturating_add(entry_bytes(key, value));
            if page.entries.len() >= limit || bytes > MAX_PAGE {
                page.more = true;
                break;
            }
            page.entries.push(ScanEntry { key: key.clone(), value: value.clone(), version: *version });
        }
        Ok(page)
    }

    fn total_bytes(&self) -> usize {
        self.entries.iter().fold(0, |bytes, (key, (value, _))| bytes.saturating_add(entry_bytes(key, value)))
    }

    fn is_precondition_met(&self, change: &Change) -> bool {
        let version = self.entries.get(key_of(change)).map(|(_, version)| *version);
        match change {
            Change::Put(Put { precondition: Precondition::Absent, .. }) => version.is_none(),
            Change::Put(Put { precondition: Precondition::At(expected), .. })
            | Change::Remove(Remove { version: expected, .. }) => version == Some(*expected),
        }
    }
}

fn entry_bytes(key: &str, value: &[u8]) -> usize {
    key.len().saturating_add(value.len()).saturating_add(ENTRY_OVERHEAD)
}

fn key_of(change: &Change) -> &str {
    match change {
        Change::Put(Put { key, .. }) | Change::Remove(Remove { key, .. }) => key,
    }
}

pub(super) fn bound(limit: usize, given: usize) -> Bound {
    Bound { limit: u64::try_from(limit).unwrap_or(u64::MAX), given: u64::try_from(given).unwrap_or(u64::MAX) }
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
    let mut keys = BTreeSet::new();
    for change in changes {
        check_key(key_of(change))?;
        if !keys.insert(key_of(change)) {
            return Err(StateError::RepeatedKey(key_of(change).to_owned()));
        }
        if let Change::Put(Put { value, .. }) = change
            && value.len() > MAX_VALUE
        {
            return Err(StateError::ValueSize(bound(MAX_VALUE, value.len())));
        }
    }
    Ok(())
}
