//! Identities and types of files.

use serde::{Deserialize, Serialize};

/// Identity of a file: device number of its filesystem, and inode. It survives a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    /// Major and minor number of the filesystem.
    pub device: (u32, u32),
    /// Inode number.
    pub inode: u64,
}

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A directory.
    Directory,
    /// A regular file, with its size in bytes.
    File(u64),
    /// A block device, with its major and minor number.
    Device((u32, u32)),
    /// Any other type, such as a symbolic link or a pipe.
    Other,
}
