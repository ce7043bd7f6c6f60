//! Whole trees: copied, counted and removed, with links taken as links, sockets and pipes left out, and mounts left alone.
//!
//! What is in a tree was written by a pod, at any time, also now. Nothing here follows a link, crosses a mount, opens a device or
//! waits for a pipe, and nothing recurses: a tree can be deeper than a stack.

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

/// How deep a tree may be that is copied or counted: every level keeps two files open.
const DEPTH: usize = 200;
/// Most bytes that are copied at once.
const PART: usize = 1 << 20;
/// Bytes of the unit that filesystems count in.
const SECTOR: u64 = 512;

/// Why something in a tree was not done.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The system refused.
    System(Errno),
    /// It holds something that is not copied or counted, and will as long as nobody changes it.
    Refused(String),
    /// It changed while it was read.
    Changed(String),
}

impl From<Errno> for Trouble {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => error.fmt(f),
            Self::Refused(reason) | Self::Changed(reason) => f.write_str(reason),
        }
    }
}

type Result<T> = std::result::Result<T, Trouble>;

pub(super) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// What a file takes on the disk.
pub(super) fn used(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or_default().saturating_mul(SECTOR)
}

/// What a file's length is.
pub(super) fn length(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or_default()
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

fn shown(name: &CStr) -> String {
    cofferdam_backend::checks::printable(&name.to_string_lossy())
}

/// Opens a directory of a tree.
fn enter(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
    match sys::directory(parent, name) {
        Err(Errno::XDEV) => Err(Trouble::Refused(format!("{:?} in it is a mount", shown(name)))),
        opened => Ok(opened?),
    }
}

fn too_deep(name: &CStr) -> Trouble {
    Trouble::Refused(format!("{:?} in it is deeper than {DEPTH} directories", shown(name)))
}

/// A directory that is being copied.
struct Level {
    source: Dir,
    target: OwnedFd,
}

/// Copies what is in one directory, and its owner, mode and times, to another that is empty.
pub(super) fn copy(source: OwnedFd, target: OwnedFd) -> Result<()> {
    let mut levels = vec![Level { source: Dir::new(source)?, target }];
    while let Some(level) = levels.last_mut() {
        match level.source.read() {
            Some(entry) => {
                let entry = entry?;
                let name = entry.file_name();
                if is_dots(name) {
                    continue;
                }
                if let Some(deeper) = level.copy_entry(name)? {
                    if levels.len() >= DEPTH {
                        return Err(too_deep(name));
                    }
                    levels.push(deeper);
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

impl Level {
    /// Copies one entry; a directory is returned, to be gone through.
    fn copy_entry(&self, name: &CStr) -> Result<Option<Self>> {
        let source = self.source.fd()?;
        let stat = statat(source, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match kind(&stat) {
            FileType::Directory => {
                let from = enter(source, name)?;
                mkdirat(&self.target, name, Mode::RWXU)?;
                let target = sys::directory(&self.target, name)?;
                return Ok(Some(Self { source: Dir::new(from)?, target }));
            }
            FileType::RegularFile => {
                let from = sys::file(source, name)?;
                let stat = fstat(&from)?;
                if kind(&stat) != FileType::RegularFile {
                    return Err(Trouble::Changed(format!("{:?} in it changed meanwhile", shown(name))));
                }
                let to = sys::new_file(&self.target, name, Mode::RUSR | Mode::WUSR)?;
                copy_data(&from, &to, length(&stat), CopyMode::AsRead)?;
                copy_attributes(&to, &stat)?;
            }
            FileType::Symlink => {
                let leads_to = readlinkat(source, name, Vec::new())?;
                symlinkat(leads_to.as_c_str(), &self.target, name)?;
                let (user, group) = owner(&stat);
                chownat(&self.target, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            // What stands behind them is a process, which a copy has not.
            FileType::Fifo | FileType::Socket => {}
            other @ (FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown) => {
                let what = if other == FileType::Unknown { "of an unknown kind" } else { "a device" };
                return Err(Trouble::Refused(format!(
                    "{:?} in it is {what}; expected directories, files and links",
                    shown(name)
                )));
            }
        }
        Ok(None)
    }
}

fn owner(stat: &Stat) -> (Uid, Gid) {
    (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid))
}

/// Gives a file the owner, mode and times of another.
fn copy_attributes(target: &OwnedFd, stat: &Stat) -> Result<()> {
    let now = fstat(target)?;
    if (now.st_uid, now.st_gid) != (stat.st_uid, stat.st_gid) {
        let (user, group) = owner(stat);
        fchown(target, Some(user), Some(group))?;
    }
    // After the owner: a change of that takes the set-user-id bit away.
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

/// Copies a file's first `length` bytes to an empty one: shared where the filesystem can, which is one moment, and where it
/// cannot read part by part with its holes, unless one moment is asked for.
pub(super) fn copy_data(source: &OwnedFd, target: &OwnedFd, length: u64, mode: CopyMode) -> Result<()> {
    if sys::share_blocks(source, target)? {
        return Ok(());
    }
    if mode == CopyMode::OneMoment {
        return Err(Trouble::Refused(
            "the pool's filesystem shares no blocks, so no copy of an image is of one moment".to_owned(),
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
            let part = usize::try_from(end - offset).unwrap_or(PART).min(PART);
            match copy_part(source, target, offset, part)? {
                // The file was made shorter meanwhile.
                0 => return Ok(()),
                copied => offset = offset.saturating_add(u64::try_from(copied).unwrap_or(u64::MAX)),
            }
        }
    }
    Ok(())
}

fn copy_part(source: &OwnedFd, target: &OwnedFd, offset: u64, length: usize) -> Result<usize> {
    if let Some(copied) = sys::copy_part(source, target, offset, length)? {
        return Ok(copied);
    }
    let mut buffer = vec![0; length];
    let read = rustix::io::pread(source, buffer.as_mut_slice(), offset)?;
    buffer.truncate(read);
    Ok(rustix::io::pwrite(target, &buffer, offset)?)
}

/// What everything in a directory takes on the disk. A file with several names counts once.
pub(super) fn measure(directory: OwnedFd) -> Result<u64> {
    let mut sum = used(&fstat(&directory)?);
    let mut several = HashSet::new();
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
        let is_directory = kind(&found) == FileType::Directory;
        if is_directory || found.st_nlink == 1 || several.insert(found.st_ino) {
            sum = sum.saturating_add(used(&found));
        }
        if is_directory {
            let deeper = match enter(level.fd()?, name) {
                Err(Trouble::System(Errno::NOENT)) => continue,
                deeper => Dir::new(deeper?)?,
            };
            if levels.len() >= DEPTH {
                return Err(too_deep(name));
            }
            levels.push(deeper);
        }
    }
    Ok(sum)
}

/// How often a directory that is not empty after all is looked through again.
const MOST_ROUNDS: u32 = 1_000;

/// Removes what has a name in the pool's root, whatever it is, with everything in it. Directories inside are moved to the root
/// under names of their own first, so that no depth is too deep; a mount cannot be moved and makes the removal fail.
pub(super) fn remove(root: &OwnedFd, name: String, mut fresh: impl FnMut() -> String) -> Result<()> {
    let mut names = vec![name];
    let mut rounds = 0_u32;
    'next: while let Some(name) = names.pop() {
        match unlinkat(root, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            // What unlink says of a directory: here, and on other systems.
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        let mut directory = Dir::new(sys::directory(root, &name)?)?;
        while let Some(entry) = directory.read() {
            let entry = entry?;
            let inner = entry.file_name();
            if is_dots(inner) {
                continue;
            }
            if let Some(moved) = remove_entry(root, directory.fd()?, inner, &mut fresh)? {
                // It goes first: however many there are, as many names are kept as the tree is deep.
                names.extend([name, moved]);
                continue 'next;
            }
        }
        match unlinkat(root, &name, AtFlags::REMOVEDIR) {
            Ok(()) => {}
            // Written to meanwhile: once more, but not for ever.
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                rounds = rounds.saturating_add(1);
                if rounds > MOST_ROUNDS {
                    return Err(Trouble::Refused("somebody goes on writing to it".to_owned()));
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
    fresh: &mut impl FnMut() -> String,
) -> Result<Option<String>> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(None),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(None),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(Errno::BUSY) => return Err(Trouble::Refused(format!("{:?} in it is a mount", shown(name)))),
        Err(error) => return Err(error.into()),
    }
    let moved = fresh();
    match renameat_with(directory, name, root.as_fd(), &moved, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(Some(moved)),
        Err(Errno::BUSY | Errno::XDEV) => {
            Err(Trouble::Refused(format!("{:?} in it is a mount", shown(name))))
        }
        Err(error) => Err(error.into()),
    }
}
