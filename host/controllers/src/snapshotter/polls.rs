//! The pace at which a driver is asked again whether a snapshot is ready.

use std::{collections::HashMap, time::Duration};

use cofferdam_cluster::queue::ExponentialBackoff;
use cofferdam_domain::VolumeSnapshotContentName;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The driver is asked again after this part of the time that the snapshot has taken so far.
const PART: u32 = 4;
/// Maximum time between two calls.
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// Snapshots that are not ready. The interval between two calls is a fourth of the time since the first one,
/// so that a driver that takes a long time gets few calls, and a snapshot is reported at most a fourth later
/// than it is ready. Each snapshot has intervals of its own: a slow one does not delay others.
#[derive(Debug)]
pub(super) struct Polls {
    /// Limits of the interval.
    min: Duration,
    max: Duration,
    polls: Mutex<HashMap<VolumeSnapshotContentName, Poll>>,
}

#[derive(Clone, Copy, Debug)]
struct Poll {
    /// End of the first call.
    first: Instant,
    /// Earliest time of the next call.
    next: Instant,
}

impl Polls {
    /// Polls with the back-off's initial delay as the shortest interval.
    pub(super) fn new(backoff: ExponentialBackoff) -> Self {
        let max = MAX_INTERVAL.min(backoff.max);
        Self { min: backoff.initial.min(max), max, polls: Mutex::default() }
    }

    /// Time until the driver may be asked for this content; `None` if it may be asked now.
    pub(super) fn delay(&self, content: &VolumeSnapshotContentName) -> Option<Duration> {
        let poll = *self.polls.lock().get(content)?;
        let delay = poll.next.saturating_duration_since(Instant::now());
        (!delay.is_zero()).then_some(delay)
    }

    /// Records that the driver has answered for this content, and whether the snapshot is ready.
    pub(super) fn record(&self, content: &VolumeSnapshotContentName, is_ready: bool) {
        let mut polls = self.polls.lock();
        if is_ready {
            polls.remove(content);
            return;
        }
        let now = Instant::now();
        let poll = polls.entry(content.clone()).or_insert(Poll { first: now, next: now });
        poll.next = now + ((now - poll.first) / PART).clamp(self.min, self.max);
    }

    /// Forgets a content that needs no further call.
    pub(super) fn forget(&self, content: &VolumeSnapshotContentName) {
        self.polls.lock().remove(content);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_driver_is_asked_again_after_a_fourth_of_the_time_so_far() {
        let backoff = ExponentialBackoff { initial: Duration::from_secs(1), max: Duration::from_secs(300) };
        let polls = Polls::new(backoff);
        let (slow, other) =
            (VolumeSnapshotContentName::from("slow"), VolumeSnapshotContentName::from("other"));
        assert_eq!(polls.delay(&slow), None);
        let mut delays = Vec::new();
        for _ in 0..30 {
            polls.record(&slow, false);
            let delay = polls.delay(&slow).unwrap();
            delays.push(delay.as_millis());
            tokio::time::advance(delay).await;
            assert_eq!(polls.delay(&slow), None, "the next call is due");
        }
        assert_eq!(delays[..8], [1000, 1000, 1000, 1000, 1000, 1250, 1562, 1953]);
        assert_eq!(delays[29], 60_000, "the interval has a maximum");
        assert_eq!(polls.delay(&other), None, "another snapshot does not wait");
        polls.record(&slow, false);
        polls.record(&slow, true);
        assert_eq!((polls.delay(&slow), polls.polls.lock().len()), (None, 0));
    }
}
