//! What a process remembers of claims that are not done. A new process remembers nothing: then what stands in the status is asked
//! again first, and what was impossible is tried once more.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_domain::{Quantity, Uid, storage::Finality};
use tokio::time::Instant;

/// Of a growth.
#[derive(Clone, Debug, Default)]
pub(super) struct Growth {
    /// The driver's last answer.
    pub(super) last: Option<Finality>,
    /// The driver does not grow the volume while it is in use.
    pub(super) in_use: bool,
    /// A size that was found impossible, and until when it is not asked for again.
    pub(super) slow: Option<(Quantity, Instant)>,
}

/// Of a modification.
#[derive(Clone, Debug, Default)]
pub(super) struct Modification {
    /// Nothing can come any more of the last call.
    pub(super) closed: bool,
    /// A class that was found impossible, and until when it is not asked for again.
    pub(super) slow: Option<(Box<str>, Instant)>,
    /// A class that is waited for, and until when nobody has to be told again.
    pub(super) told: Option<(Box<str>, Instant)>,
}

/// By the claims' uids.
#[derive(Debug, Default)]
pub(super) struct Memory {
    growth: Mutex<HashMap<Uid, Growth>>,
    modification: Mutex<HashMap<Uid, Modification>>,
}

impl Memory {
    pub(super) fn growth(&self, claim: &Uid) -> Growth {
        lock(&self.growth).get(claim).cloned().unwrap_or_default()
    }

    pub(super) fn modification(&self, claim: &Uid) -> Modification {
        lock(&self.modification).get(claim).cloned().unwrap_or_default()
    }

    pub(super) fn of_growth(&self, claim: &Uid, change: impl FnOnce(&mut Growth)) {
        change(lock(&self.growth).entry(claim.clone()).or_default());
    }

    pub(super) fn of_modification(&self, claim: &Uid, change: impl FnOnce(&mut Modification)) {
        change(lock(&self.modification).entry(claim.clone()).or_default());
    }

    pub(super) fn forget_growth(&self, claim: &Uid) {
        lock(&self.growth).remove(claim);
    }

    pub(super) fn forget_modification(&self, claim: &Uid) {
        lock(&self.modification).remove(claim);
    }
}

/// How long a slow try still has to wait.
pub(super) fn left<T>(slow: Option<&(T, Instant)>) -> Option<Duration> {
    let (_, until) = slow?;
    let left = until.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
