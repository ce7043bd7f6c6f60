//! Opening of paths: relative to the root's descriptor, below it, without following symbolic links. Only the
//! root's own path may contain symbolic links.

use std::ffi::OsString;

use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags, fstat, open, openat2, statx},
    io::Errno,
    process::geteuid,
};

use crate::{
    error::MounterError,
    file::{FileId, PathKind},
    path::{KubeletPath, RelativePath, RootedPath},
};

pub(super) type Result<T> = std::result::Result<T, MounterError>;

/// Converts the error of a system call on `object`.
pub(super) fn errno_error(object: impl std::fmt::Display, error: Errno) -> MounterError {
    match error {
        Errno::NOENT => MounterError::NotFound(format!("{object} does not exist")),
        Errno::LOOP => {
            MounterError::FailedPrecondition(format!("{object}: the path contains a symbolic link"))
        }
        Errno::XDEV => MounterError::FailedPrecondition(format!("{object}: the path crosses a mount")),
        Errno::NOTDIR => MounterError::FailedPrecondition(format!("{object}: a parent is not a directory")),
        error => MounterError::Failed(format!("{object}: {error}")),
    }
}

const STRICT_RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// `O_PATH` descriptors: opening one has no effect on devices and never blocks.
const PATH_FD: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

fn open_root(path: &str) -> Result<OwnedFd> {
    // The operator configured this path, so its symbolic links are trusted.
    open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| errno_error(path, error))
}

/// Opens a path below an operator-configured root. Mounts below the root are not crossed either.
pub(super) fn open_rooted(path: &RootedPath) -> Result<OwnedFd> {
    let root = open_root(&path.root)?;
    openat2(root, path.relative_path.as_str(), PATH_FD, Mode::empty(), STRICT_RESOLVE | ResolveFlags::NO_XDEV)
        .map_err(|error| errno_error(path, error))
}

/// Checks that only this process's user, which is root, can change an image other than by its loop device: the
/// kernel trusts the blocks of a mounted filesystem. `stat` is that of the image.
pub(super) fn ensure_protected(path: &RootedPath, stat: &Stat) -> Result<()> {
    if stat.st_nlink != 1 {
        return Err(MounterError::FailedPrecondition(format!(
            "the image {path} has {} links: expected one",
            stat.st_nlink
        )));
    }
    ensure_only_owner_writes(path, stat)?;
    ensure_only_owner_writes(&path.root, &self::stat(&path.root, open_root(&path.root)?)?)?;
    let mut parent = path.relative_path.split_parent().0;
    while let Some(name) = parent {
        let relative_path =
            RelativePath::parse(name).map_err(|error| MounterError::Failed(error.to_string()))?;
        let directory = RootedPath { root: path.root.clone(), relative_path };
        ensure_only_owner_writes(&directory, &self::stat(&directory, open_rooted(&directory)?)?)?;
        parent = name.rsplit_once('/').map(|(parent, _)| parent);
    }
    Ok(())
}

fn ensure_only_owner_writes(path: impl std::fmt::Display, stat: &Stat) -> Result<()> {
    let (mode, owner, expected) = (Mode::from_raw_mode(stat.st_mode), stat.st_uid, geteuid().as_raw());
    if owner == expected && !mode.intersects(Mode::WGRP | Mode::WOTH) {
        return Ok(());
    }
    Err(MounterError::FailedPrecondition(format!(
        "{path} has the owner {owner} and the mode {:o}: expected the owner {expected}, and no write \
         permission for others",
        mode.as_raw_mode()
    )))
}

/// Opens the parent directory of a path. A directory directly below kubelet's root, such as `pods`, may be a
/// mount. A mount further down is a volume, whose content a pod controls, and is not crossed.
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

/// Returns the last name of a path.
pub(super) fn file_name(path: &KubeletPath) -> &str {
    path.relative_path().split_parent().1
}

