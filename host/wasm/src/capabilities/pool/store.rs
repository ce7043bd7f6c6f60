//! The directory, its items, and every change of them as a whole.
//!
//! A change is built under a name that no item can have (`.tmp-…`) and gets its own in one step; a removal takes the name away
//! in one step (`.trash-…`) and then removes. What a process leaves behind when it dies is removed when the pool is opened.

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
    PoolConfig, sys,
    tree::{self, Trouble},
};
use crate::{
    bindings::cofferdam::storage::pool::{Bound, CopyMode, Item, ItemKind, Page, PoolError, Room},
    capabilities::owner::Ownership,
    metrics::DriverMetrics,
};
use cofferdam_backend::checks::printable;

/// Longest name in bytes, as the contract says.
const MAX_NAME: usize = 200;
/// What an image's size is a multiple of, as the contract says.
const BLOCK: u64 = 4_096;
/// Most items of one page, as the contract says.
const MAX_PAGE: usize = 1_000;
/// The owner's lock; no item has such a name.
const LOCK: &str = ".lock";
/// How names of what is being made begin.
const MAKING: &str = ".tmp-";
/// How names of what is being removed begin.
const REMOVING: &str = ".trash-";

type Result<T> = std::result::Result<T, PoolError>;

/// One directory that a backend has for itself.
#[derive(Debug)]
pub(crate) struct Pool {
    root: OwnedFd,
    /// Bytes that all images together may promise; absent is what the filesystem has.
    capacity: Option<u64>,
    image_bytes_max: u64,
    table: Mutex<Table>,
    /// Makes names of what is being made or removed unique.
    number: AtomicU64,
    metrics: OnceLock<DriverMetrics>,
    /// Lets the system refuse to make changes last, which no filesystem can be asked to do.
    #[cfg(test)]
    unsteady: std::sync::atomic::AtomicBool,
    _ownership: Ownership,
}

#[derive(Debug, Default)]
struct Table {
    /// Every item, an image with the size that is promised to it.
    items: BTreeMap<String, Option<u64>>,
    uses: HashMap<String, Use>,
}

/// What `stat` counts blocks in.
const SECTOR: u64 = 512;

/// What is going on with a name.
#[derive(Clone, Copy, Debug)]
enum Use {
    /// It is being made, changed or removed.
    Changing,
    /// It is being copied so many times.
    Read(u32),
}

/// Keeps a name to one change, or to copies.
struct Claim<'a> {
    pool: &'a Pool,
    name: &'a str,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut table = self.pool.lock();
        match table.uses.get_mut(self.name) {
            Some(Use::Read(readers)) if *readers > 1 => *readers = readers.saturating_sub(1),
            Some(Use::Read(_) | Use::Changing) | None => {
                table.uses.remove(self.name);
            }
        }
    }
}

