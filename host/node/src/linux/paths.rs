//! How anything is opened: from its root's descriptor, beneath it, without links.

use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2},
    io::Errno,
};

use crate::{
    error::MachineError,
    machine::{FileId, FoundKind},
    path::{Beneath, Place},
};

pub(super) type Result<T> = std::result::Result<T, MachineError>;

/// What a system call's failure means, with what it was about.
pub(super) fn failure(what: impl std::fmt::Display, error: Errno) -> MachineError {
    match error {
        Errno::NOENT => MachineError::Missing(format!("{what} is not there")),
        Errno::LOOP => MachineError::Refused(format!("{what}: a link is on the way")),
        Errno::XDEV => MachineError::Refused(format!("{what}: a mount is on the way")),
        Errno::NOTDIR => MachineError::Refused(format!("{what}: something on the way is no directory")),
        error => MachineError::Failed(format!("{what}: {error}")),
    }
}

const STRICT: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// Nothing is read or written through these: no device is opened by it, and nothing waits.
const HANDLE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

fn root(path: &str) -> Result<OwnedFd> {
    // The operator's own word: links in it are the operator's.
    open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failure(path, error))
}

/// Opens something of the operator's: no mount is crossed on the way either.
pub(super) fn beneath(path: &Beneath) -> Result<OwnedFd> {
    let root = root(&path.root)?;
    openat2(root, path.path.as_str(), HANDLE, Mode::empty(), STRICT | ResolveFlags::NO_XDEV)
        .map_err(|error| failure(path, error))
}

/// Opens the directory that a place is in. Kubelet's own directories may be mounts, such as `pods`; further
/// down a mount is a volume, whose content is a pod's: it is not crossed.
pub(super) fn parent(place: &Place) -> Result<OwnedFd> {
    let root = root(place.root())?;
    let (Some(way), _) = place.path().split() else { return Ok(root) };
    let (first, rest) = way.split_once('/').map_or((way, None), |(first, rest)| (first, Some(rest)));
    let fail = |error| failure(place, error);
    let directory = HANDLE | OFlags::DIRECTORY;
    let first = openat2(root, first, directory, Mode::empty(), STRICT).map_err(fail)?;
    match rest {
        None => Ok(first),
        Some(rest) => {
            openat2(first, rest, directory, Mode::empty(), STRICT | ResolveFlags::NO_XDEV).map_err(fail)
        }
    }
}

/// The last name of a place.
pub(super) fn name(place: &Place) -> &str {
    place.path().split().1
}

/// Opens what is at a place, and on top of what is mounted there.
pub(super) fn at(place: &Place) -> Result<OwnedFd> {
    let parent = parent(place)?;
    openat2(parent, name(place), HANDLE, Mode::empty(), STRICT).map_err(|error| failure(place, error))
}

/// As [`at`], to read what is in a directory.
pub(super) fn directory_at(place: &Place) -> Result<OwnedFd> {
    let parent = parent(place)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat2(parent, name(place), flags, Mode::empty(), STRICT).map_err(|error| failure(place, error))
}

/// Where the kernel's table shows a place: its path without links.
pub(super) fn canonical(place: &Place) -> Result<String> {
    let root = std::fs::canonicalize(place.root())
        .map_err(|error| MachineError::Failed(format!("{}: {error}", place.root())))?;
    match root.to_str() {
        Some(root) => Ok(format!("{root}/{}", place.path().as_str())),
        None => Err(MachineError::Failed(format!("{} is not UTF-8", place.root()))),
    }
}

/// Where a descriptor can be named in a path: the kernel goes straight to what is open.
pub(super) fn through(descriptor: &OwnedFd) -> String {
    use rustix::fd::AsRawFd as _;
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

pub(super) fn number(device: u64) -> (u32, u32) {
    (rustix::fs::major(device), rustix::fs::minor(device))
}

pub(super) fn id(stat: &Stat) -> FileId {
    FileId { device: number(stat.st_dev), inode: stat.st_ino }
}

pub(super) fn kind(stat: &Stat) -> FoundKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => FoundKind::Directory,
        FileType::RegularFile => FoundKind::File(u64::try_from(stat.st_size).unwrap_or_default()),
        FileType::BlockDevice => FoundKind::Device(number(stat.st_rdev)),
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::Unknown => FoundKind::Other,
    }
}

pub(super) fn stat(what: impl std::fmt::Display, descriptor: impl AsFd) -> Result<Stat> {
    fstat(descriptor).map_err(|error| failure(what, error))
}
