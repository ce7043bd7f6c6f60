//! A work queue: every key at most once, one at a time per key, exponential back-off per key.
//!
//! A key that is added while it runs runs again afterwards; one that waits for its back-off is overtaken by a
//! change. So a burst of changes costs one more run, and a failing object never delays another.

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
pub enum Action {
    /// Nothing until the next change; the back-off is forgotten.
    Done,
    /// At once again, behind the others: the world changed while deciding.
    Requeue,
    /// Again after this time, without counting as a failure.
    RequeueAfter(Duration),
    /// Again after the back-off.
    Backoff,
    /// Again after this time, counting as a failure.
    BackoffFor(Duration),
}

/// Back-off of a key: doubles from `first` up to `most`.
#[derive(Clone, Copy, Debug)]
pub struct ExponentialBackoff {
    /// After the first failure.
    pub initial: Duration,
    /// Never longer.
    pub max: Duration,
}

impl ExponentialBackoff {
    /// The pause after so many failures in a row.
    pub fn delay(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.initial.saturating_mul(1 << doublings).min(self.max)
    }

    /// The same, with no pause that is longer than this.
    #[must_use]
    pub fn capped_at(self, max: Duration) -> Self {
        Self { max: self.max.min(max), ..self }
    }
}

/// Keys that a queue keeps room for: what a larger burst has taken is given back when it is over.
const RETAINED_CAPACITY: usize = 256;

struct State<K> {
    ready: VecDeque<K>,
    /// In `ready`, with the time of its adding.
    queued: HashMap<K, Instant>,
    running: HashSet<K>,
    /// Added while running.
    dirty: HashSet<K>,
    /// Woken while running.
    rerun_when_done: HashSet<K>,
    delayed: BinaryHeap<Reverse<(Instant, u64, K)>>,
    /// The one entry of `delayed` that counts for a key; others are stale.
    due: HashMap<K, u64>,
    failures: HashMap<K, u32>,
    /// How often in a row a key asked to run again at once.
    immediate_requeues: HashMap<K, u32>,
    last_ticket: u64,
}

impl<K: Eq + Hash + Ord> State<K> {
    /// Gives back what a burst has taken, if it is over.
    fn shrink_when_idle(&mut self) {
        if !self.ready.is_empty()
            || !self.running.is_empty()
            || self.queued.capacity() <= 2 * RETAINED_CAPACITY
        {
            return;
        }
        self.ready.shrink_to(RETAINED_CAPACITY);
        self.queued.shrink_to(RETAINED_CAPACITY);
        self.running.shrink_to(RETAINED_CAPACITY);
        self.dirty.shrink_to(RETAINED_CAPACITY);
        self.rerun_when_done.shrink_to(RETAINED_CAPACITY);
        self.delayed.shrink_to(RETAINED_CAPACITY);
        self.due.shrink_to(RETAINED_CAPACITY);
        self.failures.shrink_to(RETAINED_CAPACITY);
        self.immediate_requeues.shrink_to(RETAINED_CAPACITY);
    }
}

/// A key that asks so often in a row to run again at once does not see what the API sees: from then on it
/// backs off. Real conflicts end after a few.
const MAX_IMMEDIATE_REQUEUES: u32 = 8;

