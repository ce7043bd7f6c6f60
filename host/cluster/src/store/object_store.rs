//! The cached objects of one kind, and the order of updates from lists, watch events, live reads and write
//! responses.
//!
//! | update | cached | effect |
//! |---|---|---|
//! | object | none | stored, unless a tombstone has the same uid, or another uid and no older version |
//! | object | older or equal version | stored |
//! | object | newer version | ignored |
//! | deletion | none | tombstone added |
//! | deletion | same uid, or not newer | removed, tombstone added |
//! | deletion | another uid that is newer | ignored |
//! | list without the object | not newer than the list | removed, tombstone added |
//! | list without the object | newer than the list, from a live read or a write response | kept |
//! | list with an object without readable metadata | any | no object is removed |
//!
//! A tombstone is the record of a deletion: the object's uid and a version. It is kept for a limited time. A
//! late watch event can therefore neither undo a write response nor restore a deleted object.

use std::{
    any::Any,
    collections::{HashMap, HashSet, VecDeque, hash_map::Entry},
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cofferdam_domain::{Uid, ids::ResourceVersion};
use parking_lot::RwLock;
use tokio::{sync::watch, time::Instant};

use super::{
    change::Change,
    own_writes::{OwnWrites, WriteResult},
};
use crate::{
    index::{Index, Indexed, ObjectTable},
    objects::{DecodeResult, Kind, UndecodableObject},
};

/// Maximum number of tombstones. Far fewer objects of one kind are deleted within the request timeout, and a
/// late response arrives within it.
const MAX_TOMBSTONES: usize = 4096;

/// Lifetime of a tombstone: longer than any request or watch that could still return the object.
const TOMBSTONE_TTL: Duration = Duration::from_mins(15);

/// The result of a lookup by key.
#[derive(Debug)]
pub enum Lookup<K> {
    /// The object does not exist.
    Missing,
    /// The object exists but cannot be decoded, and must not be changed. Contains its uid, empty if unknown.
    Undecodable(Uid),
    /// The object.
    Found(Arc<K>),
}

impl<K> Clone for Lookup<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Missing => Self::Missing,
            Self::Undecodable(uid) => Self::Undecodable(uid.clone()),
            Self::Found(object) => Self::Found(Arc::clone(object)),
        }
    }
}

impl<K> Lookup<K> {
    /// Returns `true` if the object does not exist. An undecodable object exists.
    pub const fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }

    /// The object, if it exists and was decoded.
    pub fn into_object(self) -> Option<Arc<K>> {
        match self {
            Self::Found(object) => Some(object),
            Self::Missing | Self::Undecodable(_) => None,
        }
    }
}

/// An object of a list, or the identity of one that cannot be decoded.
pub type ListedObject<K> = Result<Arc<K>, UndecodableObject<<K as Kind>::Key>>;

/// A recorded deletion. `version` is that of the deletion event or of the list without the object, or else
/// the last known version of the object.
struct Tombstone {
    uid: Uid,
    version: ResourceVersion,
    added_at: Instant,
    /// Time at which the response of a write showed the deletion; `None` if none has.
    removed_by_own_write_at: Option<Instant>,
}

struct Inner<K: Indexed> {
    objects: ObjectTable<K>,
    undecodable: HashMap<K::Key, UndecodableObject<K::Key>>,
    index: K::Index,
    tombstones: HashMap<K::Key, Tombstone>,
    tombstone_order: VecDeque<(K::Key, Instant)>,
    highest_version: ResourceVersion,
}

/// A subscriber, and its owner if it ends with one.
struct Subscriber<F: ?Sized> {
    owner: Option<Weak<dyn Any + Send + Sync>>,
    notify: Box<F>,
}

impl<F: ?Sized> Subscriber<F> {
    fn has_ended(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.strong_count() == 0)
    }
}

type ChangeSubscriber<K> = Subscriber<dyn Fn(&Change<K>) + Send + Sync>;
type ForeignSubscriber<K> = Subscriber<dyn Fn(&Change<K>, &str) + Send + Sync>;

/// The cached objects of one kind.
pub struct ObjectStore<K: Indexed> {
    inner: RwLock<Inner<K>>,
    subscribers: RwLock<Vec<ChangeSubscriber<K>>>,
    foreign_subscribers: RwLock<Vec<ForeignSubscriber<K>>>,
    synced: watch::Sender<bool>,
    served: AtomicBool,
    own_writes: OwnWrites<K>,
}

