//! CPU time of one call.
//!
//! A slice is one poll of the call's future. Each slice is measured with the CPU clock of its thread: time in
//! which the call waits for the host, or for a processor of a busy machine, does not count.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// CPU time of one call. Clones share the counter.
#[derive(Clone, Debug, Default)]
pub(crate) struct CpuTime(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// CPU time of finished slices, in nanoseconds.
    total_nanos: AtomicU64,
    /// The thread's CPU clock at the start of the current or last slice, in nanoseconds.
    slice_start: AtomicU64,
}

impl CpuTime {
    /// Runs a slice of the call on this thread, and adds its CPU time to the total.
    pub(crate) fn measure_slice<T>(&self, slice: impl FnOnce() -> T) -> T {
        self.0.slice_start.store(thread_cpu_nanos(), Ordering::Relaxed);
        let answer = slice();
        self.0.total_nanos.fetch_add(self.current_slice_nanos(), Ordering::Relaxed);
        answer
    }

    /// CPU time of the call until now. Valid only within a slice.
    pub(crate) fn elapsed_in_slice(&self) -> Duration {
        Duration::from_nanos(
            self.0.total_nanos.load(Ordering::Relaxed).saturating_add(self.current_slice_nanos()),
        )
    }

    /// CPU time of the call's finished slices.
    pub(crate) fn total(&self) -> Duration {
        Duration::from_nanos(self.0.total_nanos.load(Ordering::Relaxed))
    }

    fn current_slice_nanos(&self) -> u64 {
        thread_cpu_nanos().saturating_sub(self.0.slice_start.load(Ordering::Relaxed))
    }
}

/// CPU time of this thread, in nanoseconds.
fn thread_cpu_nanos() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cpu_time_inside_a_slice_is_counted() {
        let cpu_time = CpuTime::default();
        let computed = || {
            let begun = thread_cpu_nanos();
            while thread_cpu_nanos() - begun < 2_000_000 {
                std::hint::spin_loop();
            }
        };
        let elapsed = cpu_time.measure_slice(|| {
            computed();
            cpu_time.elapsed_in_slice()
        });
        let spent = cpu_time.total();
        assert!(elapsed >= Duration::from_millis(2) && spent >= elapsed, "{elapsed:?} {spent:?}");
        // CPU time between slices does not count.
        computed();
        assert_eq!(cpu_time.total(), spent);
        cpu_time.measure_slice(computed);
        assert!(cpu_time.total() >= spent + Duration::from_millis(2));
    }
}
