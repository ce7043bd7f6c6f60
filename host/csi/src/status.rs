//! Failures of calls to a driver, and the errors that callers receive.

use std::time::Duration;

use cofferdam_backend::{ContractViolation, Overloaded, Redactor, in_flight::OperationConflict};
use cofferdam_domain::{
    storage::{ErrorKind, Finality, StorageError},
    term::TermEnded,
    text::DurationText,
};
use tonic::Code;

/// Reason a gRPC exchange has no usable response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RpcError {
    /// The driver returned an error status: its code and message.
    Status(Code, String),
    /// The connection was lost before the response was complete, or the response ended without a status.
    ConnectionLost(String),
    /// The response is not valid gRPC, for example an HTTP error, or is too large; the text is the reason.
    MalformedResponse(String),
    /// The deadline passed before the response. The duration is the time that was left when the call was
    /// sent.
    DeadlineExceeded(Duration),
}

/// Reason a call has no usable response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CsiCallFailure {
    /// The exchange failed.
    Rpc(RpcError),
    /// The driver's response breaks a rule of CSI.
    ContractViolation(ContractViolation),
    /// There is no connection; the driver was not reached.
    NotConnected(String),
    /// The deadline passed before the driver was reached.
    Overloaded,
    /// This process does not lead: the request was not sent.
    TermEnded,
    /// Another operation on the same object is in progress or in doubt.
    Conflict(OperationConflict),
}

/// Meaning of ResourceExhausted for a method; the sidecars differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResourceExhaustedMeaning {
    /// The driver did nothing: the reading of external-provisioner and external-attacher.
    Final,
    /// The driver may still be working: the reading of external-resizer and csi-snapshotter.
    InDoubt,
}

/// The error kind of a gRPC code.
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

/// Returns Go's name of a code, as in the sidecars' metrics.
pub const fn go_code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled
        | Code::Unknown
        | Code::InvalidArgument
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss
        | Code::Unauthenticated => error_kind(code).as_str(),
    }
}

/// Finality of a code that the driver itself sent, as in the sidecars.
pub(crate) const fn finality(code: Code, resource_exhausted: ResourceExhaustedMeaning) -> Finality {
    match (code, resource_exhausted) {
        (Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable, _)
        | (Code::ResourceExhausted, ResourceExhaustedMeaning::InDoubt) => Finality::Unknown,
        // Another call for the same object is in progress.
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

impl From<OperationConflict> for CsiCallFailure {
    fn from(conflict: OperationConflict) -> Self {
        Self::Conflict(conflict)
    }
}

impl From<TermEnded> for CsiCallFailure {
    fn from(_: TermEnded) -> Self {
        Self::TermEnded
    }
}

impl From<Overloaded> for CsiCallFailure {
    fn from(_: Overloaded) -> Self {
        Self::Overloaded
    }
}

impl From<ContractViolation> for CsiCallFailure {
    fn from(violation: ContractViolation) -> Self {
        Self::ContractViolation(violation)
    }
}

impl CsiCallFailure {
    /// The error that the caller receives. Only a status of the driver can be final.
    pub(crate) fn into_error(
        self,
        resource_exhausted: ResourceExhaustedMeaning,
        redactor: &Redactor,
    ) -> StorageError {
        let redacted = |text: &str| redactor.printable(text);
        let unknown = StorageError::with_unknown_effect;
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
                format!("the connection to the driver was lost before its response: {}", redacted(&reason)),
            ),
            Self::Rpc(RpcError::MalformedResponse(reason)) => unknown(
                ErrorKind::Internal,
                format!("the driver's response cannot be decoded: {}", redacted(&reason)),
            ),
            Self::Rpc(RpcError::DeadlineExceeded(deadline)) => unknown(
                ErrorKind::DeadlineExceeded,
                format!("the driver did not respond within {}", DurationText(deadline)),
            ),
            Self::ContractViolation(violation) => unknown(
                ErrorKind::Internal,
                format!(
                    "the driver's response breaks the rules of CSI: {}",
                    redacted(&violation.to_string())
                ),
            ),
            Self::NotConnected(reason) => unknown(
                ErrorKind::Unavailable,
                format!("the driver cannot be reached: {}", redacted(&reason)),
            ),
            Self::TermEnded => unknown(ErrorKind::Unavailable, TermEnded.to_string()),
            Self::Overloaded => unknown(
                ErrorKind::Unavailable,
                "too many calls of the driver are waiting: the deadline passed before this one started"
                    .to_owned(),
            ),
            Self::Conflict(conflict) => conflict.into_error(),
        }
    }

    /// The label `outcome` in metrics.
    pub(crate) const fn label(&self) -> &'static str {
        match self {
            Self::Rpc(RpcError::Status(..)) => "error",
            Self::Rpc(RpcError::ConnectionLost(_)) => "connection-lost",
            Self::Rpc(RpcError::MalformedResponse(_)) | Self::ContractViolation(_) => "contract-violation",
            Self::Rpc(RpcError::DeadlineExceeded(_)) => "deadline",
            Self::NotConnected(_) => "not-connected",
            Self::TermEnded => "term-ended",
            Self::Overloaded => "overloaded",
            Self::Conflict(conflict) => conflict.label(),
        }
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
