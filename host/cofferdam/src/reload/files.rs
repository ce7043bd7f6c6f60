//! Versions of files, to notice changes.

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Device, inode, size, and times of the last change of the content and of the inode, in nanoseconds.
pub(super) type FileVersion = (u64, u64, u64, (i64, i64), (i64, i64));

/// Versions of files; `None` for a file that cannot be read.
pub(super) type FileVersions = BTreeMap<PathBuf, Option<FileVersion>>;

/// The version of a file; `None` if it cannot be read.
pub(super) fn file_version(path: &Path) -> Option<FileVersion> {
    let metadata = std::fs::metadata(path).ok()?;
    let modified = (metadata.mtime(), metadata.mtime_nsec());
    let changed = (metadata.ctime(), metadata.ctime_nsec());
    Some((metadata.dev(), metadata.ino(), metadata.size(), modified, changed))
}
