//! How anything is opened: from its root's descriptor, beneath it, without links.

use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2},
    io::Errno,
};

use crate::{
    error::MounterError,
    mounter::{FileId, PathKind},
    path::{KubeletPath, RootedPath},
};

pub(super) type Result<T> = std::result::Result<T, MounterError>;

/// What a system call's failure means, with what it was about.
pub(super) fn errno_error(object: impl std::fmt::Display, error: Errno) -> MounterError {
    match error {
        Errno::NOENT => MounterError::NotFound(format!("{object} is not there")),
        Errno::LOOP => MounterError::FailedPrecondition(format!("{object}: a link is on the way")),
        Errno::XDEV => MounterError::FailedPrecondition(format!("{object}: a mount is on the way")),
        Errno::NOTDIR => {
            MounterError::FailedPrecondition(format!("{object}: something on the way is no directory"))
        }
        error => MounterError::Failed(format!("{object}: {error}")),
    }
}

const STRICT_RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// Nothing is read or written through these: no device is opened by it, and nothing waits.
const PATH_FD: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

fn open_root(path: &str) -> Result<OwnedFd> {
    // The operator's own word: links in it are the operator's.
    open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| errno_error(path, error))
}

/// Opens something of the operator's: no mount is crossed on the way either.
pub(super) fn open_rooted(path: &RootedPath) -> Result<OwnedFd> {
    let root = open_root(&path.root)?;
    openat2(root, path.relative_path.as_str(), PATH_FD, Mode::empty(), STRICT_RESOLVE | ResolveFlags::NO_XDEV)
        .map_err(|error| errno_error(path, error))
}

/// Opens the directory that a place is in. Kubelet's own directories may be mounts, such as `pods`; further
/// down a mount is a volume, whose content is a pod's: it is not crossed.
pub(super) fn open_parent(path: &KubeletPath) -> Result<OwnedFd> {
    let root = open_root(path.root())?;
    let (Some(parent_path), _) = path.relative_path().split_parent() else { return Ok(root) };
    let (first, rest) =
        parent_path.split_once('/').map_or((parent_path, None), |(first, rest)| (first, Some(rest)));
    let fail = |error| errno_error(path, error);
    let directory = PATH_FD | OFlags::DIRECTORY;
    let first = openat2(root, first, directory, Mode::empty(), STRICT_RESOLVE).map_err(fail)?;
    match rest {
        None => Ok(first),
        Some(rest) => openat2(first, rest, directory, Mode::empty(), STRICT_RESOLVE | ResolveFlags::NO_XDEV)
            .map_err(fail),
    }
}

/// The last name of a place.
pub(super) fn file_name(path: &KubeletPath) -> &str {
    path.relative_path().split_parent().1
}

/// Opens what is at a place, and on top of what is mounted there.
pub(super) fn open_path(path: &KubeletPath) -> Result<OwnedFd> {
    let parent = open_parent(path)?;
    openat2(parent, file_name(path), PATH_FD, Mode::empty(), STRICT_RESOLVE)
        .map_err(|error| errno_error(path, error))
}

/// As [`at`], to read what is in a directory.
pub(super) fn open_directory(path: &KubeletPath) -> Result<OwnedFd> {
    let parent = open_parent(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat2(parent, file_name(path), flags, Mode::empty(), STRICT_RESOLVE)
        .map_err(|error| errno_error(path, error))
}

/// Where the kernel's table shows a place: its path without links.
pub(super) fn canonical_path(path: &KubeletPath) -> Result<String> {
    let root = std::fs::canonicalize(path.root())
        .map_err(|error| MounterError::Failed(format!("{}: {error}", path.root())))?;
    match root.to_str() {
        Some(root) => Ok(format!("{root}/{}", path.relative_path().as_str())),
        None => Err(MounterError::Failed(format!("{} is not UTF-8", path.root()))),
    }
}

/// Where a descriptor can be named in a path: the kernel goes straight to what is open.
pub(super) fn proc_fd_path(descriptor: &OwnedFd) -> String {
    use rustix::fd::AsRawFd as _;
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

pub(super) fn device_number(device: u64) -> (u32, u32) {
    (rustix::fs::major(device), rustix::fs::minor(device))
}

pub(super) fn file_id(stat: &Stat) -> FileId {
    FileId { device: device_number(stat.st_dev), inode: stat.st_ino }
}

pub(super) fn path_kind(stat: &Stat) -> PathKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => PathKind::Directory,
        FileType::RegularFile => PathKind::File(u64::try_from(stat.st_size).unwrap_or_default()),
        FileType::BlockDevice => PathKind::Device(device_number(stat.st_rdev)),
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::Unknown => PathKind::Other,
    }
}

pub(super) fn stat(object: impl std::fmt::Display, descriptor: impl AsFd) -> Result<Stat> {
    fstat(descriptor).map_err(|error| errno_error(object, error))
}