impl<K: Indexed> fmt::Debug for ObjectStore<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectStore").field("kind", &K::RESOURCE.kind).field("objects", &self.len()).finish()
    }
}

impl<K: Indexed> Default for ObjectStore<K> {
    fn default() -> Self {
        Self {
            inner: RwLock::new(Inner {
                objects: ObjectTable::default(),
                undecodable: HashMap::new(),
                index: K::Index::default(),
                tombstones: HashMap::new(),
                tombstone_order: VecDeque::new(),
                highest_version: ResourceVersion::default(),
            }),
            subscribers: RwLock::new(Vec::new()),
            foreign_subscribers: RwLock::new(Vec::new()),
            synced: watch::Sender::new(false),
            served: AtomicBool::new(false),
            own_writes: OwnWrites::default(),
        }
    }
}

impl<K: Indexed> ObjectStore<K> {
    /// Calls `subscriber` after every change, on the thread that made the change. The subscriber must not
    /// block. Changes from one thread are delivered in order. An object of an unchanged version and an object
    /// that becomes undecodable cause no call; the deletion of an undecodable object does.
    pub fn subscribe(&self, subscriber: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.subscribers.write().push(Subscriber { owner: None, notify: Box::new(subscriber) });
    }

    /// Calls `subscriber` once for each cached object, in the order of the keys, as if it was new, and then
    /// as [`ObjectStore::subscribe`], as long as `owner` exists.
    pub fn subscribe_while<O>(
        &self,
        owner: &Arc<O>,
        subscriber: impl Fn(&O, &Change<K>) + Send + Sync + 'static,
    ) where
        O: Send + Sync + 'static,
    {
        let weak = Arc::downgrade(owner);
        let notify = Box::new(move |change: &Change<K>| {
            if let Some(owner) = weak.upgrade() {
                subscriber(&owner, change);
            }
        });
        let alive: Weak<dyn Any + Send + Sync> = Arc::downgrade(owner) as Weak<dyn Any + Send + Sync>;
        // The lock delays changes until the cached objects are delivered.
        let mut subscribers = self.subscribers.write();
        let mut objects = self.list();
        objects.sort_unstable_by(|object, other| object.key().cmp(other.key()));
        for object in objects {
            notify(&Change { key: object.key().clone(), old: None, new: Some(object) });
        }
        subscribers.retain(|subscriber| !subscriber.has_ended());
        subscribers.push(Subscriber { owner: Some(alive), notify });
    }

    /// Calls `subscriber` with the object's JSON after every change that another process has certainly made:
    /// a watch event or a live read delivered it, and no request of this process can have caused it
    /// ([`ObjectStore::begin_write`]). A watch event during such a request is delivered after the request; a
    /// live read during it and a deletion not at all. The subscriber must not block. It ends with `owner`.
    pub fn subscribe_foreign<O>(
        &self,
        owner: &Arc<O>,
        subscriber: impl Fn(&O, &Change<K>, &str) + Send + Sync + 'static,
    ) where
        O: Send + Sync + 'static,
    {
        let weak = Arc::downgrade(owner);
        let notify = Box::new(move |change: &Change<K>, json: &str| {
            if let Some(owner) = weak.upgrade() {
                subscriber(&owner, change, json);
            }
        });
        let alive: Weak<dyn Any + Send + Sync> = Arc::downgrade(owner) as Weak<dyn Any + Send + Sync>;
        let mut subscribers = self.foreign_subscribers.write();
        subscribers.retain(|subscriber| !subscriber.has_ended());
        subscribers.push(Subscriber { owner: Some(alive), notify });
    }

    /// Looks up a key.
    pub fn get(&self, key: &K::Key) -> Lookup<K> {
        let inner = self.inner.read();
        match (inner.objects.get(key), inner.undecodable.get(key)) {
            (Some(object), _) => Lookup::Found(Arc::clone(object)),
            (None, Some(undecodable)) => Lookup::Undecodable(undecodable.uid.clone()),
            (None, None) => Lookup::Missing,
        }
    }

