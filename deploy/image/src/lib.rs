//! Writes container images as an [OCI image layout], without a daemon or a registry.
//!
//! [`assemble()`] makes the images of a release: the program, the libraries that it needs, and for nodes the
//! tools that it runs, out of pinned Debian packages. [`ReleaseLayers`] makes several versions. [`Layout`] writes any image from layers, and
//! [`FileTree::read_directory`] makes a layer's files from a directory.
//!
//! The same input gives the same bytes: entries are sorted, and owner, modes and times do not come from the
//! machine.
//!
//! [OCI image layout]: https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md
#![forbid(unsafe_code)]

mod assemble;
mod compare;
mod debian;
mod elf;
mod error;
mod layer;
mod libraries;
mod oci;
mod pins;
mod report;
mod sbom;
mod tree;

pub use assemble::{CrateList, Packages, Release, ReleaseLayers, SIDECARS, assemble};
pub use compare::compare;
pub use debian::{Package, PackageCache, pin};
pub use elf::Architecture;
pub use error::ImageError;
pub use layer::Layer;
pub use oci::{Image, Layout, write_archive};
pub use pins::{PinnedPackage, Pins};
pub use report::{LayerReport, PartReport, Report};
pub use tree::{Entry, FileTree};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, ImageError>;

/// The SHA-256 of `data`, in lower-case hexadecimal digits.
pub(crate) fn sha256(data: &[u8]) -> String {
    use sha2::{Digest as _, Sha256};
    format!("{:x}", Sha256::digest(data))
}
