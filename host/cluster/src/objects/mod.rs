//! Kubernetes kinds: keys, decoding, and the fields that the controllers use.

mod claim;
mod claim_progress;
mod csi_driver;
mod csi_node;
pub mod decode;
mod error;
mod fields;
mod key;
mod kind;
pub mod managed_fields;
mod meta;
mod node;
pub mod orphan_report;
mod pod;
pub mod restore_marker;
mod storage_class;
mod strings;
mod volume;
mod volume_attachment;
mod volume_attributes_class;
mod volume_snapshot;

pub use decode::{DecodeResult, UndecodableObject};
pub use error::DecodeError;
pub use key::ObjectKey;
pub use kind::Kind;
