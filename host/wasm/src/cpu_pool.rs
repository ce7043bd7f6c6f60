//! Threads of their own, and turns on them, for calls that compute for long.
//!
//! A guest gives its thread back at every tick of the engine's clock, but it is runnable at once again: a
//! backend with many such calls would fill the threads' queue, and the short calls of other backends would
//! wait behind all of them. So whoever computes for long does it on other threads, of which there are half as
//! many as processors and which make way for the rest of the process: each stretch of such a call, of a tick
//! at most, is a turn there. Turns go round the backends first, and then round the calls of one backend.
//!
//! A call that ends, or traps, within its first tick is over before it is known to be long, and a backend
//! with many such calls would keep all threads as well. So it is learned how long a backend's calls compute;
//! where that is long, they begin with a turn.

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

/// From here on a backend's calls begin in the lane, on the mean: well above what calls take that only ask
/// their storage, and well below what others would notice.
const CPU_BOUND_THRESHOLD: Duration = Duration::from_millis(1);
/// How many calls the mean is taken over, roughly.
const MEAN_WINDOW: u64 = 8;

/// The turns of one backend.
#[derive(Clone, Debug)]
pub(crate) struct CpuPool {
    /// Whose turn it is among the calls of this backend; first come, first served, as the library's locks are
    /// fair. A backend stands in the threads' queue once, so that many calls do not get it more turns.
    slice_lock: Arc<Mutex<()>>,
    /// How long a call computes before it is known to be long, on the mean, in microseconds.
    mean_cpu_micros: Arc<AtomicU64>,
    /// Where turns are taken.
    threads: Handle,
}

/// Remembers that a call was woken: while it has its turn, and until somebody listens, nobody else would.
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

impl CpuPool {
    /// The lane of one more backend, with its turns on these threads.
    pub(crate) fn new(threads: Handle) -> Self {
        Self { slice_lock: Arc::default(), mean_cpu_micros: Arc::default(), threads }
    }

    /// Runs a call; once it is long, or where calls of this backend are, each stretch of it is a turn. A
    /// stretch ends when the call waits for something, has computed for a tick, or is over. The call must not
    /// count on being polled when its deadline has passed while it waits for its turn.
    pub(crate) async fn run<T: Send + 'static>(&self, cpu_time: &CpuTime, mut call: BoxedCall<T>) -> T {
        if !self.is_cpu_bound() {
            let first_slice = std::future::poll_fn(|context| {
                if cpu_time.total() > EPOCH_TICK {
                    return Poll::Ready(None);
                }
                cpu_time.measure_slice(|| call.as_mut().poll(context)).map(Some)
            });
            let answer = first_slice.await;
            // All that it has computed, in however many pieces.
            self.record_cpu_time(cpu_time.total());
            if let Some(answer) = answer {
                return answer;
            }
        }
        let is_recorded = cpu_time.total() > Duration::ZERO;
        loop {
            let waker = Arc::new(SliceWaker::default());
            let (unfinished, stretch) = self.poll_slice(call, cpu_time.clone(), Arc::clone(&waker)).await;
            match stretch {
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

    /// One stretch of a call, on the threads for those that are long.
    async fn poll_slice<T: Send + 'static>(
        &self,
        mut call: BoxedCall<T>,
        cpu_time: CpuTime,
        slice_waker: Arc<SliceWaker>,
    ) -> (BoxedCall<T>, Poll<T>) {
        let _slice_guard = self.slice_lock.lock().await;
        // What the call asks of the system, such as connections and timers, stays with the threads for
        // everybody.
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
                // The threads were told to stop, and with them everything that a call could tell.
                Err(_) => std::future::pending().await,
            },
        }
    }

    fn is_cpu_bound(&self) -> bool {
        u128::from(self.mean_cpu_micros.load(Ordering::Relaxed)) >= CPU_BOUND_THRESHOLD.as_micros()
    }

    /// Calls that learn at the same time may overwrite each other, which a mean survives.
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

    fn cpu_pool() -> CpuPool {
        CpuPool::new(Handle::current())
    }

    fn make_cpu_bound(lane: &CpuPool) {
        (0..20).for_each(|_| lane.record_cpu_time(Duration::from_millis(8)));
    }

    fn boxed_call<T>(work: impl Future<Output = T> + Send + 'static) -> BoxedCall<T> {
        Box::pin(work)
    }

    #[tokio::test]
    async fn cpu_bound_backend_polls_one_call_at_a_time() {
        let (hogs, others, quick) = (cpu_pool(), cpu_pool(), cpu_pool());
        make_cpu_bound(&hogs);
        make_cpu_bound(&others);
        (0..20).for_each(|_| quick.record_cpu_time(Duration::from_micros(90)));
        let no_effort = CpuTime::default();
        let turn = hogs.slice_lock.lock().await;
        let mut waiting = Box::pin(hogs.run(&no_effort, boxed_call(async { 1 })));
        assert!(futures::poll!(waiting.as_mut()).is_pending(), "one turn of a backend at a time");
        assert_eq!(others.run(&no_effort, boxed_call(async { 2 })).await, 2, "another backend has its own");
        assert_eq!(quick.run(&no_effort, boxed_call(async { 3 })).await, 3, "who is quick does not wait");
        drop(turn);
        assert_eq!(waiting.await, 1);
    }

    #[tokio::test]
    async fn waiting_call_releases_the_pool_and_is_woken() {
        let hogs = cpu_pool();
        make_cpu_bound(&hogs);
        let (answer, storage) = tokio::sync::oneshot::channel::<u32>();
        let effort = CpuTime::default();
        let mut asking = Box::pin(hogs.run(&effort, boxed_call(storage)));
        for _ in 0..3 {
            assert!(futures::poll!(asking.as_mut()).is_pending());
            yield_now().await;
        }
        assert_eq!(hogs.run(&CpuTime::default(), boxed_call(async { 3 })).await, 3);
        answer.send(4).unwrap();
        assert_eq!(asking.await, Ok(4));
    }

    #[tokio::test]
    async fn backend_with_short_calls_leaves_the_cpu_bound_pool() {
        let lane = cpu_pool();
        make_cpu_bound(&lane);
        assert!(lane.is_cpu_bound());
        (0..40).for_each(|_| lane.record_cpu_time(Duration::ZERO));
        assert!(!lane.is_cpu_bound());
    }

    #[tokio::test]
    async fn panic_in_a_poll_slice_fails_only_its_call() {
        let lane = cpu_pool();
        make_cpu_bound(&lane);
        let call = tokio::spawn(async move {
            lane.run(&CpuTime::default(), boxed_call(async { panic!("a defect of the host") })).await
        });
        let panic = call.await.unwrap_err().into_panic();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a defect of the host"));
    }

    /// Who had a stretch, in order.
    #[derive(Clone, Default)]
    struct SliceLog(Arc<Plain<Vec<&'static str>>>);

    impl SliceLog {
        /// A call of so many stretches, in a backend whose calls are long.
        async fn run_slices(self, lane: CpuPool, name: &'static str, stretches: usize) {
            let call = async move {
                for _ in 0..stretches {
                    self.0.lock().unwrap().push(name);
                    yield_now().await;
                }
            };
            lane.run(&CpuTime::default(), boxed_call(call)).await;
        }

        fn positions_of(&self, name: &str) -> Vec<usize> {
            let seen = self.0.lock().unwrap();
            seen.iter().enumerate().filter(|(_, who)| **who == name).map(|(at, _)| at).collect()
        }
    }

    #[tokio::test]
    async fn backends_share_the_cpu_bound_pool_fairly() {
        let (crowd, single) = (cpu_pool(), cpu_pool());
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
