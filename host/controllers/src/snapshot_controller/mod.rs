//! `snapshot-controller`: binds VolumeSnapshots to VolumeSnapshotContents, creates the contents of new
//! VolumeSnapshots, and copies their status. Replaces external-snapshotter's snapshot-controller. The role
//! `snapshotter` calls the driver.

mod conflict;
mod content;
mod declaration;
mod managing_node;
mod metrics;
pub mod reconcile;
pub mod rules;
pub mod secret_references;
mod status;

pub use declaration::{LEASE_NAME, ROLE};
pub(crate) use status::{error_now, error_value};
