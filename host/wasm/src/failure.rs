//! Failures of calls, and the errors that callers receive.

use std::time::Duration;

use cofferdam_domain::{
    storage::{ErrorKind, StorageError},
    term::TermEnded,
    text::DurationText,
};

use crate::breaker::OpenCircuit;
use cofferdam_backend::{ContractViolation, Overloaded, Redactor, in_flight::OperationConflict};

/// Reason a call has no usable response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallFailure {
    /// The guest returned an error.
    Storage(StorageError),
    /// WebAssembly trapped, such as by a panic or an invalid pointer, or an import ended the call, such as
    /// because of an invalid handle or a failed disk.
    Trap(String),
    /// The guest ended its program with WASI's `exit`.
    Exit,
    /// The guest used more CPU time than this limit.
    Cpu(Duration),
    /// The guest requested more memory than this limit, in bytes.
    Memory(usize),
    /// The guest exceeded a limit of its instances, memories, tables, elements of a table or handles.
    LimitExceeded(GuestLimit),
    /// The guest did not respond before the call's deadline, which was this time after the guest's start.
    Deadline(Duration),
    /// The deadline left the guest only this time: too little to count as the guest's failure.
    CallerDeadline(Duration),
    /// The guest passed more than this limit, in bytes, in its result or in one call of an import.
    ResultTooLarge(usize),
    /// The guest's response breaks a rule of the contract.
    ContractViolation(ContractViolation),
    /// The caller passed secrets, and the operator has not granted `class-secrets` to the backend.
    SecretsNotGranted,
    /// The host panicked, or the task of the call was cancelled.
    Panic,
    /// Too many calls are waiting, or the deadline passed before this one started.
    Overloaded,
    /// This process does not lead: the guest was not started.
    TermEnded,
    /// The term of the call ended while the guest ran, and the host stopped the guest.
    Stopped,
    /// The instance slots that the call needs did not become free before the deadline.
    PoolExhausted,
    /// The circuit breaker rejected the call: the backend failed too often, for this subject or for different
    /// ones, or another call currently tries whether the backend works again.
    CircuitOpen(OpenCircuit),
    /// Another operation, or work that outlived its call, uses the volume, snapshot or group snapshot, or a
    /// source of the requested one; or an earlier operation on the same object has no final result yet.
    Conflict(OperationConflict),
}

/// The reason that a task of the host ended without a result, without the message of a panic: it may quote a
/// secret.
pub(crate) fn task_failure(error: &tokio::task::JoinError) -> &'static str {
    if error.is_panic() { "the host panicked (message withheld)" } else { "the task was cancelled" }
}

/// A limited resource of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuestLimit {
    /// The resource's name, in the plural.
    pub(crate) noun: &'static str,
    /// Maximum number.
    pub(crate) max: usize,
    /// The limit's name in the configuration.
    pub(crate) limit_name: &'static str,
}

/// Effect of a call's result on the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerSignal {
    /// The guest returned a result or an error, also a result that breaks a rule of the contract.
    Success,
    /// The guest trapped, exited, hung or exceeded a limit, or the host panicked.
    Failure,
    /// The call counts neither as success nor as failure: it did not reach the guest, its deadline was too
    /// short, or its term ended.
    Ignored,
}

impl From<TermEnded> for CallFailure {
    fn from(_: TermEnded) -> Self {
        Self::TermEnded
    }
}

impl From<OperationConflict> for CallFailure {
    fn from(conflict: OperationConflict) -> Self {
        Self::Conflict(conflict)
    }
}

impl From<Overloaded> for CallFailure {
    fn from(_: Overloaded) -> Self {
        Self::Overloaded
    }
}

impl From<ContractViolation> for CallFailure {
    fn from(violation: ContractViolation) -> Self {
        Self::ContractViolation(violation)
    }
}

