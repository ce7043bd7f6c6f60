//! Claims that wait because another process owns the driver's journal.

use std::{collections::HashMap, time::Duration};

use cofferdam_cluster::journal::JournalLoss;
use cofferdam_domain::Uid;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Interval of the events of a claim. kube-apiserver keeps events for an hour by default.
const EVENT_INTERVAL: Duration = Duration::from_secs(1800);

/// Claims by uid, with the loss of the last event and its time. A claim is tried each
/// [`OWNER_CHECK_INTERVAL`](cofferdam_cluster::journal::OWNER_CHECK_INTERVAL), which is too often for an
/// event.
#[derive(Debug, Default)]
pub(super) struct JournalWaits(Mutex<HashMap<Uid, (JournalLoss, Instant)>>);

impl JournalWaits {
    /// Records that a claim waits because of this loss. Returns true if its event is due.
    pub(super) fn record(&self, claim: &Uid, loss: &JournalLoss) -> bool {
        let mut claims = self.0.lock();
        let last = claims.get(claim);
        if last.is_some_and(|(known, at)| known == loss && at.elapsed() < EVENT_INTERVAL) {
            return false;
        }
        claims.insert(claim.clone(), (loss.clone(), Instant::now()));
        true
    }

    /// Forgets a claim that is deleted or bound, or whose journal this process owns.
    pub(super) fn remove(&self, claim: &Uid) {
        self.0.lock().remove(claim);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_event_is_due_for_each_owner_and_each_half_hour() {
        let (waits, claim) = (JournalWaits::default(), Uid::from("a"));
        assert!(waits.record(&claim, &JournalLoss::Taken("p-1".to_owned())));
        assert!(!waits.record(&claim, &JournalLoss::Taken("p-1".to_owned())));
        assert!(waits.record(&claim, &JournalLoss::Taken("p-2".to_owned())));
        tokio::time::advance(EVENT_INTERVAL).await;
        assert!(waits.record(&claim, &JournalLoss::Taken("p-2".to_owned())));
        waits.remove(&claim);
        assert!(waits.record(&claim, &JournalLoss::Taken("p-2".to_owned())));
    }
}
