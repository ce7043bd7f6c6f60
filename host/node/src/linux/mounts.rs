//! Mounts with the kernel calls that take file descriptors, such as `move_mount`. Remounts and unmounts,
//! which take paths, use `/proc/self/fd`. The target is opened below its kubelet root without following
//! symbolic links; for an unmount, the target's parent directory is.

use std::{borrow::Cow, ffi::OsStr, os::unix::ffi::OsStrExt as _};

use rustix::{
    fd::OwnedFd,
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
        UnmountFlags, fsconfig_create, fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount,
        fsopen, fspick, mount_remount, move_mount, open_tree,
    },
};

use super::{
    mountinfo::{MountInfoEntry, MountTable},
    paths::{self, Result, errno_error},
};
use crate::{
    error::MounterError,
    file::PathKind,
    mount_options::{AccessTimes, MountOptions},
    mount_point::MountAttributes,
    path::KubeletPath,
};

/// The filesystem type of an NFS mount. Only the mount of an export is read-only, not the filesystem: kernels
/// differ in what a read-only NFS filesystem means.
pub(super) const NFS: &str = "nfs";

/// Mounts the existing filesystem of a device, a new tmpfs, or an NFS export.
pub(super) fn mount(
    fs_type: &str,
    source: &str,
    options: &MountOptions,
    extra_options: &[(&str, &str)],
    path: &KubeletPath,
) -> Result<()> {
    let context = fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC).map_err(|error| {
        MounterError::Failed(format!("the kernel does not support the filesystem {fs_type}: {error}"))
    })?;
    let mounted = configure(&context, fs_type, source, options, extra_options)
        .and_then(|()| fsconfig_create(&context))
        .and_then(|()| fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, mount_attr_flags(options)));
    let mounted =
        mounted.map_err(|error| kernel_error(&context, &format!("{fs_type} from {source}"), error))?;
    // An NFS server can export a file, which the kernel would not mount on a directory.
    match paths::cached_stat(source, &mounted)?.kind {
        PathKind::Directory => move_mount_to(&mounted, path),
        PathKind::File(_) | PathKind::Device(_) | PathKind::Other => {
            Err(MounterError::FailedPrecondition(format!("{source} is not a directory")))
        }
    }
}

fn configure(
    context: &OwnedFd,
    fs_type: &str,
    source: &str,
    options: &MountOptions,
    extra_options: &[(&str, &str)],
) -> rustix::io::Result<()> {
    fsconfig_set_string(context, "source", source)?;
    for (name, value) in extra_options {
        fsconfig_set_string(context, *name, *value)?;
    }
    for (name, value) in &options.data {
        match value {
            Some(value) => fsconfig_set_string(context, name.as_str(), value.as_str())?,
            None => fsconfig_set_flag(context, name.as_str())?,
        }
    }
    if options.attributes.read_only && fs_type != NFS { fsconfig_set_flag(context, "ro") } else { Ok(()) }
}

fn mount_attr_flags(options: &MountOptions) -> MountAttrFlags {
    let MountAttributes { read_only, no_suid, no_devices, no_exec } = options.attributes;
    let mut flags = match options.access_times {
        Some(AccessTimes::Never) => MountAttrFlags::MOUNT_ATTR_NOATIME,
        Some(AccessTimes::Strict) => MountAttrFlags::MOUNT_ATTR_STRICTATIME,
        Some(AccessTimes::Relative) | None => MountAttrFlags::MOUNT_ATTR_RELATIME,
    };
    flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, read_only);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOSUID, no_suid);
    flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, no_devices);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, no_exec);
    flags
}

/// Reads the kernel's error messages from the filesystem context.
fn kernel_error(context: &OwnedFd, operation: &str, error: Errno) -> MounterError {
    let mut messages = Vec::new();
    let mut buffer = [0_u8; 512];
    while let Ok(length) = rustix::io::read(context, &mut buffer) {
        let Some(line) = buffer.get(..length).filter(|line| !line.is_empty()) else { break };
        messages.push(kernel_message(line));
    }
    messages.push(error.to_string());
    MounterError::Failed(format!("{operation}: {}", messages.join(": ")))
}

/// Returns a message of a filesystem context without its level: `e`, `w` or `i`.
pub(super) fn kernel_message(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line);
    let message = ["e ", "w ", "i "].iter().find_map(|level| line.strip_prefix(level));
    message.unwrap_or(&line).trim().to_owned()
}

