//! The controllers. Each has a folder: `declaration.rs` declares it, `rules.rs` decides without I/O, and
//! `reconcile.rs` performs one effect at a time. [`orphans`] is a part of the provisioner.
//!
//! A rule returns the *next* effect. After the effect the rule decides again, from the cache as it is then.
//! So a process that was killed after any effect, or that raced with another writer, continues from the state
//! in the cluster; there is no other recovery. Some effects depend on the response of a driver call and
//! follow the call before the rule decides again: after CreateVolume, the provisioner creates the
//! PersistentVolume or deletes the volume; after ControllerPublishVolume, the attacher writes the status of
//! the VolumeAttachment; after a failed call, a controller records the failure.
//!
//! A PersistentVolumeClaim for which a volume is provisioned becomes Bound in these steps:
//!
//! 1. [`pv_controller`] finds no matching PersistentVolume. If the driver is node-local, or its provisioner
//!    runs in another process, it writes the annotation `storage-provisioner`. Otherwise the provisioner
//!    evaluates the same rule itself, and `messages::ClaimNeedsVolume` enqueues a claim that lost its volume
//!    to another claim.
//! 2. [`provisioner`] writes an intent to the journal, calls the driver, and creates the PersistentVolume
//!    with the claim's `claimRef`.
//! 3. [`pv_controller`] finds that PersistentVolume, and writes the volume's phase, `volumeName` and the
//!    claim's phase.
//!
//! A new role is a new folder and one line in [`table::CONTROLLERS`].
#![forbid(unsafe_code)]

pub mod attach_detach;
pub mod attacher;
pub mod events;
pub mod manager;
pub mod node_local;
pub mod orphans;
pub mod protection;
pub mod provisioner;
pub mod pv_controller;
pub mod rbac;
pub mod resizer;
pub mod role;
pub mod settings;
pub mod snapshot_controller;
pub mod snapshotter;
pub mod startup_taint;
pub mod table;
pub mod watches;

mod channels;
mod conflicts;
mod context;
mod controller;
mod driver_group;
mod drivers;
mod error;
mod listing;
mod live_reads;
mod messages;
mod reconcile;
mod restore;
mod restore_check;
mod step_recorder;
mod template;
mod volume_locks;

pub use attach_detach::settings::AttachDetachSettings;
pub use attacher::settings::AttacherSettings;
pub use conflicts::StoppedRoles;
pub use controller::Declaration;
pub use driver_group::DriverGroup;
pub use error::ControllerManagerError;
pub use manager::{ControllerManager, Dependencies};
pub use node_local::NodeDeployment;
pub use provisioner::settings::ProvisionerSettings;
pub use resizer::settings::ResizerSettings;
pub use role::Role;
pub use settings::{CallSettings, Settings};
pub use snapshotter::settings::SnapshotSettings;
pub use table::UnknownRole;
