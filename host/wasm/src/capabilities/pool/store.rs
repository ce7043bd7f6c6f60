//! A pool: its directory, its items (directories and disk images), and their atomic changes.
//!
//! A new item is built under a temporary name (`.tmp-…`) and renamed in one step. A removed item is renamed
//! in one step (`.trash-…`) and then deleted. An image grows in place. Items with such temporary names, which
//! a dead process left, are deleted when the pool is opened.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound::{Excluded, Included, Unbounded},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    fd::OwnedFd,
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Stat, fchmod, fstat, fstatvfs, fsync,
        ftruncate, mkdirat, openat, renameat_with, statat,
    },
    io::Errno,
};

use super::{
    config::PoolConfig,
    sys,
    tree::{self, TreeError},
};
use crate::{
    bindings::cofferdam::storage::pool::{Bound, CopyMode, Item, ItemKind, Page, PoolError, Space},
    capabilities::lock_file::{LockFile, LockFileError},
    metrics::DriverMetrics,
};
use cofferdam_backend::checks::printable;

/// Longest name in bytes, by contract.
const MAX_NAME: usize = 200;
/// Image sizes are multiples of this, by contract.
const BLOCK_BYTES: u64 = 4_096;
/// Maximum items of one page, by contract.
const MAX_PAGE_ITEMS: usize = 1_000;
/// Name of the lock file. Items cannot have it: their names begin with a letter or digit.
const LOCK_NAME: &str = ".lock";
/// Name prefix of items that are being created.
const TMP_PREFIX: &str = ".tmp-";
/// Name prefix of items that are being removed.
const TRASH_PREFIX: &str = ".trash-";

type Result<T> = std::result::Result<T, PoolError>;

