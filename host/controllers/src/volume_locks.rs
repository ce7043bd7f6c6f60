//! Locks that serialize operations on a volume.
//!
//! Each controller has its own locks: the attacher calls a driver for one VolumeAttachment of a volume at a
//! time, the resizer does not expand and modify the volume of a claim at the same time, and the
//! PersistentVolume controller writes the claimRef of a volume for one claim at a time. An owner that does
//! not get a lock occupies no worker: it is registered as a waiter, and a release of the lock wakes it (see
//! [`WakePolicy`]).

use std::{
    collections::{HashMap, HashSet, VecDeque, hash_map::Entry},
    hash::Hash,
};

use parking_lot::Mutex;

/// The waiters that a release wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakePolicy {
    /// All waiters. The lock is free, and the first of them to acquire it gets it.
    All,
    /// The waiter that registered first. The lock is reserved for this waiter until it acquires the lock or
    /// gives up the reservation.
    Next,
}

/// Locks by volume. `V` identifies a volume, in the resizer by the claim that is bound to it. `O` identifies
/// the owner of a lock: a VolumeAttachment, a claim, or an operation of the resizer.
pub(crate) struct VolumeLocks<V, O> {
    policy: WakePolicy,
    state: Mutex<State<V, O>>,
}

struct State<V, O> {
    locks: HashMap<V, VolumeLock<O>>,
    /// Volumes whose lock is reserved, by owner.
    reserved: HashMap<O, V>,
}

struct VolumeLock<O> {
    owner: O,
    /// False while the lock is reserved for its owner.
    acquired: bool,
    waiters: Waiters<O>,
}

/// Waiters in the order of their registration, each one once.
struct Waiters<O> {
    order: VecDeque<O>,
    members: HashSet<O>,
}

impl<O: Clone + Eq + Hash> Waiters<O> {
    fn new() -> Self {
        Self { order: VecDeque::new(), members: HashSet::new() }
    }

    fn add(&mut self, waiter: &O) {
        if self.members.insert(waiter.clone()) {
            self.order.push_back(waiter.clone());
        }
    }

    fn pop(&mut self) -> Option<O> {
        let waiter = self.order.pop_front()?;
        self.members.remove(&waiter);
        Some(waiter)
    }
}

/// An acquired lock. Dropping it releases the lock and wakes waiters.
pub(crate) struct LockGuard<'a, V: Clone + Eq + Hash, O: Clone + Eq + Hash> {
    locks: &'a VolumeLocks<V, O>,
    volume: V,
    wake: Box<dyn Fn(O) + Send + Sync + 'a>,
}

impl<V: Clone + Eq + Hash, O: Clone + Eq + Hash> VolumeLocks<V, O> {
    pub(crate) fn new(policy: WakePolicy) -> Self {
        Self { policy, state: Mutex::new(State { locks: HashMap::new(), reserved: HashMap::new() }) }
    }

