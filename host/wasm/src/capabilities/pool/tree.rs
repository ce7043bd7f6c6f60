//! Operations on whole directory trees: copy, disk usage and removal. A copy has the symbolic links of its
//! source, a separate file for each hard link, and no sockets, pipes or extended attributes. A directory in
//! the tree that is a mount makes each of these operations fail; a device makes a copy fail.
//!
//! A pod may write to a tree at any time, also during these operations. They follow no link, cross no mount,
//! open no device, wait for no pipe and do not recurse: a tree can be deeper than a stack.

use std::{collections::HashSet, ffi::CStr, fmt};

use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{
        AtFlags, Dir, FileType, Gid, Mode, RenameFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, chownat,
        fchmod, fchown, fstat, ftruncate, futimens, mkdirat, readlinkat, renameat_with, seek, statat,
        symlinkat, unlinkat,
    },
    io::Errno,
};

use super::sys;
use crate::bindings::cofferdam::storage::pool::CopyMode;

/// Maximum depth of a tree that is copied or whose disk usage is counted: every level keeps up to two files
/// open.
const MAX_DEPTH: usize = 200;
/// Maximum bytes of one copy call.
const COPY_CHUNK_BYTES: usize = 1 << 20;
/// Unit of `st_blocks` in bytes.
const STAT_BLOCK_BYTES: u64 = 512;

/// Error of an operation on a tree.
#[derive(Debug)]
pub(super) enum TreeError {
    /// The system's error.
    Errno(Errno),
    /// The tree has an entry that cannot be copied, counted or removed, or is too deep; the filesystem cannot
    /// make the requested copy; or files are added again and again to a directory that is being removed.
    Unsupported(String),
    /// A regular file of the tree was replaced by a file of another type while the tree was copied.
    Changed(String),
}

impl From<Errno> for TreeError {
    fn from(error: Errno) -> Self {
        Self::Errno(error)
    }
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(error) => error.fmt(f),
            Self::Unsupported(reason) | Self::Changed(reason) => f.write_str(reason),
        }
    }
}

type Result<T> = std::result::Result<T, TreeError>;

pub(super) fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// A file's disk usage in bytes.
pub(super) fn disk_usage(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or_default().saturating_mul(STAT_BLOCK_BYTES)
}

