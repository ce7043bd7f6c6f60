//! Conversion of backend errors to gRPC statuses.

use std::time::Duration;

use cofferdam_domain::storage::{ErrorKind, Finality, StorageError};
use tonic::{Code, Status};

/// The access of a call. Only a write can leave a result in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallAccess {
    /// The call changes state.
    Write,
    /// The call reads state.
    Read,
}

/// Returns the gRPC code of an error kind.
const fn grpc_code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::InvalidArgument => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::AlreadyExists => Code::AlreadyExists,
        ErrorKind::PermissionDenied => Code::PermissionDenied,
        ErrorKind::Unauthenticated => Code::Unauthenticated,
        ErrorKind::ResourceExhausted => Code::ResourceExhausted,
        ErrorKind::FailedPrecondition => Code::FailedPrecondition,
        ErrorKind::Aborted => Code::Aborted,
        ErrorKind::OutOfRange => Code::OutOfRange,
        ErrorKind::Unimplemented => Code::Unimplemented,
        ErrorKind::Internal => Code::Internal,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::DeadlineExceeded => Code::DeadlineExceeded,
        ErrorKind::Cancelled => Code::Cancelled,
        ErrorKind::DataLoss => Code::DataLoss,
        ErrorKind::Unknown => Code::Unknown,
    }
}

/// Returns true if callers treat a code as final, as the sidecars and kubelet do.
const fn is_final(code: Code) -> bool {
    !matches!(code, Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted)
}

/// Converts an error. CSI encodes finality only in the code. The error of a write in doubt must not have a
/// final code, or the caller would assume that the call had no effect.
pub(super) fn to_status(error: StorageError, access: CallAccess) -> Status {
    let own_code = grpc_code(error.kind);
    let code = match (access, error.finality) {
        (CallAccess::Read, _) | (CallAccess::Write, Finality::Final) => own_code,
        (CallAccess::Write, _) if !is_final(own_code) => own_code,
        (CallAccess::Write, Finality::InProgress) => Code::Aborted,
        (CallAccess::Write, Finality::Unknown) => Code::Unavailable,
    };
    let mut message = match error.message.trim() {
        "" => "the driver gave no reason".to_owned(),
        _ => error.message,
    };
    if code != own_code {
        message = format!("{}: {message}; it may still take effect: retry the call", error.kind);
    }
    if let Some(retry_after_ms) = error.retry_after_ms {
        message =
            format!("{message}; the driver asks to retry after {:?}", Duration::from_millis(retry_after_ms));
    }
    Status::new(code, message)
}

/// Converts the result of a write.
pub(super) fn write_result<T>(result: Result<T, StorageError>) -> Result<T, Status> {
    result.map_err(|error| to_status(error, CallAccess::Write))
}

/// Converts the result of a read.
pub(super) fn read_result<T>(result: Result<T, StorageError>) -> Result<T, Status> {
    result.map_err(|error| to_status(error, CallAccess::Read))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{ResourceExhaustedMeaning, error_kind, finality};

    const KINDS: [ErrorKind; 16] = [
        ErrorKind::InvalidArgument,
        ErrorKind::NotFound,
        ErrorKind::AlreadyExists,
        ErrorKind::PermissionDenied,
        ErrorKind::Unauthenticated,
        ErrorKind::ResourceExhausted,
        ErrorKind::FailedPrecondition,
        ErrorKind::Aborted,
        ErrorKind::OutOfRange,
        ErrorKind::Unimplemented,
        ErrorKind::Internal,
        ErrorKind::Unavailable,
        ErrorKind::DeadlineExceeded,
        ErrorKind::Cancelled,
        ErrorKind::DataLoss,
        ErrorKind::Unknown,
    ];

    fn error(kind: ErrorKind, finality: Finality) -> StorageError {
        StorageError { kind, message: "m".to_owned(), retry_after_ms: None, finality }
    }

    #[test]
    fn failures_in_doubt_never_map_to_a_final_code() {
        for kind_sent in KINDS {
            for finality_sent in [Finality::InProgress, Finality::Unknown] {
                let grpc_status = to_status(error(kind_sent, finality_sent), CallAccess::Write);
                // This program's client interprets codes as the sidecars do.
                assert_ne!(
                    finality(grpc_status.code(), ResourceExhaustedMeaning::Final),
                    Finality::Final,
                    "{kind_sent} {finality_sent:?}"
                );
                assert!(grpc_status.details().is_empty() && !grpc_status.message().is_empty());
                assert_eq!(
                    error_kind(to_status(error(kind_sent, finality_sent), CallAccess::Read).code()),
                    kind_sent
                );
            }
            assert_eq!(
                error_kind(to_status(error(kind_sent, Finality::Final), CallAccess::Write).code()),
                kind_sent
            );
        }
    }

    #[test]
    fn status_message_is_never_empty_and_names_retry_after() {
        let without_message =
            StorageError { message: " ".to_owned(), ..error(ErrorKind::NotFound, Finality::Final) };
        assert_eq!(to_status(without_message, CallAccess::Write).message(), "the driver gave no reason");
        let with_retry_after =
            StorageError { retry_after_ms: Some(1_500), ..error(ErrorKind::Internal, Finality::Unknown) };
        let grpc_status = to_status(with_retry_after, CallAccess::Write);
        assert_eq!(grpc_status.code(), Code::Unavailable);
        assert_eq!(
            grpc_status.message(),
            "Internal: m; it may still take effect: retry the call; the driver asks to retry after 1.5s"
        );
    }
}
