//! Threads of their own, and turns on them, for calls that compute for long.
//!
//! A guest gives its thread back at every tick of the engine's clock, but it is runnable at once again: a backend with many such
//! calls would fill the threads' queue, and the short calls of other backends would wait behind all of them. So whoever computes
//! for long does it on other threads, of which there are half as many as processors and which make way for the rest of the
//! process: each stretch of such a call, of a tick at most, is a turn there. Turns go round the backends first, and then round the
//! calls of one backend.
//!
//! A call that ends, or traps, within its first tick is over before it is known to be long, and a backend with many such calls
//! would keep all threads as well. So it is learned how long a backend's calls compute; where that is long, they begin with a turn.

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

use crate::{effort::Effort, limits::TICK};

/// From here on a backend's calls begin in the lane, on the mean: well above what calls take that only ask their storage, and well
/// below what others would notice.
const LONG: Duration = Duration::from_millis(1);
/// How many calls the mean is taken over, roughly.
const MEMORY: u64 = 8;

/// The turns of one backend.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    /// Whose turn it is among the calls of this backend; first come, first served, as the library's locks are fair. A backend
    /// stands in the threads' queue once, so that many calls do not get it more turns.
    own: Arc<Mutex<()>>,
    /// How long a call computes before it is known to be long, on the mean, in microseconds.
    mean: Arc<AtomicU64>,
    /// Where turns are taken.
    threads: Handle,
}

/// Remembers that a call was woken: while it has its turn, and until somebody listens, nobody else would.
#[derive(Debug, Default)]
struct Bell {
    rung: AtomicBool,
    listener: AtomicWaker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.listener.wake();
    }
}

