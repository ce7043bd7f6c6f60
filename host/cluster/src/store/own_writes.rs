//! Requests of this process that change objects of one kind. A change that a watch event delivers comes from
//! another process, unless one of these requests has caused it, or may have.

use std::{collections::HashMap, fmt, time::Duration};

use cofferdam_domain::ids::ResourceVersion;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::object_store::{Change, ObjectStore};
use crate::{index::Indexed, objects::Kind};

/// Time for which a request with an unknown result may still take effect: kube-apiserver ends requests after
/// 60 s (its default `--request-timeout`), and the watch event may be late.
const MAY_APPLY: Duration = Duration::from_secs(120);
/// Number of objects above which entries of expired requests are removed.
const PRUNE_ABOVE: usize = 1024;
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
    fn begin(&self, key: K::Key) {
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

    /// Ends a request. Returns the changes that another process has made during the requests for the object,
    /// once no request is in flight.
    fn end(&self, key: &K::Key, result: WriteResult) -> Vec<WatchedChange<K>> {
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
enum WriteResult {
    /// The object has this version now, and the response is in the cache.
    Written(ResourceVersion),
    /// The API server has rejected the request.
    Rejected,
    /// The request may have taken effect, or may still do so.
    Unknown,
}

/// A request in flight. If it is dropped without [`OwnWrite::written`] or [`OwnWrite::rejected`], its result
/// is unknown.
pub struct OwnWrite<'a, K: Indexed> {
    store: &'a ObjectStore<K>,
    key: K::Key,
    result: WriteResult,
}

impl<K: Indexed> fmt::Debug for OwnWrite<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnWrite").field("key", &self.key).field("result", &self.result).finish()
    }
}

impl<'a, K: Indexed> OwnWrite<'a, K> {
    pub(super) fn begin(store: &'a ObjectStore<K>, key: K::Key) -> Self {
        store.own_writes.begin(key.clone());
        Self { store, key, result: WriteResult::Unknown }
    }

    /// Ends a request that has written this version. Its response is in the cache.
    pub fn written(mut self, version: ResourceVersion) {
        self.result = WriteResult::Written(version);
    }

    /// Ends a request that the API server has rejected.
    pub fn rejected(mut self) {
        self.result = WriteResult::Rejected;
    }
}

impl<K: Indexed> Drop for OwnWrite<'_, K> {
    fn drop(&mut self) {
        for (change, json) in self.store.own_writes.end(&self.key, self.result) {
            self.store.notify_foreign(&change, &json);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cofferdam_domain::{Volume, VolumeName};
    use serde_json::json;

    use super::*;
    use crate::objects::decode;

    fn volume(name: &str, version: u64) -> String {
        let metadata = json!({"name": name, "uid": name, "resourceVersion": version.to_string()});
        json!({"kind": "PersistentVolume", "metadata": metadata, "spec": {}}).to_string()
    }

    /// A store, and the `name@version` of every foreign change.
    fn store() -> (ObjectStore<Volume>, Arc<Mutex<Vec<String>>>) {
        let (store, found) = (ObjectStore::default(), Arc::<Mutex<Vec<String>>>::default());
        let foreign = Arc::clone(&found);
        store.subscribe_foreign(move |change: &Change<Volume>, json| {
            let new = change.new.as_ref().unwrap();
            assert!(json.contains(&format!("\"{}\"", new.resource_version())));
            foreign.lock().push(format!("{}@{}", change.key, new.resource_version()));
        });
        (store, found)
    }

    fn watch(store: &ObjectStore<Volume>, name: &str, version: u64) {
        let json = volume(name, version);
        store.apply_watch_event(decode::object(&json).unwrap(), &json);
    }

    /// A write of this process with its response.
    fn finish(write: OwnWrite<'_, Volume>, name: &str, version: u64) {
        write.store.apply(decode::object(&volume(name, version)).unwrap());
        write.written(version.to_string().parse().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_foreign_unless_a_request_has_caused_it() {
        let (store, found) = store();
        let begin = |name: &str| store.begin_write(VolumeName::new(name));
        let expect = |changes: &[&str]| assert_eq!(std::mem::take(&mut *found.lock()), changes);
        watch(&store, "v", 1);
        expect(&["v@1"]);
        let write = begin("v");
        watch(&store, "v", 2);
        watch(&store, "w", 3);
        expect(&["w@3"]);
        finish(write, "v", 2);
        watch(&store, "v", 2);
        expect(&[]);
        let write = begin("v");
        watch(&store, "v", 4);
        expect(&[]);
        write.rejected();
        expect(&["v@4"]);
        let (first, second) = (begin("v"), begin("v"));
        watch(&store, "v", 5);
        watch(&store, "v", 6);
        first.rejected();
        expect(&[]);
        finish(second, "v", 6);
        expect(&["v@5"]);
        store.apply(decode::object(&volume("v", 7)).unwrap());
        store.delete(&VolumeName::new("v"), &"v".into(), "8".parse().unwrap());
        expect(&[]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_with_an_unknown_result_leaves_doubt() {
        let (store, found) = store();
        let begin = || store.begin_write(VolumeName::new("v"));
        let write = begin();
        watch(&store, "v", 1);
        drop(write);
        watch(&store, "v", 2);
        begin().rejected();
        tokio::time::advance(MAY_APPLY - Duration::from_secs(1)).await;
        watch(&store, "v", 3);
        assert_eq!(*found.lock(), [""; 0]);
        tokio::time::advance(Duration::from_secs(1)).await;
        watch(&store, "v", 4);
        assert_eq!(*found.lock(), ["v@4"]);
    }

    #[tokio::test(start_paused = true)]
    async fn entries_of_expired_requests_are_removed() {
        let (store, _) = store();
        for number in 0..=PRUNE_ABOVE {
            drop(store.begin_write(VolumeName::new(number.to_string())));
        }
        tokio::time::advance(MAY_APPLY).await;
        store.begin_write(VolumeName::new("0")).rejected();
        assert_eq!(store.own_writes.0.lock().len(), 0);
    }
}
