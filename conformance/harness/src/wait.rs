//! Polling for a condition.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// Poll interval.
const INTERVAL: Duration = Duration::from_millis(50);

/// Polls until `probe` succeeds. A failure contains the last error.
///
/// # Errors
/// If it does not succeed within `limit`.
pub async fn until<T>(what: &str, limit: Duration, mut probe: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    let mut reason = anyhow!("nobody looked");
    loop {
        // A probe that hangs is stopped at the limit.
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
