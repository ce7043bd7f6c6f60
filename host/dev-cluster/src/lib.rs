//! What dev mode simulates of a cluster: a scheduler, a kubelet for each node, and the controller of
//! ephemeral volumes. Together with the roles and the embedded API a claim comes to a pod as in a real
//! cluster, without root and without a container.
//!
//! Drivers are not simulated: kubelet registers them by their sockets, and calls the real Node service. Only
//! the mounts are recorded instead of made, unless they are wanted: see [`dry`].
#![forbid(unsafe_code)]

mod client;
mod cluster;
mod ephemeral_volume;
pub mod fake_host;
pub mod files;
pub mod kinds;
pub mod kubelet;
pub mod observer;
pub mod scheduler;

pub use cluster::{DevCluster, DevClusterOptions, DevError, Mounts, NodeDriver, NodePlugin, NodesView};
pub use kubelet::has_node_service;
pub use observer::{ClusterStep, ClusterStepObserver, ClusterStepResult, NoopClusterStepObserver};