    /// All decoded objects, in no particular order. Undecodable objects are left out.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.inner.read().objects.values().cloned().collect()
    }

    /// Number of cached objects, including undecodable ones.
    pub fn len(&self) -> usize {
        let inner = self.inner.read();
        inner.objects.len() + inner.undecodable.len()
    }

    /// Returns `true` if no object is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The highest observed resourceVersion of lists, watch events, bookmarks, live reads, write responses
    /// and [`ObjectStore::observe_version`].
    pub fn highest_version(&self) -> ResourceVersion {
        self.inner.read().highest_version
    }

    /// Records a resourceVersion without an object: of a bookmark, or of a list whose objects are not read.
    pub fn observe_version(&self, version: ResourceVersion) {
        let mut inner = self.inner.write();
        inner.highest_version = inner.highest_version.max(version);
        // An idle watch still receives bookmarks, so tombstones of a burst expire.
        inner.prune_tombstones();
    }

    /// Returns `true` after the first list, or after [`ObjectStore::clear`] for a kind that is not served.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits for the first list, or for [`ObjectStore::clear`] of a kind that is not served.
    pub async fn wait_synced(&self) {
        // The store owns the sender, so this cannot fail.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Runs `find` on the index and the objects by key, under the read lock.
    pub fn query<R>(&self, find: impl FnOnce(&K::Index, &ObjectTable<K>) -> R) -> R {
        let inner = self.inner.read();
        find(&inner.index, &inner.objects)
    }

    /// Registers a request of this process that changes the object, until its result is known.
    pub fn begin_write(&self, key: K::Key) -> OwnWrite<'_, K> {
        self.own_writes.begin(key.clone());
        OwnWrite { store: self, key, result: WriteResult::Unknown }
    }

    /// Applies an object of a list or a write response. Returns `true` if subscribers were notified: not
    /// for an outdated or known version, a deleted or an undecodable object.
    pub fn apply(&self, decoded: DecodeResult<K>) -> bool {
        let change = self.inner.write().apply(decoded.map(Arc::new));
        self.notify(change)
    }

    /// As [`ObjectStore::apply`], for an object of a watch event: `json` is its text.
    pub fn apply_watch_event(&self, decoded: DecodeResult<K>, json: &str) -> bool {
        let change = self.inner.write().apply(decoded.map(Arc::new));
        if let Some(change) = &change
            && self.own_writes.is_foreign(change, json)
        {
            self.notify_foreign(change, json);
        }
        self.notify(change)
    }

    /// As [`ObjectStore::apply`], for an object of a live read: `json` is its text. After a write that lost
    /// against another process, the live read is the first to show that process's change, and the watch event
    /// of the same version is no change any more.
    pub fn apply_live_read(&self, decoded: DecodeResult<K>, json: &str) -> bool {
        let change = self.inner.write().apply(decoded.map(Arc::new));
        if let Some(change) = &change
            && self.own_writes.is_foreign_read(&change.key)
        {
            self.notify_foreign(change, json);
        }
        self.notify(change)
    }

    /// Applies a deletion at `version`: that of the watch event, or the last known version of the object.
    /// Returns `true` if an object was cached under the key and is now removed.
    pub fn delete(&self, key: &K::Key, uid: &Uid, version: ResourceVersion) -> bool {
        let change = self.inner.write().delete(key, uid, version);
        self.notify(change)
    }

    /// As [`ObjectStore::delete`], for a deletion that the response of a write has shown: the write removed
    /// the last finalizer of an object that was being deleted.
    pub fn delete_by_own_write(&self, key: &K::Key, uid: &Uid, version: ResourceVersion) -> bool {
        let change = {
            let mut inner = self.inner.write();
            let change = inner.delete(key, uid, version);
            if let Some(tombstone) = inner.tombstones.get_mut(key).filter(|tombstone| tombstone.uid == *uid) {
                tombstone.removed_by_own_write_at = Some(Instant::now());
            }
            change
        };
        self.notify(change)
    }

    /// Time at which a write of this process removed the object of this uid
    /// ([`ObjectStore::delete_by_own_write`]). The object does not return, unless the cluster is restored
    /// from a backup. `None` if another client has removed it, if it exists, or long after the removal.
    pub fn removed_by_own_write(&self, key: &K::Key, uid: &Uid) -> Option<Instant> {
        let inner = self.inner.read();
        inner.tombstones.get(key).filter(|tombstone| tombstone.uid == *uid)?.removed_by_own_write_at
    }

    /// An object for [`ObjectStore::replace`]: the cached object if it is equal. A list of a cluster that has
    /// not changed then takes no more memory than its pages.
    pub fn listed(&self, decoded: DecodeResult<K>) -> ListedObject<K> {
        let object = decoded?;
        let cached =
            self.inner.read().objects.get(object.key()).filter(|cached| ***cached == object).cloned();
        Ok(cached.unwrap_or_else(|| Arc::new(object)))
    }

    /// Applies a complete list. Objects that are newer than the list, from live reads or write responses, are
    /// kept.
    pub fn replace(&self, items: Vec<ListedObject<K>>, version: ResourceVersion) {
        self.apply_list(items, version, true);
    }

    /// As [`ObjectStore::replace`], for a list with an object whose metadata cannot be decoded. It may be any
    /// of the cached objects that `items` lack, so none of them is removed.
    pub fn merge(&self, items: Vec<ListedObject<K>>, version: ResourceVersion) {
        self.apply_list(items, version, false);
    }

    fn apply_list(&self, items: Vec<ListedObject<K>>, version: ResourceVersion, is_complete: bool) {
        let mut changes = Vec::new();
        {
            let mut inner = self.inner.write();
            let removed = if is_complete { inner.missing_from(&items, version) } else { Vec::new() };
            changes.extend(removed.iter().filter_map(|(key, uid)| inner.delete(key, uid, version)));
            changes.extend(items.into_iter().filter_map(|item| inner.apply(item)));
            inner.highest_version = inner.highest_version.max(version);
        }
        self.served.store(true, Ordering::Relaxed);
        for change in changes {
            self.notify(Some(change));
        }
        self.synced.send_replace(true);
    }

    /// Returns `true` if the API server has served the last list of the kind.
    pub fn is_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    /// Removes all objects, because the API server does not serve the kind. This adds no tombstones: the
    /// objects return when the kind is served again.
    pub fn clear(&self) {
        let mut changes = Vec::new();
        {
            let mut inner = self.inner.write();
            // Before the removal: nobody takes a removed object for a deleted one.
            self.served.store(false, Ordering::Relaxed);
            let keys: Vec<K::Key> = {
                let decoded = inner.objects.values().map(|object| object.key());
                decoded.chain(inner.undecodable.keys()).cloned().collect()
            };
            for key in keys {
                let old = inner.take(&key);
                changes.push(Change { key, old, new: None });
            }
        }
        for change in changes {
            self.notify(Some(change));
        }
        self.synced.send_replace(true);
    }

    /// The key of an undecodable object; `None` if there is none.
    pub fn undecodable_key(&self) -> Option<K::Key> {
        self.inner.read().undecodable.keys().next().cloned()
    }

    /// Returns `true` if undecodable objects exist.
    pub fn has_undecodable(&self) -> bool {
        !self.inner.read().undecodable.is_empty()
    }

    fn notify_foreign(&self, change: &Change<K>, json: &str) {
        for subscriber in self.foreign_subscribers.read().iter() {
            (subscriber.notify)(change, json);
        }
    }

    fn notify(&self, change: Option<Change<K>>) -> bool {
        let Some(change) = change else { return false };
        for subscriber in self.subscribers.read().iter() {
            (subscriber.notify)(&change);
        }
        true
    }
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

