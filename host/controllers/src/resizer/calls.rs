//! One call at a time for a volume: a claim's growth and its modification have queues of their own, and drivers are given one call
//! for a volume at a time. Who comes while the other's call runs goes away, and is woken after it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use cofferdam_domain::ClaimKey;

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The volume grows.
    Growth,
    /// The volume is modified.
    Modification,
}

/// The calls that run; the value says whether the other part waits.
#[derive(Default)]
pub(super) struct Calls(Mutex<HashMap<ClaimKey, (Part, bool)>>);

/// A call that runs, until this is dropped.
pub(super) struct Running<'a, F: Fn(Part)> {
    calls: &'a Calls,
    claim: ClaimKey,
    wake: F,
}

impl Calls {
    /// Begins a call; `None` while the other part's runs. Then `wake` of that one is told whom to wake.
    pub(super) fn begin<F: Fn(Part)>(&self, claim: &ClaimKey, part: Part, wake: F) -> Option<Running<'_, F>> {
        let mut calls = self.lock();
        if let Some((_, waits)) = calls.get_mut(claim) {
            *waits = true;
            return None;
        }
        calls.insert(claim.clone(), (part, false));
        Some(Running { calls: self, claim: claim.clone(), wake })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimKey, (Part, bool)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Fn(Part)> Drop for Running<'_, F> {
    fn drop(&mut self) {
        // The queue is woken without the lock.
        let ended = self.calls.lock().remove(&self.claim);
        match ended {
            Some((Part::Growth, true)) => (self.wake)(Part::Modification),
            Some((Part::Modification, true)) => (self.wake)(Part::Growth),
            Some((_, false)) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn the_other_part_waits_and_is_woken_and_other_claims_are_not_touched() {
        let calls = Calls::default();
        let woken = RefCell::new(Vec::new());
        let wake = |part| woken.borrow_mut().push(part);
        let (a, b) = (ClaimKey::new("n", "a"), ClaimKey::new("n", "b"));
        let first = calls.begin(&a, Part::Growth, wake).unwrap();
        assert!(calls.begin(&a, Part::Modification, wake).is_none());
        drop(calls.begin(&b, Part::Modification, wake).unwrap());
        assert_eq!(*woken.borrow(), []);
        drop(first);
        assert_eq!(*woken.borrow(), [Part::Modification]);
        drop(calls.begin(&a, Part::Modification, wake).unwrap());
        assert_eq!(*woken.borrow(), [Part::Modification], "nobody waits");
    }
}
