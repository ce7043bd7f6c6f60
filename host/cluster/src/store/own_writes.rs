//! Requests of this process that change objects of one kind. A change that a watch event or a live read
//! delivers comes from another process, unless one of these requests has caused it, or may have.

use std::{collections::HashMap, time::Duration};

use cofferdam_domain::ids::ResourceVersion;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::change::Change;
use crate::objects::Kind;

/// Time for which a request with an unknown result may still take effect: kube-apiserver ends requests after
/// 60 s (its default `--request-timeout`), and the watch event may be late.
pub(super) const MAY_APPLY: Duration = Duration::from_secs(120);
/// Number of objects above which entries of expired requests are removed.
pub(super) const PRUNE_ABOVE: usize = 1024;
/// Maximum number of changes of an object that wait for the result of a request.
const MAX_WAITING: usize = 8;

/// A change of a watch event, with the object's JSON.
pub(super) type WatchedChange<K> = (Change<K>, Box<str>);

/// The requests for one object.
struct Requests<K: Kind> {
    in_flight: usize,
    /// End of the time in which a request with an unknown result may take effect.
    uncertain_until: Option<Instant>,
    /// Versions that the requests have written.
    written: Vec<ResourceVersion>,
    /// Changes since the first request that is in flight.
    waiting: Vec<WatchedChange<K>>,
}

impl<K: Kind> Default for Requests<K> {
    fn default() -> Self {
        Self { in_flight: 0, uncertain_until: None, written: Vec::new(), waiting: Vec::new() }
    }
}

impl<K: Kind> Requests<K> {
    fn is_uncertain(&self, now: Instant) -> bool {
        self.uncertain_until.is_some_and(|until| now < until)
    }
}

/// The requests of this process by object.
pub(super) struct OwnWrites<K: Kind>(Mutex<HashMap<K::Key, Requests<K>>>);

impl<K: Kind> Default for OwnWrites<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Kind> OwnWrites<K> {
    pub(super) fn begin(&self, key: K::Key) {
        let mut all = self.0.lock();
        if all.len() > PRUNE_ABOVE {
            let now = Instant::now();
            all.retain(|_, requests| requests.in_flight > 0 || requests.is_uncertain(now));
        }
        all.entry(key).or_default().in_flight += 1;
    }

    /// Returns true if another process has certainly made the change. A change during a request is kept until
    /// the result is known.
    pub(super) fn is_foreign(&self, change: &Change<K>, json: &str) -> bool {
        let mut all = self.0.lock();
        let Some(requests) = all.get_mut(&change.key) else { return true };
        let is_uncertain = requests.is_uncertain(Instant::now());
        if requests.in_flight > 0 && !is_uncertain && requests.waiting.len() < MAX_WAITING {
            requests.waiting.push((change.clone(), json.into()));
        }
        requests.in_flight == 0 && !is_uncertain
    }

    /// As [`is_foreign`](Self::is_foreign), for a change that a live read delivers. A read during a request
    /// may contain the request's effect beside that of another process: the change does not count.
    pub(super) fn is_foreign_read(&self, key: &K::Key) -> bool {
        let all = self.0.lock();
        all.get(key).is_none_or(|requests| requests.in_flight == 0 && !requests.is_uncertain(Instant::now()))
    }

    /// Ends a request. Returns the changes that another process has made during the requests for the object,
    /// once no request is in flight.
    pub(super) fn end(&self, key: &K::Key, result: WriteResult) -> Vec<WatchedChange<K>> {
        let mut all = self.0.lock();
        let Some(requests) = all.get_mut(key) else { return Vec::new() };
        requests.in_flight = requests.in_flight.saturating_sub(1);
        match result {
            WriteResult::Written(version) => requests.written.push(version),
            WriteResult::Rejected => {}
            WriteResult::Unknown => {
                requests.uncertain_until = Some(Instant::now() + MAY_APPLY);
                requests.waiting.clear();
            }
        }
        if requests.in_flight > 0 {
            return Vec::new();
        }
        let written = std::mem::take(&mut requests.written);
        let mut waiting = std::mem::take(&mut requests.waiting);
        if !requests.is_uncertain(Instant::now()) {
            all.remove(key);
        }
        waiting.retain(|(change, _)| {
            change.new.as_ref().is_some_and(|new| !written.contains(&new.resource_version()))
        });
        waiting
    }
}

/// The result of a request that changes an object.
#[derive(Clone, Copy, Debug)]
pub(super) enum WriteResult {
    /// The object has this version now, and the response is in the cache.
    Written(ResourceVersion),
    /// The API server has rejected the request.
    Rejected,
    /// The request may have taken effect, or may still do so.
    Unknown,
}

#[cfg(test)]
impl<K: Kind> OwnWrites<K> {
    /// Number of objects with an entry.
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}
