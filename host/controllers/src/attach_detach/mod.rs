//! `attach-detach`: creates VolumeAttachments for the volumes that pods use on their nodes, deletes them when
//! no pod uses the volume any more, and maintains `status.volumesAttached` of Nodes. Replaces
//! kube-controller-manager's attach-detach controller for CSI volumes.
//!
//! The controller persists no state. It derives the desired state from pods, claims and PersistentVolumes,
//! and the actual state from VolumeAttachments and Nodes. Timers and updates in flight are in memory only;
//! see `state`.

mod declaration;
mod desired_state;
mod input;
pub mod metrics;
pub mod reconcile;
pub mod rules;
pub(crate) mod settings;
mod state;
mod throttle;

pub use declaration::ROLE;