    /// Acquires the lock if it is free or reserved for `owner`. Returns `None` otherwise, also if `owner`
    /// itself has acquired it. When the guard is dropped, it calls `wake` for each owner to wake.
    pub(crate) fn try_acquire<'a>(
        &'a self,
        volume: &V,
        owner: &O,
        wake: impl Fn(O) + Send + Sync + 'a,
    ) -> Option<LockGuard<'a, V, O>> {
        self.state.lock().try_acquire(volume, owner).then(|| self.guard(volume, wake))
    }

    /// As [`try_acquire`](Self::try_acquire), but registers `owner` as a waiter if it does not get the lock.
    pub(crate) fn acquire_or_wait<'a>(
        &'a self,
        volume: &V,
        owner: &O,
        wake: impl Fn(O) + Send + Sync + 'a,
    ) -> Option<LockGuard<'a, V, O>> {
        let mut state = self.state.lock();
        if state.try_acquire(volume, owner) {
            return Some(self.guard(volume, wake));
        }
        state.add_waiter(volume, owner);
        None
    }

    /// Registers `owner` as a waiter. If the lock is free, returns false and registers nothing: the caller
    /// can then acquire the lock.
    pub(crate) fn add_waiter(&self, volume: &V, owner: &O) -> bool {
        self.state.lock().add_waiter(volume, owner)
    }

    /// Returns true if the lock is acquired by, or reserved for, another owner.
    pub(crate) fn is_locked_by_other(&self, volume: &V, owner: &O) -> bool {
        self.state.lock().locks.get(volume).is_some_and(|lock| lock.owner != *owner)
    }

    /// Returns true if the lock is acquired by, or reserved for, an owner.
    pub(crate) fn is_locked(&self, volume: &V) -> bool {
        self.state.lock().locks.contains_key(volume)
    }

    /// Gives up a reservation that its owner no longer needs. Returns the next owner, which must be woken, or
    /// `None` if `owner` had no reservation or no owner waits.
    pub(crate) fn release_reservation(&self, owner: &O) -> Option<O> {
        let mut state = self.state.lock();
        let volume = state.reserved.remove(owner)?;
        state.reserve_next(&volume)
    }

    fn guard<'a>(&'a self, volume: &V, wake: impl Fn(O) + Send + Sync + 'a) -> LockGuard<'a, V, O> {
        LockGuard { locks: self, volume: volume.clone(), wake: Box::new(wake) }
    }

    /// Releases a lock. Returns the owners to wake.
    fn release(&self, volume: &V) -> VecDeque<O> {
        let mut state = self.state.lock();
        match self.policy {
            WakePolicy::All => state.locks.remove(volume).map(|lock| lock.waiters.order).unwrap_or_default(),
            WakePolicy::Next => state.reserve_next(volume).into_iter().collect(),
        }
    }
}

impl<V: Clone + Eq + Hash, O: Clone + Eq + Hash> State<V, O> {
    fn try_acquire(&mut self, volume: &V, owner: &O) -> bool {
        match self.locks.entry(volume.clone()) {
            Entry::Vacant(free) => {
                free.insert(VolumeLock { owner: owner.clone(), acquired: true, waiters: Waiters::new() });
            }
            Entry::Occupied(lock) => {
                let lock = lock.into_mut();
                if lock.acquired || lock.owner != *owner {
                    return false;
                }
                lock.acquired = true;
            }
        }
        self.reserved.remove(owner);
        true
    }

    fn add_waiter(&mut self, volume: &V, owner: &O) -> bool {
        self.locks.get_mut(volume).map(|lock| lock.waiters.add(owner)).is_some()
    }

    /// Reserves the lock for its first waiter and returns it. Without a waiter, removes the lock.
    fn reserve_next(&mut self, volume: &V) -> Option<O> {
        let lock = self.locks.get_mut(volume)?;
        let Some(next) = lock.waiters.pop() else {
            self.locks.remove(volume);
            return None;
        };
        (lock.owner, lock.acquired) = (next.clone(), false);
        self.reserved.insert(next.clone(), volume.clone());
        Some(next)
    }
}

