//! A work queue: every key at most once, one at a time per key, exponential back-off per key.
//!
//! A key that is added while it runs runs again afterwards; one that waits for its back-off is overtaken by a change. So a
//! burst of changes costs one more run, and a failing object never delays another.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet, VecDeque},
    fmt,
    future::Future,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    metrics::{Metrics, QueueMetrics},
    sleep_until,
};

/// What a run of a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing until the next change; the back-off is forgotten.
    Done,
    /// At once again, behind the others: the world changed while deciding.
    Again,
    /// Again after this time, without counting as a failure.
    After(Duration),
    /// Again after the back-off.
    Retry,
    /// Again after this time, counting as a failure.
    RetryAfter(Duration),
}

/// Back-off of a key: doubles from `first` up to `most`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// Never longer.
    pub most: Duration,
}

impl Backoff {
    /// The pause after so many failures in a row.
    pub fn pause(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.first.saturating_mul(1 << doublings).min(self.most)
    }

    /// The same, with no pause that is longer than this.
    #[must_use]
    pub fn at_most(self, longest: Duration) -> Self {
        Self { most: self.most.min(longest), ..self }
    }
}

/// Keys that a queue keeps room for: what a larger burst has taken is given back when it is over.
const ROOM: usize = 256;

struct State<K> {
    ready: VecDeque<K>,
    /// In `ready`, with the time of its adding.
    queued: HashMap<K, Instant>,
    running: HashSet<K>,
    /// Added while running.
    dirty: HashSet<K>,
    /// Woken while running.
    woken: HashSet<K>,
    delayed: BinaryHeap<Reverse<(Instant, u64, K)>>,
    /// The one entry of `delayed` that counts for a key; others are stale.
    due: HashMap<K, u64>,
    failures: HashMap<K, u32>,
    /// How often in a row a key asked to run again at once.
    again: HashMap<K, u32>,
    tickets: u64,
}

impl<K: Eq + Hash + Ord> State<K> {
    /// Gives back what a burst has taken, if it is over.
    fn relax(&mut self) {
        if !self.ready.is_empty() || !self.running.is_empty() || self.queued.capacity() <= 2 * ROOM {
            return;
        }
        self.ready.shrink_to(ROOM);
        self.queued.shrink_to(ROOM);
        self.running.shrink_to(ROOM);
        self.dirty.shrink_to(ROOM);
        self.woken.shrink_to(ROOM);
        self.delayed.shrink_to(ROOM);
        self.due.shrink_to(ROOM);
        self.failures.shrink_to(ROOM);
        self.again.shrink_to(ROOM);
    }
}

/// A key that asks so often in a row to run again at once does not see what the API sees: from then on it backs off. Real
/// conflicts end after a few.
const MAX_AGAIN: u32 = 8;

/// The queue; clones share it.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    backoff: Backoff,
    metrics: QueueMetrics,
    name: &'static str,
}

impl<K> Drop for Shared<K> {
    fn drop(&mut self) {
        // Queues of one name share their metrics, and others of them live on.
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.metrics.depth.dec_by(i64::try_from(state.ready.len()).unwrap_or(i64::MAX));
    }
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K: Clone + Eq + Hash + Ord + fmt::Debug + Send + Sync + 'static> Queue<K> {
    /// An empty queue; `name` is its label in metrics.
    pub fn new(name: &'static str, backoff: Backoff, metrics: &Metrics) -> Self {
        let state = State {
            ready: VecDeque::new(),
            queued: HashMap::new(),
            running: HashSet::new(),
            dirty: HashSet::new(),
            woken: HashSet::new(),
            delayed: BinaryHeap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            again: HashMap::new(),
            tickets: 0,
        };
        let shared = Shared {
            state: Mutex::new(state),
            changed: Notify::new(),
            backoff,
            metrics: metrics.queue(name),
            name,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Adds a key: it runs as soon as a worker is free.
    pub fn add(&self, key: K) {
        let mut state = self.lock();
        self.shared.metrics.adds.inc();
        state.due.remove(&key);
        if state.running.contains(&key) {
            state.dirty.insert(key);
        } else {
            self.enqueue(&mut state, key);
        }
    }

    /// Adds a key unless it waits already, for a worker or for its time: a reminder, not a change. One that runs may have
    /// looked before the reminder: it runs again, unless it ends with a time of its own.
    pub fn wake(&self, key: K) {
        let mut state = self.lock();
        if state.running.contains(&key) {
            state.woken.insert(key);
        } else if !state.due.contains_key(&key) {
            self.shared.metrics.adds.inc();
            self.enqueue(&mut state, key);
        }
    }

    /// Adds a key after a time, unless it is added before.
    pub fn add_after(&self, key: K, delay: Duration) {
        let mut state = self.lock();
        self.delay(&mut state, key, delay);
    }

    /// How often the key failed in a row.
    pub fn failures(&self, key: &K) -> u32 {
        self.lock().failures.get(key).copied().unwrap_or_default()
    }

    /// Runs keys, at most `workers` at once, until `stop`; then waits for those that run.
    ///
    /// `work` runs in a task of its own: a panic there is logged, counts as a failure of the key and touches no other.
    pub async fn run<F>(&self, workers: usize, stop: CancellationToken, work: impl Fn(K) -> F)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let mut tasks: JoinSet<(K, Instant, Outcome)> = JoinSet::new();
        let mut keys: HashMap<tokio::task::Id, K> = HashMap::new();
        loop {
            while tasks.len() < workers.max(1)
                && let Some(key) = self.take()
            {
                let future = work(key.clone());
                let owner = key.clone();
                let handle = tasks.spawn(async move {
                    let started = Instant::now();
                    (owner, started, future.await)
                });
                keys.insert(handle.id(), key);
            }
            let wake = self.next_due();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(done) = tasks.join_next_with_id(), if !tasks.is_empty() => self.settle(done, &mut keys),
                () = self.shared.changed.notified() => {}
                () = sleep_until(wake), if tasks.len() < workers.max(1) => self.promote(),
            }
        }
        while let Some(done) = tasks.join_next_with_id().await {
            self.settle(done, &mut keys);
        }
    }

