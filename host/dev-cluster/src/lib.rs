//! The simulated components of `cofferdam dev`: a scheduler, a kubelet per node, and the ephemeral volume
//! controller. Together with Cofferdam's controllers and the embedded API server they provision, attach and
//! mount the volumes of pods as a real cluster does, without containers. Drivers are not simulated: kubelet
//! registers them by their sockets and calls the real Node service. A
//! [`FakeHost`](cofferdam_fake_host::FakeHost) records the mounts, so that no root is needed, unless
//! [`Mounts::Real`] is set or a driver has its own Node service.
#![forbid(unsafe_code)]

mod client;
mod cluster;
mod ephemeral_volume;
pub mod files;
pub mod kinds;
pub mod kubelet;
pub mod scheduler;

pub use cluster::{
    DevCluster, DevClusterOptions, DevError, Mounts, NodeDriver, NodeOptions, NodePlugin, NodesView,
};
pub use kubelet::{RpcError, has_node_service};
