//! The node: what kubelet asks of a driver on its own machine.
//!
//! A driver in the sandbox never touches a node. It returns an attachment, which says how a node reaches the
//! volume; this crate executes it, under a [`Policy`] that the node's operator wrote and that denies what it
//! does not name. Everything that is done goes through one port, [`Machine`], one effect at a time: the
//! process may die after any of them, and the same call again goes on with what is missing.
#![forbid(unsafe_code)]

mod connection;
mod connector;
mod driver_client;
mod error;
mod manifest;
mod mount_options;
mod mounter;
mod node;
mod path;
mod policy;
mod record;
mod registrar;
mod service;

#[cfg(target_os = "linux")]
mod linux;

pub use connection::{CONTENT_SOURCE, NodeConnection};
pub use driver_client::{DriverClient, ProbeError};
pub use error::{MounterError, NodeError};
#[cfg(target_os = "linux")]
pub use linux::LinuxMounter;
pub use manifest::{DriverManifest, ManifestError};
pub use mount_options::{AccessTimes, MountOptions};
pub use mounter::{
    BindSource, Device, DeviceContent, DeviceInfo, FileId, Filesystem, FilesystemUsage, LoopDevice,
    MountAttributes, MountPoint, Mounter, PathInfo, PathKind,
};
pub use node::{
    ExpandRequest, NodeVolumeCondition, NodeVolumes, PublishInlineRequest, PublishRequest, StageRequest,
    VolumeStats,
};
pub use path::{KubeletPath, KubeletRoots, RelativePath, RootedPath};
pub use policy::{ConnectionKind, InlinePolicy, NodePolicy, StableIdPattern};
pub use record::{TargetRecord, VolumeRecord, VolumeRecords};
pub use registrar::{Registrar, RegistrationState};
pub use service::{NodeIdentity, NodeService};
