//! The Container Storage Interface: its messages, and existing drivers as backends.
//!
//! [`v1`] has CSI 1.12's messages with their clients and servers. A [`CsiBackend`] is a driver that listens on a unix socket:
//! it stands behind the same trait as a component in the sandbox, under the same guards and the same checks, and roles cannot
//! tell the two apart.
#![forbid(unsafe_code)]

mod address;
mod answer;
mod backend;
mod connection;
mod error;
mod identity;
mod metrics;
mod request;
mod status;
pub mod v1;
mod wire;

pub use address::Address;
pub use backend::{CsiBackend, CsiConfig};
pub use error::ConnectError;
pub use metrics::ConnectionMetrics;
