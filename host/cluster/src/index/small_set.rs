//! A sorted set that stores a single member inline.

use smallvec::SmallVec;

use super::key_set::KeySet;

/// A sorted set. Almost every index entry has one member, which needs no allocation.
#[derive(Debug)]
pub(crate) struct SmallSet<T>(SmallVec<[T; 1]>);

impl<T> Default for SmallSet<T> {
    fn default() -> Self {
        Self(SmallVec::new())
    }
}

impl<T> SmallSet<T> {
    /// The members in order.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
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
        if let Err(index) = self.0.binary_search(&member) {
            self.0.insert(index, member);
        }
    }

    fn remove_member(&mut self, member: &T) -> bool {
        if let Ok(index) = self.0.binary_search(member) {
            self.0.remove(index);
            self.0.shrink_to_fit();
        }
        self.0.is_empty()
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
        assert!(!set.0.spilled() && set.0[..] == [3], "a single member is stored inline");
        set.insert_member(3);
        assert!(!set.0.spilled() && set.0[..] == [3] && !set.remove_member(&4));
        assert!(set.remove_member(&3) && set.iter().next().is_none(), "the set is empty");
        assert!(set.remove_member(&3));
        assert_eq!(size_of::<SmallSet<Box<str>>>(), size_of::<Vec<Box<str>>>());
    }
}
