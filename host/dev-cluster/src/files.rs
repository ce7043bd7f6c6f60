//! Kubelet's files on a node: directories of volumes, and the `vol_data.json` file next to each volume.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
};

use cofferdam_fake_host::FakeHost;
use cofferdam_node::MounterError;

/// An operation on a file or directory of a node failed: on one of kubelet's, or on a directory for the
/// node's sockets and volume records.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {path}: {source}")]
pub struct FileError {
    operation: &'static str,
    path: String,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl FileError {
    /// Creates the error of an operation on a path. The operation is a verb, such as `write`.
    pub fn new(
        operation: &'static str,
        path: &str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { operation, path: path.to_owned(), source: source.into() }
    }
}

/// Mode of the directories that [`LocalFiles`] creates: that of a real kubelet's directories.
const DIRECTORY_MODE: u32 = 0o750;

/// The file operations of kubelet. Paths are absolute.
pub trait Files: Send + Sync {
    /// Creates a directory and its parents.
    ///
    /// # Errors
    /// When the filesystem returns an error.
    fn make_directory(&self, path: &str) -> Result<(), FileError>;

    /// Writes or replaces a small file. A fake host stores only its size.
    ///
    /// # Errors
    /// When the filesystem returns an error.
    fn write(&self, path: &str, text: &str) -> Result<(), FileError>;

    /// Removes a file or an empty directory. Succeeds if the path does not exist.
    ///
    /// # Errors
    /// When the filesystem returns an error, such as for a directory that is not empty or is a mount point.
    fn remove(&self, path: &str) -> Result<(), FileError>;

    /// Returns true if the paths are those of this machine's filesystem.
    fn is_local(&self) -> bool;
}

impl Files for FakeHost {
    fn make_directory(&self, path: &str) -> Result<(), FileError> {
        self.create_directories(path).map_err(|error| FileError::new("create directory", path, error))
    }

    fn write(&self, path: &str, text: &str) -> Result<(), FileError> {
        self.write_file(path, text.len() as u64).map_err(|error| FileError::new("write", path, error))
    }

    fn remove(&self, path: &str) -> Result<(), FileError> {
        match FakeHost::remove(self, path) {
            Ok(()) | Err(MounterError::NotFound(_)) => Ok(()),
            Err(error) => Err(FileError::new("remove", path, error)),
        }
    }

    fn is_local(&self) -> bool {
        false
    }
}

/// The filesystem of this machine. Kubelet uses it for real mounts and for drivers with their own Node
/// service. The cluster creates the directories for sockets and volume records with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalFiles;

impl Files for LocalFiles {
    fn make_directory(&self, path: &str) -> Result<(), FileError> {
        let result = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path);
        result.map_err(|error| FileError::new("create directory", path, error))
    }

    fn write(&self, path: &str, text: &str) -> Result<(), FileError> {
        // Rename atomically, as for a real kubelet, which cannot unmount a volume with a half-written
        // `vol_data.json`.
        let new = format!("{path}.new");
        let result = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
        result.map_err(|error| FileError::new("write", path, error))
    }

    fn remove(&self, path: &str) -> Result<(), FileError> {
        let result = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => Err(error),
            Ok(found) if found.is_dir() => fs::remove_dir(path),
            Ok(_) => fs::remove_file(path),
        };
        result.map_err(|error| FileError::new("remove", path, error))
    }

    fn is_local(&self) -> bool {
        true
    }
}
