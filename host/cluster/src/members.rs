//! What an index holds for one key.

use std::collections::BTreeSet;

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

/// A set that has one member almost always, sorted: as large as that one, where the smallest `BTreeSet` takes ten times as much.
#[derive(Debug)]
pub(crate) struct Few<T>(Vec<T>);

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Few<T> {
    /// The members, sorted.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
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
        if let Err(place) = self.0.binary_search(&member) {
            if self.0.is_empty() {
                self.0.reserve_exact(1);
            }
            self.0.insert(place, member);
        }
    }

    fn drop_member(&mut self, member: &T) -> bool {
        if let Ok(place) = self.0.binary_search(member) {
            self.0.remove(place);
        }
        self.0.is_empty()
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
        assert!(few.drop_member(&3), "none is left");
    }
}
