//! How a call to a driver fails, and what that means to the caller.

use std::time::Duration;

use cofferdam_backend::{Redactor, checks::printable, in_flight::OperationConflict};
use cofferdam_domain::storage::{ErrorKind, Finality, StorageError};
use tonic::Code;

/// Why one exchange with a driver has no answer that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RpcError {
    /// The driver says so.
    Status(Code, String),
    /// The connection broke before the answer was there.
    ConnectionLost(String),
    /// What came back is no answer of gRPC, or too large.
    MalformedResponse(String),
    /// Time ran out.
    DeadlineExceeded(Duration),
}

/// Why a call has no answer that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CsiCallFailure {
    /// The exchange failed.
    Rpc(RpcError),
    /// The driver's answer breaks a rule of CSI.
    ContractViolation(String),
    /// There is no connection; the driver was not asked.
    NotConnected(String),
    /// Time ran out before the driver was asked.
    Overloaded,
    /// Another call for the volume is running, or has an open outcome.
    Conflict(OperationConflict),
}

/// What ResourceExhausted means for a method: the sidecars do not agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResourceExhaustedMeaning {
    /// Nothing was done, as external-provisioner and external-attacher read it.
    Final,
    /// The driver may be at it, as external-resizer and csi-snapshotter read it.
    InDoubt,
}

/// The kind of a gRPC code.
pub(crate) const fn error_kind(code: Code) -> ErrorKind {
    match code {
        Code::InvalidArgument => ErrorKind::InvalidArgument,
        Code::NotFound => ErrorKind::NotFound,
        Code::AlreadyExists => ErrorKind::AlreadyExists,
        Code::PermissionDenied => ErrorKind::PermissionDenied,
        Code::Unauthenticated => ErrorKind::Unauthenticated,
        Code::ResourceExhausted => ErrorKind::ResourceExhausted,
        Code::FailedPrecondition => ErrorKind::FailedPrecondition,
        Code::Aborted => ErrorKind::Aborted,
        Code::OutOfRange => ErrorKind::OutOfRange,
        Code::Unimplemented => ErrorKind::Unimplemented,
        Code::Internal => ErrorKind::Internal,
        Code::Unavailable => ErrorKind::Unavailable,
        Code::DeadlineExceeded => ErrorKind::DeadlineExceeded,
        Code::Cancelled => ErrorKind::Cancelled,
        Code::DataLoss => ErrorKind::DataLoss,
        Code::Ok | Code::Unknown => ErrorKind::Unknown,
    }
}

/// Whether a code that the driver itself sent ends the matter, as the sidecars read it.
pub(crate) const fn finality(code: Code, resource_exhausted: ResourceExhaustedMeaning) -> Finality {
    match (code, resource_exhausted) {
        (Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable, _)
        | (Code::ResourceExhausted, ResourceExhaustedMeaning::InDoubt) => Finality::Unknown,
        // Another call for the same object is at work.
        (Code::Aborted, _) => Finality::InProgress,
        (
            Code::Ok
            | Code::Unknown
            | Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Internal
            | Code::DataLoss
            | Code::Unauthenticated,
            _,
        ) => Finality::Final,
    }
}

impl CsiCallFailure {
    /// What the caller hears. Only the driver's own word can be final.
    pub(crate) fn into_error(
        self,
        resource_exhausted: ResourceExhaustedMeaning,
        redactor: &Redactor,
    ) -> StorageError {
        let redacted = |text: &str| printable(&redactor.redact_escaped(text));
        let unknown = StorageError::unknown_outcome;
        match self {
            Self::Rpc(RpcError::Status(code, message)) => StorageError {
                kind: error_kind(code),
                message: match redacted(&message) {
                    blank if blank.trim().is_empty() => "the driver gives no reason".to_owned(),
                    message => message,
                },
                retry_after_ms: None,
                finality: finality(code, resource_exhausted),
            },
            Self::Rpc(RpcError::ConnectionLost(reason)) => unknown(
                ErrorKind::Unavailable,
                format!("the connection to the driver broke before its answer: {}", redacted(&reason)),
            ),
            Self::Rpc(RpcError::MalformedResponse(reason)) => unknown(
                ErrorKind::Internal,
                format!("the driver's answer cannot be read: {}", redacted(&reason)),
            ),
            Self::Rpc(RpcError::DeadlineExceeded(deadline)) => unknown(
                ErrorKind::DeadlineExceeded,
                format!("the driver has not answered within {deadline:?}"),
            ),
            Self::ContractViolation(reason) => unknown(
                ErrorKind::Internal,
                format!("the driver's answer breaks the rules of CSI: {}", redacted(&reason)),
            ),
            Self::NotConnected(reason) => unknown(
                ErrorKind::Unavailable,
                format!("the driver cannot be reached: {}", redacted(&reason)),
            ),
            Self::Overloaded => unknown(
                ErrorKind::Unavailable,
                "too many calls of the driver are waiting: time ran out before its turn".to_owned(),
            ),
            Self::Conflict(refusal) => refusal.into_error(),
        }
    }

    /// Name in metrics.
    pub(crate) const fn label(&self) -> &'static str {
        match self {
            Self::Rpc(RpcError::Status(..)) => "error",
            Self::Rpc(RpcError::ConnectionLost(_)) => "broken",
            Self::Rpc(RpcError::MalformedResponse(_)) | Self::ContractViolation(_) => "untrue",
            Self::Rpc(RpcError::DeadlineExceeded(_)) => "deadline",
            Self::NotConnected(_) => "unconnected",
            Self::Overloaded => "overloaded",
            Self::Conflict(refusal) => refusal.label(),
        }
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
