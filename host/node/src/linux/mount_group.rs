//! Everything in a volume for a group. What is in it was written by a pod: no link is followed, no mount is
//! crossed, no device is opened.

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

/// What the group may do with a file, and with a directory: new files in it get the group too.
const FILE_MODE: Mode = Mode::RGRP.union(Mode::WGRP);
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

/// Gives a directory's group, where new files get it and it may write there.
pub(super) fn read_group(directory: &OwnedFd) -> rustix::io::Result<Option<u32>> {
    let stat = fstat(directory)?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    Ok(mode.contains(DIRECTORY_MODE).then_some(stat.st_gid))
}

fn add_mode(file: &OwnedFd, added_mode: Mode) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(fstat(file)?.st_mode);
    fchmod(file, mode | added_mode)
}

/// Whether a name went, or leads to something else, since it was read: a pod may be at work.
fn is_concurrent_change(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

/// A directory within the volume, by its name in the one above: a pod can make far more of them than their
/// paths have room in memory.
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

/// Gives everything to a group, the directory itself last. Fails where a path within it is longer than the
/// kernel takes, as kubelet's own walk does.
pub(super) fn set_group_recursively(directory: &OwnedFd, group: u32) -> rustix::io::Result<()> {
    let gid = Gid::from_raw(group);
    // Names, not open directories: however deep a volume is, two files are open.
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

/// Gives the files of a directory, and adds its directories to what is left.
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
        // Its own group: a test that is not root's has no other to give.
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
