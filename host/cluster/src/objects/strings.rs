//! Reference-counted strings, lists and maps of decoded objects. Values that many objects share are interned.
//!
//! Ten thousand objects share a few hundred driver names, namespaces and annotation keys, and a few dozen
//! lists of finalizers and maps of annotations. Strings of one object, the values of driver data, strings
//! longer than [`MAX_INTERNED_BYTES`] and collections with more than [`MAX_INTERNED_ENTRIES`] entries are not
//! interned.

use std::{
    borrow::Borrow,
    collections::HashSet,
    fmt,
    hash::Hash,
    marker::PhantomData,
    sync::{Arc, LazyLock},
};

use cofferdam_domain::{StringMap, names};
use parking_lot::Mutex;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor},
};

/// Maximum length of an interned string in bytes: the limit of Kubernetes names.
const MAX_INTERNED_BYTES: usize = 253;
/// Maximum number of entries of an interned list or map. It bounds the memory of unreferenced ones.
const MAX_INTERNED_ENTRIES: usize = 8;

/// Minimum number of interned values before unreferenced ones are removed.
const MIN_SWEEP_SIZE: usize = 1_024;

/// A reference-counted list of strings.
pub(super) type StringList = Arc<[Arc<str>]>;

static STRINGS: LazyLock<Mutex<Interner<Arc<str>>>> = LazyLock::new(Mutex::default);
static LISTS: LazyLock<Mutex<Interner<StringList>>> = LazyLock::new(Mutex::default);
static MAPS: LazyLock<Mutex<Interner<StringMap>>> = LazyLock::new(Mutex::default);

/// A reference-counted value.
trait Interned: Clone + Eq + Hash {
    /// Number of references to the value.
    fn reference_count(&self) -> usize;
}

impl<T: Eq + Hash + ?Sized> Interned for Arc<T> {
    fn reference_count(&self) -> usize {
        Arc::strong_count(self)
    }
}

impl Interned for StringMap {
    fn reference_count(&self) -> usize {
        Self::reference_count(self)
    }
}

/// The interned values of one type.
struct Interner<T> {
    values: HashSet<T>,
    sweep_at: usize,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { values: HashSet::new(), sweep_at: MIN_SWEEP_SIZE }
    }
}

impl<T: Interned> Interner<T> {
    /// The interned value that equals `value`; that of `create` if there is none.
    fn intern<Q: Eq + Hash + ?Sized>(&mut self, value: &Q, create: impl FnOnce(&Q) -> T) -> T
    where
        T: Borrow<Q>,
    {
        if let Some(interned) = self.values.get(value) {
            return interned.clone();
        }
        if self.values.len() >= self.sweep_at {
            self.values.retain(|value| value.reference_count() > 1);
            // The next sweep is at twice the size, which makes the amortized cost constant.
            self.sweep_at = MIN_SWEEP_SIZE.max(self.values.len() * 2);
            self.values.shrink_to(self.sweep_at);
        }
        let interned = create(value);
        self.values.insert(interned.clone());
        interned
    }
}

fn intern(text: &str) -> Arc<str> {
    if text.len() > MAX_INTERNED_BYTES {
        text.into()
    } else {
        STRINGS.lock().intern(text, |text| text.into())
    }
}

/// Interns a list of strings.
pub(super) fn intern_list(list: Vec<Arc<str>>) -> StringList {
    if list.len() > MAX_INTERNED_ENTRIES || list.iter().any(|text| text.len() > MAX_INTERNED_BYTES) {
        return list.into();
    }
    LISTS.lock().intern(&*list, |list| list.into())
}

fn intern_map(map: StringMap) -> StringMap {
    let is_long = |(name, value): (&str, &str)| name.len().max(value.len()) > MAX_INTERNED_BYTES;
    if map.len() > MAX_INTERNED_ENTRIES || map.iter().any(is_long) {
        return map;
    }
    MAPS.lock().intern(&map, StringMap::clone)
}

/// A string that is not interned.
#[derive(Clone, Default)]
pub(crate) struct OwnedStr(pub(crate) Arc<str>);

/// An interned string, or one longer than [`MAX_INTERNED_BYTES`], which is not interned.
#[derive(Clone, Default)]
pub(crate) struct InternedStr(pub(crate) Arc<str>);

impl InternedStr {
    fn intern(text: &str) -> Self {
        Self(intern(text))
    }
}

/// Deserializes a string without an intermediate copy.
struct StrVisitor<T>(fn(&str) -> T);

impl<T> Visitor<'_> for StrVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        Ok((self.0)(text))
    }
}

