//! The Container Storage Interface (CSI): its messages, existing drivers as backends, and servers.
//!
//! [`v1`] has CSI 1.12's messages, clients and servers. A [`CsiBackend`] is a driver on a unix socket. It
//! implements the same trait as a sandboxed driver (a WebAssembly component), and controllers do not
//! distinguish the two. Responses pass the same checks, but ids and maps may be larger. [`server`] has what
//! all unix socket servers of this program share, and serves a backend of either kind as a CSI driver.
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
mod term_gate;
pub mod v1;

pub use address::{Address, AddressError};
pub use backend::{CsiBackend, CsiConfig};
pub use error::ConnectError;
pub use identity::PROBE_METHOD;
pub use metrics::ConnectionMetrics;
pub use status::go_code_name;
