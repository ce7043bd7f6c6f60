//! `attacher`: makes volumes reachable from nodes, and unreachable again, as VolumeAttachments ask. Takes the place of
//! external-attacher.

mod compare;
mod lanes;
pub mod metrics;
mod object;
pub mod reconcile;
pub mod rules;
mod turns;
