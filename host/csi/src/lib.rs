//! The Container Storage Interface: its messages, existing drivers as backends, and servers that face
//! outward.
//!
//! [`v1`] has CSI 1.12's messages with their clients and servers. A [`CsiBackend`] is a driver that listens
//! on a unix socket: it stands behind the same trait as a component in the sandbox, under the same guards and
//! the same checks, and roles cannot tell the two apart. In the other direction [`server`] has what every
//! server of ours on a unix socket is made of.
#![forbid(unsafe_code)]

mod address;
mod backend;
mod connection;
mod error;
mod grpc;
mod identity;
mod metrics;
pub mod one_shot;
pub mod registration;
mod request;
mod response;
pub mod server;
mod status;
pub mod v1;

pub use address::Address;
pub use backend::{CsiBackend, CsiConfig};
pub use error::ConnectError;
pub use metrics::ConnectionMetrics;
