//! Reference-counted strings of decoded objects. Strings that many objects share are interned.
//!
//! Ten thousand objects share a few hundred driver names, namespaces and annotation keys. Strings of one
//! object, the values of driver data and strings longer than [`MAX_INTERNED_BYTES`] are not interned.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, LazyLock},
};

use cofferdam_domain::StringMap;
use parking_lot::Mutex;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor},
};

/// kubectl's copy of the last applied manifest. It is large and not used.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

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

/// Selects the entries of a map that are kept, and those whose value is interned. The names of all entries
/// are interned.
trait InternPolicy {
    /// Returns `true` if the entry of this name is skipped.
    fn is_skipped(_name: &str) -> bool {
        false
    }

    /// Returns `true` if the value of this name is interned.
    fn is_interned(name: &str) -> bool;
}

/// Annotations without [`LAST_APPLIED`]. Those of a domain that ends with `kubernetes.io` mostly have few
/// distinct values, so their values are interned.
pub(crate) struct AnnotationPolicy;

impl InternPolicy for AnnotationPolicy {
    fn is_skipped(name: &str) -> bool {
        name == LAST_APPLIED
    }

    fn is_interned(name: &str) -> bool {
        name.split_once('/').is_some_and(|(domain, _)| domain.ends_with("kubernetes.io"))
    }
}

/// Labels. Many objects share a value, so all values are interned.
pub(crate) struct LabelPolicy;

impl InternPolicy for LabelPolicy {
    fn is_interned(_: &str) -> bool {
        true
    }
}

/// Volume attributes and attachment metadata of drivers. Values may contain secrets and are not interned.
pub(crate) struct DriverDataPolicy;

impl InternPolicy for DriverDataPolicy {
    fn is_interned(_: &str) -> bool {
        false
    }
}

/// A map of strings. `S` selects the kept entries and the interned values.
pub(crate) struct InternedMap<S> {
    pub(crate) map: StringMap,
    policy: std::marker::PhantomData<S>,
}

impl<S> Default for InternedMap<S> {
    fn default() -> Self {
        Self { map: StringMap::default(), policy: std::marker::PhantomData }
    }
}

impl<'de, S: InternPolicy> Visitor<'de> for InternedMap<S> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut entries = Vec::with_capacity(map.size_hint().unwrap_or_default());
        while let Some(InternedStr(name)) = map.next_key()? {
            if S::is_skipped(&name) {
                map.next_value::<IgnoredAny>()?;
            } else if S::is_interned(&name) {
                entries.push((name, map.next_value::<InternedStr>()?.0));
            } else {
                entries.push((name, map.next_value::<OwnedStr>()?.0));
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
    fn string_maps_are_decoded_without_last_applied_configuration() {
        let json = format!(r#"{{"b": "1", "a\n": "ä\"", "{LAST_APPLIED}": "{{}}", "b": "2"}}"#);
        let annotations = read::<AnnotationPolicy>(&json);
        assert_eq!(annotations.iter().collect::<Vec<_>>(), [("a\n", "ä\""), ("b", "2")]);
        assert_eq!(read::<LabelPolicy>(&json).len(), 3);
        assert!(serde_json::from_str::<InternedMap<DriverDataPolicy>>(r#"{"a": 1}"#).is_err());
    }

    #[test]
    fn annotation_values_are_interned_and_driver_data_is_not() {
        let value_pointer = |map: &StringMap, name: &str| map.get(name).unwrap().as_ptr();
        let json = r#"{"pv.kubernetes.io/bind-completed": "yes of text", "example.com/note": "yes of text"}"#;
        let (first, other) = (read::<AnnotationPolicy>(json), read::<AnnotationPolicy>(json));
        let annotation = "pv.kubernetes.io/bind-completed";
        assert_eq!(value_pointer(&first, annotation), value_pointer(&other, annotation));
        assert_ne!(value_pointer(&first, "example.com/note"), value_pointer(&other, "example.com/note"));
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
