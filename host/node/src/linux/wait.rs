//! Waits for the kernel.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::paths::Result;

/// Maximum time and interval of a wait.
pub(super) type WaitTimes = (Duration, Duration);

/// Repeats a query until it has a result; `None` if it has none in time.
pub(super) fn wait_for<T>(
    (limit, interval): WaitTimes,
    mut query: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let started = Instant::now();
    loop {
        let found = query()?;
        if found.is_some() || started.elapsed() >= limit {
            return Ok(found);
        }
        thread::sleep(interval);
    }
}
