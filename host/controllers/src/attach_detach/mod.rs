//! `attach-detach`: makes VolumeAttachments for what pods use on their nodes, takes them back when it is used
//! no more, and tells nodes what is attached to them. Takes the place of kube-controller-manager's
//! attach-detach controller for CSI volumes.
//!
//! There is no world of its own beside the cluster's: what is wanted follows from pods, claims and volumes,
//! what is there from the VolumeAttachments and the Nodes. So a process that starts has nothing to
//! reconstruct.

mod desired_state;
mod input;
pub mod metrics;
pub mod reconcile;
pub mod rules;
mod state;
mod throttle;
