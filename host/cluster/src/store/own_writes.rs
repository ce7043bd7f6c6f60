//! Requests of this process that change objects of one kind. A change that a watch event delivers comes from
//! another process, unless one of these requests may have caused it.

use std::{collections::HashMap, hash::Hash, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time for which a request with an unknown result may still take effect: kube-apiserver ends requests after
/// 60 s (its default `--request-timeout`), and the watch event may be late.
const MAY_APPLY: Duration = Duration::from_secs(120);
/// Number of objects above which entries of expired requests are removed.
const PRUNE_ABOVE: usize = 1024;

/// The requests for one object.
#[derive(Debug, Default)]
struct Requests {
    in_flight: usize,
    /// End of the time in which a request with an unknown result may take effect.
    uncertain_until: Option<Instant>,
}

impl Requests {
    fn may_apply(&self, now: Instant) -> bool {
        self.in_flight > 0 || self.uncertain_until.is_some_and(|until| now < until)
    }
}

/// The requests of this process by object.
#[derive(Debug)]
pub(super) struct OwnWrites<Key>(Mutex<HashMap<Key, Requests>>);

impl<Key> Default for OwnWrites<Key> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<Key: Clone + Eq + Hash> OwnWrites<Key> {
    /// Registers a request until its [`OwnWrite`] ends.
    pub(super) fn begin(&self, key: Key) -> OwnWrite<'_, Key> {
        let mut requests = self.0.lock();
        if requests.len() > PRUNE_ABOVE {
            let now = Instant::now();
            requests.retain(|_, requests| requests.may_apply(now));
        }
        requests.entry(key.clone()).or_default().in_flight += 1;
        OwnWrite { writes: self, key, is_certain: false }
    }

    /// Returns true if a request for the object is in flight, or had an unknown result within [`MAY_APPLY`].
    pub(super) fn may_have_changed(&self, key: &Key) -> bool {
        self.0.lock().get(key).is_some_and(|requests| requests.may_apply(Instant::now()))
    }

    fn end(&self, key: &Key, is_certain: bool) {
        let mut all = self.0.lock();
        let Some(requests) = all.get_mut(key) else { return };
        requests.in_flight = requests.in_flight.saturating_sub(1);
        let now = Instant::now();
        if !is_certain {
            requests.uncertain_until = Some(now + MAY_APPLY);
        }
        if !requests.may_apply(now) {
            all.remove(key);
        }
    }
}

/// A request in flight. If it is dropped without [`OwnWrite::end`], its result is unknown.
#[derive(Debug)]
pub struct OwnWrite<'a, Key: Clone + Eq + Hash> {
    writes: &'a OwnWrites<Key>,
    key: Key,
    is_certain: bool,
}

impl<Key: Clone + Eq + Hash> OwnWrite<'_, Key> {
    /// Ends the request with a known result: the response is in the cache, or the API server has rejected the
    /// request.
    pub fn end(mut self) {
        self.is_certain = true;
    }
}

impl<Key: Clone + Eq + Hash> Drop for OwnWrite<'_, Key> {
    fn drop(&mut self) {
        self.writes.end(&self.key, self.is_certain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_change_is_foreign_unless_a_request_may_have_caused_it() {
        let writes = OwnWrites::default();
        assert!(!writes.may_have_changed(&"v"), "no request");
        let (first, second) = (writes.begin("v"), writes.begin("v"));
        assert!(writes.may_have_changed(&"v"), "in flight");
        assert!(!writes.may_have_changed(&"w"), "another object");
        first.end();
        assert!(writes.may_have_changed(&"v"), "the second request is in flight");
        second.end();
        assert!(!writes.may_have_changed(&"v"), "both results are known");
        drop(writes.begin("v"));
        assert!(writes.may_have_changed(&"v"), "unknown result");
        writes.begin("v").end();
        tokio::time::advance(MAY_APPLY - Duration::from_secs(1)).await;
        assert!(writes.may_have_changed(&"v"), "a later request does not end the doubt");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!writes.may_have_changed(&"v"), "the request can no longer take effect");
    }

    #[tokio::test(start_paused = true)]
    async fn entries_of_expired_requests_are_removed() {
        let writes = OwnWrites::default();
        for number in 0..=PRUNE_ABOVE {
            drop(writes.begin(number));
        }
        tokio::time::advance(MAY_APPLY).await;
        writes.begin(0).end();
        assert_eq!(writes.0.lock().len(), 0);
    }
}