/// The queue; clones share it.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    backoff: ExponentialBackoff,
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
    pub fn new(name: &'static str, backoff: ExponentialBackoff, metrics: &Metrics) -> Self {
        let state = State {
            ready: VecDeque::new(),
            queued: HashMap::new(),
            running: HashSet::new(),
            dirty: HashSet::new(),
            rerun_when_done: HashSet::new(),
            delayed: BinaryHeap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            immediate_requeues: HashMap::new(),
            last_ticket: 0,
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
            self.push_ready(&mut state, key);
        }
    }

    /// Adds a key unless it waits already, for a worker or for its time: a reminder, not a change. One that
    /// runs may have looked before the reminder: it runs again, unless it ends with a time of its own.
    pub fn add_if_absent(&self, key: K) {
        let mut state = self.lock();
        if state.running.contains(&key) {
            state.rerun_when_done.insert(key);
        } else if !state.due.contains_key(&key) {
            self.shared.metrics.adds.inc();
            self.push_ready(&mut state, key);
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
    /// `work` runs in a task of its own: a panic there is logged, counts as a failure of the key and touches
    /// no other.
    pub async fn run<F>(&self, workers: usize, stop: CancellationToken, work: impl Fn(K) -> F)
    where
        F: Future<Output = Action> + Send + 'static,
    {
        let mut tasks: JoinSet<(K, Instant, Action)> = JoinSet::new();
        let mut keys: HashMap<tokio::task::Id, K> = HashMap::new();
        loop {
            while tasks.len() < workers.max(1)
                && let Some(key) = self.pop_ready()
            {
                let future = work(key.clone());
                let running_key = key.clone();
                let handle = tasks.spawn(async move {
                    let started = Instant::now();
                    (running_key, started, future.await)
                });
                keys.insert(handle.id(), key);
            }
            let next_due = self.next_due();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(done) = tasks.join_next_with_id(), if !tasks.is_empty() => self.handle_finished(done, &mut keys),
                () = self.shared.changed.notified() => {}
                () = sleep_until(next_due), if tasks.len() < workers.max(1) => self.promote_due(),
            }
        }
        while let Some(done) = tasks.join_next_with_id().await {
            self.handle_finished(done, &mut keys);
        }
    }

    fn handle_finished(
        &self,
        done: Result<(tokio::task::Id, (K, Instant, Action)), tokio::task::JoinError>,
        keys: &mut HashMap<tokio::task::Id, K>,
    ) {
        match done {
            Ok((id, (key, started, outcome))) => {
                keys.remove(&id);
                self.shared.metrics.work_duration.observe(started.elapsed().as_secs_f64());
                self.finish(key, outcome);
            }
            Err(error) => {
                let Some(key) = keys.remove(&error.id()) else { return };
                tracing::error!(queue = self.shared.name, ?key, %error, "a run broke off; it is tried again");
                self.finish(key, Action::Backoff);
            }
        }
    }

    fn pop_ready(&self) -> Option<K> {
        let mut state = self.lock();
        let key = state.ready.pop_front()?;
        if let Some(since) = state.queued.remove(&key) {
            self.shared.metrics.queue_duration.observe(since.elapsed().as_secs_f64());
        }
        state.running.insert(key.clone());
        self.shared.metrics.depth.dec();
        Some(key)
    }

    fn finish(&self, key: K, action: Action) {
        let mut state = self.lock();
        state.running.remove(&key);
        let action = if action == Action::Requeue {
            let requeues = state.immediate_requeues.entry(key.clone()).or_default();
            *requeues = requeues.saturating_add(1);
            if *requeues > MAX_IMMEDIATE_REQUEUES { Action::Backoff } else { Action::Requeue }
        } else {
            state.immediate_requeues.remove(&key);
            action
        };
        let failed = matches!(action, Action::Backoff | Action::BackoffFor(_));
        let failures = if failed {
            let failures = state.failures.entry(key.clone()).or_default();
            *failures = failures.saturating_add(1);
            self.shared.metrics.retries.inc();
            *failures
        } else {
            // Only a clean end forgets: a conflict in between says nothing about the failure before it.
            if action == Action::Done {
                state.failures.remove(&key);
            }
            0
        };
        let reruns = state.rerun_when_done.remove(&key) && action == Action::Done;
        if state.dirty.remove(&key) || reruns || action == Action::Requeue {
            self.push_ready(&mut state, key);
            return;
        }
        match action {
            Action::Done | Action::Requeue => {}
            Action::RequeueAfter(delay) | Action::BackoffFor(delay) => self.delay(&mut state, key, delay),
            Action::Backoff => self.delay(&mut state, key, self.shared.backoff.delay(failures)),
        }
        state.shrink_when_idle();
    }

    fn push_ready(&self, state: &mut State<K>, key: K) {
        if state.queued.contains_key(&key) {
            return;
        }
        state.queued.insert(key.clone(), Instant::now());
        state.ready.push_back(key);
        self.shared.metrics.depth.inc();
        self.shared.changed.notify_one();
    }

    fn delay(&self, state: &mut State<K>, key: K, delay: Duration) {
        state.last_ticket += 1;
        let ticket = state.last_ticket;
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
    fn promote_due(&self) {
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
                    self.push_ready(&mut state, key);
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
