//! Timers for delays of a few milliseconds.

use std::{
    cmp::Ordering,
    collections::BinaryHeap,
    future::Future,
    io,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
};

use tokio::{sync::oneshot, time::Instant};

/// Waits until a time.
pub(crate) trait Timer: Clone + Send + 'static {
    /// Returns at this time, or at once if it is over.
    fn wait_until(&self, due: Instant) -> impl Future<Output = ()> + Send;
}

/// A timer on a thread of its own, with the precision of the kernel's timers. Those of tokio have a
/// resolution of 1 ms. The thread ends with the last clone.
#[derive(Clone, Debug)]
pub(crate) struct PreciseTimer(mpsc::Sender<Alarm>);

/// A wait. The greatest alarm in a heap is the one that is due first.
#[derive(Debug)]
struct Alarm {
    due: std::time::Instant,
    reached: oneshot::Sender<()>,
}

impl PreciseTimer {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start() -> io::Result<Self> {
        let (sender, alarms) = mpsc::channel();
        thread::Builder::new().name("precise-timer".to_owned()).spawn(move || run(&alarms))?;
        Ok(Self(sender))
    }
}

impl Timer for PreciseTimer {
    async fn wait_until(&self, due: Instant) {
        if due <= Instant::now() {
            return;
        }
        let (reached, is_reached) = oneshot::channel();
        // The thread runs as long as `self` exists, and reaches every alarm.
        let _ = self.0.send(Alarm { due: due.into_std(), reached });
        let _ = is_reached.await;
    }
}

fn run(alarms: &mpsc::Receiver<Alarm>) {
    let mut pending: BinaryHeap<Alarm> = BinaryHeap::new();
    loop {
        let received = match pending.peek() {
            None => alarms.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(next) => alarms.recv_timeout(next.due.saturating_duration_since(std::time::Instant::now())),
        };
        match received {
            Ok(alarm) => pending.push(alarm),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while pending.peek().is_some_and(|next| next.due <= std::time::Instant::now()) {
            // The waiting task may have been cancelled.
            let _ = pending.pop().map(|alarm| alarm.reached.send(()));
        }
    }
}

impl Ord for Alarm {
    fn cmp(&self, other: &Self) -> Ordering {
        other.due.cmp(&self.due)
    }
}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Alarm {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::future::join_all;

    use super::*;

    #[tokio::test]
    async fn no_wait_ends_before_its_time() {
        let timer = PreciseTimer::start().unwrap();
        let now = Instant::now();
        let waits = [3, 1, 2, 0].map(|milliseconds| {
            let (timer, due) = (timer.clone(), now + Duration::from_millis(milliseconds));
            async move {
                timer.wait_until(due).await;
                assert!(Instant::now() >= due, "{milliseconds} ms");
            }
        });
        join_all(waits).await;
    }

    #[tokio::test]
    async fn a_cancelled_wait_does_not_end_others() {
        let timer = PreciseTimer::start().unwrap();
        let later = Instant::now() + Duration::from_secs(3600);
        assert!(tokio::time::timeout(Duration::ZERO, timer.wait_until(later)).await.is_err());
        timer.wait_until(Instant::now() + Duration::from_millis(1)).await;
    }
}
