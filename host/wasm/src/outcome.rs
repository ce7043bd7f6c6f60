//! How a call can fail, and what that means to the caller.

use std::time::Duration;

use cofferdam_domain::storage::{ErrorKind, StorageError};

use cofferdam_backend::guard::Refusal;

/// Why a call has no answer that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The guest says so.
    Storage(StorageError),
    /// The guest broke: a panic, a wrong pointer, an unreachable instruction, a broken rule of the contract.
    Trap(String),
    /// The guest ended its program.
    Exit,
    /// The guest computed longer than it may.
    Cpu(Duration),
    /// The guest wanted more memory than it may have.
    Memory(usize),
    /// The guest wanted more of something else than it may have.
    Exhausted(Bounded),
    /// Time ran out.
    Deadline(Duration),
    /// Time ran out so early that it says nothing about the guest.
    Hurried(Duration),
    /// The guest passed a value that is larger than allowed.
    ResultTooLarge(usize),
    /// The guest's answer breaks a rule of the contract.
    Untrue(String),
    /// The host broke.
    Panic,
    /// Too many calls are waiting, or time ran out before this one's turn.
    Overloaded,
    /// Time ran out before there was a slot for the guest.
    Crowded,
    /// The backend is left alone because it failed too often.
    Tripped(Duration),
    /// Another call for the volume is running, or has an open outcome.
    Guarded(Refusal),
}

/// What a guest may have a number of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounded {
    /// What it is, in the plural.
    pub(crate) what: &'static str,
    /// How many it may have.
    pub(crate) most: usize,
    /// The limit's name.
    pub(crate) limit: &'static str,
}

/// What a call tells the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// The guest answered.
    Alive,
    /// The guest trapped or hung.
    Broken,
    /// The call was let through but did not reach the guest.
    Unreached,
}

impl Failure {
    /// What the caller hears. Nothing that stops a guest from outside is final: its storage may have got the request. Nor is a
    /// call that never reached the guest: an earlier one for the same volume may still have an effect, and a final answer
    /// would make the caller forget it.
    pub(crate) fn into_error(self) -> StorageError {
        let unknown = |kind, message: String| StorageError::unknown(kind, message);
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
                format!("the backend wanted more than {limit} bytes of memory (limit `memory-bytes`)"),
            ),
            Self::Exhausted(Bounded { what, most, limit }) => unknown(
                ErrorKind::Internal,
                format!("the backend wanted more than {most} {what} (limit `{limit}`)"),
            ),
            Self::Deadline(deadline) | Self::Hurried(deadline) => unknown(
                ErrorKind::DeadlineExceeded,
                format!("the backend has not answered within {deadline:?}"),
            ),
            Self::ResultTooLarge(limit) => unknown(
                ErrorKind::Internal,
                format!("the backend passed a value of more than {limit} bytes (limit `result-bytes`)"),
            ),
            Self::Untrue(reason) => {
                unknown(ErrorKind::Internal, format!("the backend's answer breaks the contract: {reason}"))
            }
            Self::Panic => {
                unknown(ErrorKind::Internal, "the host failed while it ran the backend".to_owned())
            }
            Self::Overloaded => unknown(
                ErrorKind::Unavailable,
                "too many calls of the backend are waiting (limits `concurrent-calls`, `queued-calls`)"
                    .to_owned(),
            ),
            Self::Crowded => unknown(
                ErrorKind::Unavailable,
                "no slot for the call has become free: this program has 512, and 64 for each backend"
                    .to_owned(),
            ),
            Self::Tripped(pause) => StorageError {
                retry_after_ms: Some(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)),
                ..unknown(
                    ErrorKind::Unavailable,
                    format!(
                        "the backend failed too often and is left alone for {pause:?} (limit `breaker-failures`)"
                    ),
                )
            },
            Self::Guarded(refusal) => refusal.into_error(),
        }
    }

    /// Name in metrics and logs.
    pub(crate) const fn label(&self) -> &'static str {
        match self {
            Self::Storage(_) => "error",
            Self::Trap(_) => "trap",
            Self::Exit => "exit",
            Self::Cpu(_) => "cpu",
            Self::Memory(_) => "memory",
            Self::Exhausted(_) => "limit",
            Self::Deadline(_) | Self::Hurried(_) => "deadline",
            Self::ResultTooLarge(_) => "result-too-large",
            Self::Untrue(_) => "untrue",
            Self::Panic => "panic",
            Self::Overloaded => "overloaded",
            Self::Crowded => "crowded",
            Self::Tripped(_) => "tripped",
            Self::Guarded(refusal) => refusal.label(),
        }
    }

    /// What it tells the breaker.
    pub(crate) const fn sign(&self) -> Sign {
        match self {
            Self::Storage(_) | Self::Untrue(_) => Sign::Alive,
            Self::Trap(_)
            | Self::Exit
            | Self::Cpu(_)
            | Self::Memory(_)
            | Self::Exhausted(_)
            | Self::Deadline(_)
            | Self::ResultTooLarge(_)
            | Self::Panic => Sign::Broken,
            Self::Hurried(_) | Self::Overloaded | Self::Crowded | Self::Guarded(_) | Self::Tripped(_) => {
                Sign::Unreached
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::storage::Finality;

    use super::*;

    #[test]
    fn what_each_failure_means() {
        use ErrorKind::{Aborted, DeadlineExceeded, Internal, OutOfRange, Unavailable};
        use Finality::{Final, InProgress, Unknown};
        let second = Duration::from_secs(1);
        let handles = Bounded { what: "handles", most: 1, limit: "handles" };
        let table = [
            (Failure::Storage(StorageError::last(OutOfRange, "m")), OutOfRange, Final, Sign::Alive),
            (Failure::Trap("m".to_owned()), Internal, Unknown, Sign::Broken),
            (Failure::Exit, Internal, Unknown, Sign::Broken),
            (Failure::Cpu(second), Internal, Unknown, Sign::Broken),
            (Failure::Memory(1), Internal, Unknown, Sign::Broken),
            (Failure::Exhausted(handles), Internal, Unknown, Sign::Broken),
            (Failure::Deadline(second), DeadlineExceeded, Unknown, Sign::Broken),
            (Failure::ResultTooLarge(1), Internal, Unknown, Sign::Broken),
            (Failure::Untrue("m".to_owned()), Internal, Unknown, Sign::Alive),
            (Failure::Panic, Internal, Unknown, Sign::Broken),
            (Failure::Overloaded, Unavailable, Unknown, Sign::Unreached),
            (Failure::Tripped(second), Unavailable, Unknown, Sign::Unreached),
            (Failure::Hurried(second), DeadlineExceeded, Unknown, Sign::Unreached),
            (Failure::Guarded(Refusal::Busy), Aborted, InProgress, Sign::Unreached),
            (Failure::Guarded(Refusal::Unsettled("m")), Aborted, InProgress, Sign::Unreached),
        ];
        for (failure, kind, finality, sign) in table {
            assert_eq!(failure.sign(), sign, "{failure:?}");
            let error = failure.into_error();
            assert_eq!((error.kind, error.finality), (kind, finality), "{error}");
        }
        assert_eq!(Failure::Tripped(second).into_error().retry_after_ms, Some(1000));
    }
}
