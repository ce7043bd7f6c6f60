//! How long one call has computed.
//!
//! By the clock of the thread, stretch by stretch: neither waiting for the host counts, nor standing behind other threads of a
//! busy machine.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// What one call has computed. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effort(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Of stretches that are over, in nanoseconds.
    spent: AtomicU64,
    /// What the thread's clock said when this stretch began.
    begun: AtomicU64,
}

impl Effort {
    /// Runs a stretch of the call on this thread.
    pub(crate) fn stretch<T>(&self, stretch: impl FnOnce() -> T) -> T {
        self.0.begun.store(clock(), Ordering::Relaxed);
        let answer = stretch();
        self.0.spent.fetch_add(self.under_way(), Ordering::Relaxed);
        answer
    }

    /// What the call has computed until now. To be asked from within a stretch.
    pub(crate) fn until_now(&self) -> Duration {
        Duration::from_nanos(self.0.spent.load(Ordering::Relaxed).saturating_add(self.under_way()))
    }

    /// What the call has computed. To be asked between stretches.
    pub(crate) fn spent(&self) -> Duration {
        Duration::from_nanos(self.0.spent.load(Ordering::Relaxed))
    }

    fn under_way(&self) -> u64 {
        clock().saturating_sub(self.0.begun.load(Ordering::Relaxed))
    }
}

/// Nanoseconds that this thread has run.
fn clock() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computing_counts_and_waiting_does_not() {
        let effort = Effort::default();
        let computed = || {
            let begun = clock();
            while clock() - begun < 2_000_000 {
                std::hint::spin_loop();
            }
        };
        let told = effort.stretch(|| {
            computed();
            effort.until_now()
        });
        let spent = effort.spent();
        assert!(told >= Duration::from_millis(2) && spent >= told, "{told:?} {spent:?}");
        // Between stretches the thread may do what it likes.
        computed();
        assert_eq!(effort.spent(), spent);
        effort.stretch(computed);
        assert!(effort.spent() >= spent + Duration::from_millis(2));
    }
}