/// Opens the file at a path; for a mount point, the top mount's root; for a symbolic link, the link itself.
pub(super) fn open_path(path: &KubeletPath) -> Result<OwnedFd> {
    let parent = open_parent(path)?;
    openat2(parent, file_name(path), PATH_FD, Mode::empty(), STRICT_RESOLVE)
        .map_err(|error| errno_error(path, error))
}

/// Like [`open_path`], but readable, to list the directory.
pub(super) fn open_directory(path: &KubeletPath) -> Result<OwnedFd> {
    let parent = open_parent(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat2(parent, file_name(path), flags, Mode::empty(), STRICT_RESOLVE)
        .map_err(|error| errno_error(path, error))
}

/// Returns the path as mountinfo shows it: with symbolic links in the root resolved.
pub(super) fn canonical_path(path: &KubeletPath) -> Result<OsString> {
    let root = std::fs::canonicalize(path.root())
        .map_err(|error| MounterError::Failed(format!("{}: {error}", path.root())))?;
    let mut canonical = root.into_os_string();
    canonical.push("/");
    canonical.push(path.relative_path().as_str());
    Ok(canonical)
}

/// Returns the `/proc` path of a descriptor, which resolves to the open file itself.
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
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    kind_of(FileType::from_raw_mode(stat.st_mode), size, device_number(stat.st_rdev))
}

/// `device` is that of a device node.
fn kind_of(file_type: FileType, size: u64, device: (u32, u32)) -> PathKind {
    match file_type {
        FileType::Directory => PathKind::Directory,
        FileType::RegularFile => PathKind::File(size),
        FileType::BlockDevice => PathKind::Device(device),
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::Unknown => PathKind::Other,
    }
}

/// Type and identity of an open file.
pub(super) struct CachedStat {
    pub(super) kind: PathKind,
    pub(super) id: FileId,
}

/// Returns the type and identity that the kernel has cached. Unlike [`stat`], it sends no request to an NFS
/// server, which may not respond; the kernel always knows the root of a mount.
pub(super) fn cached_stat(object: impl std::fmt::Display, descriptor: impl AsFd) -> Result<CachedStat> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let mask = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::SIZE;
    let stat = statx(descriptor, "", flags, mask).map_err(|error| errno_error(object, error))?;
    let file_type = FileType::from_raw_mode(stat.stx_mode.into());
    Ok(CachedStat {
        kind: kind_of(file_type, stat.stx_size, (stat.stx_rdev_major, stat.stx_rdev_minor)),
        id: FileId { device: (stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino },
    })
}

pub(super) fn stat(object: impl std::fmt::Display, descriptor: impl AsFd) -> Result<Stat> {
    fstat(descriptor).map_err(|error| errno_error(object, error))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

    use super::*;

    #[test]
    fn an_image_that_others_can_change_is_rejected() {
        let root = tempfile::TempDir::new().unwrap();
        let set_mode =
            |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let (directory, image) = (root.path().join("pool"), root.path().join("pool/image"));
        fs::create_dir(&directory).unwrap();
        fs::write(&image, "data").unwrap();
        set_mode(&directory, 0o755);
        set_mode(&image, 0o644);
        let path = RootedPath {
            root: root.path().to_str().unwrap().to_owned(),
            relative_path: RelativePath::parse("pool/image").unwrap(),
        };
        let check = || ensure_protected(&path, &stat(&path, open_rooted(&path).unwrap()).unwrap());
        check().unwrap();
        for (changed, mode, restored) in [
            (&image, 0o664, 0o644),
            (&image, 0o646, 0o644),
            (&directory, 0o775, 0o755),
            (&directory, 0o777, 0o755),
            (&root.path().to_owned(), 0o770, 0o700),
        ] {
            set_mode(changed, mode);
            let error = check().unwrap_err().to_string();
            assert!(error.contains(&format!("{mode:o}: expected the owner ")), "{error}");
            set_mode(changed, restored);
        }
        check().unwrap();
        fs::hard_link(&image, root.path().join("link")).unwrap();
        let error = check().unwrap_err().to_string();
        assert!(error.ends_with("has 2 links: expected one"), "{error}");
    }
}
