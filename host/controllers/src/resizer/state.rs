//! What a process remembers of claims that are not done. A new process remembers nothing: then what stands in
//! the status is asked again first, and what was impossible is tried once more.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_domain::{Quantity, Uid, storage::Finality};
use tokio::time::Instant;

/// Of a growth.
#[derive(Clone, Debug, Default)]
pub(super) struct ExpansionState {
    /// The driver's last answer.
    pub(super) last_finality: Option<Finality>,
    /// The driver does not grow the volume while it is in use.
    pub(super) in_use: bool,
    /// A size that was found impossible, and until when it is not asked for again.
    pub(super) infeasible: Option<(Quantity, Instant)>,
}

/// Of a modification.
#[derive(Clone, Debug, Default)]
pub(super) struct ModificationState {
    /// Nothing can come any more of the last call.
    pub(super) is_last_call_final: bool,
    /// A class that was found impossible, and until when it is not asked for again.
    pub(super) infeasible: Option<(Box<str>, Instant)>,
    /// A class that is waited for, and until when nobody has to be told again.
    pub(super) pending_reported: Option<(Box<str>, Instant)>,
}

/// By the claims' uids.
#[derive(Debug, Default)]
pub(super) struct ResizerState {
    expansion: Mutex<HashMap<Uid, ExpansionState>>,
    modification: Mutex<HashMap<Uid, ModificationState>>,
}

impl ResizerState {
    pub(super) fn expansion(&self, claim: &Uid) -> ExpansionState {
        lock(&self.expansion).get(claim).cloned().unwrap_or_default()
    }

    pub(super) fn modification(&self, claim: &Uid) -> ModificationState {
        lock(&self.modification).get(claim).cloned().unwrap_or_default()
    }

    pub(super) fn update_expansion(&self, claim: &Uid, change: impl FnOnce(&mut ExpansionState)) {
        change(lock(&self.expansion).entry(claim.clone()).or_default());
    }

    pub(super) fn update_modification(&self, claim: &Uid, change: impl FnOnce(&mut ModificationState)) {
        change(lock(&self.modification).entry(claim.clone()).or_default());
    }

    pub(super) fn remove_expansion(&self, claim: &Uid) {
        lock(&self.expansion).remove(claim);
    }

    pub(super) fn remove_modification(&self, claim: &Uid) {
        lock(&self.modification).remove(claim);
    }
}

/// How long a slow try still has to wait.
pub(super) fn time_left<T>(entry: Option<&(T, Instant)>) -> Option<Duration> {
    let (_, until) = entry?;
    let remaining = until.saturating_duration_since(Instant::now());
    (!remaining.is_zero()).then_some(remaining)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