fn move_mount_to(tree: &OwnedFd, path: &KubeletPath) -> Result<()> {
    let target = paths::open_path(path)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", target, "", flags).map_err(|error| errno_error(path, error))
}

/// Changes the size of a mounted tmpfs.
pub(super) fn resize_tmpfs(size: u64, path: &KubeletPath) -> Result<()> {
    let context =
        fspick(paths::open_path(path)?, "", FsPickFlags::FSPICK_EMPTY_PATH | FsPickFlags::FSPICK_CLOEXEC)
            .map_err(|error| errno_error(path, error))?;
    fsconfig_set_string(&context, "size", size.to_string())
        .and_then(|()| fsconfig_reconfigure(&context))
        .map_err(|error| kernel_error(&context, "tmpfs", error))
}

/// Bind-mounts an open file or directory at a path.
pub(super) fn bind(from: &OwnedFd, path: &KubeletPath) -> Result<()> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(from, "", flags).map_err(|error| errno_error(path, error))?;
    move_mount_to(&tree, path)
}

/// Adds attributes to the top mount at a path. A remount sets all attributes, so the current ones are
/// included.
pub(super) fn restrict(path: &KubeletPath, attributes: MountAttributes) -> Result<()> {
    let mount_path = paths::canonical_path(path)?;
    let table = MountTable::read()?;
    let top = table.at(&mount_path)?.pop();
    let current =
        top.ok_or_else(|| MounterError::NotFound(format!("nothing is mounted at {path}")))?.mount.attributes;
    let mut flags = MountFlags::BIND;
    flags.set(MountFlags::RDONLY, current.read_only || attributes.read_only);
    flags.set(MountFlags::NOSUID, current.no_suid || attributes.no_suid);
    flags.set(MountFlags::NODEV, current.no_devices || attributes.no_devices);
    flags.set(MountFlags::NOEXEC, current.no_exec || attributes.no_exec);
    let target = paths::open_path(path)?;
    mount_remount(paths::proc_fd_path(&target), flags, "").map_err(|error| errno_error(path, error))
}

/// Unmounts the top mount at a path. Never lazily: a busy mount is an error.
pub(super) fn unmount(kubelet_path: &KubeletPath) -> Result<()> {
    let parent = paths::open_parent(kubelet_path)?;
    let path = format!("{}/{}", paths::proc_fd_path(&parent), paths::file_name(kubelet_path));
    rustix::mount::unmount(path, UnmountFlags::NOFOLLOW).map_err(|error| errno_error(kubelet_path, error))
}

/// Returns the other paths below the same kubelet root that show the same file or directory of the same
/// filesystem as the path's top mount. Paths outside the root are ignored: the kubelet root itself may be
/// mounted elsewhere.
pub(super) fn mount_refs(path: &KubeletPath) -> Result<Vec<String>> {
    find_mount_refs(&MountTable::read()?, &paths::canonical_path(path)?, path.relative_path().as_str())
}

/// As [`mount_refs`], of a mount path that ends with its path below the kubelet root.
pub(super) fn find_mount_refs(
    table: &MountTable,
    mount_path: &OsStr,
    relative_path: &str,
) -> Result<Vec<String>> {
    let mount_path_bytes = mount_path.as_bytes();
    let root = mount_path_bytes.strip_suffix(relative_path.as_bytes()).unwrap_or(mount_path_bytes);
    let Some(top) = table.at(mount_path)?.pop() else { return Ok(Vec::new()) };
    // The root of every NFS mount is shown as /, so mounts of one superblock differ in their sources only.
    let is_same_source =
        |entry: &MountInfoEntry| !top.mount.is_nfs() || entry.mount.source == top.mount.source;
    let same = |entry: &&MountInfoEntry| {
        entry.mount.device == top.mount.device
            && is_same_source(entry)
            && entry.fs_root == top.fs_root
            && entry.mount_path != mount_path
            && entry.mount_path.as_bytes().starts_with(root)
    };
    let paths = table.entries().iter().filter(same).map(|entry| entry.mount_path.to_string_lossy());
    Ok(paths.map(Cow::into_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_kernel_lose_their_level_only() {
        for (line, expected) in [
            ("e tmpfs: Bad value for 'size'\n", "tmpfs: Bad value for 'size'"),
            ("w erofs: weird", "erofs: weird"),
            ("i iso9660: input", "iso9660: input"),
            ("without a level", "without a level"),
            ("e", "e"),
        ] {
            assert_eq!(kernel_message(line.as_bytes()), expected);
        }
    }
}
