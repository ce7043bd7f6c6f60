//! `snapshotter`: creates and deletes the snapshots of VolumeSnapshotContents at the driver. Replaces
//! csi-snapshotter. The role `snapshot-controller` creates the contents of VolumeSnapshots. The snapshotter
//! includes the scan for orphaned snapshots.

mod declaration;
mod polls;
pub mod reconcile;
pub mod rules;
pub(crate) mod settings;
mod unlabelled;

pub use declaration::ROLE;

/// `source.component` of the snapshotter's events about a driver. Source: csi-snapshotter.
pub(crate) fn event_component(driver: &cofferdam_domain::DriverName) -> String {
    format!("csi-snapshotter {driver}")
}
