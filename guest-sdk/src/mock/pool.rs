//! An in-memory pool.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
};

use crate::bindings::cofferdam::storage::{
    pool::{CopyMode, Item, ItemKind, Page, PoolError, Space},
    types::Bound,
};

const BLOCK: u64 = 4096;
const MAX_NAME: usize = 200;
const MAX_PAGE: u32 = 1000;

/// The pool's items.
#[derive(Debug)]
pub(crate) struct MockPool {
    items: BTreeMap<String, PoolItem>,
    uses: BTreeMap<String, PoolItemUse>,
    total: u64,
    shares_blocks: bool,
}

/// The operation running on a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolItemUse {
    /// The item is being created, changed or removed.
    Changing,
    /// The item is being copied.
    Copying,
}

/// A pool item. The content of an image is its only file, which has an empty name.
#[derive(Clone, Debug)]
struct PoolItem {
    size: Option<u64>,
    files: BTreeMap<String, Vec<u8>>,
}

impl PoolItem {
    fn kind(&self) -> ItemKind {
        if self.size.is_some() { ItemKind::Image } else { ItemKind::Directory }
    }

    fn used(&self) -> u64 {
        self.files.values().map(|file| u64::try_from(file.len()).unwrap_or(u64::MAX)).sum()
    }
}

impl Default for MockPool {
    fn default() -> Self {
        Self { items: BTreeMap::new(), uses: BTreeMap::new(), total: 1 << 40, shares_blocks: true }
    }
}

impl MockPool {
    pub(super) fn set_total_bytes(&mut self, bytes: u64) {
        self.total = bytes;
    }

    pub(super) fn set_shares_blocks(&mut self, blocks: bool) {
        self.shares_blocks = blocks;
    }

    pub(super) fn set_use(&mut self, name: &str, what: Option<PoolItemUse>) {
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
        self.check_unused(name)?;
        self.check_absent(name)?;
        self.items.insert(name.to_owned(), PoolItem { size: None, files: BTreeMap::new() });
        Ok(())
    }

    pub(crate) fn create_image(&mut self, name: &str, size_bytes: u64) -> Result<(), PoolError> {
        self.check_unused(name)?;
        check_size(size_bytes)?;
        self.check_absent(name)?;
        self.check_space(size_bytes)?;
        self.items.insert(name.to_owned(), PoolItem { size: Some(size_bytes), files: BTreeMap::new() });
        Ok(())
    }

    pub(crate) fn remove(&mut self, name: &str) -> Result<(), PoolError> {
        self.check_unused(name)?;
        self.find(name)?;
        self.items.remove(name);
        Ok(())
    }

    pub(crate) fn grow(&mut self, name: &str, size_bytes: u64) -> Result<(), PoolError> {
        self.check_unused(name)?;
        check_size(size_bytes)?;
        let Some(size) = self.find(name)?.size else { return Err(PoolError::WrongKind(name.to_owned())) };
        self.check_space(size_bytes.saturating_sub(size))?;
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
        self.check_unused(name)?;
        self.check_readable(source)?;
        self.check_absent(name)?;
        let mut copy = self.find(source)?.clone();
        let Some(size) = copy.size else {
            return self.copy_directory(source, name, size_bytes, mode, copy);
        };
        let new_size = size_bytes.unwrap_or(size);
        check_size(new_size)?;
        if new_size < size {
            return Err(PoolError::InvalidSize(format!("{new_size} bytes; the source has {size}")));
        }
        self.check_space(new_size)?;
        if mode == CopyMode::PointInTime && !self.shares_blocks {
            return Err(PoolError::Unsupported("the mock was told to share no blocks".to_owned()));
        }
        copy.size = Some(new_size);
        self.add_copy(name, copy)
    }

    fn copy_directory(
        &mut self,
        source: &str,
        name: &str,
        size_bytes: Option<u64>,
        mode: CopyMode,
        copy: PoolItem,
    ) -> Result<(), PoolError> {
        if size_bytes.is_some() {
            return Err(PoolError::WrongKind(source.to_owned()));
        }
        if mode == CopyMode::PointInTime {
            return Err(PoolError::Unsupported("no copy of a directory is of one moment".to_owned()));
        }
        self.add_copy(name, copy)
    }

    /// Adds a copy. Its content needs free space.
    fn add_copy(&mut self, name: &str, copy: PoolItem) -> Result<(), PoolError> {
        if copy.used() > self.free_bytes() {
            return Err(PoolError::NoSpace(Bound { limit: self.free_bytes(), given: copy.used() }));
        }
        self.items.insert(name.to_owned(), copy);
        Ok(())
    }

    pub(crate) fn measure(&self, name: &str) -> Result<Item, PoolError> {
        self.check_readable(name)?;
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

    /// Total and available bytes. Space reserved for images is unavailable to others, and the available bytes
    /// never exceed the free bytes. The host also subtracts the unwritten bytes of images from the free
    /// bytes.
    pub(crate) fn usage(&self) -> Space {
        let reserved: u64 = self.items.values().filter_map(|item| item.size).sum();
        let available_bytes = self.total.saturating_sub(reserved).min(self.free_bytes());
        Space { total_bytes: self.total, available_bytes }
    }

    /// Total bytes minus the bytes written to items. Bytes reserved for images but not written count as free.
    fn free_bytes(&self) -> u64 {
        self.total.saturating_sub(self.items.values().map(PoolItem::used).sum())
    }

    fn check_space(&self, given: u64) -> Result<(), PoolError> {
        let limit = self.usage().available_bytes;
        if given > limit { Err(PoolError::NoSpace(Bound { limit, given })) } else { Ok(()) }
    }

    fn find(&self, name: &str) -> Result<&PoolItem, PoolError> {
        self.items.get(name).ok_or_else(|| PoolError::Missing(name.to_owned()))
    }

    fn check_absent(&self, name: &str) -> Result<(), PoolError> {
        if self.items.contains_key(name) { Err(PoolError::Exists(name.to_owned())) } else { Ok(()) }
    }

    /// Checks that a name is valid and that no operation is running on it.
    fn check_unused(&self, name: &str) -> Result<(), PoolError> {
        check_name(name)?;
        if self.uses.contains_key(name) { Err(PoolError::Busy(name.to_owned())) } else { Ok(()) }
    }

    /// Checks that a name is valid and that its item is not being changed. The item may be missing.
    fn check_readable(&self, name: &str) -> Result<(), PoolError> {
        check_name(name)?;
        if self.uses.get(name) == Some(&PoolItemUse::Changing) {
            return Err(PoolError::Busy(name.to_owned()));
        }
        Ok(())
    }
}

fn check_name(name: &str) -> Result<(), PoolError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let has_valid_start = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !has_valid_start || name.len() > MAX_NAME || !name.bytes().all(is_allowed) {
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
