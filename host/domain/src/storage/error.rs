//! How a call to a backend fails.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Closed kind of a failed call: the gRPC codes that CSI uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The arguments can never succeed.
    InvalidArgument,
    /// The volume does not exist.
    NotFound,
    /// The name exists with other arguments.
    AlreadyExists,
    /// The driver lacks a right.
    PermissionDenied,
    /// The driver's credentials were refused.
    Unauthenticated,
    /// No space, no quota, too many.
    ResourceExhausted,
    /// The volume is in a state that forbids the call.
    FailedPrecondition,
    /// Another call for the volume is running.
    Aborted,
    /// A size outside what the driver offers.
    OutOfRange,
    /// The driver does not have the function.
    Unimplemented,
    /// A bug in the driver or the array.
    Internal,
    /// The array cannot be reached now.
    Unavailable,
    /// The deadline passed first.
    DeadlineExceeded,
    /// The call was cancelled.
    Cancelled,
    /// Data is gone.
    DataLoss,
    /// Anything else.
    Unknown,
}

impl ErrorKind {
    /// Whether a failure of this kind tells of the try and not of the volume: it says nothing about what an
    /// earlier try has done, however sure the driver is that this one did nothing.
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

    /// The gRPC code's number, as `errorCode` of a VolumeAttachment has it.
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

    /// The gRPC code's name, as the sidecars' metric label `grpc_status_code` spells it.
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

/// Whether a failed call may still have an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Finality {
    /// Nothing happened and nothing will.
    Final,
    /// It may still complete: the same call again tells.
    InProgress,
    /// Nobody knows.
    Unknown,
}

/// A failed call to a backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct StorageError {
    /// Closed kind.
    pub kind: ErrorKind,
    /// For people.
    pub message: String,
    /// The backend's wish for the next try, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// Whether the call may still have an effect.
    pub finality: Finality,
}

impl StorageError {
    /// A failure after which nothing happened and nothing will.
    pub fn final_outcome(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after_ms: None, finality: Finality::Final }
    }

    /// A failure whose outcome nobody knows.
    pub fn unknown_outcome(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after_ms: None, finality: Finality::Unknown }
    }
}
