//! Why a driver did not become a backend.

use std::time::Duration;

use cofferdam_domain::{DriverName, storage::StorageError};

use crate::address::Address;

/// A driver that cannot be used. Every message is one line that names the socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody listens, or whoever does speaks something else.
    #[error("{address}: no CSI driver after {elapsed:.1?}: {reason}")]
    Unreachable {
        /// The socket.
        address: Address,
        /// How long it was tried.
        elapsed: Duration,
        /// What the last try met.
        reason: String,
    },
    /// What is there will never be listened on: a file, a directory.
    #[error("{address}: is not a socket; expected the one of a CSI driver, or nothing there yet")]
    NotASocket {
        /// The path.
        address: Address,
    },
    /// The driver says that it is not ready.
    #[error("{address}: the driver is not ready after {elapsed:.1?}: {reason}")]
    NotReady {
        /// The socket.
        address: Address,
        /// How long it was waited for.
        elapsed: Duration,
        /// What it said last.
        reason: String,
    },
    /// The driver refused a question that every driver answers.
    #[error("{address}: {method} failed: {source}")]
    CallFailed {
        /// The socket.
        address: Address,
        /// The call, by its path.
        method: &'static str,
        /// What it answered.
        source: StorageError,
    },
    /// Another driver listens there.
    #[error("{address}: the driver is {found}; expected {expected} (`driver-name`)")]
    WrongDriver {
        /// The socket.
        address: Address,
        /// The driver.
        found: DriverName,
        /// The driver that the operator wants.
        expected: DriverName,
    },
    /// What the driver says of itself cannot be true.
    #[error("{address}: the driver describes itself wrongly: {reason}")]
    InvalidIdentity {
        /// The socket.
        address: Address,
        /// What is wrong with it.
        reason: String,
    },
}
