//! Turns for calls that compute for long.
//!
//! A guest gives its thread back at every tick of the engine's clock, but it is runnable at once again: a backend with many such
//! calls would fill the threads' queue, and the short calls of other backends would wait behind all of them. So a call that goes
//! on computing waits for its turn. One turn begins for every tick of the clock, which leaves the other threads to short calls;
//! turns go round the backends first, and then round the calls of one backend.

use std::sync::Arc;

use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until},
};

use crate::limits::TICK;

/// The turns of all backends of an engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes(Arc<Mutex<Option<Instant>>>);

/// The turns of one backend.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    /// Whose turn it is among the calls of this backend; first come, first served, as the library's mutex is fair.
    own: Arc<Mutex<()>>,
    /// Whose turn it is among the backends, and when the next turn would begin if each took a whole tick.
    all: Lanes,
}

impl Lanes {
    /// A backend's lane.
    pub(crate) fn lane(&self) -> Lane {
        Lane { own: Arc::default(), all: self.clone() }
    }
}

impl Lane {
    /// Waits for the turn to compute for a tick. Nothing has to be given back: a turn is over when the tick is.
    pub(crate) async fn turn(&self) {
        let _own = self.own.lock().await;
        let mut due = self.all.0.lock().await;
        if let Some(due) = *due {
            // A tick early at most: the clock is not exact, and who is alone must not wait for its own last turn.
            sleep_until(due - TICK).await;
        }
        let now = Instant::now();
        *due = Some(due.map_or(now, |due| due.max(now)) + TICK);
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
