//! Compact maps of strings: annotations, labels, volume attributes, attachment metadata and terms of node
//! affinities.

use std::{collections::BTreeMap, sync::Arc};

/// A map of strings, stored as a sorted slice without spare capacity. The cache of API objects has the
/// annotations and labels of most objects, usually with a few entries, and the smallest non-empty `BTreeMap`
/// takes 400 bytes. Strings are reference-counted, because most occur in many objects. So is the slice: many
/// objects have equal annotations. Clones share it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StringMap(Arc<[(Arc<str>, Arc<str>)]>);

impl StringMap {
    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let index = self.0.binary_search_by(|(other, _)| (**other).cmp(name)).ok()?;
        self.0.get(index).map(|(_, value)| &**value)
    }

    /// Returns `true` if the map contains a name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Names and values, sorted by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Number of clones of this map, including itself.
    pub fn reference_count(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if the map is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The last value of a duplicate name is used, as in JSON.
impl FromIterator<(Arc<str>, Arc<str>)> for StringMap {
    fn from_iter<T: IntoIterator<Item = (Arc<str>, Arc<str>)>>(entries: T) -> Self {
        Self(entries.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect())
    }
}

impl From<BTreeMap<String, String>> for StringMap {
    fn from(map: BTreeMap<String, String>) -> Self {
        Self(map.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl From<&StringMap> for BTreeMap<String, String> {
    fn from(few: &StringMap) -> Self {
        few.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

impl From<BTreeMap<Box<str>, Box<str>>> for StringMap {
    fn from(map: BTreeMap<Box<str>, Box<str>>) -> Self {
        Self(map.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_name_in_sorted_order() {
        let names = ["b", "", "a/b", "ä", "a"];
        let map: BTreeMap<Box<str>, Box<str>> =
            names.into_iter().map(|name| (name.into(), format!("value of {name}").into())).collect();
        let string_map = StringMap::from(map);
        assert_eq!(string_map.len(), 5);
        for name in names {
            assert_eq!(string_map.get(name), Some(&*format!("value of {name}")));
        }
        assert_eq!(
            (string_map.get("c"), string_map.contains_key("a/"), string_map.contains_key("a")),
            (None, false, true)
        );
        assert_eq!(string_map.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["", "a", "a/b", "b", "ä"]);
        assert!(!string_map.is_empty() && StringMap::default().is_empty());
        let map: BTreeMap<String, String> = (&string_map).into();
        assert_eq!((map.len(), StringMap::from(map)), (5, string_map));
    }
}
