//! Waits within one call for an operation that the storage runs by itself.
//!
//! A driver has two ways to wait for a volume that the storage is still creating:
//!
//! - Return [`StorageError::in_progress`]. The caller repeats the call with increasing delays, and the call
//!   holds no resources in the meantime.
//! - Wait in the call with [`until`], if the operation takes seconds. It ends before the
//!   [deadline] of the call. [`until`] returns `in_progress` at its end, so the two combine.
//!
//! [`sleep`] needs no grant, because a component sleeps in WASI's monotonic clock. [`until`] needs the grant
//! `deadline`, which is a default. A [mock host](crate::mock) advances its clock instead of a pause, so tests
//! do not wait. Without a mock host, a pause in a native build ends at once.

use std::time::Duration;

use crate::{Result, StorageError, deadline, host};

/// Time before the deadline of the call in which no attempt begins: it is for the response.
const RESERVE: Duration = Duration::from_millis(500);
/// Shortest pause between two attempts.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// Pauses this call. The deadline of the call ends a longer pause, together with the call.
///
/// ```
/// use std::time::Duration;
///
/// use cofferdam_guest::{ambient, mock::MockHost, poll};
///
/// let _host = MockHost::new().install();
/// let before = ambient::now();
/// poll::sleep(Duration::from_secs(3));
/// assert_eq!(ambient::now() - before, Duration::from_secs(3), "the clock of the mock");
/// ```
pub fn sleep(pause: Duration) {
    host::sleep(pause);
}

/// Runs `attempt` until it returns a value, with a pause of `interval` between two attempts, for at most
/// `limit`, and at most until half a second before the deadline of the call. The first attempt runs at once.
/// The time of the attempts counts, and a pause that would end after the limit is not begun.
///
/// ```
/// use std::time::Duration;
///
/// use cofferdam_guest::{
///     Finality, Result, ambient, http::{Method, Request, Response}, mock::MockHost, poll,
/// };
///
/// fn wait_until_available(limit: Duration) -> Result<()> {
///     poll::until(Duration::from_secs(2), limit, || {
///         let response = Request::get("http://array/volumes/vol-a/state").send()?.ok_or(|_| None)?;
///         Ok((response.text() == "available").then_some(()))
///     })
/// }
///
/// let ready_at = Duration::from_secs(1_767_268_800 + 5);
/// let host = MockHost::new()
///     .on(Method::Get, "http://array/", move |_| {
///         let state = if ambient::now() >= ready_at { "available" } else { "creating" };
///         Ok(Response::new(200).with_body(state))
///     })
///     .install();
/// let error = wait_until_available(Duration::from_secs(3)).unwrap_err();
/// assert_eq!((error.finality, host.requests().len()), (Finality::InProgress, 2));
/// wait_until_available(Duration::from_secs(20)).unwrap();
/// ```
///
/// # Errors
///
/// - [`in_progress`](StorageError::in_progress) after the limit, with `interval` as delay.
/// - The errors of `attempt`. An error that does not tell the state of the operation (kind `unavailable`,
///   `deadline-exceeded`, `cancelled`, `internal`, `unknown`, `unauthenticated` or `permission-denied`) is
///   never final, because an earlier call may have started the operation.
pub fn until<T>(
    interval: Duration,
    limit: Duration,
    attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = deadline::remaining();
    let remaining = |slept: Duration| {
        let to_deadline = deadline::remaining();
        // Without a mock host, the time to the deadline does not change.
        let elapsed = start.saturating_sub(to_deadline).max(slept);
        limit.saturating_sub(elapsed).min(to_deadline.saturating_sub(RESERVE))
    };
    run(interval, remaining, attempt)
}

/// [`until`] with the remaining time as a function, which is called after each attempt. An attempt of the
/// function with less than `interval` left is the last one.
///
/// ```
/// use std::time::Duration;
///
/// use cofferdam_guest::{ambient, mock::MockHost, poll};
///
/// let _host = MockHost::new().install();
/// let end = ambient::now() + Duration::from_secs(5);
/// let mut attempts = 0;
/// let error = poll::until_remaining(
///     Duration::from_secs(2),
///     || end.saturating_sub(ambient::now()),
///     || {
///         attempts += 1;
///         Ok(None::<()>)
///     },
/// );
/// assert!(error.is_err());
/// assert_eq!(attempts, 3, "at 0, 2 and 4 seconds");
/// ```
///
/// # Errors
///
/// Those of [`until`].
pub fn until_remaining<T>(
    interval: Duration,
    mut remaining: impl FnMut() -> Duration,
    attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    run(interval, |_| remaining(), attempt)
}

/// Runs `attempt` until it returns a value. `remaining` receives the sum of all pauses so far.
fn run<T>(
    interval: Duration,
    mut remaining: impl FnMut(Duration) -> Duration,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let interval = interval.max(MIN_INTERVAL);
    let mut slept = Duration::ZERO;
    loop {
        if let Some(value) = attempt().map_err(StorageError::not_final_without_answer)? {
            return Ok(value);
        }
        if remaining(slept) < interval {
            return Err(StorageError::in_progress(
                "the storage has not finished within the time of this call",
            )
            .retry_after(interval));
        }
        sleep(interval);
        slept = slept.saturating_add(interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ambient;
    use crate::{ErrorKind, Finality, mock::MockHost};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_attempt_has_no_pause() {
        let _host = MockHost::new().install();
        let start = ambient::now();
        assert_eq!(until(SECOND, Duration::ZERO, || Ok(Some(7))), Ok(7));
        assert_eq!(ambient::now(), start);
    }

    #[test]
    fn the_time_of_attempts_counts() {
        let host = MockHost::new().install();
        let mut attempts = 0;
        let error = until(SECOND, 9 * SECOND, || {
            attempts += 1;
            host.advance(4 * SECOND);
            Ok(None::<()>)
        });
        assert_eq!((error.unwrap_err().retry_after_ms, attempts), (Some(1000), 2));
    }

    #[test]
    fn no_attempt_begins_shortly_before_the_deadline() {
        let host = MockHost::new().install();
        host.set_deadline(Duration::from_millis(3_400));
        let mut attempts = 0;
        let error = until(SECOND, 60 * SECOND, || {
            attempts += 1;
            Ok(None::<()>)
        });
        assert_eq!(
            (error.unwrap_err().finality, attempts),
            (Finality::InProgress, 3),
            "at 0, 1 and 2 seconds"
        );
    }

    #[test]
    fn the_limit_holds_although_the_clock_stands_still() {
        let mut attempts = 0;
        let error = until(Duration::ZERO, 5 * MIN_INTERVAL, || {
            attempts += 1;
            Ok(None::<()>)
        });
        assert_eq!((error.unwrap_err().kind, attempts), (ErrorKind::Aborted, 6));
    }

    #[test]
    fn an_attempt_without_an_answer_is_never_final() {
        let _host = MockHost::new().install();
        let finality = |error: StorageError| {
            until(SECOND, SECOND, || Err::<Option<()>, _>(error.clone())).unwrap_err().finality
        };
        assert_eq!(finality(StorageError::unavailable("?").without_effect()), Finality::Unknown);
        assert_eq!(finality(StorageError::unauthenticated("?")), Finality::Unknown);
        assert_eq!(finality(StorageError::resource_exhausted("the creation failed")), Finality::Final);
    }
}
