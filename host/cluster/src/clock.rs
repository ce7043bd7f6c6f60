//! Wall clock and timers.

use std::{sync::Arc, time::Duration};

use cofferdam_domain::term::BootClock;
use rustix::time::{ClockId, clock_gettime};

/// The wall clock. Tests and simulation inject their own.
pub type Clock = Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;

/// The machine's wall clock.
pub fn system_clock() -> Clock {
    Arc::new(jiff::Timestamp::now)
}

/// `CLOCK_BOOTTIME` of the machine, which goes on while it is suspended.
pub fn boot_clock() -> BootClock {
    Arc::new(|| {
        let time = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
    })
}

/// Sleeps until `deadline`, or forever without one.
pub(crate) async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
