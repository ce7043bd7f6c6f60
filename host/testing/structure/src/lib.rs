//! Reads the structure of the workspace from its sources: dependencies of crates, and references among
//! modules.
#![forbid(unsafe_code)]

pub mod crates;
mod error;
pub mod modules;

use std::path::{Path, PathBuf};

pub use error::StructureError;

/// The root of the repository.
pub fn repository() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(3).unwrap_or(manifest).to_owned()
}
