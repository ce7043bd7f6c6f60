//! Recursive group ownership of a volume. A pod controls the volume's content and may change it during the
//! call: no symbolic link is followed, and only directories and files that were regular when examined are
//! opened. The call fails at a directory or file that is a mount point.

use std::{
    ffi::{CString, OsStr},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
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

fn add_mode(file: impl AsFd, added_mode: Mode) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(fstat(&file)?.st_mode);
    fchmod(file, mode | added_mode)
}

/// Returns true if an error means that an entry was removed or replaced since it was read: a pod may be
/// running.
fn is_concurrent_change(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

/// Directories that are open at the same time. Those nearer to the root are closed, and opened again when
/// their subdirectory is done.
const MAX_OPEN_DIRECTORIES: usize = 32;
/// `PATH_MAX` of Linux, with the final null byte.
const MAX_PATH_BYTES: usize = 4096;

/// A directory whose subdirectories are being changed.
struct Level {
    /// Name in the level before; empty for the root.
    name: CString,
    /// The open directory, after the entries that have been read.
    entries: Option<Dir>,
    /// Position after the entries that have been read.
    offset: i64,
}

/// Sets the group of everything below a directory and adds the group's permissions; the directory itself is
/// last. Skips entries that a pod removes or replaces meanwhile. Like kubelet's own walk, it fails if a path
/// is longer than `PATH_MAX`.
///
/// The memory depends on the depth of the tree and not on the number of its directories, and the number of
/// open descriptors on neither: a pod determines both.
pub(super) fn set_group_recursively(directory: &OwnedFd, group: u32) -> rustix::io::Result<()> {
    let gid = Gid::from_raw(group);
    let root = Level { name: CString::default(), entries: Some(Dir::read_from(directory)?), offset: 0 };
    let mut levels = vec![root];
    while let Some(mut level) = levels.pop() {
        let entries = match level.entries.take() {
            Some(entries) => Ok(entries),
            None => reopen(directory, &levels, &level),
        };
        let mut entries = match entries {
            Err(error) if is_concurrent_change(error) => continue,
            entries => entries?,
        };
        let Some((name, offset)) = set_group_until_subdirectory(&mut entries, gid)? else {
            set_group_of_directory(entries.fd()?, gid)?;
            continue;
        };
        let subdirectory = open_beneath(entries.fd()?, &name, OFlags::DIRECTORY);
        levels.push(Level { entries: Some(entries), offset, ..level });
        match subdirectory {
            Err(error) if is_concurrent_change(error) => continue,
            subdirectory => {
                let entries = Some(Dir::new(subdirectory?)?);
                levels.push(Level { name, entries, offset: 0 });
            }
        }
        if path_bytes(&levels) >= MAX_PATH_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        if let Some(oldest) = levels.len().checked_sub(MAX_OPEN_DIRECTORIES + 1) {
            levels.get_mut(oldest).and_then(|level| level.entries.take());
        }
    }
    Ok(())
}

/// Opens the directory of a level again, below the directories of `parents`, and continues after its
/// position.
fn reopen(root: &OwnedFd, parents: &[Level], level: &Level) -> rustix::io::Result<Dir> {
    let names = parents.iter().skip(1).chain([level]).map(|level| OsStr::from_bytes(level.name.to_bytes()));
    let path: PathBuf = names.collect();
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { &path };
    let mut entries = Dir::new(open_beneath(root, path, OFlags::DIRECTORY)?)?;
    entries.seek(level.offset)?;
    Ok(entries)
}

/// Length of the path of the last level, with the final null byte.
fn path_bytes(levels: &[Level]) -> usize {
    levels.iter().map(|level| level.name.to_bytes_with_nul().len()).sum()
}

/// Sets the group of the next entries of a directory until one is a subdirectory. Returns its name and the
/// position after it, or `None` at the end.
fn set_group_until_subdirectory(entries: &mut Dir, gid: Gid) -> rustix::io::Result<Option<(CString, i64)>> {
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let (name, directory) = (entry.file_name(), entries.fd()?);
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(error) if is_concurrent_change(error) => continue,
            stat => stat?,
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            return Ok(Some((name.to_owned(), entry.offset())));
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
    Ok(None)
}

fn set_group_of_directory(directory: BorrowedFd<'_>, gid: Gid) -> rustix::io::Result<()> {
    fchown(directory, None, Some(gid))?;
    add_mode(directory, DIRECTORY_MODE)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    /// A directory, and everything below it.
    fn paths_below(directory: &Path) -> Vec<PathBuf> {
        let mut paths = vec![directory.to_owned()];
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { paths.extend(paths_below(&path)) } else { paths.push(path) }
        }
        paths
    }

    #[test]
    fn group_is_set_in_directories_that_were_closed_meanwhile() {
        let volume = tempfile::TempDir::new().unwrap();
        let mut directory = volume.path().to_owned();
        for _ in 0..3 * MAX_OPEN_DIRECTORIES {
            for name in ["a", "b", "c", "d"] {
                std::fs::create_dir(directory.join(name)).unwrap();
            }
            std::fs::write(directory.join("file"), "data").unwrap();
            directory.push("b");
        }
        let wide = volume.path().join("a");
        (0..5_000).for_each(|number| std::fs::create_dir(wide.join(number.to_string())).unwrap());
        let group = rustix::process::getgid().as_raw();
        set_group_recursively(&OwnedFd::from(std::fs::File::open(volume.path()).unwrap()), group).unwrap();
        let paths = paths_below(volume.path());
        assert_eq!(paths.len(), 1 + 5 * 3 * MAX_OPEN_DIRECTORIES + 5_000);
        for path in paths {
            let mode = std::fs::metadata(&path).unwrap().mode();
            let expected = if path.is_dir() { DIRECTORY_MODE } else { FILE_MODE };
            assert!(Mode::from_raw_mode(mode).contains(expected), "{path:?} has {mode:o}");
        }
    }

    #[test]
    fn a_path_longer_than_the_limit_is_an_error() {
        let volume = tempfile::TempDir::new().unwrap();
        let root = OwnedFd::from(std::fs::File::open(volume.path()).unwrap());
        let name = "d".repeat(255);
        let mut parent = rustix::io::dup(&root).unwrap();
        for _ in 0..17 {
            rustix::fs::mkdirat(&parent, name.as_str(), Mode::RWXU).unwrap();
            parent = open_beneath(&parent, name.as_str(), OFlags::DIRECTORY).unwrap();
        }
        let group = rustix::process::getgid().as_raw();
        assert_eq!(set_group_recursively(&root, group), Err(Errno::NAMETOOLONG));
        assert_eq!(read_group(&root).unwrap(), None);
    }

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
