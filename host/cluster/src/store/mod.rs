//! The cache: one [`ObjectStore`] per kind.

pub mod cache;
mod object_store;
mod restore;

pub use cache::{Cache, CachedKind};
pub use object_store::{Change, Lookup, ObjectStore};
pub use restore::{RestoreDetected, RestoreDetector};
