//! A work queue with unique keys, at most one run per key at a time, and exponential back-off per key.
//!
//! A key that [`Queue::add`] adds during its run runs again afterwards. One that it adds during its back-off
//! runs at once. A burst of changes therefore causes one more run, and a failing object does not delay
//! others.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet, VecDeque},
    fmt,
    future::Future,
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::sleep_until,
    metrics::{Metrics, QueueMetrics},
};

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Success: wait for the next change and reset the back-off.
    Done,
    /// Run again immediately, after the queued keys: the state changed during the run. From the ninth
    /// consecutive result of this kind on, it is treated as [`Action::Backoff`].
    Requeue,
    /// Run again after this delay. This is not a failure, and it does not reset the back-off.
    RequeueAfter(Duration),
    /// Failure: run again after the back-off.
    Backoff,
    /// Failure: run again after this delay.
    BackoffFor(Duration),
}

/// Exponential back-off: doubles from `initial` up to `max`.
#[derive(Clone, Copy, Debug)]
pub struct ExponentialBackoff {
    /// Delay after the first failure.
    pub initial: Duration,
    /// Maximum delay.
    pub max: Duration,
}

impl ExponentialBackoff {
    /// The delay after a number of consecutive failures.
    pub fn delay(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.initial.saturating_mul(1 << doublings).min(self.max)
    }

    /// The same back-off with a lower maximum.
    #[must_use]
    pub fn capped_at(self, max: Duration) -> Self {
        Self { max: self.max.min(max), ..self }
    }
}

/// Capacity, in keys, to which an idle queue shrinks after a burst of more than twice as many queued keys.
const RETAINED_CAPACITY: usize = 256;

struct State<K> {
    ready: VecDeque<K>,
    /// Keys in `ready`, with the time when they were added.
    queued: HashMap<K, Instant>,
    running: HashSet<K>,
    /// Keys that [`Queue::add`] added during their run, or whose delay ended during their run.
    dirty: HashSet<K>,
    /// Keys that [`Queue::add_if_absent`] added during their run. They run again only after [`Action::Done`].
    rerun_when_done: HashSet<K>,
    delayed: BinaryHeap<Reverse<(Instant, u64, K)>>,
    /// Keys that [`Queue::add_once_per_backoff`] added during their run.
    changed_in_run: HashSet<K>,
    /// Ticket of a key's valid entry in `delayed`, with its time. Other entries are stale.
    due: HashMap<K, (u64, Instant)>,
    /// The end of the last back-off of a failing key that a change has ended early.
    ended_early: HashMap<K, Instant>,
    failures: HashMap<K, u32>,
    /// Number of consecutive [`Action::Requeue`] results of a key.
    immediate_requeues: HashMap<K, u32>,
    last_ticket: u64,
}

impl<K: Clone + Eq + Hash + Ord> State<K> {
    /// Cancels the delay of a key. Returns false if the delay stays: within the time of a back-off that was
    /// ended early, no other one is.
    fn end_delay_once_per_backoff(&mut self, key: &K) -> bool {
        if self.failures.contains_key(key)
            && let Some((_, end)) = self.due.get(key)
        {
            if self.ended_early.get(key).is_some_and(|ended| Instant::now() < *ended) {
                return false;
            }
            self.ended_early.insert(key.clone(), *end);
        }
        self.due.remove(key);
        true
    }

    /// Releases the memory of a burst.
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
        self.changed_in_run.shrink_to(RETAINED_CAPACITY);
        self.due.shrink_to(RETAINED_CAPACITY);
        self.ended_early.shrink_to(RETAINED_CAPACITY);
        self.failures.shrink_to(RETAINED_CAPACITY);
        self.immediate_requeues.shrink_to(RETAINED_CAPACITY);
    }
}

/// Maximum number of consecutive immediate requeues of a key. Real conflicts need few; after more, the cache
/// is out of date and the key backs off.
const MAX_IMMEDIATE_REQUEUES: u32 = 8;

/// A work queue. Clones share it.
pub struct Queue<K> {
    inner: Arc<Inner<K>>,
}

struct Inner<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    backoff: ExponentialBackoff,
    metrics: QueueMetrics,
    name: &'static str,
}