/// A pool's directory that cannot be used. The message follows the directory's name.
#[derive(Debug, thiserror::Error)]
pub enum PoolDirectoryError {
    /// The configured path is a symbolic link or not a directory, a parent in the path is not a directory, or
    /// the path has too many symbolic links.
    #[error("is not a directory: expected one, and no link to it")]
    NotADirectory,
    /// The directory cannot be opened.
    #[error("cannot be opened: {0}: expected a directory")]
    Open(#[source] Errno),
    /// The system lacks `openat2`: its Linux is older than 5.6, or it is not Linux.
    #[error("cannot be used: {0}: a pool needs Linux 5.6")]
    OldKernel(#[source] Errno),
    /// Other users may enter the directory, and that cannot be changed.
    #[error("is open to other users of the machine: {0}: expected a mode such as 0750")]
    OpenToOthers(#[source] Errno),
    /// The lock file cannot be opened or created.
    #[error("cannot be written: {0}: expected to read and write it")]
    CreateLockFile(#[source] Errno),
    /// The lock file is locked already, or cannot be locked or written.
    #[error(transparent)]
    LockFile(#[from] LockFileError),
    /// The entries of the directory cannot be listed, or the metadata of one cannot be read.
    #[error("cannot be read: {0}: expected to read and write it")]
    Read(#[source] Errno),
}

/// One directory that a backend has for itself.
#[derive(Debug)]
pub(crate) struct Pool {
    root: OwnedFd,
    /// Maximum bytes of all images together; the filesystem's size if absent.
    capacity: Option<u64>,
    image_bytes_max: u64,
    index: Mutex<PoolIndex>,
    /// Makes temporary names unique.
    name_counter: AtomicU64,
    metrics: OnceLock<DriverMetrics>,
    /// Simulates failures of fsync, for tests.
    #[cfg(test)]
    is_sync_failing: std::sync::atomic::AtomicBool,
    _lock_file: LockFile,
}

#[derive(Debug, Default)]
struct PoolIndex {
    /// All items by name: an image with its reserved bytes, also while it is created, and a directory with
    /// `None`.
    items: BTreeMap<String, Option<u64>>,
    uses: HashMap<String, ItemUse>,
}

/// Unit of the block count of `stat`.
const STAT_BLOCK_BYTES: u64 = 512;

/// Operations in progress on an item.
#[derive(Clone, Copy, Debug)]
enum ItemUse {
    /// The item is being created, changed or removed.
    Changing,
    /// This number of copies of the item is in progress.
    Copying(u32),
}

/// Reserves an item's name for one change or one copy, until this is dropped.
struct ItemLock<'a> {
    pool: &'a Pool,
    name: &'a str,
}

impl Drop for ItemLock<'_> {
    fn drop(&mut self) {
        let mut table = self.pool.lock();
        match table.uses.get_mut(self.name) {
            Some(ItemUse::Copying(readers)) if *readers > 1 => *readers = readers.saturating_sub(1),
            Some(ItemUse::Copying(_) | ItemUse::Changing) | None => {
                table.uses.remove(self.name);
            }
        }
    }
}

impl Pool {
    /// Opens and locks a pool, and removes leftovers of an earlier process. Blocks on the disk.
    ///
    /// Removes the permissions of other users from the directory: a pod determines owners and modes in its
    /// volume, and another user of the machine could run its set-user-ID programs.
    ///
    /// # Errors
    /// The directory cannot be opened, locked or listed.
    pub(crate) fn open(config: &PoolConfig) -> std::result::Result<Self, PoolDirectoryError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(CWD, &config.directory, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => PoolDirectoryError::NotADirectory,
            error => PoolDirectoryError::Open(error),
        })?;
        let mode =
            fstat(&root).map(|stat| Mode::from_raw_mode(stat.st_mode)).map_err(PoolDirectoryError::Read)?;
        if mode.intersects(Mode::RWXO) {
            fchmod(&root, mode.difference(Mode::RWXO)).map_err(PoolDirectoryError::OpenToOthers)?;
        }
        let lock =
            sys::open_or_create(&root, LOCK_NAME, Mode::RUSR | Mode::WUSR).map_err(|error| match error {
                Errno::NOSYS => PoolDirectoryError::OldKernel(error),
                error => PoolDirectoryError::CreateLockFile(error),
            })?;
        let pool = Self {
            root,
            capacity: config.capacity,
            image_bytes_max: config.image_bytes_max.unwrap_or(u64::MAX),
            index: Mutex::default(),
            name_counter: AtomicU64::new(0),
            metrics: OnceLock::new(),
            #[cfg(test)]
            is_sync_failing: std::sync::atomic::AtomicBool::new(false),
            _lock_file: LockFile::acquire(lock.into())?,
        };
        pool.remove_leftovers()
            .and_then(|()| pool.read_items())
            .map(|items| pool.lock().items = items)
            .map_err(PoolDirectoryError::Read)?;
        Ok(pool)
    }

    /// Removes items that an earlier process was creating or removing when it died.
    fn remove_leftovers(&self) -> rustix::io::Result<()> {
        for name in self.names()? {
            if name.starts_with(TMP_PREFIX) || name.starts_with(TRASH_PREFIX) {
                // Renamed first: an earlier process may have generated the same names as this one.
                let trash_name = self.unique_name(TRASH_PREFIX);
                let moved = renameat_with(&self.root, &name, &self.root, &trash_name, RenameFlags::NOREPLACE);
                let name = if moved.is_ok() { trash_name } else { name };
                if let Err(error) = self.remove_tree(name) {
                    tracing::warn!(?error, "cannot remove leftovers of an earlier process from the pool");
                }
            }
        }
        Ok(())
    }

    fn read_items(&self) -> rustix::io::Result<BTreeMap<String, Option<u64>>> {
        let mut items = BTreeMap::new();
        for name in self.names()?.into_iter().filter(|name| check_name(name).is_ok()) {
            match item_kind(&statat(&self.root, &name, AtFlags::SYMLINK_NOFOLLOW)?) {
                Some((ItemKind::Image, stat)) => items.insert(name, Some(tree::length(&stat))),
                Some((ItemKind::Directory, _)) => items.insert(name, None),
                None => None,
            };
        }
        Ok(items)
    }

    /// All names in the directory that are valid UTF-8.
    fn names(&self) -> rustix::io::Result<Vec<String>> {
        let mut names = Vec::new();
        // A new file, because the position of one that is read is shared.
        let directory = sys::open_directory(&self.root, ".")?;
        for entry in Dir::new(directory)? {
            if let Ok(name) = entry?.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Sets the metrics, unless they are set already, and reports the pool's usage to them.
    pub(crate) fn set_metrics(&self, metrics: DriverMetrics) {
        let metrics = self.metrics.get_or_init(|| metrics);
        let table = self.lock();
        metrics.set_pool_usage(table.items.len(), reserved_bytes(&table.items));
    }

    /// Runs an operation and counts it in the metrics.
    pub(crate) fn perform<T>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        let answer = work(self);
        if let Some(metrics) = self.metrics.get() {
            metrics.count_pool_operation(operation, outcome_label(answer.as_ref().err()));
            let table = self.lock();
            metrics.set_pool_usage(table.items.len(), reserved_bytes(&table.items));
        }
        answer
    }

    pub(crate) fn create_directory(&self, name: &str) -> Result<()> {
        let _item_lock = self.lock_item(name)?;
        self.check_absent(name)?;
        let new = self.new_directory()?;
        self.rename_directory_into_place(&new, name)
    }

    pub(crate) fn create_image(&self, name: &str, size: u64) -> Result<()> {
        let _item_lock = self.lock_item(name)?;
        self.check_size(size)?;
        self.check_absent(name)?;
        self.reserve(name, size)?;
        self.release_reservation_on_error(name, || {
            let new = self.unique_name(TMP_PREFIX);
            let file = sys::create_file(&self.root, &new, Mode::RUSR | Mode::WUSR).map_err(system_error)?;
            let made = self.resize_and_sync(&file, size);
            self.discard_on_error(&new, made)?;
            self.rename_into_place(&new, name)
        })
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let _item_lock = self.lock_item(name)?;
        let trash_name = self.unique_name(TRASH_PREFIX);
        let moved = renameat_with(&self.root, name, &self.root, &trash_name, RenameFlags::NOREPLACE);
        if matches!(moved, Ok(()) | Err(Errno::NOENT)) {
            self.lock().items.remove(name);
        }
        match moved {
            Ok(()) => {}
            Err(Errno::NOENT) => {
                self.sync(&self.root)?;
                return Err(PoolError::Missing(name.to_owned()));
            }
            Err(Errno::BUSY | Errno::XDEV) => {
                return Err(PoolError::Unsupported("the item is a mount".to_owned()));
            }
            Err(error) => return Err(system_error(error)),
        }
        self.sync(&self.root)?;
        // The name is removed, also if the item's deletion fails.
        tree::remove_tree(&self.root, trash_name, || self.unique_name(TRASH_PREFIX)).map_err(|trouble| {
            PoolError::Unknown(format!("the content of {name:?} remains until the next start: {trouble}"))
        })
    }

    pub(crate) fn grow(&self, name: &str, size: u64) -> Result<()> {
        let _item_lock = self.lock_item(name)?;
        self.check_size(size)?;
        let (file, stat) = self.open_image(name, |root, name| sys::open_writable(root, name))?;
        let current_size = tree::length(&stat);
        if size <= current_size {
            // An earlier call may have failed to sync it.
            return self.sync(&file);
        }
        self.reserve(name, size)?;
        if let Err(refused) = self.resize(&file, size) {
            self.lock().items.insert(name.to_owned(), Some(current_size));
            return Err(refused);
        }
        self.sync(&file)
    }

    pub(crate) fn copy(&self, source: &str, name: &str, size: Option<u64>, mode: CopyMode) -> Result<()> {
        check_name(source)?;
        let _item_lock = self.lock_item(name)?;
        let _source_lock = self.lock_for_copy(source)?;
        self.check_absent(name)?;
        match item_kind(&self.stat(source)?) {
            Some((ItemKind::Directory, _)) if size.is_some() => Err(PoolError::WrongKind(printable(source))),
            Some((ItemKind::Directory, _)) if mode == CopyMode::PointInTime => {
                Err(PoolError::Unsupported("a directory has no point-in-time copies".to_owned()))
            }
            Some((ItemKind::Directory, _)) => self.copy_directory(source, name),
            Some((ItemKind::Image, _)) => self.copy_image(source, name, size, mode),
            None => Err(PoolError::WrongKind(printable(source))),
        }
    }

    fn copy_directory(&self, source: &str, name: &str) -> Result<()> {
        let from = sys::open_directory(&self.root, source).map_err(system_error)?;
        let new = self.new_directory()?;
        let copied = sys::open_directory(&self.root, &new)
            .map_err(TreeError::from)
            .and_then(|to| tree::copy_tree(from, to))
            .and_then(|()| Ok(sys::sync_all(&self.root)?));
        self.discard_on_error(&new, copied.map_err(|trouble| self.pool_error(trouble, 0)))?;
        self.rename_directory_into_place(&new, name)
    }

    fn copy_image(&self, source: &str, name: &str, size: Option<u64>, mode: CopyMode) -> Result<()> {
        let (from, stat) = self.open_image(source, |root, name| sys::open_file(root, name))?;
        let source_size = tree::length(&stat);
        let size = size.unwrap_or(source_size);
        self.check_size(size)?;
        if size < source_size {
            return Err(PoolError::InvalidSize(format!("{size} bytes; the source has {source_size}")));
        }
        self.reserve(name, size)?;
        self.release_reservation_on_error(name, || {
            let new = self.unique_name(TMP_PREFIX);
            let to = sys::create_file(&self.root, &new, Mode::RUSR | Mode::WUSR).map_err(system_error)?;
            let copied = tree::copy_data(&from, &to, source_size, mode)
                .map_err(|trouble| self.pool_error(trouble, size))
                .and_then(|()| self.resize_and_sync(&to, size));
            self.discard_on_error(&new, copied)?;
            self.rename_into_place(&new, name)
        })
    }

    pub(crate) fn measure(&self, name: &str) -> Result<Item> {
        check_name(name)?;
        if let Some(ItemUse::Changing) = self.lock().uses.get(name) {
            return Err(PoolError::Busy(name.to_owned()));
        }
        let Some((kind, stat)) = item_kind(&self.stat(name)?) else {
            return Err(PoolError::WrongKind(name.to_owned()));
        };
        let (size_bytes, used_bytes) = match kind {
            ItemKind::Image => (Some(tree::length(&stat)), tree::disk_usage(&stat)),
            ItemKind::Directory => {
                let directory = sys::open_directory(&self.root, name).map_err(system_error)?;
                (None, tree::tree_usage(directory).map_err(|trouble| self.pool_error(trouble, 0))?)
            }
        };
        Ok(Item { name: name.to_owned(), kind, size_bytes, used_bytes })
    }

    /// Lists the items that this process knows and that still exist. Items that other processes created are
    /// seen after a restart.
    pub(crate) fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> Page {
        let start = match after {
            Some(after) if after >= prefix => Excluded(after),
            Some(_) | None => Included(prefix),
        };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(MAX_PAGE_ITEMS);
        let table = self.lock();
        let mut page = Page { items: Vec::new(), more: false };
        let found = table.items.range::<str, _>((start, Unbounded)).map(|(name, _)| name);
        for name in found.take_while(|name| name.starts_with(prefix)) {
            let Some((kind, _)) = self.stat(name).ok().and_then(|stat| item_kind(&stat)) else { continue };
            if page.items.len() >= limit {
                page.more = true;
                break;
            }
            page.items.push((name.clone(), kind));
        }
        page
    }

    pub(crate) fn usage(&self) -> Result<Space> {
        self.space(&self.lock().items)
    }

    /// Total and available space. The total is the configured capacity, or else the filesystem's size.
    /// Available is the total less the space reserved for images, but at most the filesystem's free space
    /// less the unwritten parts of images: images are sparse, so a reservation uses no space before it is
    /// written.
    fn space(&self, items: &BTreeMap<String, Option<u64>>) -> Result<Space> {
        let filesystem = fstatvfs(&self.root).map_err(system_error)?;
        let total = filesystem.f_blocks.saturating_mul(filesystem.f_frsize);
        let free = filesystem.f_bavail.saturating_mul(filesystem.f_frsize);
        let total_bytes = self.capacity.unwrap_or(total);
        let free = free.saturating_sub(self.unwritten_bytes(items));
        let available_bytes = total_bytes.saturating_sub(reserved_bytes(items)).min(free);
        Ok(Space { total_bytes, available_bytes })
    }

    /// Space that is reserved for images and not written yet.
    fn unwritten_bytes(&self, items: &BTreeMap<String, Option<u64>>) -> u64 {
        let images = items.iter().filter_map(|(name, size)| Some((name, (*size)?)));
        let missing = images.map(|(name, size)| {
            let stat = statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW);
            // An image that is being created has no file under its name yet.
            let allocated = stat.ok().and_then(|stat| u64::try_from(stat.st_blocks).ok());
            size.saturating_sub(allocated.unwrap_or_default().saturating_mul(STAT_BLOCK_BYTES))
        });
        missing.fold(0, u64::saturating_add)
    }

    /// Raises an image's reservation to `size` bytes, if the difference to its present reservation is
    /// available.
    fn reserve(&self, name: &str, size: u64) -> Result<()> {
        let mut table = self.lock();
        let reserved = table.items.get(name).copied().flatten().unwrap_or_default();
        let limit = self.space(&table.items)?.available_bytes;
        let requested = size.saturating_sub(reserved);
        if requested > limit {
            return Err(PoolError::NoSpace(Bound { limit, given: requested }));
        }
        table.items.insert(name.to_owned(), Some(size));
        Ok(())
    }

    /// Runs `make`, which creates an image whose bytes are reserved. Releases the reservation if `make`
    /// fails. Keeps it if the result is unknown: the image may exist.
    fn release_reservation_on_error(&self, name: &str, make: impl FnOnce() -> Result<()>) -> Result<()> {
        let made = make();
        if made.as_ref().is_err_and(|error| !matches!(error, PoolError::Unknown(_))) {
            self.lock().items.remove(name);
        }
        made
    }

    fn check_size(&self, size: u64) -> Result<()> {
        let max = self.image_bytes_max;
        if size == 0 || !size.is_multiple_of(BLOCK_BYTES) || size > max {
            return Err(PoolError::InvalidSize(format!(
                "{size} bytes; expected a multiple of {BLOCK_BYTES}, more than 0 and at most {max}"
            )));
        }
        Ok(())
    }

    fn check_absent(&self, name: &str) -> Result<()> {
        match self.stat(name) {
            Ok(_) => {
                // The caller treats `Exists` as success, but an earlier attempt may have failed to sync the
                // item.
                self.sync(&self.root)?;
                Err(PoolError::Exists(name.to_owned()))
            }
            Err(PoolError::Missing(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn stat(&self, name: &str) -> Result<Stat> {
        statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| match error {
            Errno::NOENT => PoolError::Missing(name.to_owned()),
            error => system_error(error),
        })
    }

    /// Opens an image. Rejects other file types, and files with several names: they could be from outside of
    /// the pool.
    fn open_image(
        &self,
        name: &str,
        open: fn(&OwnedFd, &str) -> rustix::io::Result<OwnedFd>,
    ) -> Result<(OwnedFd, Stat)> {
        match item_kind(&self.stat(name)?) {
            Some((ItemKind::Image, _)) => {}
            Some((ItemKind::Directory, _)) | None => return Err(PoolError::WrongKind(name.to_owned())),
        }
        let file = open(&self.root, name).map_err(system_error)?;
        let stat = fstat(&file).map_err(system_error)?;
        match item_kind(&stat) {
            Some((ItemKind::Image, stat)) if stat.st_nlink == 1 => Ok((file, stat)),
            Some((ItemKind::Image, _)) => {
                Err(PoolError::Failed("the image has a second name (hard link)".to_owned()))
            }
            Some((ItemKind::Directory, _)) | None => Err(PoolError::WrongKind(name.to_owned())),
        }
    }

    fn resize(&self, file: &OwnedFd, size: u64) -> Result<()> {
        ftruncate(file, size).map_err(|error| self.pool_error(error.into(), size))
    }

    /// Resizes and syncs a file that has no final name yet. A failed sync is no `Unknown` result: the file is
    /// discarded.
    fn resize_and_sync(&self, file: &OwnedFd, size: u64) -> Result<()> {
        self.resize(file, size)?;
        fsync(file).map_err(|error| self.pool_error(error.into(), size))
    }

    fn new_directory(&self) -> Result<String> {
        let new = self.unique_name(TMP_PREFIX);
        mkdirat(&self.root, &new, Mode::RWXU).map_err(system_error)?;
        // Set explicitly, because of the process' umask. The group may read, for `fsGroup`.
        let mode = sys::open_directory(&self.root, &new)
            .and_then(|directory| fchmod(&directory, Mode::RWXU | Mode::RGRP | Mode::XGRP));
        self.discard_on_error(&new, mode.map_err(system_error))?;
        Ok(new)
    }

    /// Renames a completed item to its final name, durably.
    fn rename_into_place(&self, new: &str, name: &str) -> Result<()> {
        let renamed = renameat_with(&self.root, new, &self.root, name, RenameFlags::NOREPLACE);
        let renamed = renamed.map_err(|error| match error {
            Errno::EXIST => PoolError::Exists(name.to_owned()),
            error => system_error(error),
        });
        self.discard_on_error(new, renamed)?;
        self.sync(&self.root)
    }

    /// Renames a completed directory to its final name, and lists it as an item as soon as it has that name.
    fn rename_directory_into_place(&self, new: &str, name: &str) -> Result<()> {
        let renamed = self.rename_into_place(new, name);
        if matches!(renamed, Ok(()) | Err(PoolError::Unknown(_))) {
            self.lock().items.insert(name.to_owned(), None);
        }
        renamed
    }

    /// Makes a visible change durable. A failure does not undo it.
    fn sync(&self, changed: &OwnedFd) -> Result<()> {
        #[cfg(test)]
        if self.is_sync_failing.load(Ordering::Relaxed) {
            return Err(PoolError::Unknown("made unsteady".to_owned()));
        }
        fsync(changed).map_err(|error| {
            PoolError::Unknown(format!(
                "the change is made but may not survive a crash of the machine: {error}"
            ))
        })
    }

    /// Deletes a temporary item if its operation failed.
    fn discard_on_error<T>(&self, new: &str, result: Result<T>) -> Result<T> {
        if result.is_err()
            && let Err(error) = self.remove_tree(new.to_owned())
        {
            tracing::warn!(
                name = new,
                ?error,
                "cannot remove an unfinished item of the pool; it remains until the \
                 next start"
            );
        }
        result
    }

    fn remove_tree(&self, name: String) -> Result<()> {
        tree::remove_tree(&self.root, name, || self.unique_name(TRASH_PREFIX))
            .map_err(|trouble| self.pool_error(trouble, 0))
    }

    fn unique_name(&self, prefix: &str) -> String {
        format!("{prefix}{}-{}", std::process::id(), self.name_counter.fetch_add(1, Ordering::Relaxed))
    }

    /// Reserves a name for a change; fails with `Busy` if the item is being changed or copied.
    fn lock_item<'a>(&'a self, name: &'a str) -> Result<ItemLock<'a>> {
        check_name(name)?;
        let mut table = self.lock();
        if table.uses.contains_key(name) {
            return Err(PoolError::Busy(name.to_owned()));
        }
        table.uses.insert(name.to_owned(), ItemUse::Changing);
        Ok(ItemLock { pool: self, name })
    }

    /// Prevents changes of an item while it is copied; fails with `Busy` if the item is being changed.
    fn lock_for_copy<'a>(&'a self, name: &'a str) -> Result<ItemLock<'a>> {
        let mut table = self.lock();
        let readers = match table.uses.get(name) {
            Some(ItemUse::Changing) => return Err(PoolError::Busy(name.to_owned())),
            Some(ItemUse::Copying(readers)) => readers.saturating_add(1),
            None => 1,
        };
        table.uses.insert(name.to_owned(), ItemUse::Copying(readers));
        Ok(ItemLock { pool: self, name })
    }

    fn pool_error(&self, tree_error: TreeError, requested: u64) -> PoolError {
        match tree_error {
            TreeError::Errno(Errno::NOSPC | Errno::DQUOT) => {
                let limit = self.usage().map_or(0, |room| room.available_bytes);
                PoolError::NoSpace(Bound { limit, given: requested })
            }
            TreeError::Errno(Errno::FBIG | Errno::INVAL) if requested > 0 => {
                PoolError::InvalidSize(format!("{requested} bytes; that is more than the filesystem allows"))
            }
            TreeError::Errno(error) => system_error(error),
            TreeError::Unsupported(reason) => PoolError::Unsupported(reason),
            TreeError::Changed(reason) => PoolError::Failed(reason),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn reserved_bytes(items: &BTreeMap<String, Option<u64>>) -> u64 {
    items.values().flatten().fold(0, |sum, size| sum.saturating_add(*size))
}

fn item_kind(stat: &Stat) -> Option<(ItemKind, Stat)> {
    match tree::file_type(stat) {
        FileType::Directory => Some((ItemKind::Directory, *stat)),
        FileType::RegularFile => Some((ItemKind::Image, *stat)),
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => None,
    }
}

/// Checks a name before any system call sees it.
pub(super) fn check_name(name: &str) -> Result<()> {
    let valid = name.len() <= MAX_NAME
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if valid { Ok(()) } else { Err(PoolError::InvalidName(printable(name))) }
}

fn system_error(error: Errno) -> PoolError {
    PoolError::Failed(error.to_string())
}

/// The outcome of an operation as a metric label.
fn outcome_label(error: Option<&PoolError>) -> &'static str {
    match error {
        None => "ok",
        Some(PoolError::InvalidName(_)) => "invalid-name",
        Some(PoolError::Exists(_)) => "exists",
        Some(PoolError::Missing(_)) => "missing",
        Some(PoolError::WrongKind(_)) => "wrong-kind",
        Some(PoolError::InvalidSize(_)) => "invalid-size",
        Some(PoolError::NoSpace(_)) => "no-space",
        Some(PoolError::Busy(_)) => "busy",
        Some(PoolError::Failed(_)) => "failed",
        Some(PoolError::Unsupported(_)) => "unsupported",
        Some(PoolError::Unknown(_)) => "unknown",
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