impl<'de> Deserialize<'de> for OwnedStr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(StrVisitor(|text| Self(text.into())))
    }
}

impl<'de> Deserialize<'de> for InternedStr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(StrVisitor(Self::intern))
    }
}

/// Selects the entries of a map that are kept, and whether their values are interned. The names of kept
/// entries are interned. Nothing of a skipped entry is kept, not even in the interner.
pub(crate) trait InternPolicy {
    /// True if values are interned, and the map itself.
    const INTERNS_VALUES: bool;

    /// Returns `true` if the entry of this name is skipped.
    fn is_skipped(_name: &str) -> bool {
        false
    }
}

/// The annotations of [`names::CACHED_ANNOTATIONS`]. Most have few distinct values, so values are interned.
pub(crate) struct AnnotationPolicy;

impl InternPolicy for AnnotationPolicy {
    const INTERNS_VALUES: bool = true;

    fn is_skipped(name: &str) -> bool {
        !names::CACHED_ANNOTATIONS.contains(&name)
    }
}

/// Labels of a kind whose labels are read. Many objects share a value, so values are interned.
#[derive(Default)]
pub(crate) struct LabelPolicy;

impl InternPolicy for LabelPolicy {
    const INTERNS_VALUES: bool = true;
}

/// The label of a VolumeSnapshotContent that names a node.
#[derive(Default)]
pub(crate) struct ContentLabelPolicy;

impl InternPolicy for ContentLabelPolicy {
    const INTERNS_VALUES: bool = true;

    fn is_skipped(name: &str) -> bool {
        name != names::SNAPSHOT_MANAGED_BY
    }
}

/// Labels of a kind whose labels are not read. Only the size of an object limits the size of its labels.
#[derive(Default)]
pub(crate) struct NoLabels;

impl InternPolicy for NoLabels {
    const INTERNS_VALUES: bool = false;

    fn is_skipped(_: &str) -> bool {
        true
    }
}

/// Volume attributes and attachment metadata of drivers. Values may contain secrets and are not interned.
pub(crate) struct DriverDataPolicy;

impl InternPolicy for DriverDataPolicy {
    const INTERNS_VALUES: bool = false;
}

/// The name of an entry, interned; `None` if `S` skips the entry.
struct EntryName<S>(Option<Arc<str>>, PhantomData<S>);

impl<'de, S: InternPolicy> Deserialize<'de> for EntryName<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(StrVisitor(|name| {
            Self((!S::is_skipped(name)).then(|| InternedStr::intern(name).0), PhantomData)
        }))
    }
}

/// A map of strings. `S` selects the kept entries, and whether their values are interned.
pub(crate) struct InternedMap<S> {
    pub(crate) map: StringMap,
    policy: PhantomData<S>,
}

impl<S> Default for InternedMap<S> {
    fn default() -> Self {
        Self { map: StringMap::default(), policy: PhantomData }
    }
}

impl<'de, S: InternPolicy> Visitor<'de> for InternedMap<S> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut entries = Vec::with_capacity(map.size_hint().unwrap_or_default());
        while let Some(EntryName::<S>(name, _)) = map.next_key()? {
            match name {
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
                Some(name) if S::INTERNS_VALUES => entries.push((name, map.next_value::<InternedStr>()?.0)),
                Some(name) => entries.push((name, map.next_value::<OwnedStr>()?.0)),
            }
        }
        let map = entries.into_iter().collect();
        Ok(Self { map: if S::INTERNS_VALUES { intern_map(map) } else { map }, ..self })
    }
}

