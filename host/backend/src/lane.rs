//! Turns for calls that compute for long.
//!
//! A guest gives its thread back at every tick of the engine's clock, but it is runnable at once again: a backend with many such
//! calls would fill the threads' queue, and the short calls of other backends would wait behind all of them. So a call that goes
//! on computing waits for its turn. One turn begins for every tick of the clock, which leaves the other threads to short calls;
//! turns go round the backends first, and then round the calls of one backend.

//!
//! A call that ends, or traps, within its first tick never waits for a turn, and a backend with many such calls would keep all
//! threads as well. So it is learned how long a backend's calls keep their thread at first; where that is long, they begin one
//! at a time.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until},
};

use crate::limits::TICK;

/// From here on a backend's calls begin one at a time, on the mean: well above what calls take that only ask their storage, and
/// well below what others would notice.
const LONG: Duration = Duration::from_millis(1);
/// How many calls the mean is taken over, roughly.
const MEMORY: u64 = 8;

/// The turns of all backends of an engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes {
    /// When the next turn would begin if each took a whole tick.
    turns: Arc<Mutex<Option<Instant>>>,
    /// Whose call begins, of those that keep their thread for long.
    beginnings: Arc<Mutex<()>>,
}

/// The turns of one backend.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    /// Whose turn it is among the calls of this backend; first come, first served, as the library's mutex is fair.
    own: Arc<Mutex<()>>,
    /// The same for those that begin.
    own_beginnings: Arc<Mutex<()>>,
    /// How long a call keeps its thread at first, on the mean, in microseconds.
    mean: Arc<AtomicU64>,
    /// Whose turn it is among the backends.
    all: Lanes,
}

impl Lanes {
    /// A backend's lane.
    pub(crate) fn lane(&self) -> Lane {
        Lane { own: Arc::default(), own_beginnings: Arc::default(), mean: Arc::default(), all: self.clone() }
    }
}

impl Lane {
    /// Waits for the turn to compute for a tick. Nothing has to be given back: a turn is over when the tick is.
    pub(crate) async fn turn(&self) {
        let _own = self.own.lock().await;
        let mut due = self.all.turns.lock().await;
        if let Some(due) = *due {
            // A tick early at most: the clock is not exact, and who is alone must not wait for its own last turn.
            sleep_until(due - TICK).await;
        }
        let now = Instant::now();
        *due = Some(due.map_or(now, |due| due.max(now)) + TICK);
    }

    /// Runs a call; where calls of this backend keep their thread for long, it begins when no other such call does. Its first
    /// stretch ends when it waits for something, has computed for a tick, or is over.
    pub(crate) async fn pace<T>(&self, call: impl Future<Output = T>) -> T {
        let mut alone = match self.is_slow() {
            true => Some((self.own_beginnings.lock().await, self.all.beginnings.lock().await)),
            false => None,
        };
        let mut call = pin!(call);
        let mut begun = false;
        std::future::poll_fn(|context| {
            if begun {
                return call.as_mut().poll(context);
            }
            begun = true;
            // Not the runtime's clock, which tests stop.
            let before = std::time::Instant::now();
            let polled = call.as_mut().poll(context);
            self.learn(before.elapsed());
            alone = None;
            polled
        })
        .await
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
    use super::*;

    /// When each turn of a lane began, in ticks.
    async fn turns(lane: Lane, turns: usize) -> Vec<u128> {
        let begun = Instant::now();
        let mut times = Vec::new();
        for _ in 0..turns {
            lane.turn().await;
            times.push(begun.elapsed().as_millis() / TICK.as_millis());
            // Computes for as long as a turn is.
            tokio::time::sleep(TICK).await;
        }
        times
    }

    #[tokio::test]
    async fn calls_that_keep_their_thread_begin_one_at_a_time() {
        let lanes = Lanes::default();
        let (slow, quick) = (lanes.lane(), lanes.lane());
        for _ in 0..20 {
            slow.learn(Duration::from_millis(8));
            quick.learn(Duration::from_micros(90));
        }
        assert!(slow.is_slow() && !quick.is_slow());
        // One that has begun and not yet waited for anything: the next slow one waits, a quick one does not.
        let beginning = slow.all.beginnings.lock().await;
        let mut waiting = pin!(slow.pace(async { 1 }));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        assert_eq!(quick.pace(async { 2 }).await, 2);
        drop(beginning);
        assert_eq!(waiting.await, 1);
        // What waits for its storage does not keep the others.
        let mut asking = pin!(slow.pace(std::future::pending::<()>()));
        assert!(futures::poll!(asking.as_mut()).is_pending());
        assert_eq!(slow.pace(async { 3 }).await, 3);
        for _ in 0..40 {
            slow.learn(Duration::ZERO);
        }
        assert!(!slow.is_slow(), "it is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_alone_never_waits() {
        assert_eq!(turns(Lanes::default().lane(), 5).await, [0, 1, 2, 3, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_turn_begins_each_tick_whoever_takes_it() {
        let lanes = Lanes::default();
        let all = (0..8).map(|_| turns(lanes.lane(), 10));
        let mut times = futures::future::join_all(all).await.concat();
        times.sort_unstable();
        let crowded = (0..80).filter(|tick| times.iter().filter(|time| *time == tick).count() > 1).count();
        assert_eq!((times.len(), crowded), (80, 1), "{times:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_backend_with_many_calls_gets_no_more_than_one_with_a_single_call() {
        let lanes = Lanes::default();
        let (crowd, single) = (lanes.lane(), lanes.lane());
        let many = futures::future::join_all((0..64).map(|_| turns(crowd.clone(), 10)));
        let single = turns(single, 10);
        let (single, _) = futures::join!(single, many);
        assert!(single.last().is_some_and(|last| *last <= 30), "{single:?}");
    }
}
