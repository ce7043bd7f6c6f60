//! Back-off of CreateVolume calls per claim.
//!
//! Users can change a claim as often as they like, and a change enqueues it at once. The work queue's
//! back-off would end with each change, and start anew after a run without an effect, which a change can
//! cause too. Therefore this back-off is checked before each call, whatever enqueued the claim.
//!
//! A request that an intent contains is repeated unchanged, so no change of the claim is a reason to repeat
//! it earlier. A new request may be sent before the end of the back-off, once until that end: a user can
//! also change the request as often as they like, for example with the annotation `selected-node`. The
//! mended request of an intent is a new one.

use std::{collections::HashMap, time::Duration};

use cofferdam_cluster::{Intent, queue::ExponentialBackoff};
use cofferdam_domain::Uid;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::mending::request_digest;

/// Number of claims from which expired ones are removed on insertion.
const PRUNE_THRESHOLD: usize = 1024;

/// Claims whose last CreateVolume call failed, by uid.
#[derive(Debug)]
pub(super) struct CallBackoff {
    backoff: ExponentialBackoff,
    claims: Mutex<HashMap<Uid, FailedCalls>>,
}

/// The failed calls of a claim.
#[derive(Debug)]
struct FailedCalls {
    /// Number of consecutive failures.
    failures: u32,
    /// Digest of the last request, see [`request_digest`].
    request: String,
    /// The next call is not made before this time.
    next_call: Instant,
    /// Exception: a call with another request than the last one is not made before this time.
    next_new_request: Instant,
    /// Digest of a mended request whose last result was `AlreadyExists`: the driver has a volume.
    existing: Option<String>,
}

impl CallBackoff {
    pub(super) fn new(backoff: ExponentialBackoff) -> Self {
        Self { backoff, claims: Mutex::default() }
    }

    /// Returns the time until the request of an intent in the journal may be sent again, or for the first
    /// time. `None` if it may be sent now.
    pub(super) fn time_left(&self, claim: &Uid) -> Option<Duration> {
        self.claims.lock().get(claim)?.time_left()
    }

    /// Returns the time until a new intent may be written, in order to send its request. `None` if it may be
    /// written and sent now: after the back-off, or if the request differs from the last one and no other new
    /// request was sent before the end of an earlier back-off that still lasts.
    pub(super) fn time_left_for_new(&self, intent: &Intent) -> Option<Duration> {
        let mut claims = self.claims.lock();
        let failed = claims.get_mut(&intent.claim_uid)?;
        let time_left = failed.time_left()?;
        let now = Instant::now();
        if now < failed.next_new_request || failed.request == request_digest(intent) {
            return Some(time_left);
        }
        failed.next_new_request = failed.next_call;
        failed.next_call = now;
        None
    }

    /// Records a failed call. The next one is made after the back-off, and not before the delay that the
    /// driver suggests, but at most after the longest back-off.
    pub(super) fn record_failure(&self, intent: &Intent, suggested: Option<Duration>) {
        let now = Instant::now();
        let mut claims = self.claims.lock();
        if claims.len() >= PRUNE_THRESHOLD {
            claims.retain(|_, failed| !failed.is_expired(now, self.backoff.max));
        }
        let failed = claims.entry(intent.claim_uid.clone()).or_insert_with(FailedCalls::new);
        if failed.is_expired(now, self.backoff.max) {
            failed.failures = 0;
        }
        failed.failures = failed.failures.saturating_add(1);
        failed.request = request_digest(intent);
        if failed.existing.as_ref() == Some(&failed.request) {
            failed.existing = None;
        }
        let delay = self.backoff.delay(failed.failures).max(suggested.unwrap_or_default());
        failed.next_call = now + delay.min(self.backoff.max);
    }

    /// Records that the mended request of an intent returned `AlreadyExists`, and that the intent's first
    /// request follows at once.
    pub(super) fn record_already_exists(&self, intent: &Intent) {
        let mut claims = self.claims.lock();
        let failed = claims.entry(intent.claim_uid.clone()).or_insert_with(FailedCalls::new);
        failed.request = request_digest(intent);
        failed.existing = Some(failed.request.clone());
        failed.next_call = Instant::now();
    }

    /// Returns true if the last call with the mended request of the claim's intent returned `AlreadyExists`.
    pub(super) fn has_existing_volume(&self, claim: &Uid) -> bool {
        self.claims.lock().get(claim).is_some_and(|failed| failed.existing.is_some())
    }

    /// Returns the digest of the request of the claim that was sent last. `None` if this process has sent
    /// none, or none that failed.
    pub(super) fn last_request(&self, claim: &Uid) -> Option<String> {
        let claims = self.claims.lock();
        claims.get(claim).map(|failed| failed.request.clone())
    }

    /// Forgets the failures of a claim that has a volume or is deleted.
    pub(super) fn remove(&self, claim: &Uid) {
        self.claims.lock().remove(claim);
    }

    /// Forgets all failures.
    pub(super) fn clear(&self) {
        self.claims.lock().clear();
    }
}

impl FailedCalls {
    /// Without failures.
    fn new() -> Self {
        let now = Instant::now();
        Self { failures: 0, request: String::new(), next_call: now, next_new_request: now, existing: None }
    }

    /// Time until the next call; `None` if it may be made now.
    fn time_left(&self) -> Option<Duration> {
        Some(self.next_call.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// Returns true if the next call has been due for longer than the longest back-off.
    fn is_expired(&self, now: Instant, max: Duration) -> bool {
        now.saturating_duration_since(self.next_call) > max
    }
}

#[cfg(test)]
mod tests;