impl Bell {
    async fn rings(&self) {
        std::future::poll_fn(|context| {
            self.listener.register(context.waker());
            if self.rung.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Lane {
    /// The lane of one more backend, with its turns on these threads.
    pub(crate) fn new(threads: Handle) -> Self {
        Self { own: Arc::default(), mean: Arc::default(), threads }
    }

    /// Runs a call; once it is long, or where calls of this backend are, each stretch of it is a turn. A stretch ends when the
    /// call waits for something, has computed for a tick, or is over. The call must not count on being polled when its
    /// deadline has passed while it waits for its turn.
    pub(crate) async fn pace<T: Send + 'static>(&self, effort: &Effort, mut call: Work<T>) -> T {
        if !self.is_slow() {
            let quick = std::future::poll_fn(|context| {
                if effort.spent() > TICK {
                    return Poll::Ready(None);
                }
                effort.stretch(|| call.as_mut().poll(context)).map(Some)
            });
            let answer = quick.await;
            // All that it has computed, in however many pieces.
            self.learn(effort.spent());
            if let Some(answer) = answer {
                return answer;
            }
        }
        let known = effort.spent() > Duration::ZERO;
        loop {
            let bell = Arc::new(Bell::default());
            let (kept, stretch) = self.turn(call, effort.clone(), Arc::clone(&bell)).await;
            match stretch {
                Poll::Ready(answer) => {
                    if !known {
                        self.learn(effort.spent());
                    }
                    return answer;
                }
                Poll::Pending => call = kept,
            }
            bell.rings().await;
        }
    }

    /// One stretch of a call, on the threads for those that are long.
    async fn turn<T: Send + 'static>(
        &self,
        mut call: Work<T>,
        effort: Effort,
        bell: Arc<Bell>,
    ) -> (Work<T>, Poll<T>) {
        let _own = self.own.lock().await;
        // What the call asks of the system, such as connections and timers, stays with the threads for everybody.
        let home = Handle::current();
        let stretch = async move {
            let _home = home.enter();
            let waker = Waker::from(bell);
            let mut context = Context::from_waker(&waker);
            let polled = effort.stretch(|| call.as_mut().poll(&mut context));
            (call, polled)
        };
        match self.threads.spawn(stretch.in_current_span()).await {
            Ok(stretch) => stretch,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The threads were told to stop, and with them everything that a call could tell.
                Err(_) => std::future::pending().await,
            },
        }
    }

    fn is_slow(&self) -> bool {
        u128::from(self.mean.load(Ordering::Relaxed)) >= LONG.as_micros()
    }

    /// Calls that learn at the same time may overwrite each other, which a mean survives.
    fn learn(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX) / MEMORY;
        let mean = self.mean.load(Ordering::Relaxed);
        self.mean.store((mean - mean / MEMORY).saturating_add(took), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as Plain;

    use tokio::task::yield_now;

    use super::*;

    fn lane() -> Lane {
        Lane::new(Handle::current())
    }

    fn slow(lane: &Lane) {
        (0..20).for_each(|_| lane.learn(Duration::from_millis(8)));
    }

    fn work<T>(work: impl Future<Output = T> + Send + 'static) -> Work<T> {
        Box::pin(work)
    }

    #[tokio::test]
    async fn calls_that_keep_their_thread_begin_in_turns() {
        let (hogs, others, quick) = (lane(), lane(), lane());
        slow(&hogs);
        slow(&others);
        (0..20).for_each(|_| quick.learn(Duration::from_micros(90)));
        let no_effort = Effort::default();
        let turn = hogs.own.lock().await;
        let mut waiting = Box::pin(hogs.pace(&no_effort, work(async { 1 })));
        assert!(futures::poll!(waiting.as_mut()).is_pending(), "one turn of a backend at a time");
        assert_eq!(others.pace(&no_effort, work(async { 2 })).await, 2, "another backend has its own");
        assert_eq!(quick.pace(&no_effort, work(async { 3 })).await, 3, "who is quick does not wait");
        drop(turn);
        assert_eq!(waiting.await, 1);
    }

    #[tokio::test]
    async fn who_waits_for_its_storage_keeps_nobody_and_is_woken() {
        let hogs = lane();
        slow(&hogs);
        let (answer, storage) = tokio::sync::oneshot::channel::<u32>();
        let effort = Effort::default();
        let mut asking = Box::pin(hogs.pace(&effort, work(storage)));
        for _ in 0..3 {
            assert!(futures::poll!(asking.as_mut()).is_pending());
            yield_now().await;
        }
        assert_eq!(hogs.pace(&Effort::default(), work(async { 3 })).await, 3);
        answer.send(4).unwrap();
        assert_eq!(asking.await, Ok(4));
    }

    #[tokio::test]
    async fn a_slow_backend_is_forgotten() {
        let lane = lane();
        slow(&lane);
        assert!(lane.is_slow());
        (0..40).for_each(|_| lane.learn(Duration::ZERO));
        assert!(!lane.is_slow());
    }

    #[tokio::test]
    async fn a_panic_in_a_turn_is_the_calls() {
        let lane = lane();
        slow(&lane);
        let call = tokio::spawn(async move {
            lane.pace(&Effort::default(), work(async { panic!("a defect of the host") })).await
        });
        let panic = call.await.unwrap_err().into_panic();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a defect of the host"));
    }

    /// Who had a stretch, in order.
    #[derive(Clone, Default)]
    struct Seen(Arc<Plain<Vec<&'static str>>>);

    impl Seen {
        /// A call of so many stretches, in a backend whose calls are long.
        async fn computes(self, lane: Lane, name: &'static str, stretches: usize) {
            let call = async move {
                for _ in 0..stretches {
                    self.0.lock().unwrap().push(name);
                    yield_now().await;
                }
            };
            lane.pace(&Effort::default(), work(call)).await;
        }

        fn at(&self, name: &str) -> Vec<usize> {
            let seen = self.0.lock().unwrap();
            seen.iter().enumerate().filter(|(_, who)| **who == name).map(|(at, _)| at).collect()
        }
    }

    #[tokio::test]
    async fn a_backend_with_many_calls_gets_no_more_than_one_with_a_single_call() {
        let (crowd, single) = (lane(), lane());
        slow(&crowd);
        slow(&single);
        let seen = Seen::default();
        let many = (0..64).map(|_| seen.clone().computes(crowd.clone(), "crowd", 10));
        let one = seen.clone().computes(single, "single", 10);
        futures::join!(futures::future::join_all(many), one);
        let (crowd, single) = (seen.at("crowd"), seen.at("single"));
        assert_eq!((crowd.len(), single.len()), (640, 10));
        assert!(single.last().is_some_and(|last| *last <= 3 * 10), "one for one, or nearly: {single:?}");
    }
}
