//! What an index holds for one key.

use std::{cmp::Ordering, collections::BTreeSet};

/// A set under a key of an index.
pub(crate) trait Members<T> {
    /// Adds a member.
    fn add(&mut self, member: T);
    /// Removes a member; whether none is left.
    fn drop_member(&mut self, member: &T) -> bool;
}

impl<T: Ord> Members<T> for BTreeSet<T> {
    fn add(&mut self, member: T) {
        self.insert(member);
    }

    fn drop_member(&mut self, member: &T) -> bool {
        self.remove(member);
        self.is_empty()
    }
}

/// A set that has one member almost always, sorted: that one stands in the index itself.
#[derive(Debug)]
pub(crate) enum Few<T> {
    /// The only member.
    One(T),
    /// None, or two and more, sorted.
    Many(Vec<T>),
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<T> Few<T> {
    /// The members, sorted.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        match self {
            Self::One(member) => std::slice::from_ref(member).iter(),
            Self::Many(members) => members.iter(),
        }
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: Ord> Members<T> for Few<T> {
    fn add(&mut self, member: T) {
        *self = match std::mem::take(self) {
            Self::Many(members) if members.is_empty() => Self::One(member),
            Self::One(one) => match one.cmp(&member) {
                Ordering::Equal => Self::One(one),
                Ordering::Less => Self::Many(vec![one, member]),
                Ordering::Greater => Self::Many(vec![member, one]),
            },
            Self::Many(mut members) => {
                if let Err(place) = members.binary_search(&member) {
                    members.insert(place, member);
                }
                Self::Many(members)
            }
        };
    }

    fn drop_member(&mut self, member: &T) -> bool {
        *self = match std::mem::take(self) {
            Self::One(one) if one == *member => Self::default(),
            Self::One(one) => Self::One(one),
            Self::Many(mut members) => {
                if let Ok(place) = members.binary_search(member) {
                    members.remove(place);
                }
                match (members.pop(), members.is_empty()) {
                    (Some(last), true) => Self::One(last),
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
    fn each_member_once_and_sorted() {
        let mut few = Few::default();
        [3, 1, 2, 3].into_iter().for_each(|member| few.add(member));
        assert_eq!(few.iter().copied().collect::<Vec<_>>(), [1, 2, 3]);
        assert!(!few.drop_member(&2) && !few.drop_member(&2) && !few.drop_member(&1));
        assert!(matches!(few, Few::One(3)), "one stands in the index itself");
        few.add(3);
        assert!(matches!(few, Few::One(3)) && !few.drop_member(&4));
        assert!(few.drop_member(&3) && few.iter().next().is_none(), "none is left");
        assert!(few.drop_member(&3));
        assert_eq!(size_of::<Few<Box<str>>>(), size_of::<Vec<Box<str>>>());
    }
}
