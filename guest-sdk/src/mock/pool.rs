//! A directory of the host that holds items by name, in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
};

use crate::bindings::cofferdam::storage::{
    pool::{Item, ItemKind, Page, PoolError, Room},
    types::Bound,
};

const BLOCK: u64 = 4096;
const MAX_NAME: usize = 200;
const MAX_PAGE: u32 = 1000;

/// The items.
#[derive(Debug)]
pub(crate) struct Tree {
    items: BTreeMap<String, Content>,
    busy: BTreeSet<String>,
    total: u64,
}

/// An item: of an image the one file is its content.
#[derive(Clone, Debug)]
struct Content {
    size: Option<u64>,
    files: BTreeMap<String, Vec<u8>>,
}

impl Content {
    fn kind(&self) -> ItemKind {
        if self.size.is_some() { ItemKind::Image } else { ItemKind::Directory }
    }

    fn used(&self) -> u64 {
        self.files.values().map(|file| u64::try_from(file.len()).unwrap_or(u64::MAX)).sum()
    }
}

impl Default for Tree {
    fn default() -> Self {
        Self { items: BTreeMap::new(), busy: BTreeSet::new(), total: 1 << 40 }
    }
}

impl Tree {
    pub(super) fn total(&mut self, bytes: u64) {
        self.total = bytes;
    }

    pub(super) fn set_busy(&mut self, name: &str, busy: bool) {
        if busy {
            self.busy.insert(name.to_owned());
        } else {
            self.busy.remove(name);
        }
    }

    pub(super) fn write(&mut self, name: &str, file: &str, bytes: &[u8]) -> bool {
        let Some(item) = self.items.get_mut(name) else { return false };
        item.files.insert(file.to_owned(), bytes.to_vec());
        true
    }

    pub(super) fn read(&self, name: &str, file: &str) -> Option<Vec<u8>> {
        self.items.get(name)?.files.get(file).cloned()
    }

    pub(crate) fn create_directory(&mut self, name: &str) -> Result<(), PoolError> {
        self.vacant(name)?;
        self.items.insert(name.to_owned(), Content { size: None, files: BTreeMap::new() });
        Ok(())
    }

    pub(crate) fn create_image(&mut self, name: &str, size_bytes: u64) -> Result<(), PoolError> {
        self.vacant(name)?;
        check_size(size_bytes)?;
        self.items.insert(name.to_owned(), Content { size: Some(size_bytes), files: BTreeMap::new() });
        Ok(())
    }

    pub(crate) fn remove(&mut self, name: &str) -> Result<(), PoolError> {
        self.find(name)?;
        self.items.remove(name);
        Ok(())
    }

    pub(crate) fn grow(&mut self, name: &str, size_bytes: u64) -> Result<(), PoolError> {
        let Some(size) = self.find(name)?.size else { return Err(PoolError::WrongKind(name.to_owned())) };
        check_size(size_bytes)?;
        if let Some(item) = self.items.get_mut(name) {
            item.size = Some(size.max(size_bytes));
        }
        Ok(())
    }

    pub(crate) fn copy(
        &mut self,
        source: &str,
        name: &str,
        size_bytes: Option<u64>,
    ) -> Result<(), PoolError> {
        let mut copy = self.find(source)?.clone();
        self.vacant(name)?;
        if let Some(wanted) = size_bytes {
            let Some(size) = copy.size else { return Err(PoolError::WrongKind(source.to_owned())) };
            check_size(wanted)?;
            if wanted < size {
                return Err(PoolError::InvalidSize(format!("{wanted} bytes; the source has {size}")));
            }
            copy.size = Some(wanted);
        }
        let Room { available_bytes, .. } = self.usage();
        if copy.used() > available_bytes {
            return Err(PoolError::NoSpace(Bound { limit: available_bytes, given: copy.used() }));
        }
        self.items.insert(name.to_owned(), copy);
        Ok(())
    }

    pub(crate) fn measure(&self, name: &str) -> Result<Item, PoolError> {
        let item = self.find(name)?;
        Ok(Item { name: name.to_owned(), kind: item.kind(), size_bytes: item.size, used_bytes: item.used() })
    }

    pub(crate) fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> Page {
        let limit = usize::try_from(limit.min(MAX_PAGE)).unwrap_or(usize::MAX);
        let start = after.map_or(Unbounded, |after| Excluded(after.to_owned()));
        let mut found = self.items.range((start, Unbounded)).filter(|(name, _)| name.starts_with(prefix));
        let items = found.by_ref().take(limit).map(|(name, item)| (name.clone(), item.kind())).collect();
        Page { items, more: found.next().is_some() }
    }

    pub(crate) fn usage(&self) -> Room {
        let used: u64 = self.items.values().map(Content::used).sum();
        Room { total_bytes: self.total, available_bytes: self.total.saturating_sub(used) }
    }

    fn find(&self, name: &str) -> Result<&Content, PoolError> {
        self.check(name)?;
        self.items.get(name).ok_or_else(|| PoolError::Missing(name.to_owned()))
    }

    fn vacant(&self, name: &str) -> Result<(), PoolError> {
        self.check(name)?;
        if self.items.contains_key(name) { Err(PoolError::Exists(name.to_owned())) } else { Ok(()) }
    }

    fn check(&self, name: &str) -> Result<(), PoolError> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !begins || name.len() > MAX_NAME || !name.bytes().all(known) {
            return Err(PoolError::InvalidName(name.to_owned()));
        }
        if self.busy.contains(name) { Err(PoolError::Busy(name.to_owned())) } else { Ok(()) }
    }
}

fn check_size(bytes: u64) -> Result<(), PoolError> {
    if bytes == 0 || !bytes.is_multiple_of(BLOCK) {
        return Err(PoolError::InvalidSize(format!("{bytes} bytes; expected a multiple of {BLOCK} above 0")));
    }
    Ok(())
}
