//! One kind's part of the cache, and the rules by which it takes in lists, watch events and the answers of
//! writes.
//!
//! | arrives | cached | effect |
//! |---|---|---|
//! | object | none | stored, unless a tombstone of the same uid, or a newer one of another, forbids it |
//! | object | older or equal version | stored |
//! | object | newer version | ignored |
//! | deletion | same uid, or not newer | removed, tombstone left |
//! | deletion | another uid that is newer | ignored |
//! | list | not in it, not newer than it | removed |
//! | list | not in it, newer than it (written through) | kept |
//!
//! So an echo that comes late can neither undo an answer nor revive what is gone.

use std::{
    collections::{HashMap, HashSet, VecDeque, hash_map::Entry},
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use cofferdam_domain::{Uid, ids::ResourceVersion};
use tokio::{sync::watch, time::Instant};

use crate::kind::{Index, Kind};

/// How many deletions are remembered. A late answer arrives within the client's time-out, in which far fewer
/// objects of one kind go.
const MAX_TOMBSTONES: usize = 4096;

/// How long a deletion is remembered: longer than a request or a watch lasts that could still show the
/// object.
const TOMBSTONE_TTL: Duration = Duration::from_mins(15);

/// What the cache knows about a key.
#[derive(Debug)]
pub enum Lookup<K> {
    /// No such object.
    Missing,
    /// The object exists, but it could not be decoded: hands off. Its uid, as far as it could be read.
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
    /// Whether there is no such object; one that could not be decoded is there.
    pub const fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }

    /// The object, when it exists and decodes.
    pub fn into_object(self) -> Option<Arc<K>> {
        match self {
            Self::Found(object) => Some(object),
            Self::Missing | Self::Undecodable(_) => None,
        }
    }
}

/// A change of one object, as subscribers see it.
pub struct Change<K: Kind> {
    /// The object's key.
    pub key: K::Key,
    /// What was cached before.
    pub old: Option<Arc<K>>,
    /// What is cached now.
    pub new: Option<Arc<K>>,
}

/// An object that could not be decoded, as far as it could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndecodableObject<Key> {
    /// Its key.
    pub key: Key,
    /// Its uid.
    pub uid: Uid,
    /// Its version.
    pub resource_version: ResourceVersion,
    /// Which field could not be read, and what it held.
    pub reason: String,
}

/// A decoded object or what is left of one.
pub type DecodeResult<K> = Result<K, UndecodableObject<<K as Kind>::Key>>;

/// A deletion that is remembered.
struct Tombstone {
    uid: Uid,
    version: ResourceVersion,
    added_at: Instant,
}

struct Inner<K: Kind> {
    objects: HashMap<K::Key, Arc<K>>,
    undecodable: HashMap<K::Key, UndecodableObject<K::Key>>,
    index: K::Index,
    tombstones: HashMap<K::Key, Tombstone>,
    tombstone_order: VecDeque<(K::Key, Instant)>,
    highest_version: ResourceVersion,
}

type Subscriber<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

/// The cached objects of one kind.
pub struct ObjectStore<K: Kind> {
    inner: RwLock<Inner<K>>,
    subscribers: RwLock<Vec<Subscriber<K>>>,
    synced: watch::Sender<bool>,
}

impl<K: Kind> fmt::Debug for ObjectStore<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("kind", &K::RESOURCE.kind).field("objects", &self.len()).finish()
    }
}

impl<K: Kind> Default for ObjectStore<K> {
    fn default() -> Self {
        Self {
            inner: RwLock::new(Inner {
                objects: HashMap::new(),
                undecodable: HashMap::new(),
                index: K::Index::default(),
                tombstones: HashMap::new(),
                tombstone_order: VecDeque::new(),
                highest_version: ResourceVersion::default(),
            }),
            subscribers: RwLock::new(Vec::new()),
            synced: watch::Sender::new(false),
        }
    }
}

