//! The cache: one [`ObjectStore`] per kind.

pub mod cache;
mod change;
mod object_store;
mod own_writes;
mod restore;

pub use cache::{Cache, CachedKind};
pub use change::Change;
pub use object_store::{ListedObject, Lookup, ObjectStore, OwnWrite};
pub use restore::{RestoreDetected, RestoreDetector};
