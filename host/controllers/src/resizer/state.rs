//! In-memory state of the resizer, by claim UID.
//!
//! After a restart the state is empty: the process then repeats the call that the claim's status records, and
//! retries infeasible requests without waiting for `--retry-interval-max`.

use std::{collections::HashMap, time::Duration};

use cofferdam_domain::{Quantity, Uid, storage::Finality};
use parking_lot::Mutex;
use tokio::time::Instant;

/// An operation of the resizer. Each has its own queue per driver, and its own driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ResizeOperation {
    /// `ControllerExpandVolume`.
    Expansion,
    /// `ControllerModifyVolume`.
    Modification,
}

/// State of an expansion.
#[derive(Clone, Debug, Default)]
pub(super) struct ExpansionState {
    /// The effect that this process's last `ControllerExpandVolume` call for the claim may still have:
    /// `Unknown` from the start of a call, then the finality of its error. `None` before the first call, and
    /// once the claim's status shows that the controller's part of the expansion is complete.
    pub(super) last_finality: Option<Finality>,
    /// The last call failed with FailedPrecondition, the driver expands only volumes that are not in use, and
    /// this process watches Pods for the driver (`--handle-volume-inuse-error`).
    pub(super) in_use: bool,
    /// A size that the driver or the node found infeasible, and the time of its next retry.
    pub(super) infeasible: Option<(Quantity, Instant)>,
}

/// State of a modification.
#[derive(Clone, Debug, Default)]
pub(super) struct ModificationState {
    /// This process's last `ControllerModifyVolume` call for the claim failed and can no longer take effect.
    pub(super) is_last_call_final: bool,
    /// A class that the driver found infeasible, and the time of its next retry.
    pub(super) infeasible: Option<(Box<str>, Instant)>,
    /// A class that is missing, undecodable or of another driver and that an event has reported, and the time
    /// of the next event.
    pub(super) pending_reported: Option<(Box<str>, Instant)>,
}

/// State of all claims.
#[derive(Debug, Default)]
pub(super) struct ResizerState {
    expansion: Mutex<HashMap<Uid, ExpansionState>>,
    modification: Mutex<HashMap<Uid, ModificationState>>,
}

impl ResizerState {
    pub(super) fn expansion(&self, claim: &Uid) -> ExpansionState {
        self.expansion.lock().get(claim).cloned().unwrap_or_default()
    }

    pub(super) fn modification(&self, claim: &Uid) -> ModificationState {
        self.modification.lock().get(claim).cloned().unwrap_or_default()
    }

    pub(super) fn update_expansion(&self, claim: &Uid, change: impl FnOnce(&mut ExpansionState)) {
        change(self.expansion.lock().entry(claim.clone()).or_default());
    }

    pub(super) fn update_modification(&self, claim: &Uid, change: impl FnOnce(&mut ModificationState)) {
        change(self.modification.lock().entry(claim.clone()).or_default());
    }

    pub(super) fn remove_expansion(&self, claim: &Uid) {
        self.expansion.lock().remove(claim);
    }

    pub(super) fn remove_modification(&self, claim: &Uid) {
        self.modification.lock().remove(claim);
    }
}

/// Returns the time until the retry or event of an entry such as [`ExpansionState::infeasible`]; `None` if
/// the retry or event is due, or if there is no entry.
pub(super) fn time_left<T>(entry: Option<&(T, Instant)>) -> Option<Duration> {
    let (_, until) = entry?;
    let remaining = until.saturating_duration_since(Instant::now());
    (!remaining.is_zero()).then_some(remaining)
}