/// A file's length in bytes.
pub(super) fn length(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or_default()
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

fn display_name(name: &CStr) -> String {
    cofferdam_backend::checks::printable(&name.to_string_lossy())
}

/// Opens a directory of a tree; fails with `Unsupported` if it is a mount.
fn open_subdirectory(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
    match sys::open_directory(parent, name) {
        Err(Errno::XDEV) => Err(TreeError::Unsupported(format!("{:?} in it is a mount", display_name(name)))),
        opened => Ok(opened?),
    }
}

fn too_deep(name: &CStr) -> TreeError {
    TreeError::Unsupported(format!("{:?} in it is deeper than {MAX_DEPTH} directories", display_name(name)))
}

/// A directory that is being copied.
struct CopyLevel {
    source: Dir,
    target: OwnedFd,
}

/// Copies the content of a directory, its owner, mode and times to an empty directory.
pub(super) fn copy_tree(source: OwnedFd, target: OwnedFd) -> Result<()> {
    let mut levels = vec![CopyLevel { source: Dir::new(source)?, target }];
    while let Some(level) = levels.last_mut() {
        match level.source.read() {
            Some(entry) => {
                let entry = entry?;
                let name = entry.file_name();
                if is_dots(name) {
                    continue;
                }
                if let Some(child) = level.copy_entry(name)? {
                    if levels.len() >= MAX_DEPTH {
                        return Err(too_deep(name));
                    }
                    levels.push(child);
                }
            }
            None => {
                // Last, because every new entry changes a directory's time.
                copy_attributes(&level.target, &fstat(level.source.fd()?)?)?;
                levels.pop();
            }
        }
    }
    Ok(())
}

impl CopyLevel {
    /// Copies one entry. A directory is created and returned; its entries are to be copied next.
    fn copy_entry(&self, name: &CStr) -> Result<Option<Self>> {
        let source = self.source.fd()?;
        let stat = statat(source, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match file_type(&stat) {
            FileType::Directory => {
                let from = open_subdirectory(source, name)?;
                mkdirat(&self.target, name, Mode::RWXU)?;
                let target = sys::open_directory(&self.target, name)?;
                return Ok(Some(Self { source: Dir::new(from)?, target }));
            }
            FileType::RegularFile => {
                let from = sys::open_file(source, name)?;
                let stat = fstat(&from)?;
                if file_type(&stat) != FileType::RegularFile {
                    return Err(TreeError::Changed(format!(
                        "{:?} in it changed meanwhile",
                        display_name(name)
                    )));
                }
                let to = sys::create_file(&self.target, name, Mode::RUSR | Mode::WUSR)?;
                copy_data(&from, &to, length(&stat), CopyMode::NotAtomic)?;
                copy_attributes(&to, &stat)?;
            }
            FileType::Symlink => {
                let link_target = readlinkat(source, name, Vec::new())?;
                symlinkat(link_target.as_c_str(), &self.target, name)?;
                let (user, group) = owner_ids(&stat);
                chownat(&self.target, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            // Pipes and sockets belong to a process, which a copy does not have.
            FileType::Fifo | FileType::Socket => {}
            other @ (FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown) => {
                let what = if other == FileType::Unknown { "of an unknown kind" } else { "a device" };
                return Err(TreeError::Unsupported(format!(
                    "{:?} in it is {what}; expected directories, files and links",
                    display_name(name)
                )));
            }
        }
        Ok(None)
    }
}

fn owner_ids(stat: &Stat) -> (Uid, Gid) {
    (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid))
}

/// Gives a file the owner, mode and times of another.
fn copy_attributes(target: &OwnedFd, stat: &Stat) -> Result<()> {
    let now = fstat(target)?;
    if (now.st_uid, now.st_gid) != (stat.st_uid, stat.st_gid) {
        let (user, group) = owner_ids(stat);
        fchown(target, Some(user), Some(group))?;
    }
    // After the owner: a change of the owner clears the set-user-ID bit.
    fchmod(target, Mode::from_raw_mode(stat.st_mode))?;
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let nanoseconds = |given: u64| i64::try_from(given).unwrap_or_default();
    futimens(
        target,
        &Timestamps {
            last_access: time(stat.st_atime, nanoseconds(stat.st_atime_nsec)),
            last_modification: time(stat.st_mtime, nanoseconds(stat.st_mtime_nsec)),
        },
    )?;
    Ok(())
}

/// Copies a file to an empty one. The blocks are shared if the filesystem supports it, which is atomic.
/// Otherwise the first `length` bytes are copied in chunks with their holes; `PointInTime` is an error then.
pub(super) fn copy_data(source: &OwnedFd, target: &OwnedFd, length: u64, mode: CopyMode) -> Result<()> {
    if sys::reflink(source, target)? {
        return Ok(());
    }
    if mode == CopyMode::PointInTime {
        return Err(TreeError::Unsupported(
            "images have no point-in-time copies, because the pool's filesystem has no reflinks".to_owned(),
        ));
    }
    ftruncate(target, length)?;
    let mut offset = 0;
    while offset < length {
        let begin = match seek(source, SeekFrom::Data(offset)) {
            Ok(begin) => begin,
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => return Ok(()),
            Err(Errno::INVAL) => offset,
            Err(error) => return Err(error.into()),
        };
        let end = seek(source, SeekFrom::Hole(begin)).unwrap_or(length).min(length);
        offset = begin;
        while offset < end {
            let part = usize::try_from(end - offset).unwrap_or(COPY_CHUNK_BYTES).min(COPY_CHUNK_BYTES);
            match copy_chunk(source, target, offset, part)? {
                // The file was truncated meanwhile.
                0 => return Ok(()),
                copied => offset = offset.saturating_add(u64::try_from(copied).unwrap_or(u64::MAX)),
            }
        }
    }
    Ok(())
}

fn copy_chunk(source: &OwnedFd, target: &OwnedFd, offset: u64, length: usize) -> Result<usize> {
    if let Some(copied) = sys::copy_range(source, target, offset, length)? {
        return Ok(copied);
    }
    let mut buffer = vec![0; length];
    let read = rustix::io::pread(source, buffer.as_mut_slice(), offset)?;
    buffer.truncate(read);
    Ok(rustix::io::pwrite(target, &buffer, offset)?)
}

/// Disk usage of a directory tree in bytes. A file with several names counts once.
pub(super) fn tree_usage(directory: OwnedFd) -> Result<u64> {
    let mut sum = disk_usage(&fstat(&directory)?);
    let mut hard_links = HashSet::new();
    let mut levels = vec![Dir::new(directory)?];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.read() else {
            levels.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if is_dots(name) {
            continue;
        }
        let found = match statat(level.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        let is_directory = file_type(&found) == FileType::Directory;
        if is_directory || found.st_nlink == 1 || hard_links.insert(found.st_ino) {
            sum = sum.saturating_add(disk_usage(&found));
        }
        if is_directory {
            let child = match open_subdirectory(level.fd()?, name) {
                Err(TreeError::Errno(Errno::NOENT)) => continue,
                child => Dir::new(child?)?,
            };
            if levels.len() >= MAX_DEPTH {
                return Err(too_deep(name));
            }
            levels.push(child);
        }
    }
    Ok(sum)
}

/// Maximum retries of the removal of a directory to which files are added meanwhile.
const MAX_REMOVE_RETRIES: u32 = 1_000;

/// Removes an item in the pool's root with its content. Directories inside are first moved to the root under
/// unique names, so that no tree is too deep. A mount cannot be moved and makes the removal fail.
pub(super) fn remove_tree(
    root: &OwnedFd,
    name: String,
    mut unique_name: impl FnMut() -> String,
) -> Result<()> {
    let mut names = vec![name];
    let mut retries = 0_u32;
    'next: while let Some(name) = names.pop() {
        match unlinkat(root, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            // Errors of unlink for a directory: on Linux, and on other systems.
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        let mut directory = Dir::new(sys::open_directory(root, &name)?)?;
        while let Some(entry) = directory.read() {
            let entry = entry?;
            let inner = entry.file_name();
            if is_dots(inner) {
                continue;
            }
            if let Some(moved) = remove_entry(root, directory.fd()?, inner, &mut unique_name)? {
                // Depth first: the list is never longer than the tree is deep.
                names.extend([name, moved]);
                continue 'next;
            }
        }
        match unlinkat(root, &name, AtFlags::REMOVEDIR) {
            Ok(()) => {}
            // Entries were added meanwhile: retry, with a limit.
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                retries = retries.saturating_add(1);
                if retries > MAX_REMOVE_RETRIES {
                    return Err(TreeError::Unsupported("another process keeps writing to it".to_owned()));
                }
                names.push(name);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Removes an entry; a directory that is not empty is moved to the root, and its new name returned.
fn remove_entry(
    root: &OwnedFd,
    directory: BorrowedFd<'_>,
    name: &CStr,
    unique_name: &mut impl FnMut() -> String,
) -> Result<Option<String>> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(None),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(None),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(Errno::BUSY) => {
            return Err(TreeError::Unsupported(format!("{:?} in it is a mount", display_name(name))));
        }
        Err(error) => return Err(error.into()),
    }
    let moved = unique_name();
    match renameat_with(directory, name, root.as_fd(), &moved, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(Some(moved)),
        Err(Errno::BUSY | Errno::XDEV) => {
            Err(TreeError::Unsupported(format!("{:?} in it is a mount", display_name(name))))
        }
        Err(error) => Err(error.into()),
    }
}
