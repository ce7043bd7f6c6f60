//! Free volumes that claims are about to get.
//!
//! Many claims are decided at once, and the best volume is the best for all of them: without this they would write for the same
//! one, and all but one would be refused. Only what is on the way is here; who gets a volume is decided by the API.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::{Mutex, MutexGuard, PoisonError},
};

use cofferdam_cluster::queue::Queue;
use cofferdam_domain::{ClaimKey, VolumeName};

/// Whose write for a volume is on the way.
pub(super) struct Turns {
    volumes: Mutex<HashMap<VolumeName, Turn>>,
    claims: Queue<ClaimKey>,
}

struct Turn {
    claim: ClaimKey,
    /// Claims that found no other volume: they look again when it is known who got this one.
    waiting: BTreeSet<ClaimKey>,
}

/// A claim's turn at a volume; it ends when this is dropped.
pub(super) struct Held<'a> {
    turns: &'a Turns,
    volume: &'a VolumeName,
}

impl Turns {
    /// Nobody's; `claims` is where who waited is woken.
    pub(super) fn new(claims: Queue<ClaimKey>) -> Self {
        Self { volumes: Mutex::default(), claims }
    }

    /// Whether it is another claim's turn.
    pub(super) fn is_of_another(&self, volume: &VolumeName, claim: &ClaimKey) -> bool {
        self.lock().get(volume).is_some_and(|turn| turn.claim != *claim)
    }

    /// Takes the turn, where it is nobody's.
    pub(super) fn take<'a>(&'a self, volume: &'a VolumeName, claim: &ClaimKey) -> Option<Held<'a>> {
        match self.lock().entry(volume.clone()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(free) => {
                free.insert(Turn { claim: claim.clone(), waiting: BTreeSet::new() });
                Some(Held { turns: self, volume })
            }
        }
    }

    /// Lets a claim wait for the end of the turn; `false` when it has ended already.
    pub(super) fn wait(&self, volume: &VolumeName, claim: &ClaimKey) -> bool {
        self.lock().get_mut(volume).map(|turn| turn.waiting.insert(claim.clone())).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<VolumeName, Turn>> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let turn = self.turns.lock().remove(self.volume);
        for claim in turn.into_iter().flat_map(|turn| turn.waiting) {
            self.turns.claims.add(claim);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use cofferdam_cluster::{
        metrics::Metrics,
        queue::{Backoff, Outcome},
    };
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// The claims that are woken by now.
    async fn woken(queue: &Queue<ClaimKey>) -> Vec<ClaimKey> {
        let (stop, woken) = (CancellationToken::new(), Arc::new(Mutex::default()));
        let log = Arc::clone(&woken);
        let running = queue.run(1, stop.clone(), move |key| {
            let log: Arc<Mutex<Vec<ClaimKey>>> = Arc::clone(&log);
            async move {
                log.lock().unwrap().push(key);
                Outcome::Done
            }
        });
        // Time that is paused passes when nobody has anything to do any more.
        tokio::join!(running, async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            stop.cancel();
        });
        woken.lock().unwrap().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_turn_is_woken_at_its_end() {
        let backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(1) };
        let queue = Queue::new("claims", backoff, &Metrics::default());
        let turns = Turns::new(queue.clone());
        let volume = VolumeName::from("v");
        let [first, second] = ["first", "second"].map(|name| ClaimKey::new("ns", name));

        let held = turns.take(&volume, &first).unwrap();
        assert!(!turns.is_of_another(&volume, &first), "it is its own turn");
        assert!(turns.is_of_another(&volume, &second));
        assert!(turns.take(&volume, &second).is_none(), "one turn at a time");
        assert!(turns.wait(&volume, &second));
        assert_eq!(woken(&queue).await, []);
        drop(held);
        assert_eq!(woken(&queue).await, std::slice::from_ref(&second));

        assert!(!turns.is_of_another(&volume, &second));
        assert!(!turns.wait(&volume, &second), "there is no turn to wait for");
        assert!(turns.take(&volume, &second).is_some());
    }
}
