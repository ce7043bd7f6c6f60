//! Separate threads for CPU-bound calls, with fair scheduling between backends.
//!
//! A guest yields its thread at every tick of the epoch clock, but is immediately runnable again. A backend
//! with many such calls would fill the threads' queue, and short calls of other backends would wait behind
//! all of them. Therefore CPU-bound calls run on separate threads with a lower priority, half as many as
//! processors, in poll slices of at most one tick. Slices are scheduled round-robin between backends, and
//! then between the calls of a backend.
//!
//! A call that ends within its first tick is over before it is known to be CPU-bound; many such calls of one
//! backend would also occupy all threads. Therefore the mean CPU time of a backend's calls is measured. If it
//! is high, calls start on the separate threads.

use std::{
    panic::resume_unwind,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use futures::task::AtomicWaker;
use tokio::{runtime::Handle, sync::Mutex};
use tracing::Instrument as _;

use crate::{cpu_time::CpuTime, limits::EPOCH_TICK};

/// Mean CPU time of a backend's calls from which its calls start on the CPU-bound threads. Calls that only
/// wait for their storage use far less. A call with this CPU time delays other backends imperceptibly.
const CPU_BOUND_THRESHOLD: Duration = Duration::from_millis(1);
/// Approximate number of calls in the mean.
const MEAN_WINDOW: u64 = 8;

/// Schedules the calls of one backend. Moves CPU-bound ones to the low-priority threads, one poll slice at a
/// time. All backends share these threads, and each backend has its own scheduler.
#[derive(Clone, Debug)]
pub(crate) struct CpuScheduler {
    /// Held during each poll slice: one call of this backend at a time waits for a thread or runs on it, so
    /// many concurrent calls do not get the backend more CPU time. Tokio's locks are fair: first come, first
    /// served.
    slice_lock: Arc<Mutex<()>>,
    /// Mean CPU time of a call in microseconds. Of a call that moves to the CPU-bound threads after its
    /// start, only the CPU time before the move counts.
    mean_cpu_micros: Arc<AtomicU64>,
    /// The threads for CPU-bound calls.
    threads: Handle,
}

/// Waker of a poll slice. Stores a wake-up that arrives before `wait` is called.
#[derive(Debug, Default)]
struct SliceWaker {
    is_woken: AtomicBool,
    waker: AtomicWaker,
}

impl Wake for SliceWaker {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl SliceWaker {
    async fn wait(&self) {
        std::future::poll_fn(|context| {
            self.waker.register(context.waker());
            if self.is_woken.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

type BoxedCall<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl CpuScheduler {
    /// Creates the scheduler of one backend on these threads.
    pub(crate) fn new(threads: Handle) -> Self {
        Self { slice_lock: Arc::default(), mean_cpu_micros: Arc::default(), threads }
    }

    /// Runs a call. After one tick of CPU time, or from its start if the mean of this backend's calls is
    /// high, each poll slice of the call waits for the CPU-bound threads. A slice ends when the call waits,
    /// has computed for a tick, or ends. A call that waits for these threads may be polled only after its
    /// deadline.
    pub(crate) async fn run<T: Send + 'static>(&self, cpu_time: &CpuTime, mut call: BoxedCall<T>) -> T {
        if !self.is_cpu_bound() {
            let first_slice = std::future::poll_fn(|context| {
                if cpu_time.total() > EPOCH_TICK {
                    return Poll::Ready(None);
                }
                cpu_time.measure_slice(|| call.as_mut().poll(context)).map(Some)
            });
            let answer = first_slice.await;
            // The CPU time of all polls so far.
            self.record_cpu_time(cpu_time.total());
            if let Some(answer) = answer {
                return answer;
            }
        }
        let is_recorded = cpu_time.total() > Duration::ZERO;
        loop {
            let waker = Arc::new(SliceWaker::default());
            let (unfinished, slice_result) =
                self.poll_slice(call, cpu_time.clone(), Arc::clone(&waker)).await;
            match slice_result {
                Poll::Ready(answer) => {
                    if !is_recorded {
                        self.record_cpu_time(cpu_time.total());
                    }
                    return answer;
                }
                Poll::Pending => call = unfinished,
            }
            waker.wait().await;
        }
    }

    /// Polls a call once on the CPU-bound threads. Returns the call and the result of the poll.
    async fn poll_slice<T: Send + 'static>(
        &self,
        mut call: BoxedCall<T>,
        cpu_time: CpuTime,
        slice_waker: Arc<SliceWaker>,
    ) -> (BoxedCall<T>, Poll<T>) {
        let _slice_guard = self.slice_lock.lock().await;
        // Connections and timers of the call stay with the shared runtime.
        let runtime = Handle::current();
        let slice = async move {
            let _runtime_guard = runtime.enter();
            let waker = Waker::from(slice_waker);
            let mut context = Context::from_waker(&waker);
            let polled = cpu_time.measure_slice(|| call.as_mut().poll(&mut context));
            (call, polled)
        };
        match self.threads.spawn(slice.in_current_span()).await {
            Ok(slice) => slice,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The threads are shutting down: the result is lost.
                Err(_) => std::future::pending().await,
            },
        }
    }

    fn is_cpu_bound(&self) -> bool {
        u128::from(self.mean_cpu_micros.load(Ordering::Relaxed)) >= CPU_BOUND_THRESHOLD.as_micros()
    }

    /// Adds a call to the mean. Concurrent updates may overwrite each other, which makes the mean
    /// approximate.
    fn record_cpu_time(&self, cpu_time: Duration) {
        let cpu_time = u64::try_from(cpu_time.as_micros()).unwrap_or(u64::MAX) / MEAN_WINDOW;
        let mean = self.mean_cpu_micros.load(Ordering::Relaxed);
        self.mean_cpu_micros.store((mean - mean / MEAN_WINDOW).saturating_add(cpu_time), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as Plain;

    use tokio::task::yield_now;

    use super::*;

    fn cpu_scheduler() -> CpuScheduler {
        CpuScheduler::new(Handle::current())
    }

    fn make_cpu_bound(scheduler: &CpuScheduler) {
        (0..20).for_each(|_| scheduler.record_cpu_time(Duration::from_millis(8)));
    }

    fn boxed_call<T>(work: impl Future<Output = T> + Send + 'static) -> BoxedCall<T> {
        Box::pin(work)
    }

    #[tokio::test]
    async fn cpu_bound_backend_polls_one_call_at_a_time() {
        let (hogs, others, quick) = (cpu_scheduler(), cpu_scheduler(), cpu_scheduler());
        make_cpu_bound(&hogs);
        make_cpu_bound(&others);
        (0..20).for_each(|_| quick.record_cpu_time(Duration::from_micros(90)));
        let no_cpu_time = CpuTime::default();
        let turn = hogs.slice_lock.lock().await;
        let mut waiting = Box::pin(hogs.run(&no_cpu_time, boxed_call(async { 1 })));
        assert!(futures::poll!(waiting.as_mut()).is_pending(), "one turn of a backend at a time");
        assert_eq!(others.run(&no_cpu_time, boxed_call(async { 2 })).await, 2, "another backend has its own");
        assert_eq!(
            quick.run(&no_cpu_time, boxed_call(async { 3 })).await,
            3,
            "a call with little CPU time does not wait"
        );
        drop(turn);
        assert_eq!(waiting.await, 1);
    }

    #[tokio::test]
    async fn waiting_call_releases_its_thread_and_is_woken() {
        let hogs = cpu_scheduler();
        make_cpu_bound(&hogs);
        let (answer, storage) = tokio::sync::oneshot::channel::<u32>();
        let cpu_time = CpuTime::default();
        let mut asking = Box::pin(hogs.run(&cpu_time, boxed_call(storage)));
        for _ in 0..3 {
            assert!(futures::poll!(asking.as_mut()).is_pending());
            yield_now().await;
        }
        assert_eq!(hogs.run(&CpuTime::default(), boxed_call(async { 3 })).await, 3);
        answer.send(4).unwrap();
        assert_eq!(asking.await, Ok(4));
    }

    #[tokio::test]
    async fn backend_with_short_calls_leaves_the_cpu_bound_threads() {
        let scheduler = cpu_scheduler();
        make_cpu_bound(&scheduler);
        assert!(scheduler.is_cpu_bound());
        (0..40).for_each(|_| scheduler.record_cpu_time(Duration::ZERO));
        assert!(!scheduler.is_cpu_bound());
    }

    #[tokio::test]
    async fn panic_in_a_poll_slice_fails_only_its_call() {
        let scheduler = cpu_scheduler();
        make_cpu_bound(&scheduler);
        let call = tokio::spawn(async move {
            scheduler.run(&CpuTime::default(), boxed_call(async { panic!("a defect of the host") })).await
        });
        let panic = call.await.unwrap_err().into_panic();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a defect of the host"));
    }

    /// Backends that received a poll slice, in order.
    #[derive(Clone, Default)]
    struct SliceLog(Arc<Plain<Vec<&'static str>>>);

    impl SliceLog {
        /// Runs a call that is polled `slices` times and logs `name` at each poll.
        async fn run_slices(self, scheduler: CpuScheduler, name: &'static str, slices: usize) {
            let call = async move {
                for _ in 0..slices {
                    self.0.lock().unwrap().push(name);
                    yield_now().await;
                }
            };
            scheduler.run(&CpuTime::default(), boxed_call(call)).await;
        }

        fn positions_of(&self, name: &str) -> Vec<usize> {
            let seen = self.0.lock().unwrap();
            seen.iter().enumerate().filter(|(_, who)| **who == name).map(|(at, _)| at).collect()
        }
    }

    #[tokio::test]
    async fn backends_share_the_cpu_bound_threads_fairly() {
        let (crowd, single) = (cpu_scheduler(), cpu_scheduler());
        make_cpu_bound(&crowd);
        make_cpu_bound(&single);
        let seen = SliceLog::default();
        let many = (0..64).map(|_| seen.clone().run_slices(crowd.clone(), "crowd", 10));
        let one = seen.clone().run_slices(single, "single", 10);
        futures::join!(futures::future::join_all(many), one);
        let (crowd, single) = (seen.positions_of("crowd"), seen.positions_of("single"));
        assert_eq!((crowd.len(), single.len()), (640, 10));
        assert!(single.last().is_some_and(|last| *last <= 3 * 10), "one for one, or nearly: {single:?}");
    }
}
