//! Kubelet's own files on a node: directories for volumes, and what it writes down beside them.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
};

/// Kubelet's directories are for it alone.
const DIRECTORY_MODE: u32 = 0o750;

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
pub struct LocalFiles;

fn error_message(action: &str, path: &str, error: &io::Error) -> String {
    format!("cannot {action} {path}: {error}")
}

impl Files for LocalFiles {
    fn make_directory(&self, path: &str) -> Result<(), String> {
        let result = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path);
        result.map_err(|error| error_message("make the directory", path, &error))
    }

    fn write(&self, path: &str, text: &str) -> Result<(), String> {
        // A half-written file would be worse than none: nobody could unmount the volume.
        let new = format!("{path}.new");
        let result = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
        result.map_err(|error| error_message("write", path, &error))
    }

    fn remove(&self, path: &str) -> Result<(), String> {
        let result = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => Err(error),
            Ok(found) if found.is_dir() => fs::remove_dir(path),
            Ok(_) => fs::remove_file(path),
        };
        result.map_err(|error| error_message("remove", path, &error))
    }
}
