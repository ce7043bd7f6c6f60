//! What dev mode simulates of a cluster: a scheduler, a kubelet for each node, and the controller of ephemeral volumes. Together with the
//! roles and the embedded API a claim comes to a pod as in a real cluster, without root and without a container.
//!
//! Drivers are not simulated: kubelet registers them by their sockets, and calls the real Node service. Only the mounts are recorded
//! instead of made, unless they are wanted: see [`dry`].
#![forbid(unsafe_code)]

pub mod dry;
mod ephemeral;
pub mod files;
pub mod kinds;
pub mod kubelet;
mod nodes;
pub mod observer;
pub mod scheduler;
mod world;

pub use kubelet::serves_nodes;
pub use nodes::{DevError, Driver, DriverNode, Mounts, Nodes, Options, View};
pub use observer::{Observer, Silent, Step, StepKind};
