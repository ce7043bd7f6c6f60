//! What an index holds for one key.

use std::{cmp::Ordering, collections::BTreeSet};

/// A set under a key of an index.
pub(crate) trait KeySet<T> {
    /// Adds a member.
    fn insert_member(&mut self, member: T);
    /// Removes a member; whether none is left.
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

/// A set that has one member almost always, sorted: that one stands in the index itself.
#[derive(Debug)]
pub(crate) enum SmallSet<T> {
    /// The only member.
    Single(T),
    /// None, or two and more, sorted.
    Many(Vec<T>),
}

impl<T> Default for SmallSet<T> {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<T> SmallSet<T> {
    /// The members, sorted.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        match self {
            Self::Single(member) => std::slice::from_ref(member).iter(),
            Self::Many(members) => members.iter(),
        }
    }
}

impl<'a, T> IntoIterator for &'a SmallSet<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: Ord> KeySet<T> for SmallSet<T> {
    fn insert_member(&mut self, member: T) {
        *self = match std::mem::take(self) {
            Self::Many(members) if members.is_empty() => Self::Single(member),
            Self::Single(existing) => match existing.cmp(&member) {
                Ordering::Equal => Self::Single(existing),
                Ordering::Less => Self::Many(vec![existing, member]),
                Ordering::Greater => Self::Many(vec![member, existing]),
            },
            Self::Many(mut members) => {
                if let Err(index) = members.binary_search(&member) {
                    members.insert(index, member);
                }
                Self::Many(members)
            }
        };
    }

    fn remove_member(&mut self, member: &T) -> bool {
        *self = match std::mem::take(self) {
            Self::Single(one) if one == *member => Self::default(),
            Self::Single(one) => Self::Single(one),
            Self::Many(mut members) => {
                if let Ok(index) = members.binary_search(member) {
                    members.remove(index);
                }
                match (members.pop(), members.is_empty()) {
                    (Some(last), true) => Self::Single(last),
                    (last, _) => {
                        members.extend(last);
                        Self::Many(members)
                    }
                }
            }
        };
        self.iter().len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_set_is_sorted_without_duplicates() {
        let mut set = SmallSet::default();
        [3, 1, 2, 3].into_iter().for_each(|member| set.insert_member(member));
        assert_eq!(set.iter().copied().collect::<Vec<_>>(), [1, 2, 3]);
        assert!(!set.remove_member(&2) && !set.remove_member(&2) && !set.remove_member(&1));
        assert!(matches!(set, SmallSet::Single(3)), "one stands in the index itself");
        set.insert_member(3);
        assert!(matches!(set, SmallSet::Single(3)) && !set.remove_member(&4));
        assert!(set.remove_member(&3) && set.iter().next().is_none(), "none is left");
        assert!(set.remove_member(&3));
        assert_eq!(size_of::<SmallSet<Box<str>>>(), size_of::<Vec<Box<str>>>());
    }
}
