//! `snapshotter`: creates and deletes the snapshots of VolumeSnapshotContents at the driver. Replaces
//! csi-snapshotter. The role `snapshot-controller` creates the contents of VolumeSnapshots.

mod declaration;
mod polls;
pub mod reconcile;
pub mod rules;
pub(crate) mod settings;

pub use declaration::ROLE;
