//! Everything in a volume for a group. What is in it was written by a pod: no link is followed, no mount is crossed, no device is
//! opened.

use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{
        AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, chownat, fchmod, fchown, fstat, openat2,
        statat,
    },
    io::Errno,
};

/// How deep a volume may be: every level keeps a file open.
const DEPTH: usize = 200;
/// What the group may do with a file, and with a directory: new files in it get the group too.
const FILE: Mode = Mode::RGRP.union(Mode::WGRP);
const DIRECTORY: Mode = FILE.union(Mode::XGRP).union(Mode::SGID);

fn open(parent: impl AsFd, name: &std::ffi::CStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let flags =
        flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    openat2(parent, name, flags, Mode::empty(), resolve)
}

/// Gives a directory's group, where new files get it and it may write there.
pub(super) fn of(directory: &OwnedFd) -> rustix::io::Result<Option<u32>> {
    let stat = fstat(directory)?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    Ok(mode.contains(DIRECTORY).then_some(stat.st_gid))
}

fn add(file: &OwnedFd, more: Mode) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(fstat(file)?.st_mode);
    fchmod(file, mode | more)
}

/// Whether a name went, or leads to something else, since it was read: a pod may be at work.
fn is_another_by_now(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

/// Gives everything to a group: what is deepest first, the directory itself last.
pub(super) fn give(directory: OwnedFd, group: u32) -> rustix::io::Result<()> {
    let gid = Gid::from_raw(group);
    let mut levels = vec![Dir::new(directory)?];
    loop {
        let depth = levels.len();
        let Some(level) = levels.last_mut() else { return Ok(()) };
        let Some(entry) = level.read() else {
            let own = level.fd()?;
            fchown(own, None, Some(gid))?;
            let mode = Mode::from_raw_mode(fstat(own)?.st_mode);
            fchmod(own, mode | DIRECTORY)?;
            levels.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let here = level.fd()?;
        let stat = match statat(here, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(error) if is_another_by_now(error) => continue,
            stat => stat?,
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            if depth >= DEPTH {
                return Err(Errno::NAMETOOLONG);
            }
            match open(here, name, OFlags::DIRECTORY) {
                Err(error) if is_another_by_now(error) => {}
                deeper => levels.push(Dir::new(deeper?)?),
            }
            continue;
        }
        match chownat(here, name, None, Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
            Err(error) if is_another_by_now(error) => continue,
            given => given?,
        }
        if kind == FileType::RegularFile {
            match open(here, name, OFlags::empty()) {
                Err(error) if is_another_by_now(error) => {}
                file => add(&file?, FILE)?,
            }
        }
    }
}
