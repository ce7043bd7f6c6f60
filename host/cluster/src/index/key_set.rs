//! Sets of object keys under an index key.

use std::{
    borrow::Borrow,
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

/// The set under an index key.
pub(super) trait KeySet<T> {
    /// Adds a member.
    fn insert_member(&mut self, member: T);
    /// Removes a member, if it is in the set. Returns `true` if the set is empty afterwards.
    fn remove_member(&mut self, member: &T) -> bool;
}

impl<T: Ord> KeySet<T> for BTreeSet<T> {
    fn insert_member(&mut self, member: T) {
        self.insert(member);
    }

    fn remove_member(&mut self, member: &T) -> bool {
        self.remove(member);
        self.is_empty()
    }
}

/// Removes a member from the set under `key`, and removes the set if it is empty.
pub(super) fn remove_member<K, Q, V, M>(map: &mut HashMap<K, M>, key: &Q, member: &V)
where
    K: Borrow<Q> + Eq + Hash,
    Q: Eq + Hash + ?Sized,
    M: KeySet<V>,
{
    if map.get_mut(key).is_some_and(|members| members.remove_member(member)) {
        map.remove(key);
    }
}
