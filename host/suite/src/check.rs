//! Expectations of cases, and their failures.

use std::{
    fmt::Debug,
    time::{SystemTime, UNIX_EPOCH},
};

use cofferdam_domain::storage::{ErrorKind, Finality, StorageError};

/// Reason why a case did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CaseError {
    /// A result differs from the expected one: the driver breaks this rule, or another call of the case
    /// failed, for example because the storage did not respond in time.
    Failed {
        /// Expectation of the rule.
        expected: String,
        /// Observed result.
        found: String,
    },
    /// The rule cannot be tested on this driver or its storage, for this reason.
    Skipped(String),
}

/// Result of a case or of a step.
pub(crate) type CaseResult<T = ()> = Result<T, CaseError>;

/// Maximum length of the observed result of a failed case, in characters.
const MAX_ANSWER_CHARS: usize = 400;

/// Fails a case. A long `found` is truncated.
pub(crate) fn fail<T>(expected: impl Into<String>, found: impl Into<String>) -> CaseResult<T> {
    Err(CaseError::Failed { expected: expected.into(), found: truncate(found.into(), MAX_ANSWER_CHARS) })
}

/// Truncates a text to a number of characters, and marks a truncated text with `…`.
pub(crate) fn truncate(mut text: String, characters: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(characters) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Skips a case whose rule cannot be tested on this driver.
pub(crate) fn skip<T>(reason: impl Into<String>) -> CaseResult<T> {
    Err(CaseError::Skipped(reason.into()))
}

/// An error in one line: kind, finality, message.
pub(crate) fn error_line(error: &StorageError) -> String {
    let finality = match error.finality {
        Finality::Final => "final",
        Finality::InProgress => "in progress",
        Finality::Unknown => "outcome unknown",
    };
    format!("{} ({finality}): {}", error.kind, error.message)
}

/// A result in one line.
pub(crate) fn answer_line<T: Debug>(answer: &Result<T, StorageError>) -> String {
    match answer {
        Ok(value) => format!("success: {value:?}"),
        Err(error) => error_line(error),
    }
}

/// Expects success.
pub(crate) fn expect_success<T>(what: &str, answer: Result<T, StorageError>) -> CaseResult<T> {
    answer.or_else(|error| fail(format!("{what}: success"), error_line(&error)))
}

/// Expects a final error of one of these kinds.
pub(crate) fn expect_final_error<T: Debug>(
    what: &str,
    answer: &Result<T, StorageError>,
    kinds: &[ErrorKind],
) -> CaseResult {
    match answer {
        Err(error) if kinds.contains(&error.kind) && error.finality == Finality::Final => Ok(()),
        _ => {
            let kinds: Vec<_> = kinds.iter().map(|kind| kind.as_str()).collect();
            fail(format!("{what}: {}, final", kinds.join(" or ")), answer_line(answer))
        }
    }
}

/// Expects an error of this kind, with any finality.
pub(crate) fn expect_error<T: Debug>(
    what: &str,
    answer: &Result<T, StorageError>,
    kind: ErrorKind,
) -> CaseResult {
    match answer {
        Err(error) if error.kind == kind => Ok(()),
        _ => fail(format!("{what}: {kind}"), answer_line(answer)),
    }
}

/// Expects success or a final error of one of these kinds. Returns true after success.
pub(crate) fn expect_success_or_final_error<T: Debug>(
    what: &str,
    answer: &Result<T, StorageError>,
    kinds: &[ErrorKind],
) -> CaseResult<bool> {
    if answer.is_ok() {
        return Ok(true);
    }
    match expect_final_error(what, answer, kinds) {
        Err(CaseError::Failed { expected, found }) => fail(format!("{expected}; or success"), found),
        other => other.map(|()| false),
    }
}

/// Expects two results to be equal.
pub(crate) fn expect_equal<T: PartialEq + Debug>(what: &str, first: &T, second: &T) -> CaseResult {
    expect_that(first == second, || format!("{what}: {first:?}"), || format!("{second:?}"))
}

/// Expects a condition to be true.
pub(crate) fn expect_that(
    condition: bool,
    expected: impl FnOnce() -> String,
    found: impl FnOnce() -> String,
) -> CaseResult {
    if condition { Ok(()) } else { fail(expected(), found()) }
}

/// Expects a Unix time in milliseconds to be the current time, within a day.
pub(crate) fn expect_recent(time: u64) -> CaseResult {
    const DAY_MS: u128 = 24 * 60 * 60 * 1_000;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let is_recent = now.abs_diff(u128::from(time)) <= DAY_MS;
    expect_that(is_recent, || format!("about {now} ms since 1970"), || format!("{time} ms"))
}
