//! Objects by their keys.

use std::{
    cmp::Ordering,
    fmt,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
};

use hashbrown::{HashTable, hash_table::Entry};

use crate::objects::Kind;

/// Objects by their keys. The key of an entry is that of its object: an entry takes 8 bytes, where a map from
/// keys would take 40.
pub struct ObjectTable<K> {
    objects: HashTable<Arc<K>>,
    hasher: RandomState,
}

impl<K> Default for ObjectTable<K> {
    fn default() -> Self {
        Self { objects: HashTable::new(), hasher: RandomState::new() }
    }
}

impl<K: Kind> fmt::Debug for ObjectTable<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values().map(|object| object.key())).finish()
    }
}

impl<K: Kind> ObjectTable<K> {
    /// The object of a key.
    pub fn get(&self, key: &K::Key) -> Option<&Arc<K>> {
        self.objects.find(self.hasher.hash_one(key), |object| object.key() == key)
    }

    /// Returns `true` if an object has the key.
    pub fn contains_key(&self, key: &K::Key) -> bool {
        self.get(key).is_some()
    }

    /// The objects, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &Arc<K>> {
        self.objects.iter()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Returns `true` if there are no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Adds an object in place of the one with its key.
    pub(crate) fn insert(&mut self, object: Arc<K>) {
        let Self { objects, hasher } = self;
        let is_same = |other: &Arc<K>| other.key() == object.key();
        match objects.entry(hasher.hash_one(object.key()), is_same, |other| hasher.hash_one(other.key())) {
            Entry::Occupied(mut entry) => *entry.get_mut() = object,
            Entry::Vacant(entry) => {
                entry.insert(object);
            }
        }
    }

    /// Removes the object of a key.
    pub(crate) fn remove(&mut self, key: &K::Key) -> Option<Arc<K>> {
        let entry = self.objects.find_entry(self.hasher.hash_one(key), |object| object.key() == key);
        entry.ok().map(|entry| entry.remove().0)
    }
}

/// An object that is compared by its key.
pub(crate) struct ByKey<K>(pub(crate) Arc<K>);

impl<K: Kind> PartialEq for ByKey<K> {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl<K: Kind> Eq for ByKey<K> {}

impl<K: Kind> PartialOrd for ByKey<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: Kind> Ord for ByKey<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key().cmp(other.0.key())
    }
}

impl<K: Kind> fmt::Debug for ByKey<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.key().fmt(f)
    }
}
