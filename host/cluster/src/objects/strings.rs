//! Reference-counted strings of decoded objects. Strings that many objects share are interned.
//!
//! Ten thousand objects share a few hundred driver names, namespaces and annotation keys. Strings of one
//! object, the values of driver data and strings longer than [`MAX_INTERNED_BYTES`] are not interned.

use std::{
    collections::HashSet,
    fmt,
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

/// Minimum number of interned strings before unreferenced ones are removed.
const MIN_SWEEP_SIZE: usize = 1_024;

static INTERNER: LazyLock<Mutex<Interner>> = LazyLock::new(Mutex::default);

/// The interned strings.
struct Interner {
    strings: HashSet<Arc<str>>,
    sweep_at: usize,
}

impl Default for Interner {
    fn default() -> Self {
        Self { strings: HashSet::new(), sweep_at: MIN_SWEEP_SIZE }
    }
}

impl Interner {
    fn intern(&mut self, text: &str) -> Arc<str> {
        if text.len() > MAX_INTERNED_BYTES {
            return text.into();
        }
        if let Some(interned) = self.strings.get(text) {
            return Arc::clone(interned);
        }
        if self.strings.len() >= self.sweep_at {
            self.strings.retain(|text| Arc::strong_count(text) > 1);
            // The next sweep is at twice the size, which makes the amortized cost constant.
            self.sweep_at = MIN_SWEEP_SIZE.max(self.strings.len() * 2);
            self.strings.shrink_to(self.sweep_at);
        }
        let interned: Arc<str> = text.into();
        self.strings.insert(Arc::clone(&interned));
        interned
    }
}

/// A string that is not interned.
#[derive(Clone, Default)]
pub(crate) struct OwnedStr(pub(crate) Arc<str>);

/// An interned string, or one longer than [`MAX_INTERNED_BYTES`], which is not interned.
#[derive(Clone, Default)]
pub(crate) struct InternedStr(pub(crate) Arc<str>);

impl InternedStr {
    fn intern(text: &str) -> Self {
        Self(INTERNER.lock().intern(text))
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
    /// True if values are interned.
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
        Ok(Self { map: entries.into_iter().collect(), ..self })
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
        let mut interner = Interner::default();
        let (a, again, other) = (interner.intern("a"), interner.intern("a"), interner.intern("b"));
        assert!(Arc::ptr_eq(&a, &again) && *a == *"a" && *other == *"b");
        let long = "x".repeat(MAX_INTERNED_BYTES + 1);
        assert!(!Arc::ptr_eq(&interner.intern(&long), &interner.intern(&long)), "long text is not interned");
        assert_eq!(interner.strings.len(), 2);
    }

    #[test]
    fn unreferenced_strings_are_swept_and_memory_is_released() {
        let mut interner = Interner::default();
        let kept = interner.intern("kept");
        for n in 0..100 * MIN_SWEEP_SIZE {
            interner.intern(&n.to_string());
            assert!(interner.strings.len() <= MIN_SWEEP_SIZE, "{}", interner.strings.len());
        }
        assert!(Arc::ptr_eq(&kept, &interner.intern("kept")), "referenced strings are kept");
        let referenced: Vec<_> =
            (0..4 * MIN_SWEEP_SIZE).map(|n| interner.intern(&format!("referenced {n}"))).collect();
        assert!(interner.strings.len() >= referenced.len());
        drop(referenced);
        for n in 0..8 * MIN_SWEEP_SIZE {
            interner.intern(&n.to_string());
        }
        assert!(
            interner.strings.len() <= MIN_SWEEP_SIZE && interner.strings.capacity() <= 4 * MIN_SWEEP_SIZE,
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
        let is_interned = |text: &str| INTERNER.lock().strings.contains(text);
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