impl<K: Indexed> OwnWrite<'_, K> {
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

impl<K: Indexed> Inner<K> {
    fn apply(&mut self, decoded: ListedObject<K>) -> Option<Change<K>> {
        let (key, uid, version) = match &decoded {
            Ok(object) => (object.key().clone(), object.meta().uid.clone(), object.resource_version()),
            Err(undecodable) => {
                (undecodable.key.clone(), undecodable.uid.clone(), undecodable.resource_version)
            }
        };
        self.highest_version = self.highest_version.max(version);
        if self.cached_version(&key).is_some_and(|cached| cached > version) {
            return None;
        }
        if let Some(tombstone) = self.tombstones.get(&key) {
            if tombstone.uid == uid || tombstone.version >= version {
                return None;
            }
            self.tombstones.remove(&key);
        }
        if let Ok(object) = &decoded
            && self.objects.get(&key).is_some_and(|cached| cached == object)
        {
            return None;
        }
        let old = self.take(&key);
        match decoded {
            Ok(object) => {
                let is_unchanged = old.as_ref().is_some_and(|old| old.resource_version() == version);
                self.index.insert(&object);
                self.objects.insert(Arc::clone(&object));
                (!is_unchanged).then_some(Change { key, old, new: Some(object) })
            }
            Err(undecodable) => {
                self.undecodable.insert(key.clone(), undecodable);
                // The object still exists, so subscribers must not see a deletion.
                None
            }
        }
    }