impl CallFailure {
    /// The error that the caller receives. The error of a call that the host stopped is never final: the
    /// storage may have received the request. The error of a call that never reached the guest is not final
    /// either: an earlier call for the same volume may still have an effect, and after a final error the
    /// caller would no longer retry or clean up. The exception is a call with secrets that are not granted:
    /// only the operator can change its result, and earlier calls in doubt keep it from being final.
    pub(crate) fn into_error(self, redactor: &Redactor) -> StorageError {
        let unknown = |kind, message: String| StorageError::with_unknown_effect(kind, message);
        match self {
            Self::Storage(error) => error,
            Self::Trap(reason) => unknown(ErrorKind::Internal, format!("the backend trapped: {reason}")),
            Self::Exit => {
                unknown(ErrorKind::Internal, "the backend ended its program instead of answering".to_owned())
            }
            Self::Cpu(budget) => unknown(
                ErrorKind::Internal,
                format!("the backend computed for more than {budget:?} (limit `cpu-ms`)"),
            ),
            Self::Memory(limit) => unknown(
                ErrorKind::Internal,
                format!("the backend exceeded {limit} bytes of memory (limit `memory-bytes`)"),
            ),
            Self::LimitExceeded(GuestLimit { noun: what, max: most, limit_name: limit }) => {
                unknown(ErrorKind::Internal, format!("the backend exceeded {most} {what} (limit `{limit}`)"))
            }
            Self::Deadline(deadline) | Self::CallerDeadline(deadline) => unknown(
                ErrorKind::DeadlineExceeded,
                format!("the backend did not respond within {}", DurationText(deadline)),
            ),
            Self::ResultTooLarge(limit) => unknown(
                ErrorKind::Internal,
                format!("the backend passed a value of more than {limit} bytes (limit `result-bytes`)"),
            ),
            Self::ContractViolation(violation) => {
                let reason = redactor.printable(&violation.to_string());
                unknown(ErrorKind::Internal, format!("the backend's response breaks the contract: {reason}"))
            }
            Self::SecretsNotGranted => StorageError::with_known_effect(
                ErrorKind::PermissionDenied,
                "the call has secrets, such as those of a class, which are not granted to the backend; \
                 expected `class-secrets = true` in its section [backend.NAME], in the process that runs it"
                    .to_owned(),
            ),
            Self::Panic => {
                unknown(ErrorKind::Internal, "the host failed while it ran the backend".to_owned())
            }
            Self::Overloaded => unknown(
                ErrorKind::Unavailable,
                "too many calls of the backend are waiting (limits `concurrent-calls`, `queued-calls`)"
                    .to_owned(),
            ),
            Self::TermEnded => unknown(ErrorKind::Unavailable, TermEnded.to_string()),
            Self::Stopped => unknown(
                ErrorKind::Unavailable,
                "the backend was stopped: the term of this process has ended, and another process may lead"
                    .to_owned(),
            ),
            Self::PoolExhausted => unknown(
                ErrorKind::Unavailable,
                "no slot for the call has become free: this program has 512, and 64 for each backend"
                    .to_owned(),
            ),
            Self::CircuitOpen(OpenCircuit { is_of_subject, pause }) => {
                let of_subject = if is_of_subject { " for this volume, snapshot or method" } else { "" };
                // Without the pause, which changes, so that the API server folds the events of a claim.
                let message = format!(
                    "the backend failed too often{of_subject} and is not called for a while \
                     (limit `breaker-failures`)"
                );
                StorageError {
                    retry_after_ms: Some(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)),
                    ..unknown(ErrorKind::Unavailable, message)
                }
            }
            Self::Conflict(refusal) => refusal.into_error(),
        }
    }

    /// Name in metrics and logs.
    pub(crate) const fn label(&self) -> &'static str {
        match self {
            Self::Storage(_) => "error",
            Self::Trap(_) => "trap",
            Self::Exit => "exit",
            Self::Cpu(_) => "cpu-exceeded",
            Self::Memory(_) => "memory",
            Self::LimitExceeded(_) => "limit",
            Self::Deadline(_) | Self::CallerDeadline(_) => "deadline",
            Self::ResultTooLarge(_) => "result-too-large",
            Self::ContractViolation(_) => "contract-violation",
            Self::SecretsNotGranted => "secrets-not-granted",
            Self::Panic => "panic",
            Self::Overloaded => "overloaded",
            Self::TermEnded => "term-ended",
            Self::Stopped => "stopped",
            Self::PoolExhausted => "pool-exhausted",
            Self::CircuitOpen(_) => "circuit-open",
            Self::Conflict(refusal) => refusal.label(),
        }
    }

    /// The effect on the breaker.
    pub(crate) const fn breaker_signal(&self) -> BreakerSignal {
        match self {
            Self::Storage(_) | Self::ContractViolation(_) => BreakerSignal::Success,
            Self::Trap(_)
            | Self::Exit
            | Self::Cpu(_)
            | Self::Memory(_)
            | Self::LimitExceeded(_)
            | Self::Deadline(_)
            | Self::ResultTooLarge(_)
            | Self::Panic => BreakerSignal::Failure,
            Self::CallerDeadline(_)
            | Self::Overloaded
            | Self::TermEnded
            | Self::Stopped
            | Self::PoolExhausted
            | Self::SecretsNotGranted
            | Self::Conflict(_)
            | Self::CircuitOpen(_) => BreakerSignal::Ignored,
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_backend::checks;
    use cofferdam_domain::storage::{Finality, Secret};

    use super::*;

    #[test]
    fn call_failures_map_to_storage_errors_and_breaker_signals() {
        use ErrorKind::{Aborted, DeadlineExceeded, Internal, OutOfRange, PermissionDenied, Unavailable};
        use Finality::{Final, InProgress, Unknown};
        let second = Duration::from_secs(1);
        let open = OpenCircuit { is_of_subject: true, pause: second };
        let handles = GuestLimit { noun: "handles", max: 1, limit_name: "handles" };
        let table = [
            (
                CallFailure::Storage(StorageError::with_known_effect(OutOfRange, "m")),
                OutOfRange,
                Final,
                BreakerSignal::Success,
            ),
            (CallFailure::Trap("m".to_owned()), Internal, Unknown, BreakerSignal::Failure),
            (CallFailure::Exit, Internal, Unknown, BreakerSignal::Failure),
            (CallFailure::Cpu(second), Internal, Unknown, BreakerSignal::Failure),
            (CallFailure::Memory(1), Internal, Unknown, BreakerSignal::Failure),
            (CallFailure::LimitExceeded(handles), Internal, Unknown, BreakerSignal::Failure),
            (CallFailure::Deadline(second), DeadlineExceeded, Unknown, BreakerSignal::Failure),
            (CallFailure::ResultTooLarge(1), Internal, Unknown, BreakerSignal::Failure),
            (
                CallFailure::ContractViolation(ContractViolation::RepeatedToken),
                Internal,
                Unknown,
                BreakerSignal::Success,
            ),
            (CallFailure::SecretsNotGranted, PermissionDenied, Final, BreakerSignal::Ignored),
            (CallFailure::Panic, Internal, Unknown, BreakerSignal::Failure),
            (CallFailure::Overloaded, Unavailable, Unknown, BreakerSignal::Ignored),
            (CallFailure::TermEnded, Unavailable, Unknown, BreakerSignal::Ignored),
            (CallFailure::Stopped, Unavailable, Unknown, BreakerSignal::Ignored),
            (CallFailure::CircuitOpen(open), Unavailable, Unknown, BreakerSignal::Ignored),
            (CallFailure::CallerDeadline(second), DeadlineExceeded, Unknown, BreakerSignal::Ignored),
            (CallFailure::Conflict(OperationConflict::Busy), Aborted, InProgress, BreakerSignal::Ignored),
            (
                CallFailure::Conflict(OperationConflict::PendingOperation("m")),
                Aborted,
                InProgress,
                BreakerSignal::Ignored,
            ),
        ];
        for (failure, kind, finality, sign) in table {
            assert_eq!(failure.breaker_signal(), sign, "{failure:?}");
            let error = failure.into_error(&Redactor::default());
            assert_eq!((error.kind, error.finality), (kind, finality), "{error}");
        }
        assert_eq!(
            CallFailure::CircuitOpen(open).into_error(&Redactor::default()).retry_after_ms,
            Some(1000)
        );
    }

    #[test]
    fn a_violation_shows_no_part_of_a_secret_in_a_long_text() {
        let secrets = [("password".to_owned(), Secret::new("hunter2hunter2"))].into_iter().collect();
        let redactor = Redactor::new(secrets);
        for padding in 900..1_005 {
            let key = format!("{}hunter2hunter2", "-".repeat(padding));
            let twice = vec![(key.clone(), String::new()), (key, String::new())];
            let violation = checks::unique_map("the context", twice).unwrap_err();
            let error = CallFailure::ContractViolation(violation).into_error(&redactor);
            assert!(!error.message.contains("hunter"), "{padding}: {}", error.message);
        }
    }

    #[tokio::test]
    async fn the_message_of_a_panic_is_withheld() {
        let text = "p\u{e4}ssword".to_owned();
        let panicked = tokio::spawn(async move { panic!("{text} is not a number") }).await;
        let panicked: tokio::task::JoinError = panicked.map(|(): ()| ()).unwrap_err();
        assert!(panicked.to_string().contains("pässword"), "tokio shows it: {panicked}");
        assert_eq!(task_failure(&panicked), "the host panicked (message withheld)");
    }
}
