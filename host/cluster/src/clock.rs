//! Wall clock and timers.

use std::sync::Arc;

/// The wall clock. Tests and simulation inject their own.
pub type Clock = Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;

/// The machine's wall clock.
pub fn system_clock() -> Clock {
    Arc::new(jiff::Timestamp::now)
}

/// Sleeps until `deadline`, or forever without one.
pub(crate) async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
