//! Directories and images that the node's operator configured.

use std::{fs, io, os::unix::fs::MetadataExt as _, time::SystemTime};

use cofferdam_node::{FileId, MounterError, PathKind, RootedPath};

/// A directory or an image that the node's operator provides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperatorFile {
    pub(crate) id: FileId,
    pub(crate) kind: PathKind,
    /// Creation time; None if the filesystem does not store it, and for a file that was added to the fake
    /// host.
    pub(crate) created_at: Option<SystemTime>,
}

impl OperatorFile {
    /// Reads the metadata of a directory or an image on the real machine, which the fake host never modifies.
    pub(crate) fn on_this_machine(path: &RootedPath) -> Result<Self, MounterError> {
        let path = path.to_string();
        let metadata = fs::symlink_metadata(&path).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                MounterError::NotFound(format!("{path} does not exist"))
            } else {
                MounterError::Failed(format!("cannot read metadata of {path}: {error}"))
            }
        })?;
        let kind = if metadata.is_dir() {
            PathKind::Directory
        } else if metadata.is_file() {
            PathKind::File(metadata.len())
        } else {
            PathKind::Other
        };
        Ok(Self { id: file_id(&metadata), kind, created_at: metadata.created().ok() })
    }
}

fn file_id(metadata: &fs::Metadata) -> FileId {
    let number = metadata.dev();
    let low_bits = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default();
    FileId { device: (low_bits(number >> 32), low_bits(number)), inode: metadata.ino() }
}