impl Pool {
    /// Opens a pool and takes it for this process. Blocks on the disk.
    ///
    /// # Errors
    /// What is wrong with the directory, to be read after its name.
    pub(crate) fn open(config: &PoolConfig) -> std::result::Result<Self, String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(CWD, &config.directory, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => "is not a directory: expected one, and no link to it".to_owned(),
            error => format!("cannot be opened: {error}: expected a directory"),
        })?;
        let lock = sys::lasting(&root, LOCK, Mode::RUSR | Mode::WUSR).map_err(|error| match error {
            Errno::NOSYS => format!("cannot be used: {error}: a pool needs Linux 5.6"),
            error => format!("cannot be written: {error}: expected to read and write it"),
        })?;
        let pool = Self {
            root,
            capacity: config.capacity,
            image_bytes_max: config.image_bytes_max.unwrap_or(u64::MAX),
            table: Mutex::default(),
            number: AtomicU64::new(0),
            metrics: OnceLock::new(),
            #[cfg(test)]
            unsteady: std::sync::atomic::AtomicBool::new(false),
            _ownership: Ownership::take(lock.into())?,
        };
        pool.clean()
            .and_then(|()| pool.look())
            .map(|items| pool.lock().items = items)
            .map_err(|error| format!("cannot be read: {error:?}: expected to read and write it"))?;
        Ok(pool)
    }

    /// Removes what an earlier process was making or removing when it died.
    fn clean(&self) -> Result<()> {
        for name in self.names()? {
            if name.starts_with(MAKING) || name.starts_with(REMOVING) {
                // A name of an earlier process must not meet one that is given now.
                let mine = self.fresh(REMOVING);
                let moved = renameat_with(&self.root, &name, &self.root, &mine, RenameFlags::NOREPLACE);
                let name = if moved.is_ok() { mine } else { name };
                if let Err(error) = self.discard(name) {
                    tracing::warn!(?error, "what an earlier process left in the pool cannot be removed");
                }
            }
        }
        Ok(())
    }

    fn look(&self) -> Result<BTreeMap<String, Option<u64>>> {
        let mut items = BTreeMap::new();
        for name in self.names()?.into_iter().filter(|name| check_name(name).is_ok()) {
            match item_kind(&self.stat(&name)?) {
                Some((ItemKind::Image, stat)) => items.insert(name, Some(tree::length(&stat))),
                Some((ItemKind::Directory, _)) => items.insert(name, None),
                None => None,
            };
        }
        Ok(items)
    }

    /// Every name in the directory that is text, whatever it stands for.
    fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        // A new file, because the position of one that is read is shared.
        let directory = sys::directory(&self.root, ".").map_err(failed)?;
        for entry in Dir::new(directory).map_err(failed)? {
            if let Ok(name) = entry.map_err(failed)?.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Tells where operations are counted from now on.
    pub(crate) fn observe(&self, metrics: DriverMetrics) {
        let metrics = self.metrics.get_or_init(|| metrics);
        let table = self.lock();
        metrics.pool(table.items.len(), promised(&table.items));
    }

    /// Does an operation and counts it.
    pub(crate) fn perform<T>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        let answer = work(self);
        if let Some(metrics) = self.metrics.get() {
            metrics.pool_operation(operation, outcome(answer.as_ref().err()));
            let table = self.lock();
            metrics.pool(table.items.len(), promised(&table.items));
        }
        answer
    }

    pub(crate) fn create_directory(&self, name: &str) -> Result<()> {
        let _claim = self.claim(name)?;
        self.check_free(name)?;
        let new = self.new_directory()?;
        self.publish_directory(&new, name)
    }

    pub(crate) fn create_image(&self, name: &str, size: u64) -> Result<()> {
        let _claim = self.claim(name)?;
        self.check_size(size)?;
        self.check_free(name)?;
        self.promise(name, size)?;
        self.keep_promise(name, || {
            let new = self.fresh(MAKING);
            let file = sys::new_file(&self.root, &new, Mode::RUSR | Mode::WUSR).map_err(failed)?;
            let made = self.resize_lasting(&file, size);
            self.or_discard(&new, made)?;
            self.publish(&new, name)
        })
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let _claim = self.claim(name)?;
        let gone = self.fresh(REMOVING);
        let moved = renameat_with(&self.root, name, &self.root, &gone, RenameFlags::NOREPLACE);
        if matches!(moved, Ok(()) | Err(Errno::NOENT)) {
            self.lock().items.remove(name);
        }
        match moved {
            Ok(()) => {}
            Err(Errno::NOENT) => {
                self.last(&self.root)?;
                return Err(PoolError::Missing(name.to_owned()));
            }
            Err(Errno::BUSY | Errno::XDEV) => {
                return Err(PoolError::Unsupported("the item is a mount".to_owned()));
            }
            Err(error) => return Err(failed(error)),
        }
        self.last(&self.root)?;
        // The name is gone, whatever becomes of what had it.
        tree::remove(&self.root, gone, || self.fresh(REMOVING)).map_err(|trouble| {
            PoolError::Unknown(format!("what {name:?} held stays until the next start: {trouble}"))
        })
    }

    pub(crate) fn grow(&self, name: &str, size: u64) -> Result<()> {
        let _claim = self.claim(name)?;
        self.check_size(size)?;
        let (file, stat) = self.image(name, |root, name| sys::writable(root, name))?;
        let now = tree::length(&stat);
        if size <= now {
            // It may be what an earlier call could not make last.
            return self.last(&file);
        }
        self.promise(name, size)?;
        if let Err(refused) = self.resize(&file, size) {
            self.lock().items.insert(name.to_owned(), Some(now));
            return Err(refused);
        }
        self.last(&file)
    }

    pub(crate) fn copy(&self, source: &str, name: &str, size: Option<u64>, mode: CopyMode) -> Result<()> {
        check_name(source)?;
        let _claim = self.claim(name)?;
        let _reading = self.read(source)?;
        self.check_free(name)?;
        match item_kind(&self.stat(source)?) {
            Some((ItemKind::Directory, _)) if size.is_some() => Err(PoolError::WrongKind(printable(source))),
            Some((ItemKind::Directory, _)) if mode == CopyMode::OneMoment => {
                Err(PoolError::Unsupported("no copy of a directory is of one moment".to_owned()))
            }
            Some((ItemKind::Directory, _)) => self.copy_directory(source, name),
            Some((ItemKind::Image, _)) => self.copy_image(source, name, size, mode),
            None => Err(PoolError::WrongKind(printable(source))),
        }
    }

    fn copy_directory(&self, source: &str, name: &str) -> Result<()> {
        let from = sys::directory(&self.root, source).map_err(failed)?;
        let new = self.new_directory()?;
        let copied = sys::directory(&self.root, &new)
            .map_err(Trouble::from)
            .and_then(|to| tree::copy(from, to))
            .and_then(|()| Ok(sys::sync_all(&self.root)?));
        self.or_discard(&new, copied.map_err(|trouble| self.explain(trouble, 0)))?;
        self.publish_directory(&new, name)
    }

    fn copy_image(&self, source: &str, name: &str, size: Option<u64>, mode: CopyMode) -> Result<()> {
        let (from, stat) = self.image(source, |root, name| sys::file(root, name))?;
        let least = tree::length(&stat);
        let size = size.unwrap_or(least);
        self.check_size(size)?;
        if size < least {
            return Err(PoolError::InvalidSize(format!("{size} bytes; the source has {least}")));
        }
        self.promise(name, size)?;
        self.keep_promise(name, || {
            let new = self.fresh(MAKING);
            let to = sys::new_file(&self.root, &new, Mode::RUSR | Mode::WUSR).map_err(failed)?;
            let copied = tree::copy_data(&from, &to, least, mode)
                .map_err(|trouble| self.explain(trouble, size))
                .and_then(|()| self.resize_lasting(&to, size));
            self.or_discard(&new, copied)?;
            self.publish(&new, name)
        })
    }

    pub(crate) fn measure(&self, name: &str) -> Result<Item> {
        check_name(name)?;
        if let Some(Use::Changing) = self.lock().uses.get(name) {
            return Err(PoolError::Busy(name.to_owned()));
        }
        let Some((kind, stat)) = item_kind(&self.stat(name)?) else {
            return Err(PoolError::WrongKind(name.to_owned()));
        };
        let (size_bytes, used_bytes) = match kind {
            ItemKind::Image => (Some(tree::length(&stat)), tree::used(&stat)),
            ItemKind::Directory => {
                let directory = sys::directory(&self.root, name).map_err(failed)?;
                (None, tree::measure(directory).map_err(|trouble| self.explain(trouble, 0))?)
            }
        };
        Ok(Item { name: name.to_owned(), kind, size_bytes, used_bytes })
    }

    /// Lists the items that this process knows and that are still there; what others have put into the directory is seen
    /// after a restart.
    pub(crate) fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> Page {
        let start = match after {
            Some(after) if after >= prefix => Excluded(after),
            Some(_) | None => Included(prefix),
        };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(MAX_PAGE);
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

    pub(crate) fn usage(&self) -> Result<Room> {
        self.room(&self.lock().items)
    }

    /// What the operator gives, less what is promised to images; and never more than the filesystem has, less what images will
    /// still take of it: they are sparse, so that a promise takes no room before it is written.
    fn room(&self, items: &BTreeMap<String, Option<u64>>) -> Result<Room> {
        let filesystem = fstatvfs(&self.root).map_err(failed)?;
        let total = filesystem.f_blocks.saturating_mul(filesystem.f_frsize);
        let free = filesystem.f_bavail.saturating_mul(filesystem.f_frsize);
        let total_bytes = self.capacity.unwrap_or(total);
        let free = free.saturating_sub(self.unwritten(items));
        let available_bytes = total_bytes.saturating_sub(promised(items)).min(free);
        Ok(Room { total_bytes, available_bytes })
    }

    /// What was promised to images and is not taken yet.
    fn unwritten(&self, items: &BTreeMap<String, Option<u64>>) -> u64 {
        let images = items.iter().filter_map(|(name, size)| Some((name, (*size)?)));
        let missing = images.map(|(name, size)| {
            let stat = statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW);
            // One that is in the making has nothing yet.
            let taken = stat.ok().and_then(|stat| u64::try_from(stat.st_blocks).ok());
            size.saturating_sub(taken.unwrap_or_default().saturating_mul(SECTOR))
        });
        missing.fold(0, u64::saturating_add)
    }

    /// Sets bytes aside for an image, on top of what it has.
    fn promise(&self, name: &str, size: u64) -> Result<()> {
        let mut table = self.lock();
        let has = table.items.get(name).copied().flatten().unwrap_or_default();
        let limit = self.room(&table.items)?.available_bytes;
        let given = size.saturating_sub(has);
        if given > limit {
            return Err(PoolError::NoSpace(Bound { limit, given }));
        }
        table.items.insert(name.to_owned(), Some(size));
        Ok(())
    }

    /// Makes what bytes were set aside for, and gives them back when that fails.
    fn keep_promise(&self, name: &str, make: impl FnOnce() -> Result<()>) -> Result<()> {
        let made = make();
        if made.as_ref().is_err_and(|error| !matches!(error, PoolError::Unknown(_))) {
            self.lock().items.remove(name);
        }
        made
    }

    fn check_size(&self, size: u64) -> Result<()> {
        let most = self.image_bytes_max;
        if size == 0 || !size.is_multiple_of(BLOCK) || size > most {
            return Err(PoolError::InvalidSize(format!(
                "{size} bytes; expected a multiple of {BLOCK}, more than 0 and at most {most}"
            )));
        }
        Ok(())
    }

    fn check_free(&self, name: &str) -> Result<()> {
        match self.stat(name) {
            Ok(_) => {
                // Who hears this takes the item for made, also one whose maker could not say so.
                self.last(&self.root)?;
                Err(PoolError::Exists(name.to_owned()))
            }
            Err(PoolError::Missing(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn stat(&self, name: &str) -> Result<Stat> {
        statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| match error {
            Errno::NOENT => PoolError::Missing(name.to_owned()),
            error => failed(error),
        })
    }

    /// Opens an image. What was planted in place of one is refused, and so is a file that has another name: it could be one
    /// from outside of the pool.
    fn image(
        &self,
        name: &str,
        open: fn(&OwnedFd, &str) -> rustix::io::Result<OwnedFd>,
    ) -> Result<(OwnedFd, Stat)> {
        match item_kind(&self.stat(name)?) {
            Some((ItemKind::Image, _)) => {}
            Some((ItemKind::Directory, _)) | None => return Err(PoolError::WrongKind(name.to_owned())),
        }
        let file = open(&self.root, name).map_err(failed)?;
        let stat = fstat(&file).map_err(failed)?;
        match item_kind(&stat) {
            Some((ItemKind::Image, stat)) if stat.st_nlink == 1 => Ok((file, stat)),
            Some((ItemKind::Image, _)) => {
                Err(PoolError::Failed("the image has a second name (hard link)".to_owned()))
            }
            Some((ItemKind::Directory, _)) | None => Err(PoolError::WrongKind(name.to_owned())),
        }
    }

    fn resize(&self, file: &OwnedFd, size: u64) -> Result<()> {
        ftruncate(file, size).map_err(|error| self.explain(error.into(), size))
    }

    /// The same for a file that nobody sees yet.
    fn resize_lasting(&self, file: &OwnedFd, size: u64) -> Result<()> {
        self.resize(file, size)?;
        fsync(file).map_err(|error| self.explain(error.into(), size))
    }

    fn new_directory(&self) -> Result<String> {
        let new = self.fresh(MAKING);
        mkdirat(&self.root, &new, Mode::RWXU).map_err(failed)?;
        // Set apart from the process' mask. The group may look in, so that an `fsGroup` has a meaning.
        let mode = sys::directory(&self.root, &new)
            .and_then(|directory| fchmod(&directory, Mode::RWXU | Mode::RGRP | Mode::XGRP));
        self.or_discard(&new, mode.map_err(failed))?;
        Ok(new)
    }

    /// Gives what was made its name, lastingly.
    fn publish(&self, new: &str, name: &str) -> Result<()> {
        let named = renameat_with(&self.root, new, &self.root, name, RenameFlags::NOREPLACE);
        let named = named.map_err(|error| match error {
            Errno::EXIST => PoolError::Exists(name.to_owned()),
            error => failed(error),
        });
        self.or_discard(new, named)?;
        self.last(&self.root)
    }

    /// The same for a directory; it is an item as soon as it has the name.
    fn publish_directory(&self, new: &str, name: &str) -> Result<()> {
        let named = self.publish(new, name);
        if matches!(named, Ok(()) | Err(PoolError::Unknown(_))) {
            self.lock().items.insert(name.to_owned(), None);
        }
        named
    }

    /// Makes a change last that can be seen already: it is not undone when that fails.
    fn last(&self, changed: &OwnedFd) -> Result<()> {
        #[cfg(test)]
        if self.unsteady.load(Ordering::Relaxed) {
            return Err(PoolError::Unknown("made unsteady".to_owned()));
        }
        fsync(changed)
            .map_err(|error| PoolError::Unknown(format!("the change is made, and may not last: {error}")))
    }

    /// Undoes what was begun under a name when it failed.
    fn or_discard<T>(&self, new: &str, done: Result<T>) -> Result<T> {
        if done.is_err()
            && let Err(error) = self.discard(new.to_owned())
        {
            tracing::warn!(name = new, ?error, "what was begun in the pool stays until the next start");
        }
        done
    }

    fn discard(&self, name: String) -> Result<()> {
        tree::remove(&self.root, name, || self.fresh(REMOVING)).map_err(|trouble| self.explain(trouble, 0))
    }

    fn fresh(&self, beginning: &str) -> String {
        format!("{beginning}{}-{}", std::process::id(), self.number.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes a name for a change.
    fn claim<'a>(&'a self, name: &'a str) -> Result<Claim<'a>> {
        check_name(name)?;
        let mut table = self.lock();
        if table.uses.contains_key(name) {
            return Err(PoolError::Busy(name.to_owned()));
        }
        table.uses.insert(name.to_owned(), Use::Changing);
        Ok(Claim { pool: self, name })
    }

    /// Keeps an item from changing while it is copied.
    fn read<'a>(&'a self, name: &'a str) -> Result<Claim<'a>> {
        let mut table = self.lock();
        let readers = match table.uses.get(name) {
            Some(Use::Changing) => return Err(PoolError::Busy(name.to_owned())),
            Some(Use::Read(readers)) => readers.saturating_add(1),
            None => 1,
        };
        table.uses.insert(name.to_owned(), Use::Read(readers));
        Ok(Claim { pool: self, name })
    }

    fn explain(&self, trouble: Trouble, given: u64) -> PoolError {
        match trouble {
            Trouble::System(Errno::NOSPC | Errno::DQUOT) => {
                let limit = self.usage().map_or(0, |room| room.available_bytes);
                PoolError::NoSpace(Bound { limit, given })
            }
            Trouble::System(Errno::FBIG | Errno::INVAL) if given > 0 => {
                PoolError::InvalidSize(format!("{given} bytes; that is more than the filesystem allows"))
            }
            Trouble::System(error) => failed(error),
            Trouble::Refused(reason) => PoolError::Unsupported(reason),
            Trouble::Changed(reason) => PoolError::Failed(reason),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn promised(items: &BTreeMap<String, Option<u64>>) -> u64 {
    items.values().flatten().fold(0, |sum, size| sum.saturating_add(*size))
}

fn item_kind(stat: &Stat) -> Option<(ItemKind, Stat)> {
    match tree::kind(stat) {
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

fn failed(error: Errno) -> PoolError {
    PoolError::Failed(error.to_string())
}

/// Name of an end in metrics.
fn outcome(error: Option<&PoolError>) -> &'static str {
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
