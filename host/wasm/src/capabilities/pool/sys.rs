//! System calls that differ between operating systems, and the only functions that open files inside a pool.

use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{Mode, OFlags},
    io::{Errno, Result},
    path::Arg,
};

/// Opens one name of a directory: no link is followed, no mount is crossed, and nothing waits for the other
/// end of a pipe.
#[cfg(target_os = "linux")]
fn open(directory: impl AsFd, name: impl Arg, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    use rustix::fs::{ResolveFlags, openat2};
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    openat2(directory, name, flags, mode, resolve)
}

/// Other systems have no call that refuses to cross a mount, so they have no pools.
#[cfg(not(target_os = "linux"))]
fn open(_directory: impl AsFd, _name: impl Arg, _flags: OFlags, _mode: Mode) -> Result<OwnedFd> {
    Err(Errno::NOSYS)
}

/// Opens a directory.
pub(super) fn open_directory(parent: impl AsFd, name: impl Arg) -> Result<OwnedFd> {
    open(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// Opens a file to read it.
pub(super) fn open_file(parent: impl AsFd, name: impl Arg) -> Result<OwnedFd> {
    open(parent, name, OFlags::RDONLY, Mode::empty())
}

/// Opens a file to write it.
pub(super) fn open_writable(parent: impl AsFd, name: impl Arg) -> Result<OwnedFd> {
    open(parent, name, OFlags::RDWR, Mode::empty())
}

/// Opens a file for writing, and creates it if it does not exist.
pub(super) fn open_or_create(parent: impl AsFd, name: impl Arg, mode: Mode) -> Result<OwnedFd> {
    open(parent, name, OFlags::RDWR | OFlags::CREATE, mode)
}

/// Creates a file; fails if it exists.
pub(super) fn create_file(parent: impl AsFd, name: impl Arg, mode: Mode) -> Result<OwnedFd> {
    open(parent, name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)
}

/// Makes `target` share the blocks of `source` (`FICLONE`). Returns `false` if the filesystem does not
/// support it.
#[cfg(target_os = "linux")]
pub(super) fn reflink(source: impl AsFd, target: impl AsFd) -> Result<bool> {
    match rustix::fs::ioctl_ficlone(target, source) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS | Errno::PERM) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn reflink(_source: impl AsFd, _target: impl AsFd) -> Result<bool> {
    Ok(false)
}

/// Copies a part of a file inside of the kernel. Returns the number of bytes; `None` if the filesystem does
/// not support it.
#[cfg(target_os = "linux")]
pub(super) fn copy_range(
    source: impl AsFd,
    target: impl AsFd,
    offset: u64,
    length: usize,
) -> Result<Option<usize>> {
    let (mut from, mut to) = (offset, offset);
    match rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), length) {
        Ok(copied) => Ok(Some(copied)),
        Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::PERM) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn copy_range(_: impl AsFd, _: impl AsFd, _: u64, _: usize) -> Result<Option<usize>> {
    Ok(None)
}

/// Syncs the whole filesystem of a directory: for a tree that is one wait instead of one for each file.
/// Systems other than Linux sync only the directory.
#[cfg(target_os = "linux")]
pub(super) fn sync_all(directory: impl AsFd) -> Result<()> {
    rustix::fs::syncfs(directory)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn sync_all(directory: impl AsFd) -> Result<()> {
    rustix::fs::fsync(directory)
}
