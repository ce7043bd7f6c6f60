//! Errors when the mounter is opened.

use std::path::PathBuf;

/// An error of [`LinuxMounter::open`](super::LinuxMounter::open).
#[derive(Debug, thiserror::Error)]
pub enum MounterSetupError {
    /// Tools that the policy needs are in none of the searched directories.
    #[error(
        "the policy needs programs that are not in {}: {}",
        directories.join(", "),
        tools.join(", ")
    )]
    MissingTools {
        /// The names of the missing tools.
        tools: Vec<&'static str>,
        /// The searched directories.
        directories: &'static [&'static str],
    },
    /// The record directory cannot be created or opened.
    #[error("cannot open the record directory {}: {source}", path.display())]
    Records {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The record directory cannot be locked, usually because another process has locked it.
    #[error("the record directory {} is locked by another process", path.display())]
    RecordsLocked {
        /// The directory.
        path: PathBuf,
    },
}
