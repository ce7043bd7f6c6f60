//! Repetition until a condition is met or a request succeeds.

use std::{ops::ControlFlow, time::Duration};

use anyhow::{Context as _, Error, Result, anyhow};
use tokio::time::{Instant, sleep, timeout};

/// Minimum delay between two probes.
const INTERVAL: Duration = Duration::from_millis(50);
/// The delay is at least this multiple of the last attempt's duration, so that attempts leave CPU time to the
/// load under test: a list of a thousand claims uses 0.1 s.
const DELAY_FACTOR: u32 = 2;

/// Polls until `probe` succeeds, and returns its result.
///
/// # Errors
/// If it does not succeed within `limit`. The error contains that of the last probe.
pub async fn until<T>(what: &str, limit: Duration, mut probe: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    repeat(limit, INTERVAL, async |_| match probe().await {
        Ok(answer) => ControlFlow::Break(Ok(answer)),
        Err(reason) => ControlFlow::Continue(reason),
    })
    .await
    .with_context(|| format!("{what}: expected within {limit:?}"))
}

/// Repeats `attempt` while it returns `Continue`, with a delay of at least `interval`. `attempt` gets its
/// number, from 0.
///
/// # Errors
/// The error of `Break`, or the last one of `Continue` when `limit` is over. An attempt that hangs is
/// cancelled at the limit.
pub(crate) async fn repeat<T>(
    limit: Duration,
    interval: Duration,
    mut attempt: impl AsyncFnMut(u32) -> ControlFlow<Result<T>, Error>,
) -> Result<T> {
    let (started, mut number) = (Instant::now(), 0);
    let mut reason = anyhow!("no attempt has finished");
    loop {
        let attempted = Instant::now();
        match timeout(limit.saturating_sub(started.elapsed()), attempt(number)).await {
            Ok(ControlFlow::Break(result)) => return result,
            Ok(ControlFlow::Continue(error)) => reason = error,
            Err(_) => reason = reason.context("the last attempt did not finish; the one before"),
        }
        if started.elapsed() >= limit {
            return Err(reason);
        }
        sleep(interval.max(attempted.elapsed() * DELAY_FACTOR)).await;
        number += 1;
    }
}
