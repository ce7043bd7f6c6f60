//! Errors of the connection to a driver.

use std::{sync::Arc, time::Duration};

use cofferdam_domain::{DriverName, storage::StorageError};

use crate::address::Address;

/// A call to a driver that is not connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct NotConnected {
    /// The reason for which the last connection was lost or the last attempt to connect failed.
    pub(crate) reason: Arc<str>,
}

/// A driver that cannot be used. The text is one line and names the socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No connection lasted until the driver was identified: the socket does not exist, the connection was
    /// refused or lost, the server does not speak HTTP/2, or NodeGetCapabilities failed temporarily. Attempts
    /// were repeated until the timeout.
    #[error("{address}: no CSI driver after {elapsed:.1?}: {reason}")]
    Unreachable {
        /// The socket's address.
        address: Address,
        /// The time since the first attempt.
        elapsed: Duration,
        /// The error of the last attempt.
        reason: String,
    },
    /// The path exists and is not a socket.
    #[error("{address}: is not a socket; expected the socket of a CSI driver, or no file")]
    NotASocket {
        /// The path.
        address: Address,
    },
    /// The driver was not ready before the timeout.
    #[error("{address}: the driver is not ready after {elapsed:.1?}: {reason}")]
    NotReady {
        /// The socket's address.
        address: Address,
        /// The time since the first attempt to connect.
        elapsed: Duration,
        /// The result of the last Probe: false, or a timeout.
        reason: String,
    },
    /// Probe, GetPluginInfo, or a call for the capabilities of the plugin, controller service or group
    /// controller service failed: the driver returned an error or a malformed response, or the call timed
    /// out. A timeout of Probe is [`NotReady`](Self::NotReady).
    #[error("{address}: {method} failed: {source}")]
    CallFailed {
        /// The socket's address.
        address: Address,
        /// The gRPC path of the call.
        method: &'static str,
        /// The driver's error, or a description of the malformed response or the timeout.
        source: StorageError,
    },
    /// Another driver listens on the socket.
    #[error("{address}: the driver is {found}; expected {expected} (`driver-name`)")]
    WrongDriver {
        /// The socket's address.
        address: Address,
        /// The driver's name.
        found: DriverName,
        /// The configured name.
        expected: DriverName,
    },
    /// The name or the version that GetPluginInfo returned is invalid.
    #[error("{address}: the driver's description is invalid: {reason}")]
    InvalidIdentity {
        /// The socket's address.
        address: Address,
        /// The violated rule.
        reason: String,
    },
}
