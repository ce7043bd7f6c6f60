//! Mounts, through descriptors: what is mounted, and where, is opened first; no path is walked a second time.

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
    paths::{self, Result, failure},
    table,
};
use crate::{
    error::MachineError,
    machine::Attributes,
    options::{AccessTimes, MountOptions},
    path::Place,
};

/// Mounts a new filesystem.
pub(super) fn mount(
    fs_type: &str,
    source: &str,
    options: &MountOptions,
    more: &[(&str, &str)],
    place: &Place,
) -> Result<()> {
    let context = fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC)
        .map_err(|error| MachineError::Failed(format!("this kernel has no filesystem {fs_type}: {error}")))?;
    let mounted = configure(&context, source, options, more)
        .and_then(|()| fsconfig_create(&context))
        .and_then(|()| fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(options)));
    let mounted = mounted.map_err(|error| told(&context, &format!("{fs_type} from {source}"), error))?;
    attach(&mounted, place)
}

fn configure(
    context: &OwnedFd,
    source: &str,
    options: &MountOptions,
    more: &[(&str, &str)],
) -> rustix::io::Result<()> {
    fsconfig_set_string(context, "source", source)?;
    for (name, value) in more {
        fsconfig_set_string(context, *name, *value)?;
    }
    for (name, value) in &options.data {
        match value {
            Some(value) => fsconfig_set_string(context, name.as_str(), value.as_str())?,
            None => fsconfig_set_flag(context, name.as_str())?,
        }
    }
    if options.attributes.read_only { fsconfig_set_flag(context, "ro") } else { Ok(()) }
}

fn attributes(options: &MountOptions) -> MountAttrFlags {
    let Attributes { read_only, no_suid, no_devices, no_exec } = options.attributes;
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

/// The kernel's own words for a failed mount, which stand in the context.
fn told(context: &OwnedFd, what: &str, error: Errno) -> MachineError {
    let mut words = Vec::new();
    let mut buffer = [0_u8; 512];
    while let Ok(length) = rustix::io::read(context, &mut buffer) {
        let Some(line) = buffer.get(..length).filter(|line| !line.is_empty()) else { break };
        let line = String::from_utf8_lossy(line);
        words.push(line.trim_start_matches(['e', 'w', 'i', ' ']).trim().to_owned());
    }
    words.push(error.to_string());
    MachineError::Failed(format!("{what}: {}", words.join(": ")))
}

fn attach(tree: &OwnedFd, place: &Place) -> Result<()> {
    let target = paths::at(place)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", target, "", flags).map_err(|error| failure(place, error))
}

/// Gives mounted memory another size.
pub(super) fn resize_memory(size: u64, place: &Place) -> Result<()> {
    let context = fspick(paths::at(place)?, "", FsPickFlags::FSPICK_EMPTY_PATH | FsPickFlags::FSPICK_CLOEXEC)
        .map_err(|error| failure(place, error))?;
    fsconfig_set_string(&context, "size", size.to_string())
        .and_then(|()| fsconfig_reconfigure(&context))
        .map_err(|error| told(&context, "tmpfs", error))
}

/// Mounts what is open at a place too.
pub(super) fn bind(from: &OwnedFd, place: &Place) -> Result<()> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(from, "", flags).map_err(|error| failure(place, error))?;
    attach(&tree, place)
}

/// Takes something away from the top mount of a place. The kernel takes the whole set: what is away already
/// stays so.
pub(super) fn restrict(place: &Place, more: Attributes) -> Result<()> {
    let at = paths::canonical(place)?;
    let top = table::read()?.into_iter().rfind(|line| line.at == at);
    let has =
        top.ok_or_else(|| MachineError::Missing(format!("nothing is mounted at {place}")))?.mount.attributes;
    let mut flags = MountFlags::BIND;
    flags.set(MountFlags::RDONLY, has.read_only || more.read_only);
    flags.set(MountFlags::NOSUID, has.no_suid || more.no_suid);
    flags.set(MountFlags::NODEV, has.no_devices || more.no_devices);
    flags.set(MountFlags::NOEXEC, has.no_exec || more.no_exec);
    let target = paths::at(place)?;
    mount_remount(paths::through(&target), flags, "").map_err(|error| failure(place, error))
}

/// Unmounts the top mount of a place; never lazily, for what is in use is in use.
pub(super) fn unmount(place: &Place) -> Result<()> {
    let parent = paths::parent(place)?;
    let path = format!("{}/{}", paths::through(&parent), paths::name(place));
    rustix::mount::unmount(path, UnmountFlags::NOFOLLOW).map_err(|error| failure(place, error))
}

/// Other places beneath the same root of kubelet where the top mount of a place is mounted too. Elsewhere it
/// may be seen through another way to the same directory.
pub(super) fn elsewhere(place: &Place) -> Result<Vec<String>> {
    let at = paths::canonical(place)?;
    let root = at.strip_suffix(place.path().as_str()).unwrap_or(&at).to_owned();
    let lines = table::read()?;
    let Some(top) = lines.iter().rfind(|line| line.at == at) else { return Ok(Vec::new()) };
    let same = |line: &&table::Line| {
        line.mount.device == top.mount.device
            && line.root == top.root
            && line.at != at
            && line.at.starts_with(&root)
    };
    Ok(lines.iter().filter(same).map(|line| line.at.clone()).collect())
}