impl<'de, S: InternPolicy> Deserialize<'de> for InternedMap<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_are_interned_once() {
        let mut interner = Interner::<Arc<str>>::default();
        let [a, again, other] = ["a", "a", "b"].map(|text| interner.intern(text, |text| text.into()));
        assert!(Arc::ptr_eq(&a, &again) && *a == *"a" && *other == *"b");
        assert_eq!(interner.values.len(), 2);
        let long = "x".repeat(MAX_INTERNED_BYTES + 1);
        assert!(!Arc::ptr_eq(&intern(&long), &intern(&long)), "long text is not interned");
    }

    #[test]
    fn equal_lists_and_maps_are_interned_once() {
        let list = |texts: &[&str]| intern_list(texts.iter().map(|text| Arc::from(*text)).collect());
        assert!(Arc::ptr_eq(&list(&["list a", "b"]), &list(&["list a", "b"])));
        assert_eq!(*list(&["b", "list a"]), [Arc::from("b"), Arc::from("list a")], "the order is kept");
        assert!(list(&[]).is_empty());
        let (long, texts) = ("x".repeat(MAX_INTERNED_BYTES + 1), ["text"; MAX_INTERNED_ENTRIES + 1]);
        for large in [&[&*long] as &[_], &texts] {
            assert!(!Arc::ptr_eq(&list(large), &list(large)), "a large list is not interned");
        }
        let map = |value: &str| intern_map([("map a".into(), value.into())].into_iter().collect());
        let first = map("1");
        assert_eq!(
            (first.reference_count(), first.get("map a")),
            (2, Some("1")),
            "the interner has a reference"
        );
        let again = map("1");
        assert_eq!((first.reference_count(), &again), (3, &first));
        assert_eq!(map(&long).reference_count(), 1, "a large map is not interned");
    }

    #[test]
    fn unreferenced_strings_are_swept_and_memory_is_released() {
        let mut interner = Interner::<Arc<str>>::default();
        let mut intern = |text: &str| (interner.intern(text, |text| text.into()), interner.values.len());
        let (kept, _) = intern("kept");
        for n in 0..100 * MIN_SWEEP_SIZE {
            let (_, count) = intern(&n.to_string());
            assert!(count <= MIN_SWEEP_SIZE, "{count}");
        }
        assert!(Arc::ptr_eq(&kept, &intern("kept").0), "referenced strings are kept");
        let referenced: Vec<_> =
            (0..4 * MIN_SWEEP_SIZE).map(|n| intern(&format!("referenced {n}")).0).collect();
        assert!(intern("kept").1 >= referenced.len());
        drop(referenced);
        for n in 0..8 * MIN_SWEEP_SIZE {
            intern(&n.to_string());
        }
        assert!(
            interner.values.len() <= MIN_SWEEP_SIZE && interner.values.capacity() <= 4 * MIN_SWEEP_SIZE,
            "unreferenced strings and their memory are released"
        );
    }

    fn read<S: InternPolicy>(json: &str) -> StringMap {
        serde_json::from_str::<InternedMap<S>>(json).unwrap().map
    }

    #[test]
    fn string_maps_are_decoded_without_skipped_entries() {
        let json = r#"{"b": "1", "a\n": "ä\"", "pv.kubernetes.io/bind-completed": "yes", "b": "2"}"#;
        let entries = |map: &StringMap| -> Vec<(String, String)> {
            map.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let annotation = || pair("pv.kubernetes.io/bind-completed", "yes");
        assert_eq!(entries(&read::<AnnotationPolicy>(json)), [annotation()]);
        assert_eq!(entries(&read::<LabelPolicy>(json)), [pair("a\n", "ä\""), pair("b", "2"), annotation()]);
        assert!(read::<NoLabels>(json).is_empty());
        assert!(serde_json::from_str::<InternedMap<DriverDataPolicy>>(r#"{"a": 1}"#).is_err());
    }

    #[test]
    fn names_of_skipped_entries_are_not_interned() {
        let is_interned = |text: &str| STRINGS.lock().values.contains(text);
        let (skipped, kept) = ("example.com/skipped-name", "example.com/kept-name");
        let labels = read::<LabelPolicy>(&format!(r#"{{"{kept}": "x"}}"#));
        let skipped_json = format!(r#"{{"{skipped}": "x"}}"#);
        assert!(
            read::<NoLabels>(&skipped_json).is_empty() && read::<AnnotationPolicy>(&skipped_json).is_empty()
        );
        assert!(labels.contains_key(kept) && is_interned(kept) && !is_interned(skipped));
    }

    #[test]
    fn annotation_values_are_interned_and_driver_data_is_not() {
        let value_pointer = |map: &StringMap, name: &str| map.get(name).unwrap().as_ptr();
        let json = r#"{"pv.kubernetes.io/bind-completed": "yes of text"}"#;
        let (first, other) = (read::<AnnotationPolicy>(json), read::<AnnotationPolicy>(json));
        let annotation = "pv.kubernetes.io/bind-completed";
        assert_eq!(value_pointer(&first, annotation), value_pointer(&other, annotation));
        let (first, other) = (read::<DriverDataPolicy>(json), read::<DriverDataPolicy>(json));
        assert_ne!(
            value_pointer(&first, annotation),
            value_pointer(&other, annotation),
            "driver data is not interned"
        );
        let names = |map: &StringMap| map.iter().map(|(name, _)| name.as_ptr()).collect::<Vec<_>>();
        assert_eq!(names(&first), names(&other));
    }
}
