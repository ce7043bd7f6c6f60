//! How a case says what it expected and what came back.

use std::{
    fmt::Debug,
    time::{SystemTime, UNIX_EPOCH},
};

use cofferdam_domain::storage::{ErrorKind, Finality, StorageError};

/// Why a case did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The driver breaks the rule.
    Failed {
        /// What the rule wants.
        expected: String,
        /// What came back.
        found: String,
    },
    /// The rule cannot be tried on this driver.
    Skipped(String),
}

/// What a case, or a step of it, comes to.
pub(crate) type Checked<T = ()> = Result<T, Stop>;

/// Longest text of an answer that a report shows, in characters.
const SHOWN: usize = 400;

/// A failed case.
pub(crate) fn failed<T>(expected: impl Into<String>, found: impl Into<String>) -> Checked<T> {
    Err(Stop::Failed { expected: expected.into(), found: cut(found.into(), SHOWN) })
}

/// A text of at most so many characters.
pub(crate) fn cut(mut text: String, characters: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(characters) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// A case that cannot be tried.
pub(crate) fn skipped<T>(why: impl Into<String>) -> Checked<T> {
    Err(Stop::Skipped(why.into()))
}

/// An error in one line: kind, finality, message.
pub(crate) fn line(error: &StorageError) -> String {
    let finality = match error.finality {
        Finality::Final => "final",
        Finality::InProgress => "in progress",
        Finality::Unknown => "outcome unknown",
    };
    format!("{} ({finality}): {}", error.kind, error.message)
}

/// An answer in one line.
pub(crate) fn shown<T: Debug>(answer: &Result<T, StorageError>) -> String {
    match answer {
        Ok(value) => format!("success: {value:?}"),
        Err(error) => line(error),
    }
}

/// A call that must succeed.
pub(crate) fn done<T>(what: &str, answer: Result<T, StorageError>) -> Checked<T> {
    answer.or_else(|error| failed(format!("{what}: success"), line(&error)))
}

/// A call that must fail finally in one of these ways.
pub(crate) fn refused<T: Debug>(
    what: &str,
    answer: &Result<T, StorageError>,
    kinds: &[ErrorKind],
) -> Checked {
    match answer {
        Err(error) if kinds.contains(&error.kind) && error.finality == Finality::Final => Ok(()),
        _ => {
            let kinds: Vec<_> = kinds.iter().map(|kind| kind.as_str()).collect();
            failed(format!("{what}: {}, final", kinds.join(" or ")), shown(answer))
        }
    }
}

/// A call that must fail in this way, be it final or not.
pub(crate) fn refused_at_all<T: Debug>(
    what: &str,
    answer: &Result<T, StorageError>,
    kind: ErrorKind,
) -> Checked {
    match answer {
        Err(error) if error.kind == kind => Ok(()),
        _ => failed(format!("{what}: {kind}"), shown(answer)),
    }
}

/// A call that may succeed or fail finally in one of these ways; tells whether it succeeded.
pub(crate) fn done_or_refused<T: Debug>(
    what: &str,
    answer: &Result<T, StorageError>,
    kinds: &[ErrorKind],
) -> Checked<bool> {
    if answer.is_ok() {
        return Ok(true);
    }
    match refused(what, answer, kinds) {
        Err(Stop::Failed { expected, found }) => failed(format!("{expected}; or success"), found),
        other => other.map(|()| false),
    }
}

/// Two answers that must be equal.
pub(crate) fn same<T: PartialEq + Debug>(what: &str, first: &T, second: &T) -> Checked {
    holds(first == second, || format!("{what}: {first:?}"), || format!("{second:?}"))
}

/// Something that must be so.
pub(crate) fn holds(so: bool, expected: impl FnOnce() -> String, found: impl FnOnce() -> String) -> Checked {
    if so { Ok(()) } else { failed(expected(), found()) }
}

/// A time in milliseconds since 1970 that must be now; clocks may differ by a day.
pub(crate) fn about_now(time: u64) -> Checked {
    const DAY_MS: u128 = 24 * 60 * 60 * 1_000;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let near = now.abs_diff(u128::from(time)) <= DAY_MS;
    holds(near, || format!("about {now} ms since 1970"), || format!("{time} ms"))
}
