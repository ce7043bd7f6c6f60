//! Free volumes that claims are about to get.
//!
//! Many claims are decided at once, and the best volume is the best for all of them: without this they would
//! write for the same one, and all but one would be refused. Only what is on the way is here; who gets a
//! volume is decided by the API.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::{Mutex, MutexGuard, PoisonError},
};

use cofferdam_cluster::queue::Queue;
use cofferdam_domain::{ClaimKey, VolumeName};

/// Whose write for a volume is on the way.
pub(super) struct VolumeLocks {
    volumes: Mutex<HashMap<VolumeName, VolumeLock>>,
    claims: Queue<ClaimKey>,
}

struct VolumeLock {
    claim: ClaimKey,
    /// Claims that found no other volume: they look again when it is known who got this one.
    waiters: BTreeSet<ClaimKey>,
}

/// A claim's turn at a volume; it ends when this is dropped.
pub(super) struct LockGuard<'a> {
    locks: &'a VolumeLocks,
    volume: &'a VolumeName,
}

impl VolumeLocks {
    /// Nobody's; `claims` is where who waited is woken.
    pub(super) fn new(claims: Queue<ClaimKey>) -> Self {
        Self { volumes: Mutex::default(), claims }
    }

    /// Whether it is another claim's turn.
    pub(super) fn is_locked_by_other(&self, volume: &VolumeName, claim: &ClaimKey) -> bool {
        self.lock().get(volume).is_some_and(|lock| lock.claim != *claim)
    }

    /// Takes the turn, where it is nobody's.
    pub(super) fn try_acquire<'a>(
        &'a self,
        volume: &'a VolumeName,
        claim: &ClaimKey,
    ) -> Option<LockGuard<'a>> {
        match self.lock().entry(volume.clone()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(free) => {
                free.insert(VolumeLock { claim: claim.clone(), waiters: BTreeSet::new() });
                Some(LockGuard { locks: self, volume })
            }
        }
    }

    /// Lets a claim wait for the end of the turn; `false` when it has ended already.
    pub(super) fn add_waiter(&self, volume: &VolumeName, claim: &ClaimKey) -> bool {
        self.lock().get_mut(volume).map(|lock| lock.waiters.insert(claim.clone())).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<VolumeName, VolumeLock>> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        let lock = self.locks.lock().remove(self.volume);
        for claim in lock.into_iter().flat_map(|lock| lock.waiters) {
            self.locks.claims.add(claim);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use cofferdam_cluster::{
        metrics::Metrics,
        queue::{Action, ExponentialBackoff},
    };
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// The claims that are woken by now.
    async fn enqueued_claims(queue: &Queue<ClaimKey>) -> Vec<ClaimKey> {
        let (stop, enqueued) = (CancellationToken::new(), Arc::new(Mutex::default()));
        let log = Arc::clone(&enqueued);
        let running = queue.run(1, stop.clone(), move |key| {
            let log: Arc<Mutex<Vec<ClaimKey>>> = Arc::clone(&log);
            async move {
                log.lock().unwrap().push(key);
                Action::Done
            }
        });
        // Time that is paused passes when nobody has anything to do any more.
        tokio::join!(running, async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            stop.cancel();
        });
        enqueued.lock().unwrap().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_claims_are_enqueued_when_the_volume_lock_is_released() {
        let backoff = ExponentialBackoff { initial: Duration::from_secs(1), max: Duration::from_secs(1) };
        let queue = Queue::new("claims", backoff, &Metrics::default());
        let locks = VolumeLocks::new(queue.clone());
        let volume = VolumeName::from("v");
        let [first, second] = ["first", "second"].map(|name| ClaimKey::new("ns", name));

        let guard = locks.try_acquire(&volume, &first).unwrap();
        assert!(!locks.is_locked_by_other(&volume, &first), "it is its own turn");
        assert!(locks.is_locked_by_other(&volume, &second));
        assert!(locks.try_acquire(&volume, &second).is_none(), "one turn at a time");
        assert!(locks.add_waiter(&volume, &second));
        assert_eq!(enqueued_claims(&queue).await, []);
        drop(guard);
        assert_eq!(enqueued_claims(&queue).await, std::slice::from_ref(&second));

        assert!(!locks.is_locked_by_other(&volume, &second));
        assert!(!locks.add_waiter(&volume, &second), "there is no turn to wait for");
        assert!(locks.try_acquire(&volume, &second).is_some());
    }
}
