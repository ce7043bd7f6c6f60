//! Objects by a key that few of them share.

use std::{
    fmt,
    hash::{BuildHasher as _, Hash, RandomState},
    sync::Arc,
};

use hashbrown::HashTable;

use crate::objects::Kind;

/// A key that an object contains, other than its own.
pub(crate) trait SecondaryKey: 'static {
    /// The kind of the objects.
    type Object: Kind;
    /// The key. The cost of a change grows with the number of objects with an equal one.
    type Key<'a>: Eq + Hash + fmt::Debug;
    /// Selects one key of an object; `()` for kinds whose objects have at most one.
    type Position: Copy + Eq + Send + Sync;

    /// The positions of the object's keys, without those of equal keys.
    fn positions(object: &Self::Object) -> impl Iterator<Item = Self::Position>;

    /// The key at a position; `None` if the object has none there.
    fn key(object: &Self::Object, position: Self::Position) -> Option<Self::Key<'_>>;
}

/// An object, and the position of the key.
type Entry<S> = (Arc<<S as SecondaryKey>::Object>, <S as SecondaryKey>::Position);

/// Objects by a [`SecondaryKey`]. The key of an entry is in its object: an entry takes 8 bytes if its position
/// is `()`, where a map from keys to keys would take up to 72.
pub(crate) struct SecondaryIndex<S: SecondaryKey> {
    entries: HashTable<Entry<S>>,
    hasher: RandomState,
}

impl<S: SecondaryKey> Default for SecondaryIndex<S> {
    fn default() -> Self {
        Self { entries: HashTable::new(), hasher: RandomState::new() }
    }
}

impl<S: SecondaryKey> fmt::Debug for SecondaryIndex<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter().map(|(object, position)| (S::key(object, *position), object.key()));
        f.debug_map().entries(entries).finish()
    }
}

impl<S: SecondaryKey> SecondaryIndex<S> {
    /// The objects with this key, in no particular order.
    pub(crate) fn get<'a>(&'a self, key: S::Key<'a>) -> impl Iterator<Item = &'a Arc<S::Object>> {
        let key = Some(key);
        let entries = self.entries.iter_hash(self.hasher.hash_one(&key));
        entries.filter(move |(object, position)| S::key(object, *position) == key).map(|(object, _)| object)
    }

    /// The objects with this key, sorted by their own keys.
    pub(crate) fn sorted<'a>(&'a self, key: S::Key<'a>) -> Vec<Arc<S::Object>> {
        let mut objects: Vec<_> = self.get(key).cloned().collect();
        objects.sort_unstable_by(|object, other| object.key().cmp(other.key()));
        objects
    }

    pub(super) fn insert(&mut self, object: &Arc<S::Object>) {
        let Self { entries, hasher } = self;
        let hash = |(object, position): &Entry<S>| hasher.hash_one(S::key(object, *position));
        for position in S::positions(object) {
            let entry = (Arc::clone(object), position);
            entries.insert_unique(hash(&entry), entry, hash);
        }
    }

    /// Removes the object that [`insert`](Self::insert) added.
    pub(super) fn remove(&mut self, object: &Arc<S::Object>) {
        for position in S::positions(object) {
            let hash = self.hasher.hash_one(S::key(object, position));
            let is_same = |(other, at): &Entry<S>| Arc::ptr_eq(other, object) && *at == position;
            if let Ok(entry) = self.entries.find_entry(hash, is_same) {
                entry.remove();
            }
        }
    }
}

/// Implements [`SecondaryKey`] for a kind whose objects have at most one key.
macro_rules! secondary_key {
    ($(#[$doc:meta])* $name:ident($object:ident: $kind:ty) -> $key:ty { $value:expr }) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl crate::index::secondary_index::SecondaryKey for $name {
            type Object = $kind;
            type Key<'a> = $key;
            type Position = ();

            fn positions($object: &$kind) -> impl Iterator<Item = ()> {
                $value.map(|_| ()).into_iter()
            }

            fn key<'a>($object: &'a $kind, (): ()) -> Option<$key> {
                $value
            }
        }
    };
}
pub(super) use secondary_key;

#[cfg(test)]
mod tests {
    use cofferdam_domain::Pod;
    use serde_json::json;

    use super::*;
    use crate::{index::pod::PodClaims, objects::decode};

    fn pod(name: &str, claims: &[&str]) -> Arc<Pod> {
        let volume = |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        let object = json!({
            "metadata": {"namespace": "ns", "name": name, "resourceVersion": "1"},
            "spec": {"volumes": claims.iter().map(volume).collect::<Vec<_>>()},
        });
        Arc::new(decode::object(&object.to_string()).unwrap().unwrap())
    }

    fn names(index: &SecondaryIndex<PodClaims>, claim: &str) -> Vec<String> {
        index.sorted(("ns", claim)).iter().map(|pod| pod.key.name.to_string()).collect()
    }

    #[test]
    fn objects_are_found_by_each_of_their_keys_once() {
        let mut index = SecondaryIndex::<PodClaims>::default();
        let (first, second) = (pod("a", &["x", "x", "y"]), pod("b", &["x"]));
        index.insert(&second);
        index.insert(&first);
        index.insert(&pod("none", &[]));
        assert_eq!(
            [names(&index, "x"), names(&index, "y"), names(&index, "z")],
            [vec!["a", "b"], vec!["a"], vec![]]
        );
        assert!(index.sorted(("other", "x")).is_empty());
        index.remove(&first);
        assert_eq!([names(&index, "x"), names(&index, "y")], [vec!["b"], vec![]]);
        index.remove(&second);
        assert!(index.entries.is_empty());
    }

    #[test]
    fn objects_are_found_after_the_table_has_grown() {
        let mut index = SecondaryIndex::<PodClaims>::default();
        let pods: Vec<_> = (0..1000)
            .map(|n| pod(&format!("pod-{n:03}"), &[&format!("claim-{}", n / 2), "shared"]))
            .collect();
        pods.iter().for_each(|pod| index.insert(pod));
        assert_eq!(names(&index, "claim-7"), ["pod-014", "pod-015"]);
        assert_eq!(names(&index, "shared").len(), 1000);
        pods.iter().take(999).for_each(|pod| index.remove(pod));
        assert_eq!([names(&index, "claim-7"), names(&index, "shared")], [vec![], vec!["pod-999"]]);
    }
}
