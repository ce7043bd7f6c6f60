//! A backend's failure as a gRPC status.

use std::time::Duration;

use cofferdam_domain::storage::{ErrorKind, Finality, StorageError};
use tonic::{Code, Status};

/// What a call does: only what changes something can leave something open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It changes something.
    Changes,
    /// It looks.
    Reads,
}

/// The gRPC code of a kind.
const fn code(kind: ErrorKind) -> Code {
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

/// Whether callers take a code for the end of the matter, as the sidecars and kubelet do.
const fn is_final(code: Code) -> bool {
    !matches!(code, Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted)
}

/// What the caller hears. CSI has no word for finality beside the code: a failure that may still have an
/// effect must not travel under a code that ends the matter, or its volume would be forgotten.
pub(super) fn status(error: StorageError, effect: Effect) -> Status {
    let own = code(error.kind);
    let code = match (effect, error.finality) {
        (Effect::Reads, _) | (Effect::Changes, Finality::Final) => own,
        (Effect::Changes, _) if !is_final(own) => own,
        (Effect::Changes, Finality::InProgress) => Code::Aborted,
        (Effect::Changes, Finality::Unknown) => Code::Unavailable,
    };
    let mut message = match error.message.trim() {
        "" => "the driver gives no reason".to_owned(),
        _ => error.message,
    };
    if code != own {
        message = format!("{}: {message}; it may still have an effect: repeat the call", error.kind);
    }
    if let Some(pause) = error.retry_after_ms {
        message = format!("{message}; the driver asks for a pause of {:?}", Duration::from_millis(pause));
    }
    Status::new(code, message)
}

/// The answer of a call that changes something.
pub(super) fn changed<T>(answer: Result<T, StorageError>) -> Result<T, Status> {
    answer.map_err(|error| status(error, Effect::Changes))
}

/// The answer of a call that looks.
pub(super) fn read<T>(answer: Result<T, StorageError>) -> Result<T, Status> {
    answer.map_err(|error| status(error, Effect::Reads))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Exhausted, finality, kind};

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
    fn what_may_have_an_effect_is_never_told_as_the_end() {
        for one in KINDS {
            for open in [Finality::InProgress, Finality::Unknown] {
                let told = status(error(one, open), Effect::Changes);
                // Our own client reads codes as the sidecars do.
                assert_ne!(finality(told.code(), Exhausted::Final), Finality::Final, "{one} {open:?}");
                assert!(told.details().is_empty() && !told.message().is_empty());
                assert_eq!(kind(status(error(one, open), Effect::Reads).code()), one);
            }
            assert_eq!(kind(status(error(one, Finality::Final), Effect::Changes).code()), one);
        }
    }

    #[test]
    fn a_message_is_never_empty_and_tells_of_the_pause() {
        let silent = StorageError { message: " ".to_owned(), ..error(ErrorKind::NotFound, Finality::Final) };
        assert_eq!(status(silent, Effect::Changes).message(), "the driver gives no reason");
        let slow =
            StorageError { retry_after_ms: Some(1_500), ..error(ErrorKind::Internal, Finality::Unknown) };
        let told = status(slow, Effect::Changes);
        assert_eq!(told.code(), Code::Unavailable);
        assert_eq!(
            told.message(),
            "Internal: m; it may still have an effect: repeat the call; the driver asks for a pause of 1.5s"
        );
    }
}
