//! Kubelet's own files on a node: directories for volumes, and what it writes down beside them.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
};

/// Kubelet's directories are for it alone.
const MODE: u32 = 0o750;

/// A node's files, as far as kubelet handles them. Paths are absolute.
pub trait Files: Send + Sync {
    /// Makes a directory with all that lead to it.
    ///
    /// # Errors
    /// What the machine says.
    fn make_directory(&self, path: &str) -> Result<(), String>;

    /// Writes a small file, in place of an earlier one.
    ///
    /// # Errors
    /// What the machine says.
    fn write(&self, path: &str, text: &str) -> Result<(), String>;

    /// Removes a file, or a directory that is empty; what is not there is a success.
    ///
    /// # Errors
    /// What the machine says, also for a directory that is not empty.
    fn remove(&self, path: &str) -> Result<(), String>;
}

/// The files of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

fn failed(what: &str, path: &str, error: &io::Error) -> String {
    format!("cannot {what} {path}: {error}")
}

impl Files for Disk {
    fn make_directory(&self, path: &str) -> Result<(), String> {
        let made = DirBuilder::new().recursive(true).mode(MODE).create(path);
        made.map_err(|error| failed("make the directory", path, &error))
    }

    fn write(&self, path: &str, text: &str) -> Result<(), String> {
        // A half-written file would be worse than none: nobody could unmount the volume.
        let new = format!("{path}.new");
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
        written.map_err(|error| failed("write", path, &error))
    }

    fn remove(&self, path: &str) -> Result<(), String> {
        let removed = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => Err(error),
            Ok(found) if found.is_dir() => fs::remove_dir(path),
            Ok(_) => fs::remove_file(path),
        };
        removed.map_err(|error| failed("remove", path, &error))
    }
}
