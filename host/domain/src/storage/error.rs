//! Errors of driver calls.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The gRPC status code of a failed call. The driver returned it, or the host (this program) reports an error
/// of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The arguments are invalid.
    InvalidArgument,
    /// The object of the call, or one that the request names, such as a node or a source, does not exist.
    NotFound,
    /// The name exists with different arguments, or the volume is already published to the node with a
    /// different capability.
    AlreadyExists,
    /// The driver lacks a permission.
    PermissionDenied,
    /// The driver's credentials were rejected.
    Unauthenticated,
    /// No space or quota left.
    ResourceExhausted,
    /// The state of the volume or snapshot does not allow the call.
    FailedPrecondition,
    /// Another call for the same object is in progress, or its result is unknown. In a listing: the page
    /// token is invalid.
    Aborted,
    /// The size is outside the supported range.
    OutOfRange,
    /// The driver does not implement the call.
    Unimplemented,
    /// The driver, the storage system or the host has a bug; the driver's response breaks the contract; or a
    /// WebAssembly component traps, exits or exceeds a limit of the host.
    Internal,
    /// The storage system or the driver is unreachable; or the host does not make the call, because too many
    /// calls are waiting, no instance slot became free, or the component failed too often.
    Unavailable,
    /// The deadline passed.
    DeadlineExceeded,
    /// The call was cancelled.
    Cancelled,
    /// Data was lost.
    DataLoss,
    /// Any other error.
    Unknown,
}

impl ErrorKind {
    /// Returns `true` if the error is about the attempt and not about the volume. Such an error does not
    /// reveal the result of an earlier attempt, even if this attempt had no effect.
    pub const fn is_inconclusive(self) -> bool {
        match self {
            Self::Unauthenticated
            | Self::PermissionDenied
            | Self::Aborted
            | Self::Internal
            | Self::Unavailable
            | Self::DeadlineExceeded
            | Self::Cancelled
            | Self::Unknown => true,
            Self::InvalidArgument
            | Self::NotFound
            | Self::AlreadyExists
            | Self::ResourceExhausted
            | Self::FailedPrecondition
            | Self::OutOfRange
            | Self::Unimplemented
            | Self::DataLoss => false,
        }
    }

    /// Number of the gRPC code, as in `errorCode` of a VolumeAttachment.
    pub const fn grpc_code(self) -> i32 {
        match self {
            Self::Cancelled => 1,
            Self::Unknown => 2,
            Self::InvalidArgument => 3,
            Self::DeadlineExceeded => 4,
            Self::NotFound => 5,
            Self::AlreadyExists => 6,
            Self::PermissionDenied => 7,
            Self::ResourceExhausted => 8,
            Self::FailedPrecondition => 9,
            Self::Aborted => 10,
            Self::OutOfRange => 11,
            Self::Unimplemented => 12,
            Self::Internal => 13,
            Self::Unavailable => 14,
            Self::DataLoss => 15,
            Self::Unauthenticated => 16,
        }
    }

    /// Name of the gRPC code, as in the sidecars' metric label `grpc_status_code`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "InvalidArgument",
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::PermissionDenied => "PermissionDenied",
            Self::Unauthenticated => "Unauthenticated",
            Self::ResourceExhausted => "ResourceExhausted",
            Self::FailedPrecondition => "FailedPrecondition",
            Self::Aborted => "Aborted",
            Self::OutOfRange => "OutOfRange",
            Self::Unimplemented => "Unimplemented",
            Self::Internal => "Internal",
            Self::Unavailable => "Unavailable",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::Cancelled => "Canceled",
            Self::DataLoss => "DataLoss",
            Self::Unknown => "Unknown",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The possible effect of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Finality {
    /// The call has ended and has no further effect. If the driver itself returned the error, the call had no
    /// effect at all.
    Final,
    /// The call, or an earlier one that blocks it, may still complete. A repeated call returns the result.
    InProgress,
    /// The effect is unknown.
    Unknown,
}

/// A failed driver call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct StorageError {
    /// gRPC status code.
    pub kind: ErrorKind,
    /// Description of the error.
    pub message: String,
    /// Requested delay before a retry, in milliseconds; `None` leaves the delay to the caller.
    pub retry_after_ms: Option<u64>,
    /// The possible effect of the call.
    pub finality: Finality,
}

impl StorageError {
    /// An error with [`Finality::Final`], for a call that will have no further effect.
    pub fn with_known_effect(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after_ms: None, finality: Finality::Final }
    }

    /// An error with [`Finality::Unknown`].
    pub fn with_unknown_effect(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after_ms: None, finality: Finality::Unknown }
    }
}
