//! `attacher`: makes volumes reachable from nodes, and unreachable again, as VolumeAttachments ask. Takes the
//! place of external-attacher.

mod list_volumes;
pub mod metrics;
pub mod reconcile;
pub mod rules;
mod status;
mod work_queues;