impl<K: Kind> ObjectStore<K> {
    /// Calls `subscriber` after every change, in the order of the changes of one object. It must be quick: it
    /// runs where the change is made.
    pub fn subscribe(&self, subscriber: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.subscribers.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(subscriber));
    }

    /// What is known about a key.
    pub fn get(&self, key: &K::Key) -> Lookup<K> {
        let inner = self.read();
        match (inner.objects.get(key), inner.undecodable.get(key)) {
            (Some(object), _) => Lookup::Found(Arc::clone(object)),
            (None, Some(opaque)) => Lookup::Undecodable(opaque.uid.clone()),
            (None, None) => Lookup::Missing,
        }
    }

    /// Every object, in no order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read().objects.values().cloned().collect()
    }

    /// How many objects are cached.
    pub fn len(&self) -> usize {
        let inner = self.read();
        inner.objects.len() + inner.undecodable.len()
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The highest version that a list, an event, a bookmark or an answer has shown.
    pub fn highest_version(&self) -> ResourceVersion {
        self.read().highest_version
    }

    /// Notes a version that came without an object.
    pub fn observe_version(&self, version: ResourceVersion) {
        let mut inner = self.write();
        inner.highest_version = inner.highest_version.max(version);
        // Bookmarks come where nothing else does: after a burst, too, somebody clears away.
        inner.prune_tombstones();
    }

    /// Whether a first list has been taken in.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits until a first list has been taken in.
    pub async fn wait_synced(&self) {
        // The sender lives as long as the table: waiting cannot fail.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Asks the index; `find` gets the index and a way from a key to its object.
    pub fn query<R>(&self, find: impl FnOnce(&K::Index, &HashMap<K::Key, Arc<K>>) -> R) -> R {
        let inner = self.read();
        find(&inner.index, &inner.objects)
    }

    /// Takes in an object from a watch or from the answer of a write. Returns whether it was new to the
    /// cache.
    pub fn apply(&self, decoded: DecodeResult<K>) -> bool {
        let change = self.write().apply(decoded);
        self.notify(change)
    }

    /// Takes in a deletion. `version` is the version at which the object went, as far as it is known.
    pub fn delete(&self, key: &K::Key, uid: &Uid, version: ResourceVersion) -> bool {
        let change = self.write().delete(key, uid, version);
        self.notify(change)
    }

    /// Takes in a most-recent list, which is authoritative except for what was written through after it.
    pub fn replace(&self, items: Vec<DecodeResult<K>>, version: ResourceVersion) {
        let mut changes = Vec::new();
        {
            let mut inner = self.write();
            let listed: HashSet<K::Key> =
                items.iter().map(|item| item.as_ref().map_or_else(|o| o.key.clone(), Kind::key)).collect();
            let removed: Vec<(K::Key, Uid)> = inner
                .objects
                .iter()
                .map(|(key, object)| (key, &object.meta().uid, object.resource_version()))
                .chain(
                    inner.undecodable.iter().map(|(key, opaque)| (key, &opaque.uid, opaque.resource_version)),
                )
                .filter(|(key, _, cached)| !listed.contains(*key) && *cached <= version)
                .map(|(key, uid, _)| (key.clone(), uid.clone()))
                .collect();
            changes.extend(removed.iter().filter_map(|(key, uid)| inner.delete(key, uid, version)));
            changes.extend(items.into_iter().filter_map(|item| inner.apply(item)));
            inner.highest_version = inner.highest_version.max(version);
        }
        for change in changes {
            self.notify(Some(change));
        }
        self.synced.send_replace(true);
    }

    /// Forgets every object of a kind that the API does not have at this moment. None of them was deleted:
    /// when the kind comes back, so do they.
    pub fn clear(&self) {
        let mut changes = Vec::new();
        {
            let mut inner = self.write();
            let keys: Vec<K::Key> = inner.objects.keys().chain(inner.undecodable.keys()).cloned().collect();
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

    /// Whether there are objects that cannot be decoded.
    pub fn has_undecodable(&self) -> bool {
        !self.read().undecodable.is_empty()
    }

    fn notify(&self, change: Option<Change<K>>) -> bool {
        let Some(change) = change else { return false };
        for subscriber in self.subscribers.read().unwrap_or_else(PoisonError::into_inner).iter() {
            subscriber(&change);
        }
        true
    }

    // A panic while the lock was held cannot leave a half-made change that matters: every change is one map
    // operation followed by the index's, and a relist repairs both.
    fn read(&self) -> RwLockReadGuard<'_, Inner<K>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<K>> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Kind> Inner<K> {
    fn apply(&mut self, decoded: DecodeResult<K>) -> Option<Change<K>> {
        let (key, uid, version) = match &decoded {
            Ok(object) => (object.key(), object.meta().uid.clone(), object.resource_version()),
            Err(opaque) => (opaque.key.clone(), opaque.uid.clone(), opaque.resource_version),
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
        let old = self.take(&key);
        match decoded {
            Ok(object) => {
                let is_unchanged = old.as_ref().is_some_and(|old| old.resource_version() == version);
                let object = Arc::new(object);
                self.index.insert(&object);
                self.objects.insert(key.clone(), Arc::clone(&object));
                (!is_unchanged).then_some(Change { key, old, new: Some(object) })
            }
            Err(opaque) => {
                self.undecodable.insert(key.clone(), opaque);
                // Not a deletion: whoever waits for the object to go must not be told that it went.
                None
            }
        }
    }

    fn delete(&mut self, key: &K::Key, uid: &Uid, version: ResourceVersion) -> Option<Change<K>> {
        self.highest_version = self.highest_version.max(version);
        let cached = match (self.objects.get(key), self.undecodable.get(key)) {
            (Some(object), _) => Some((object.meta().uid.clone(), object.resource_version())),
            (None, Some(opaque)) => Some((opaque.uid.clone(), opaque.resource_version)),
            (None, None) => None,
        };
        if cached.is_some_and(|(cached_uid, at)| cached_uid != *uid && at > version) {
            return None;
        }
        let existed = self.objects.contains_key(key) || self.undecodable.contains_key(key);
        let old = self.take(key);
        self.add_tombstone(key.clone(), uid.clone(), version);
        // Also where it could not be read: whoever left things alone because of it goes on now.
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
            // An answer and its echo tell of one deletion twice.
            Entry::Occupied(mut tombstone) => {
                let tombstone = tombstone.get_mut();
                (tombstone.uid, tombstone.version) = (uid, version);
            }
            Entry::Vacant(free) => {
                self.tombstone_order.push_back((free.key().clone(), added_at));
                free.insert(Tombstone { uid, version, added_at });
            }
        }
        self.prune_tombstones();
    }

    /// Forgets deletions that are too many or too old.
    fn prune_tombstones(&mut self) {
        let now = Instant::now();
        let is_expired = |since: &Instant| now.duration_since(*since) >= TOMBSTONE_TTL;
        let before = self.tombstone_order.len();
        while let Some((key, since)) = self.tombstone_order.front()
            && (self.tombstone_order.len() > MAX_TOMBSTONES || is_expired(since))
        {
            // A successor that went as well has a grave of its own.
            if self.tombstones.get(key).is_some_and(|buried| buried.added_at == *since) {
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
mod tests;
