//! Claims whose request the driver has rejected as invalid.

use std::{collections::HashMap, time::Duration};

use cofferdam_domain::Uid;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum number of remembered claims. Beyond it, a new claim replaces the claim whose next attempt comes
/// first. The replaced claim is retried early.
const MAX_CLAIMS: usize = 10_000;

/// Claims by uid, with the uid of the rejected StorageClass and the time of the next attempt. With another
/// class, a claim is retried before that time.
#[derive(Debug, Default)]
pub(super) struct InfeasibleClaims(Mutex<HashMap<Uid, (Uid, Instant)>>);

impl InfeasibleClaims {
    /// The rejected class of a claim, and the time of the next attempt; `None` once that time has come.
    pub(super) fn get(&self, claim: &Uid) -> Option<(Uid, Instant)> {
        let mut claims = self.0.lock();
        match claims.get(claim) {
            Some((class, until)) if Instant::now() < *until => Some((class.clone(), *until)),
            Some(_) => {
                claims.remove(claim);
                None
            }
            None => None,
        }
    }

    /// Records that the driver rejected the request of a claim with this StorageClass as invalid. The request
    /// is repeated with the same class only after `duration`.
    pub(super) fn insert(&self, claim: &Uid, class: &Uid, duration: Duration) {
        let mut claims = self.0.lock();
        if claims.len() >= MAX_CLAIMS {
            let first = claims.iter().min_by_key(|(_, (_, until))| *until).map(|(claim, _)| claim.clone());
            first.and_then(|claim| claims.remove(&claim));
        }
        claims.insert(claim.clone(), (class.clone(), Instant::now() + duration));
    }

    /// Forgets a deleted claim.
    pub(super) fn remove(&self, claim: &Uid) {
        self.0.lock().remove(claim);
    }
}
