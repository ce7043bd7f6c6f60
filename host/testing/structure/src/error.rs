//! Errors of reading the source tree.

use std::{io, path::PathBuf};

/// A file or directory of the source tree that cannot be read or parsed, or a `Cargo.toml` without a required
/// key.
#[derive(Debug, thiserror::Error)]
pub enum StructureError {
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A `Cargo.toml` is not valid TOML.
    #[error("cannot parse {}: {source}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: toml::de::Error,
    },
    /// A required key of a `Cargo.toml` is missing or has a value of another type.
    #[error("{} has no {key}", path.display())]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key, such as `package.name`.
        key: &'static str,
    },
    /// A source file is not valid Rust.
    #[error("cannot parse {}: {source}", path.display())]
    Source {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: syn::Error,
    },
}

impl StructureError {
    /// Creates the error of a file or directory that cannot be read.
    pub(crate) fn read(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Read { path, source }
    }
}
