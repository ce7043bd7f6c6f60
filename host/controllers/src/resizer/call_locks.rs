//! One call at a time for a volume: a claim's growth and its modification have queues of their own, and
//! drivers are given one call for a volume at a time. Who comes while the other's call runs goes away, and is
//! woken after it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use cofferdam_domain::ClaimKey;

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResizeOperation {
    /// The volume grows.
    Expansion,
    /// The volume is modified.
    Modification,
}

/// The calls that run; the value says whether the other part waits.
#[derive(Default)]
pub(super) struct CallLocks(Mutex<HashMap<ClaimKey, (ResizeOperation, bool)>>);

/// A call that runs, until this is dropped.
pub(super) struct CallGuard<'a, F: Fn(ResizeOperation)> {
    locks: &'a CallLocks,
    claim: ClaimKey,
    enqueue: F,
}

impl CallLocks {
    /// Begins a call; `None` while the other part's runs. Then `wake` of that one is told whom to wake.
    pub(super) fn try_lock<F: Fn(ResizeOperation)>(
        &self,
        claim: &ClaimKey,
        operation: ResizeOperation,
        enqueue: F,
    ) -> Option<CallGuard<'_, F>> {
        let mut calls = self.lock();
        if let Some((_, is_waiting)) = calls.get_mut(claim) {
            *is_waiting = true;
            return None;
        }
        calls.insert(claim.clone(), (operation, false));
        Some(CallGuard { locks: self, claim: claim.clone(), enqueue })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimKey, (ResizeOperation, bool)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Fn(ResizeOperation)> Drop for CallGuard<'_, F> {
    fn drop(&mut self) {
        // The queue is woken without the lock.
        let released = self.locks.lock().remove(&self.claim);
        match released {
            Some((ResizeOperation::Expansion, true)) => (self.enqueue)(ResizeOperation::Modification),
            Some((ResizeOperation::Modification, true)) => (self.enqueue)(ResizeOperation::Expansion),
            Some((_, false)) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn the_other_operation_is_enqueued_when_the_call_ends() {
        let locks = CallLocks::default();
        let enqueued = RefCell::new(Vec::new());
        let enqueue = |operation| enqueued.borrow_mut().push(operation);
        let (a, b) = (ClaimKey::new("n", "a"), ClaimKey::new("n", "b"));
        let first = locks.try_lock(&a, ResizeOperation::Expansion, enqueue).unwrap();
        assert!(locks.try_lock(&a, ResizeOperation::Modification, enqueue).is_none());
        drop(locks.try_lock(&b, ResizeOperation::Modification, enqueue).unwrap());
        assert_eq!(*enqueued.borrow(), []);
        drop(first);
        assert_eq!(*enqueued.borrow(), [ResizeOperation::Modification]);
        drop(locks.try_lock(&a, ResizeOperation::Modification, enqueue).unwrap());
        assert_eq!(*enqueued.borrow(), [ResizeOperation::Modification], "nobody waits");
    }
}