    fn settle(
        &self,
        done: Result<(tokio::task::Id, (K, Instant, Outcome)), tokio::task::JoinError>,
        keys: &mut HashMap<tokio::task::Id, K>,
    ) {
        match done {
            Ok((id, (key, started, outcome))) => {
                keys.remove(&id);
                self.shared.metrics.work.observe(started.elapsed().as_secs_f64());
                self.finish(key, outcome);
            }
            Err(error) => {
                let Some(key) = keys.remove(&error.id()) else { return };
                tracing::error!(queue = self.shared.name, ?key, %error, "a run broke off; it is tried again");
                self.finish(key, Outcome::Retry);
            }
        }
    }

    fn take(&self) -> Option<K> {
        let mut state = self.lock();
        let key = state.ready.pop_front()?;
        if let Some(since) = state.queued.remove(&key) {
            self.shared.metrics.wait.observe(since.elapsed().as_secs_f64());
        }
        state.running.insert(key.clone());
        self.shared.metrics.depth.dec();
        Some(key)
    }

    fn finish(&self, key: K, outcome: Outcome) {
        let mut state = self.lock();
        state.running.remove(&key);
        let outcome = if outcome == Outcome::Again {
            let again = state.again.entry(key.clone()).or_default();
            *again = again.saturating_add(1);
            if *again > MAX_AGAIN { Outcome::Retry } else { Outcome::Again }
        } else {
            state.again.remove(&key);
            outcome
        };
        let failed = matches!(outcome, Outcome::Retry | Outcome::RetryAfter(_));
        let failures = if failed {
            let failures = state.failures.entry(key.clone()).or_default();
            *failures = failures.saturating_add(1);
            self.shared.metrics.retries.inc();
            *failures
        } else {
            // Only a clean end forgets: a conflict in between says nothing about the failure before it.
            if outcome == Outcome::Done {
                state.failures.remove(&key);
            }
            0
        };
        let woken = state.woken.remove(&key) && outcome == Outcome::Done;
        if state.dirty.remove(&key) || woken || outcome == Outcome::Again {
            self.enqueue(&mut state, key);
            return;
        }
        match outcome {
            Outcome::Done | Outcome::Again => {}
            Outcome::After(delay) | Outcome::RetryAfter(delay) => self.delay(&mut state, key, delay),
            Outcome::Retry => self.delay(&mut state, key, self.shared.backoff.pause(failures)),
        }
        state.relax();
    }

    fn enqueue(&self, state: &mut State<K>, key: K) {
        if state.queued.contains_key(&key) {
            return;
        }
        state.queued.insert(key.clone(), Instant::now());
        state.ready.push_back(key);
        self.shared.metrics.depth.inc();
        self.shared.changed.notify_one();
    }

    fn delay(&self, state: &mut State<K>, key: K, delay: Duration) {
        state.tickets += 1;
        let ticket = state.tickets;
        state.due.insert(key.clone(), ticket);
        state.delayed.push(Reverse((Instant::now() + delay, ticket, key)));
        self.shared.changed.notify_one();
    }

    /// When the next delayed key is due.
    fn next_due(&self) -> Option<Instant> {
        let mut state = self.lock();
        loop {
            let Reverse((at, ticket, key)) = state.delayed.peek()?;
            if state.due.get(key) == Some(ticket) {
                return Some(*at);
            }
            state.delayed.pop();
        }
    }

    /// Moves keys whose time has come.
    fn promote(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        while let Some(Reverse((at, _, _))) = state.delayed.peek()
            && *at <= now
        {
            let Some(Reverse((_, ticket, key))) = state.delayed.pop() else { break };
            if state.due.get(&key) == Some(&ticket) {
                state.due.remove(&key);
                if state.running.contains(&key) {
                    state.dirty.insert(key);
                } else {
                    self.enqueue(&mut state, key);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        // Nothing under the lock can panic half-way through a change.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