impl<V: Clone + Eq + Hash, O: Clone + Eq + Hash> Drop for LockGuard<'_, V, O> {
    fn drop(&mut self) {
        // `wake` runs after the mutex is unlocked: it may use the locks.
        let woken = self.locks.release(&self.volume);
        woken.into_iter().for_each(&self.wake);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use cofferdam_cluster::{
        metrics::Metrics,
        queue::{Action, ExponentialBackoff, Queue},
    };
    use cofferdam_domain::{ClaimKey, DriverName, VolumeAttachmentName, VolumeHandle, VolumeName};
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[test]
    fn waiters_get_the_volume_lock_in_order_and_none_is_lost() {
        let locks = VolumeLocks::new(WakePolicy::Next);
        let woken = Mutex::new(Vec::new());
        let wake = |name: VolumeAttachmentName| woken.lock().push(name);
        let take_woken = || std::mem::take(&mut *woken.lock());
        let key = (DriverName::from("d"), VolumeHandle::from("h"));
        let other = (DriverName::from("e"), VolumeHandle::from("h"));
        let [a, b, c] = ["a", "b", "c"].map(VolumeAttachmentName::from);
        let lock_of_a = locks.acquire_or_wait(&key, &a, wake).unwrap();
        let _lock_of_b = locks.acquire_or_wait(&other, &b, wake).unwrap();
        for waiter in [&c, &b, &c] {
            assert!(locks.acquire_or_wait(&key, waiter, wake).is_none());
        }
        assert!(locks.acquire_or_wait(&key, &a, wake).is_none(), "the same owner in the other work queue");
        drop(lock_of_a);
        assert_eq!(take_woken(), std::slice::from_ref(&c));
        assert!(locks.acquire_or_wait(&key, &b, wake).is_none(), "the lock is reserved for the woken owner");
        assert_eq!(locks.release_reservation(&c), Some(b.clone()), "the woken owner does not need the lock");
        assert_eq!(locks.release_reservation(&c), None);
        let lock_of_b = locks.acquire_or_wait(&key, &b, wake).unwrap();
        assert_eq!(locks.release_reservation(&b), None, "the lock is acquired, not reserved");
        drop(lock_of_b);
        assert_eq!(take_woken(), std::slice::from_ref(&a));
        drop(locks.acquire_or_wait(&key, &a, wake).unwrap());
        assert_eq!(take_woken(), []);
        assert!(locks.release(&key).is_empty());
        assert!(locks.acquire_or_wait(&key, &c, wake).is_some());
    }

    /// Runs the queue until it is idle. Returns the claims in it.
    async fn enqueued_claims(queue: &Queue<ClaimKey>) -> Vec<ClaimKey> {
        let (stop, enqueued) = (CancellationToken::new(), Arc::new(Mutex::default()));
        let log = Arc::clone(&enqueued);
        let running = queue.run(1, stop.clone(), move |key| {
            let log: Arc<Mutex<Vec<ClaimKey>>> = Arc::clone(&log);
            async move {
                log.lock().push(key);
                Action::Done
            }
        });
        // Paused time advances when all tasks are idle.
        tokio::join!(running, async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            stop.cancel();
        });
        enqueued.lock().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_claims_are_enqueued_when_the_volume_lock_is_released() {
        let backoff = ExponentialBackoff { initial: Duration::from_secs(1), max: Duration::from_secs(1) };
        let queue = Queue::new("claims", backoff, &Metrics::default());
        let locks = VolumeLocks::new(WakePolicy::All);
        let wake = |claim: ClaimKey| queue.add(claim);
        let volume = VolumeName::from("v");
        let [first, second, third] = ["first", "second", "third"].map(|name| ClaimKey::new("ns", name));

        let guard = locks.try_acquire(&volume, &first, wake).unwrap();
        assert!(!locks.is_locked_by_other(&volume, &first), "the owner itself");
        assert!(locks.is_locked_by_other(&volume, &second));
        assert!(locks.try_acquire(&volume, &second, wake).is_none(), "one owner at a time");
        assert!(locks.add_waiter(&volume, &third));
        assert!(locks.add_waiter(&volume, &second));
        assert_eq!(enqueued_claims(&queue).await, []);
        drop(guard);
        assert_eq!(enqueued_claims(&queue).await, [third, second.clone()]);

        assert!(!locks.is_locked_by_other(&volume, &second));
        assert!(!locks.add_waiter(&volume, &second), "the lock is free");
        assert!(locks.try_acquire(&volume, &second, wake).is_some());
    }

    #[test]
    fn the_other_operation_is_enqueued_when_the_call_ends() {
        let locks = VolumeLocks::new(WakePolicy::All);
        let woken = Mutex::new(Vec::new());
        let wake = |operation: &'static str| woken.lock().push(operation);
        let (a, b) = (ClaimKey::new("n", "a"), ClaimKey::new("n", "b"));
        let expansion = locks.acquire_or_wait(&a, &"expansion", wake).unwrap();
        assert!(locks.acquire_or_wait(&a, &"modification", wake).is_none());
        drop(locks.acquire_or_wait(&b, &"modification", wake).unwrap());
        assert_eq!(*woken.lock(), [""; 0]);
        drop(expansion);
        assert_eq!(*woken.lock(), ["modification"]);
        drop(locks.acquire_or_wait(&a, &"modification", wake).unwrap());
        assert_eq!(*woken.lock(), ["modification"], "no waiter is left");
    }
}
