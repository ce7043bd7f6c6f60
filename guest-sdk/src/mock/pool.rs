//! A directory of the host that holds items by name, in memory.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
};

use crate::bindings::cofferdam::storage::{
    pool::{CopyMode, Item, ItemKind, Page, PoolError, Room},
    types::Bound,
};

const BLOCK: u64 = 4096;
const MAX_NAME: usize = 200;
const MAX_PAGE: u32 = 1000;

/// The items.
#[derive(Debug)]
pub(crate) struct Tree {
    items: BTreeMap<String, Content>,
    uses: BTreeMap<String, Use>,
    total: u64,
    shares: bool,
}

/// What goes on with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It is being made, changed or removed.
    Changing,
    /// It is being copied.
    Read,
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
        Self { items: BTreeMap::new(), uses: BTreeMap::new(), total: 1 << 40, shares: true }
    }
}

impl Tree {
    pub(super) fn total(&mut self, bytes: u64) {
        self.total = bytes;
    }

    pub(super) fn share(&mut self, blocks: bool) {
        self.shares = blocks;
    }

    pub(super) fn set_use(&mut self, name: &str, what: Option<Use>) {
        match what {
            Some(what) => self.uses.insert(name.to_owned(), what),
            None => self.uses.remove(name),
        };
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
        self.claim(name)?;
        self.vacant(name)?;
        self.items.insert(name.to_owned(), Content { size: None, files: BTreeMap::new() });
        Ok(())
    }

    pub(crate) fn create_image(&mut self, name: &str, size_bytes: u64) -> Result<(), PoolError> {
        self.claim(name)?;
        check_size(size_bytes)?;
        self.vacant(name)?;
        self.promise(size_bytes)?;
        self.items.insert(name.to_owned(), Content { size: Some(size_bytes), files: BTreeMap::new() });
        Ok(())
    }

    pub(crate) fn remove(&mut self, name: &str) -> Result<(), PoolError> {
        self.claim(name)?;
        self.find(name)?;
        self.items.remove(name);
        Ok(())
    }

    pub(crate) fn grow(&mut self, name: &str, size_bytes: u64) -> Result<(), PoolError> {
        self.claim(name)?;
        check_size(size_bytes)?;
        let Some(size) = self.find(name)?.size else { return Err(PoolError::WrongKind(name.to_owned())) };
        self.promise(size_bytes.saturating_sub(size))?;
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
        mode: CopyMode,
    ) -> Result<(), PoolError> {
        check_name(source)?;
        self.claim(name)?;
        self.read_only(source)?;
        self.vacant(name)?;
        let mut copy = self.find(source)?.clone();
        let Some(size) = copy.size else {
            return self.copy_directory(source, name, size_bytes, mode, copy);
        };
        let wanted = size_bytes.unwrap_or(size);
        check_size(wanted)?;
        if wanted < size {
            return Err(PoolError::InvalidSize(format!("{wanted} bytes; the source has {size}")));
        }
        self.promise(wanted)?;
        if mode == CopyMode::OneMoment && !self.shares {
            return Err(PoolError::Unsupported("the mock was told to share no blocks".to_owned()));
        }
        copy.size = Some(wanted);
        self.add_copy(name, copy)
    }

    fn copy_directory(
        &mut self,
        source: &str,
        name: &str,
        size_bytes: Option<u64>,
        mode: CopyMode,
        copy: Content,
    ) -> Result<(), PoolError> {
        if size_bytes.is_some() {
            return Err(PoolError::WrongKind(source.to_owned()));
        }
        if mode == CopyMode::OneMoment {
            return Err(PoolError::Unsupported("no copy of a directory is of one moment".to_owned()));
        }
        self.add_copy(name, copy)
    }

    /// Adds an item whose content has to be written.
    fn add_copy(&mut self, name: &str, copy: Content) -> Result<(), PoolError> {
        if copy.used() > self.free() {
            return Err(PoolError::NoSpace(Bound { limit: self.free(), given: copy.used() }));
        }
        self.items.insert(name.to_owned(), copy);
        Ok(())
    }

    pub(crate) fn measure(&self, name: &str) -> Result<Item, PoolError> {
        self.read_only(name)?;
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

    /// As the host counts: what is promised to images is not there for others, and nobody has more than the disk.
    pub(crate) fn usage(&self) -> Room {
        let promised: u64 = self.items.values().filter_map(|item| item.size).sum();
        let available_bytes = self.total.saturating_sub(promised).min(self.free());
        Room { total_bytes: self.total, available_bytes }
    }

    /// What can still be written.
    fn free(&self) -> u64 {
        self.total.saturating_sub(self.items.values().map(Content::used).sum())
    }

    fn promise(&self, given: u64) -> Result<(), PoolError> {
        let limit = self.usage().available_bytes;
        if given > limit { Err(PoolError::NoSpace(Bound { limit, given })) } else { Ok(()) }
    }

    fn find(&self, name: &str) -> Result<&Content, PoolError> {
        self.items.get(name).ok_or_else(|| PoolError::Missing(name.to_owned()))
    }

    fn vacant(&self, name: &str) -> Result<(), PoolError> {
        if self.items.contains_key(name) { Err(PoolError::Exists(name.to_owned())) } else { Ok(()) }
    }

    /// Takes a name for a change.
    fn claim(&self, name: &str) -> Result<(), PoolError> {
        check_name(name)?;
        if self.uses.contains_key(name) { Err(PoolError::Busy(name.to_owned())) } else { Ok(()) }
    }

    /// Takes an item to look at it.
    fn read_only(&self, name: &str) -> Result<(), PoolError> {
        check_name(name)?;
        if self.uses.get(name) == Some(&Use::Changing) {
            return Err(PoolError::Busy(name.to_owned()));
        }
        Ok(())
    }
}

fn check_name(name: &str) -> Result<(), PoolError> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !begins || name.len() > MAX_NAME || !name.bytes().all(known) {
        return Err(PoolError::InvalidName(name.to_owned()));
    }
    Ok(())
}

fn check_size(bytes: u64) -> Result<(), PoolError> {
    if bytes == 0 || !bytes.is_multiple_of(BLOCK) {
        return Err(PoolError::InvalidSize(format!("{bytes} bytes; expected a multiple of {BLOCK} above 0")));
    }
    Ok(())
}