    /// The cached objects that a complete list at `version` lacks and that are not newer than it.
    fn missing_from(&self, items: &[ListedObject<K>], version: ResourceVersion) -> Vec<(K::Key, Uid)> {
        let listed: HashSet<&K::Key> =
            items.iter().map(|item| item.as_ref().map_or_else(|o| &o.key, |object| object.key())).collect();
        let decoded =
            self.objects.values().map(|object| (object.key(), &object.meta().uid, object.resource_version()));
        let undecodable = self
            .undecodable
            .iter()
            .map(|(key, undecodable)| (key, &undecodable.uid, undecodable.resource_version));
        decoded
            .chain(undecodable)
            .filter(|(key, _, cached)| !listed.contains(key) && *cached <= version)
            .map(|(key, uid, _)| (key.clone(), uid.clone()))
            .collect()
    }

    fn delete(&mut self, key: &K::Key, uid: &Uid, version: ResourceVersion) -> Option<Change<K>> {
        self.highest_version = self.highest_version.max(version);
        let cached = match (self.objects.get(key), self.undecodable.get(key)) {
            (Some(object), _) => Some((object.meta().uid.clone(), object.resource_version())),
            (None, Some(undecodable)) => Some((undecodable.uid.clone(), undecodable.resource_version)),
            (None, None) => None,
        };
        if cached.is_some_and(|(cached_uid, at)| cached_uid != *uid && at > version) {
            return None;
        }
        let existed = self.objects.contains_key(key) || self.undecodable.contains_key(key);
        let old = self.take(key);
        self.add_tombstone(key.clone(), uid.clone(), version);
        // Also for an undecodable object: its deletion can unblock a controller.
        existed.then(|| Change { key: key.clone(), old, new: None })
    }

    fn take(&mut self, key: &K::Key) -> Option<Arc<K>> {
        self.undecodable.remove(key);
        let old = self.objects.remove(key)?;
        self.index.remove(&old);
        Some(old)
    }

    fn cached_version(&self, key: &K::Key) -> Option<ResourceVersion> {
        self.objects
            .get(key)
            .map(|o| o.resource_version())
            .or_else(|| self.undecodable.get(key).map(|o| o.resource_version))
    }

    fn add_tombstone(&mut self, key: K::Key, uid: Uid, version: ResourceVersion) {
        let added_at = Instant::now();
        match self.tombstones.entry(key) {
            // A deletion arrives twice: as a response and as a watch event.
            Entry::Occupied(mut tombstone) => {
                let tombstone = tombstone.get_mut();
                if tombstone.uid != uid {
                    tombstone.removed_by_own_write_at = None;
                }
                (tombstone.uid, tombstone.version) = (uid, version);
            }
            Entry::Vacant(free) => {
                self.tombstone_order.push_back((free.key().clone(), added_at));
                free.insert(Tombstone { uid, version, added_at, removed_by_own_write_at: None });
            }
        }
        self.prune_tombstones();
    }

    /// Removes tombstones beyond [`MAX_TOMBSTONES`] or older than [`TOMBSTONE_TTL`].
    fn prune_tombstones(&mut self) {
        let now = Instant::now();
        let is_expired = |since: &Instant| now.duration_since(*since) >= TOMBSTONE_TTL;
        let before = self.tombstone_order.len();
        while let Some((key, since)) = self.tombstone_order.front()
            && (self.tombstone_order.len() > MAX_TOMBSTONES || is_expired(since))
        {
            // A newer tombstone of the key has an entry of its own.
            if self.tombstones.get(key).is_some_and(|tombstone| tombstone.added_at == *since) {
                self.tombstones.remove(key);
            }
            self.tombstone_order.pop_front();
        }
        if self.tombstone_order.len() < before
            && self.tombstone_order.len() < self.tombstone_order.capacity() / 4
        {
            self.tombstone_order.shrink_to(self.tombstone_order.len() * 2);
            self.tombstones.shrink_to(self.tombstone_order.len() * 2);
        }
    }
}

#[cfg(test)]
mod own_write_tests;
#[cfg(test)]
mod tests;
