//! `attach-detach`: creates VolumeAttachments for the CSI volumes that pods use on their nodes, deletes them
//! when no pod on the node needs the volume any more and the node has unmounted it, and maintains
//! `status.volumesAttached` of Nodes. `rules` has the exceptions, such as force detaches. Replaces
//! kube-controller-manager's attach-detach controller for CSI volumes.
//!
//! The controller persists no state. It derives the desired state from pods, claims, PersistentVolumes and
//! CSIDrivers, and the actual state from VolumeAttachments and Nodes. All other state, such as timers and
//! requests in flight, is in memory only; see `state`.

mod conflict;
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
