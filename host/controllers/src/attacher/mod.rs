//! `attacher`: attaches volumes to nodes and detaches them, as VolumeAttachments request. Replaces
//! external-attacher.

mod declaration;
mod list_volumes;
pub mod metrics;
pub mod reconcile;
pub mod rules;
pub(crate) mod settings;
mod status;
mod work_queues;

pub use declaration::ROLE;
