//! Waiting for a condition, with the reason when it does not come.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// Pause between two looks.
const INTERVAL: Duration = Duration::from_millis(50);

/// Looks until `probe` has an answer; the error of the last look is the reason of the failure.
///
/// # Errors
/// If there is none within `limit`.
pub async fn until<T>(what: &str, limit: Duration, mut probe: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    let mut reason = anyhow!("nobody looked");
    loop {
        // A look that hangs is one that has no answer: the limit is for it too.
        let left = limit.saturating_sub(started.elapsed());
        match tokio::time::timeout(left, probe()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => reason = error,
            Err(_) => reason = reason.context("the last look had no answer; the one before"),
        }
        if started.elapsed() >= limit {
            return Err(reason.context(format!("{what}: expected within {limit:?}")));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
