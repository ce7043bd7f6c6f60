//! The cache: one [`ObjectStore`] per kind.

pub mod cache;
mod object_store;
mod own_writes;
mod restore;

pub use cache::{Cache, CachedKind};
pub use object_store::{Change, Lookup, ObjectStore};
pub use own_writes::OwnWrite;
pub use restore::{RestoreDetected, RestoreDetector};
