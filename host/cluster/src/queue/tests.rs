use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Action, ExponentialBackoff, Queue};
use crate::metrics::Metrics;

const BACKOFF: ExponentialBackoff =
    ExponentialBackoff { initial: Duration::from_secs(1), max: Duration::from_secs(5) };

fn queue() -> Queue<u32> {
    Queue::new("test", BACKOFF, &Metrics::default())
}

/// Runs a queue for `duration`. `work` gets the key and the number of its earlier runs. Returns each run as a
/// key and its start in seconds.
async fn run(
    queue: &Queue<u32>,
    workers: usize,
    duration: Duration,
    work: impl Fn(u32, usize) -> Action + Send + Sync + 'static,
) -> Vec<(u32, u64)> {
    let log: Arc<Mutex<Vec<(u32, u64)>>> = Arc::default();
    let stop = CancellationToken::new();
    let started = Instant::now();
    let work = Arc::new(work);
    let runs = Arc::clone(&log);
    let running = queue.run(workers, stop.clone(), move |key| {
        let (work, log) = (Arc::clone(&work), Arc::clone(&runs));
        async move {
            let before = log.lock().unwrap().iter().filter(|(k, _)| *k == key).count();
            log.lock().unwrap().push((key, started.elapsed().as_secs()));
            work(key, before)
        }
    });
    tokio::join!(running, async {
        tokio::time::sleep(duration).await;
        stop.cancel();
    });
    Arc::try_unwrap(log).map_or_else(|log| log.lock().unwrap().clone(), |log| log.into_inner().unwrap())
}

#[tokio::test(start_paused = true)]
async fn repeated_adds_of_a_key_run_it_once() {
    let queue = queue();
    [1, 2, 1, 1].into_iter().for_each(|key| queue.add(key));
    let log = run(&queue, 4, Duration::from_secs(60), |_, _| Action::Done).await;
    assert_eq!(log, [(1, 0), (2, 0)]);
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_per_key_up_to_the_maximum() {
    let queue = queue();
    queue.add(1);
    queue.add(2);
    let log = run(&queue, 4, Duration::from_secs(20), |key, _| match key {
        1 => Action::Backoff,
        _ => Action::Done,
    })
    .await;
    // 0, +1, +2, +4, +5, +5
    assert_eq!(log, [(1, 0), (2, 0), (1, 1), (1, 3), (1, 7), (1, 12), (1, 17)]);
    assert_eq!(queue.failures(&1), 6);
}

#[tokio::test(start_paused = true)]
async fn success_resets_the_backoff_and_requeue_does_not() {
    let queue = queue();
    queue.add(1);
    let log = run(&queue, 1, Duration::from_secs(60), |_, before| match before {
        0 => Action::Backoff,
        1 => Action::Requeue,
        2 => Action::Backoff,
        _ => Action::Done,
    })
    .await;
    assert_eq!(log, [(1, 0), (1, 1), (1, 1), (1, 3)]);
    assert_eq!(queue.failures(&1), 0);
}

#[tokio::test(start_paused = true)]
async fn add_during_backoff_runs_the_key_immediately() {
    let queue = queue();
    queue.add(1);
    let adder = queue.clone();
    let log = tokio::join!(
        run(&queue, 1, Duration::from_secs(60), |_, before| match before {
            0 => Action::BackoffFor(Duration::from_secs(30)),
            _ => Action::Done,
        }),
        async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            adder.add(1);
        }
    )
    .0;
    assert_eq!(log, [(1, 0), (1, 3)], "and the back-off's own turn is void");
}

