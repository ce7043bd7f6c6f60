//! Recursive group ownership of a volume. A pod controls the volume's content and may change it during the
//! call: no symbolic link is followed, and only directories and files that were regular when examined are
//! opened. The call fails at a directory or file that is a mount point.

use std::{
    ffi::{CStr, CString, OsStr},
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
    rc::Rc,
};

use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{
        AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, chownat, fchmod, fchown, fstat, openat2,
        statat,
    },
    io::Errno,
    path::Arg,
};

/// Permissions that are added to regular files.
const FILE_MODE: Mode = Mode::RGRP.union(Mode::WGRP);
/// Permissions that are added to directories. With setgid, new files inherit the group.
const DIRECTORY_MODE: Mode = FILE_MODE.union(Mode::XGRP).union(Mode::SGID);

fn open_beneath(parent: impl AsFd, name: impl Arg, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let flags =
        flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    openat2(parent, name, flags, Mode::empty(), resolve)
}

/// Returns a directory's group if the group has all of [`DIRECTORY_MODE`], otherwise `None`.
pub(super) fn read_group(directory: &OwnedFd) -> rustix::io::Result<Option<u32>> {
    let stat = fstat(directory)?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    Ok(mode.contains(DIRECTORY_MODE).then_some(stat.st_gid))
}

fn add_mode(file: &OwnedFd, added_mode: Mode) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(fstat(file)?.st_mode);
    fchmod(file, mode | added_mode)
}

/// Returns true if an error means that an entry was removed or replaced since it was read: a pod may be
/// running.
fn is_concurrent_change(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

/// A directory of the volume, stored as its name and parent. Full paths of all directories that a pod can
/// create might not fit into memory.
struct TreeDirectory {
    parent: Option<Rc<TreeDirectory>>,
    name: CString,
}

impl TreeDirectory {
    fn path(&self) -> PathBuf {
        let mut names = vec![self.name.as_c_str()];
        let mut ancestor = &self.parent;
        while let Some(next) = ancestor {
            names.push(&next.name);
            ancestor = &next.parent;
        }
        names.into_iter().rev().map(CStr::to_bytes).map(OsStr::from_bytes).collect()
    }
}

/// Sets the group of everything below a directory and adds the group's permissions; the directory itself is
/// last. Skips entries that a pod removes or replaces meanwhile. Like kubelet's own walk, it fails if a path
/// is longer than `PATH_MAX`.
pub(super) fn set_group_recursively(directory: &OwnedFd, group: u32) -> rustix::io::Result<()> {
    let gid = Gid::from_raw(group);
    // Stores names instead of open directories: the number of open descriptors is the same at any depth.
    let mut pending = Vec::new();
    set_group_of_entries(directory, None, gid, &mut pending)?;
    while let Some(subdirectory) = pending.pop() {
        match open_beneath(directory, subdirectory.path(), OFlags::DIRECTORY) {
            Err(error) if is_concurrent_change(error) => {}
            opened => {
                let opened = opened?;
                set_group_of_entries(&opened, Some(&Rc::new(subdirectory)), gid, &mut pending)?;
                set_group_of_directory(&opened, gid)?;
            }
        }
    }
    set_group_of_directory(directory, gid)
}

/// Sets the group of all entries of a directory except subdirectories, which it adds to `pending`.
fn set_group_of_entries(
    directory: &OwnedFd,
    parent: Option<&Rc<TreeDirectory>>,
    gid: Gid,
    pending: &mut Vec<TreeDirectory>,
) -> rustix::io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(error) if is_concurrent_change(error) => continue,
            stat => stat?,
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            pending.push(TreeDirectory { parent: parent.map(Rc::clone), name: name.to_owned() });
            continue;
        }
        match chownat(directory, name, None, Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
            Err(error) if is_concurrent_change(error) => continue,
            chown_result => chown_result?,
        }
        if kind == FileType::RegularFile {
            match open_beneath(directory, name, OFlags::empty()) {
                Err(error) if is_concurrent_change(error) => {}
                file => add_mode(&file?, FILE_MODE)?,
            }
        }
    }
    Ok(())
}

fn set_group_of_directory(directory: &OwnedFd, gid: Gid) -> rustix::io::Result<()> {
    fchown(directory, None, Some(gid))?;
    add_mode(directory, DIRECTORY_MODE)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn group_is_set_in_a_directory_tree_1000_levels_deep() {
        let volume = tempfile::TempDir::new().unwrap();
        let mut deepest = volume.path().to_owned();
        for _ in 0..1000 {
            deepest.push("d");
            std::fs::create_dir(&deepest).unwrap();
        }
        let file = deepest.join("file");
        std::fs::write(&file, "data").unwrap();
        let link = volume.path().join("link");
        std::os::unix::fs::symlink("/etc/hostname", &link).unwrap();
        // The process's own group: without root no other group can be set.
        let group = rustix::process::getgid().as_raw();
        let directory = OwnedFd::from(std::fs::File::open(volume.path()).unwrap());
        set_group_recursively(&directory, group).unwrap();
        for path in [volume.path(), &deepest] {
            let metadata = std::fs::metadata(path).unwrap();
            assert_eq!((metadata.gid(), metadata.mode() & 0o2070), (group, 0o2070), "{path:?}");
        }
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o060, 0o060);
        assert_eq!(read_group(&directory).unwrap(), Some(group));
    }
}