impl<K> Drop for Inner<K> {
    fn drop(&mut self) {
        // Queues with the same name share metrics, so only this queue's keys are subtracted.
        let state = self.state.get_mut();
        self.metrics.depth.dec_by(i64::try_from(state.ready.len()).unwrap_or(i64::MAX));
    }
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K: Clone + Eq + Hash + Ord + fmt::Debug + Send + Sync + 'static> Queue<K> {
    /// An empty queue. `name` is its metric label.
    pub fn new(name: &'static str, backoff: ExponentialBackoff, metrics: &Metrics) -> Self {
        let state = State {
            ready: VecDeque::new(),
            queued: HashMap::new(),
            running: HashSet::new(),
            dirty: HashSet::new(),
            rerun_when_done: HashSet::new(),
            delayed: BinaryHeap::new(),
            changed_in_run: HashSet::new(),
            due: HashMap::new(),
            ended_early: HashMap::new(),
            failures: HashMap::new(),
            immediate_requeues: HashMap::new(),
            last_ticket: 0,
        };
        let inner = Inner {
            state: Mutex::new(state),
            changed: Notify::new(),
            backoff,
            metrics: metrics.queue(name),
            name,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Adds a key, which runs as soon as a worker is available; a running key runs again afterwards. This
    /// cancels the key's delay.
    pub fn add(&self, key: K) {
        let mut state = self.inner.state.lock();
        self.inner.metrics.adds.inc();
        state.due.remove(&key);
        if state.running.contains(&key) {
            state.dirty.insert(key);
        } else {
            self.push_ready(&mut state, key);
        }
    }

    /// As [`Queue::add`], for a change that a user can make at any rate: it ends a back-off early,
    /// and further ones within the time of that back-off leave the key's delay as it is.
    pub fn add_once_per_backoff(&self, key: K) {
        let mut state = self.inner.state.lock();
        if state.running.contains(&key) {
            self.inner.metrics.adds.inc();
            state.changed_in_run.insert(key);
        } else if state.end_delay_once_per_backoff(&key) {
            self.inner.metrics.adds.inc();
            self.push_ready(&mut state, key);
        }
    }

    /// Adds a key unless it is queued or delayed: for a resync, not for a change. A running key may have read
    /// the state before this call, so it runs again if its result is [`Action::Done`].
    pub fn add_if_absent(&self, key: K) {
        let mut state = self.inner.state.lock();
        if state.running.contains(&key) {
            state.rerun_when_done.insert(key);
        } else if !state.due.contains_key(&key) {
            self.inner.metrics.adds.inc();
            self.push_ready(&mut state, key);
        }
    }

    /// Adds a key after a delay, which replaces an earlier delay of the key. A call of [`Queue::add`] within
    /// the delay adds the key at once and cancels the delay.
    pub fn add_after(&self, key: K, delay: Duration) {
        let mut state = self.inner.state.lock();
        self.delay(&mut state, key, delay);
    }

    /// Number of failed runs of a key since its last [`Action::Done`].
    pub fn failures(&self, key: &K) -> u32 {
        self.inner.state.lock().failures.get(key).copied().unwrap_or_default()
    }

    /// Runs at most `workers` keys (at least one) concurrently until `stop`, then waits for running keys.
    ///
    /// Each run is a task of its own. A panic is logged and counts as a failure of its key only.
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
                Some(done) = tasks.join_next_with_id(), if !tasks.is_empty() => {
                    self.handle_finished(done, &mut keys);
                }
                () = self.inner.changed.notified() => {}
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
                self.inner.metrics.work_duration.observe(started.elapsed().as_secs_f64());
                self.finish(key, outcome);
            }
            Err(error) => {
                let Some(key) = keys.remove(&error.id()) else { return };
                tracing::error!(queue = self.inner.name, ?key, %error, "a run panicked; retrying");
                self.finish(key, Action::Backoff);
            }
        }
    }

    fn pop_ready(&self) -> Option<K> {
        let mut state = self.inner.state.lock();
        let key = state.ready.pop_front()?;
        if let Some(since) = state.queued.remove(&key) {
            self.inner.metrics.queue_duration.observe(since.elapsed().as_secs_f64());
        }
        state.running.insert(key.clone());
        self.inner.metrics.depth.dec();
        Some(key)
    }

    fn finish(&self, key: K, action: Action) {
        let mut state = self.inner.state.lock();
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
            self.inner.metrics.retries.inc();
            *failures
        } else {
            // Only success resets the count: a requeue does not resolve earlier failures.
            if action == Action::Done {
                state.failures.remove(&key);
                state.ended_early.remove(&key);
            }
            0
        };
        let reruns = state.rerun_when_done.remove(&key) && action == Action::Done;
        let has_changed = state.changed_in_run.remove(&key);
        if state.dirty.remove(&key) || reruns || action == Action::Requeue || (has_changed && !failed) {
            self.push_ready(&mut state, key);
            return;
        }
        let delay = match action {
            Action::Done | Action::Requeue => None,
            Action::RequeueAfter(delay) | Action::BackoffFor(delay) => Some(delay),
            Action::Backoff => Some(self.inner.backoff.delay(failures)),
        };
        if let Some(delay) = delay {
            self.delay(&mut state, key.clone(), delay);
        }
        if has_changed && state.end_delay_once_per_backoff(&key) {
            self.push_ready(&mut state, key);
        }
        state.shrink_when_idle();
    }

    fn push_ready(&self, state: &mut State<K>, key: K) {
        if state.queued.contains_key(&key) {
            return;
        }
        state.queued.insert(key.clone(), Instant::now());
        state.ready.push_back(key);
        self.inner.metrics.depth.inc();
        self.inner.changed.notify_one();
    }

    fn delay(&self, state: &mut State<K>, key: K, delay: Duration) {
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        let at = Instant::now() + delay;
        state.due.insert(key.clone(), (ticket, at));
        state.delayed.push(Reverse((at, ticket, key)));
        self.inner.changed.notify_one();
    }

    /// Time of the next delayed key.
    fn next_due(&self) -> Option<Instant> {
        let mut state = self.inner.state.lock();
        loop {
            let Reverse((at, ticket, key)) = state.delayed.peek()?;
            if state.due.get(key).is_some_and(|(valid, _)| valid == ticket) {
                return Some(*at);
            }
            state.delayed.pop();
        }
    }

    /// Queues the delayed keys that are due.
    fn promote_due(&self) {
        let now = Instant::now();
        let mut state = self.inner.state.lock();
        while let Some(Reverse((at, _, _))) = state.delayed.peek()
            && *at <= now
        {
            let Some(Reverse((_, ticket, key))) = state.delayed.pop() else { break };
            if state.due.get(&key).is_some_and(|(valid, _)| *valid == ticket) {
                state.due.remove(&key);
                if state.running.contains(&key) {
                    state.dirty.insert(key);
                } else {
                    self.push_ready(&mut state, key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