#[tokio::test(start_paused = true)]
async fn a_key_added_while_running_runs_again_afterwards() {
    let queue = queue();
    let running: Arc<Mutex<(u32, u32, u32)>> = Arc::default();
    let stop = CancellationToken::new();
    queue.add(1);
    let (adder, state) = (queue.clone(), Arc::clone(&running));
    let runs = queue.run(8, stop.clone(), move |_| {
        let (adder, state) = (adder.clone(), Arc::clone(&state));
        async move {
            let first = {
                let mut state = state.lock().unwrap();
                state.0 += 1;
                state.1 = state.1.max(state.0);
                state.2 += 1;
                state.2 == 1
            };
            if first {
                adder.add(1);
                adder.add(1);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            state.lock().unwrap().0 -= 1;
            Action::Done
        }
    });
    tokio::join!(runs, async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        stop.cancel();
    });
    assert_eq!(*running.lock().unwrap(), (0, 1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_panic_backs_off_only_its_own_key() {
    let queue = queue();
    queue.add(1);
    queue.add(2);
    let log = run(&queue, 2, Duration::from_secs(10), |key, before| {
        assert!(key != 1 || before > 0, "the first run of key 1 breaks off");
        Action::Done
    })
    .await;
    assert_eq!(log, [(1, 0), (2, 0), (1, 1)]);
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_running_keys() {
    let queue = queue();
    queue.add(1);
    queue.add(2);
    let stop = CancellationToken::new();
    let ended: Arc<Mutex<Vec<u32>>> = Arc::default();
    let (token, log) = (stop.clone(), Arc::clone(&ended));
    let runs = queue.run(1, stop, move |key| {
        let (token, log) = (token.clone(), Arc::clone(&log));
        async move {
            token.cancel();
            tokio::time::sleep(Duration::from_secs(5)).await;
            log.lock().unwrap().push(key);
            Action::Done
        }
    });
    runs.await;
    assert_eq!(*ended.lock().unwrap(), [1], "the first ends, the second never starts");
}

#[tokio::test(start_paused = true)]
async fn endless_immediate_requeues_back_off() {
    let queue = queue();
    queue.add(1);
    let log = run(&queue, 1, Duration::from_secs(4), |_, _| Action::Requeue).await;
    let at_once = log.iter().filter(|(_, at)| *at == 0).count();
    assert_eq!(at_once, 9, "eight times again, then with pauses");
    assert_eq!(&log[9..], [(1, 1), (1, 3)]);
}

#[tokio::test(start_paused = true)]
async fn add_if_absent_while_running_reruns_only_a_done_key() {
    let queue = queue();
    queue.add(1);
    queue.add(2);
    let adder = queue.clone();
    let log = run(&queue, 4, Duration::from_secs(20), move |key, before| {
        if before == 0 {
            adder.add_if_absent(key);
        }
        if key == 2 && before == 0 { Action::RequeueAfter(Duration::from_secs(10)) } else { Action::Done }
    })
    .await;
    assert_eq!(log, [(1, 0), (2, 0), (1, 0), (2, 10)]);
}

#[tokio::test(start_paused = true)]
async fn add_if_absent_does_not_shorten_a_pending_delay() {
    let queue = queue();
    queue.add_after(1, Duration::from_secs(5));
    queue.add_if_absent(1);
    queue.add_if_absent(2);
    let log = run(&queue, 4, Duration::from_secs(20), |_, _| Action::Done).await;
    assert_eq!(log, [(2, 0), (1, 5)]);
}

#[tokio::test(start_paused = true)]
async fn memory_is_released_after_a_burst() {
    let queue = queue();
    (0..10_000).for_each(|key| queue.add(key));
    assert!(queue.inner.state.lock().queued.capacity() >= 10_000);
    let log = run(&queue, 64, Duration::from_secs(1), |_, _| Action::Done).await;
    assert_eq!(log.len(), 10_000);
    let state = queue.inner.state.lock();
    for left in [state.queued.capacity(), state.ready.capacity(), state.running.capacity()] {
        assert!(left < 1_000, "room for {left}");
    }
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_dropped_queue_leave_the_depth() {
    let metrics = Metrics::default();
    let depth = metrics.queue("test").depth;
    let [kept, dropped] = [(); 2].map(|()| Queue::new("test", BACKOFF, &metrics));
    kept.add(1);
    // Key 1 runs once and is ready again, key 2 waits for its back-off.
    [1, 2].into_iter().for_each(|key| dropped.add(key));
    run(&dropped, 2, Duration::ZERO, |_, _| Action::Backoff).await;
    [1, 3].into_iter().for_each(|key| dropped.add(key));
    let clone = dropped.clone();
    drop(dropped);
    assert_eq!(depth.get(), 3, "a clone keeps the queue");
    drop(clone);
    assert_eq!(depth.get(), 1, "the other queue of this name has one key");
}

#[tokio::test(start_paused = true)]
async fn changes_end_a_backoff_early_once_until_its_end() {
    let queue = queue();
    queue.add(1);
    let changes = async {
        // Failures at 0 and 1 s: the next run is due at 3 s.
        tokio::time::sleep(Duration::from_millis(2_100)).await;
        for _ in 0..100 {
            queue.add_once_per_backoff(1);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The failure at 2.1 s delays the next run until 6.1 s; the ended back-off lasted until 3 s.
        tokio::time::sleep(Duration::from_secs(2)).await;
        queue.add_once_per_backoff(1);
        queue.add_once_per_backoff(1);
    };
    let work = |_, before| if before < 4 { Action::Backoff } else { Action::Done };
    let (log, ()) = tokio::join!(run(&queue, 1, Duration::from_secs(60), work), changes);
    assert_eq!(log, [(1, 0), (1, 1), (1, 2), (1, 4), (1, 9)]);
    queue.add_once_per_backoff(1);
    let log = run(&queue, 1, Duration::from_secs(1), |_, _| Action::Done).await;
    assert_eq!(log, [(1, 0)], "without a failure a change is not delayed");
}

#[tokio::test(start_paused = true)]
async fn a_change_during_a_run_ends_the_backoff_after_it_once() {
    let queue = queue();
    queue.add(1);
    let (stop, runs) = (CancellationToken::new(), Arc::new(Mutex::new(Vec::new())));
    let started = Instant::now();
    let (log, changed) = (Arc::clone(&runs), queue.clone());
    let running = queue.run(1, stop.clone(), move |key| {
        let (log, changed) = (Arc::clone(&log), changed.clone());
        async move {
            log.lock().unwrap().push(started.elapsed().as_secs());
            changed.add_once_per_backoff(key);
            let succeeds = log.lock().unwrap().len() == 4;
            if succeeds { Action::RequeueAfter(Duration::from_secs(3600)) } else { Action::Backoff }
        }
    });
    tokio::join!(running, async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        stop.cancel();
    });
    // The run at 0 s is repeated at once, and the repetition only after its back-off of 2 s.
    assert_eq!(*runs.lock().unwrap(), [0, 0, 2, 2, 2]);
}
