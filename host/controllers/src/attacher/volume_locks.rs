//! One call at a time for a volume, in the order in which attachments asked.
//!
//! A volume for many nodes has many attachments, and drivers are given one call for a volume at a time.
//! Whoever comes while another's call runs is put aside without holding a worker, and woken when it is its
//! turn.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{Mutex, MutexGuard, PoisonError},
};

use cofferdam_domain::{DriverName, VolumeAttachmentName, VolumeHandle};

/// A driver's volume.
pub(super) type VolumeKey = (DriverName, VolumeHandle);

struct VolumeLock {
    owner: VolumeAttachmentName,
    /// Whether it has been taken; else it is kept for who was woken.
    acquired: bool,
    waiters: VecDeque<VolumeAttachmentName>,
}

/// Whose turn it is at which volume.
#[derive(Default)]
pub(super) struct VolumeLocks(Mutex<State>);

#[derive(Default)]
struct State {
    locks: HashMap<VolumeKey, VolumeLock>,
    /// Turns that are kept for who was woken.
    reserved: HashMap<VolumeAttachmentName, VolumeKey>,
}

impl VolumeLocks {
    /// Takes the turn; otherwise who asks waits, and [`end`](Self::end) names it when it is its turn.
    pub(super) fn try_acquire(&self, key: &VolumeKey, name: &VolumeAttachmentName) -> bool {
        let mut state = self.lock();
        match state.locks.entry(key.clone()) {
            Entry::Vacant(free) => {
                free.insert(VolumeLock { owner: name.clone(), acquired: true, waiters: VecDeque::new() });
            }
            Entry::Occupied(lock) => {
                let lock = lock.into_mut();
                if lock.acquired || lock.owner != *name {
                    if !lock.waiters.contains(name) {
                        lock.waiters.push_back(name.clone());
                    }
                    return false;
                }
                lock.acquired = true;
            }
        }
        state.reserved.remove(name);
        true
    }

    /// Ends a turn. Returns whose it is now: that one must be woken.
    pub(super) fn release(&self, key: &VolumeKey) -> Option<VolumeAttachmentName> {
        release(&mut self.lock(), key)
    }

    /// Gives up a turn that was kept for somebody who does not need it any more. Returns whose it is now.
    pub(super) fn release_reservation(&self, name: &VolumeAttachmentName) -> Option<VolumeAttachmentName> {
        let mut state = self.lock();
        let key = state.reserved.remove(name)?;
        release(&mut state, &key)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn release(state: &mut State, key: &VolumeKey) -> Option<VolumeAttachmentName> {
    let lock = state.locks.get_mut(key)?;
    let Some(next) = lock.waiters.pop_front() else {
        state.locks.remove(key);
        return None;
    };
    (lock.owner, lock.acquired) = (next.clone(), false);
    state.reserved.insert(next.clone(), key.clone());
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_get_the_volume_lock_in_order_and_none_is_lost() {
        let locks = VolumeLocks::default();
        let key = (DriverName::from("d"), VolumeHandle::from("h"));
        let other = (DriverName::from("e"), VolumeHandle::from("h"));
        let [a, b, c] = ["a", "b", "c"].map(VolumeAttachmentName::from);
        assert!(locks.try_acquire(&key, &a) && locks.try_acquire(&other, &b));
        assert!(!locks.try_acquire(&key, &c) && !locks.try_acquire(&key, &b) && !locks.try_acquire(&key, &c));
        // Its own, in the other lane.
        assert!(!locks.try_acquire(&key, &a));
        assert_eq!(locks.release(&key), Some(c.clone()));
        assert!(!locks.try_acquire(&key, &b), "it is kept for who was woken");
        assert_eq!(locks.release_reservation(&c), Some(b.clone()), "who does not need it");
        assert_eq!(locks.release_reservation(&c), None);
        assert!(locks.try_acquire(&key, &b));
        assert_eq!(locks.release_reservation(&b), None, "it is taken");
        assert_eq!(locks.release(&key), Some(a.clone()));
        assert!(locks.try_acquire(&key, &a));
        assert_eq!(locks.release(&key), None);
        assert_eq!(locks.release(&key), None);
        assert!(locks.try_acquire(&key, &c));
    }
}
