//! The node plugin: CSI's Identity and Node services, the kubelet plugin registration, and the client of the
//! liveness probe.
//!
//! A sandboxed driver cannot mount anything. It returns connection info, which describes how a node reaches
//! the volume. This crate connects, formats, mounts and expands the volume under a [`NodePolicy`] that the
//! node's operator wrote and that denies by default. An inline volume has no connection info: it is a tmpfs.
//! Every effect on mounts, devices, files and records is one call of the trait [`Mounter`]. The process may
//! die during or after any of them; a retry of the same CSI call completes it.
#![forbid(unsafe_code)]

mod block_device;
mod connection;
mod connector;
mod driver_client;
mod error;
mod file;
mod filesystem;
mod liveness;
mod locks;
mod manifest;
mod mount_options;
mod mount_point;
mod mounter;
mod network;
mod nfs;
mod node;
mod nvme;
mod onc_rpc;
mod path;
mod policy;
mod rbd;
mod record;
mod registrar;
mod service;

#[cfg(target_os = "linux")]
mod linux;

pub use block_device::{Device, DeviceContent, DeviceInfo, LoopDevice};
pub use connection::{CONTENT_SOURCE, ConnectionKind, InvalidConnection, NodeConnection};
pub use driver_client::{DriverClient, ProbeError};
pub use error::{MounterError, NodeError};
pub use file::{FileId, PathKind};
pub use filesystem::{Filesystem, FilesystemUsage};
#[cfg(all(feature = "fuzzing", target_os = "linux"))]
pub use linux::fuzzing;
#[cfg(target_os = "linux")]
pub use linux::{LinuxMounter, MounterSetupError};
pub use liveness::LivenessProbe;
pub use manifest::{DriverManifest, InvalidManifest, ManifestError, MissingTopologyLabel};
pub use mount_options::{AccessTimes, MountOptions};
pub use mount_point::{MountAttributes, MountPoint};
pub use mounter::{BindSource, Mounter, PathInfo};
pub use network::PortalRuleError;
pub use nfs::{InvalidExport, NfsExport, NfsRule, NfsRuleError, NfsServer, NfsVersion};
pub use node::{ExpandRequest, NodeVolumes, PublishInlineRequest, PublishRequest, StageRequest, VolumeStats};
pub use nvme::{
    ControllerState, InvalidNamespace, NamespaceId, Nqn, NvmeController, NvmeDisk, NvmeHost, NvmeNamespace,
    NvmeRule, NvmeRuleError,
};
pub use path::{KubeletPath, KubeletRootError, KubeletRoots, PathError, RelativePath, RootedPath};
pub use policy::{InlinePolicy, NodePolicy, PatternError, PolicyError, StableIdPattern};
pub use rbd::{CephUser, InvalidImage, InvalidUser, RbdDevice, RbdFields, RbdImage, RbdRule, RbdRuleError};
pub use record::{TargetRecord, VolumeRecord, VolumeRecords};
pub use registrar::{Registrar, RegistrationError, RegistrationState};
pub use service::{NodeIdentity, NodeService};
