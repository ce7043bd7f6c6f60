//! The node: what kubelet asks of a driver on its own machine.
//!
//! A driver in the sandbox never touches a node. It returns an attachment, which says how a node reaches the
//! volume; this crate executes it, under a [`Policy`] that the node's operator wrote and that denies what it
//! does not name. Everything that is done goes through one port, [`Machine`], one effect at a time: the
//! process may die after any of them, and the same call again goes on with what is missing.
#![forbid(unsafe_code)]

mod attachment;
mod client;
mod error;
mod executor;
mod machine;
mod manifest;
mod node;
mod options;
mod path;
mod policy;
mod record;
mod registrar;
mod service;

#[cfg(target_os = "linux")]
mod linux;

pub use attachment::{Attachment, CONTENT_SOURCE};
pub use client::{Driver, ProbeError};
pub use error::{MachineError, NodeError};
#[cfg(target_os = "linux")]
pub use linux::Linux;
pub use machine::{
    Attributes, Content, Device, DeviceFacts, FileId, Filesystem, Found, FoundKind, LoopDevice, Machine,
    Mount, Source, Usage,
};
pub use manifest::{Manifest, ManifestError};
pub use node::{Expand, Health, Node, Publish, PublishInline, Stage, Statistics};
pub use options::{AccessTimes, MountOptions};
pub use path::{Beneath, Place, RelativePath, Roots};
pub use policy::{InlinePolicy, Kind, Pattern, Policy};
pub use record::{Target, VolumeRecord, VolumeRecords};
pub use registrar::{Registrar, Registration};
pub use service::{NodeService, Whereabouts};
