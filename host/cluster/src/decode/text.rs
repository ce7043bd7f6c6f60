//! Text as objects have it, counted from the start; what all of them repeat is there once.
//!
//! A driver's name, a namespace, the key of an annotation: ten thousand objects have the same few hundred. What is of one object
//! only, and what drivers are given, is never shared.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use cofferdam_domain::StringMap;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor},
};

/// kubectl's copy of the last applied manifest: large, and no role decides on it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Longest text that is shared, in bytes: as long as a name may be.
const LONGEST: usize = 253;

/// How many texts are kept before it is looked at which of them nobody has any more.
const FIRST_SWEEP: usize = 1_024;

static SHARED: LazyLock<Mutex<Shared>> = LazyLock::new(Mutex::default);

/// Texts that are there once.
struct Shared {
    texts: HashSet<Arc<str>>,
    sweep_at: usize,
}

impl Default for Shared {
    fn default() -> Self {
        Self { texts: HashSet::new(), sweep_at: FIRST_SWEEP }
    }
}

impl Shared {
    fn of(&mut self, text: &str) -> Arc<str> {
        if text.len() > LONGEST {
            return text.into();
        }
        if let Some(shared) = self.texts.get(text) {
            return Arc::clone(shared);
        }
        if self.texts.len() >= self.sweep_at {
            self.texts.retain(|text| Arc::strong_count(text) > 1);
            // As many again may come before the next look: each pays for two.
            self.sweep_at = FIRST_SWEEP.max(self.texts.len() * 2);
            self.texts.shrink_to(self.sweep_at);
        }
        let shared: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&shared));
        shared
    }
}

/// Text of one object.
#[derive(Clone, Default)]
pub(crate) struct Text(pub(crate) Arc<str>);

/// Text that many objects have.
#[derive(Clone, Default)]
pub(crate) struct Common(pub(crate) Arc<str>);

impl Common {
    fn of(text: &str) -> Self {
        // A set is whole between two calls: a panic elsewhere cannot have left it otherwise.
        Self(SHARED.lock().unwrap_or_else(PoisonError::into_inner).of(text))
    }
}

/// Reads text without a copy in between.
struct As<T>(fn(&str) -> T);

impl<T> Visitor<'_> for As<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        Ok((self.0)(text))
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(As(|text| Self(text.into())))
    }
}

impl<'de> Deserialize<'de> for Common {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(As(Self::of))
    }
}

/// Which values of a map are shared; the names always are.
trait Sharing {
    /// Whether entries of this name are skipped.
    fn skips(_name: &str) -> bool {
        false
    }

    /// Whether values of this name are shared.
    fn shares(name: &str) -> bool;
}

/// Annotations, without [`LAST_APPLIED`]. What Kubernetes itself writes is one of a few; others write what they like.
pub(crate) struct OfAnnotations;

impl Sharing for OfAnnotations {
    fn skips(name: &str) -> bool {
        name == LAST_APPLIED
    }

    fn shares(name: &str) -> bool {
        name.split_once('/').is_some_and(|(domain, _)| domain.ends_with("kubernetes.io"))
    }
}

/// Labels are made to group.
pub(crate) struct OfLabels;

impl Sharing for OfLabels {
    fn shares(_: &str) -> bool {
        true
    }
}

/// What drivers say of volumes: their own business, and sometimes a secret.
pub(crate) struct OfDrivers;

impl Sharing for OfDrivers {
    fn shares(_: &str) -> bool {
        false
    }
}

/// A map of texts.
pub(crate) struct Texts<S> {
    pub(crate) map: StringMap,
    sharing: std::marker::PhantomData<S>,
}

impl<S> Default for Texts<S> {
    fn default() -> Self {
        Self { map: StringMap::default(), sharing: std::marker::PhantomData }
    }
}

impl<'de, S: Sharing> Visitor<'de> for Texts<S> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut entries = Vec::with_capacity(map.size_hint().unwrap_or_default());
        while let Some(Common(name)) = map.next_key()? {
            if S::skips(&name) {
                map.next_value::<IgnoredAny>()?;
            } else if S::shares(&name) {
                entries.push((name, map.next_value::<Common>()?.0));
            } else {
                entries.push((name, map.next_value::<Text>()?.0));
            }
        }
        Ok(Self { map: entries.into_iter().collect(), ..self })
    }
}

impl<'de, S: Sharing> Deserialize<'de> for Texts<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_same_is_there_once() {
        let mut shared = Shared::default();
        let (a, again, other) = (shared.of("a"), shared.of("a"), shared.of("b"));
        assert!(Arc::ptr_eq(&a, &again) && *a == *"a" && *other == *"b");
        let long = "x".repeat(LONGEST + 1);
        assert!(!Arc::ptr_eq(&shared.of(&long), &shared.of(&long)), "long text is nobody's name");
        assert_eq!(shared.texts.len(), 2);
    }

    #[test]
    fn what_nobody_has_any_more_goes() {
        let mut shared = Shared::default();
        let kept = shared.of("kept");
        for n in 0..100 * FIRST_SWEEP {
            shared.of(&n.to_string());
            assert!(shared.texts.len() <= FIRST_SWEEP, "{}", shared.texts.len());
        }
        assert!(Arc::ptr_eq(&kept, &shared.of("kept")), "what is in use stays");
        let held: Vec<_> = (0..4 * FIRST_SWEEP).map(|n| shared.of(&format!("held {n}"))).collect();
        assert!(shared.texts.len() >= held.len());
        drop(held);
        for n in 0..8 * FIRST_SWEEP {
            shared.of(&n.to_string());
        }
        assert!(
            shared.texts.len() <= FIRST_SWEEP && shared.texts.capacity() <= 4 * FIRST_SWEEP,
            "and its room goes"
        );
    }

    fn read<S: Sharing>(json: &str) -> StringMap {
        serde_json::from_str::<Texts<S>>(json).unwrap().map
    }

    #[test]
    fn maps_are_read_as_they_are() {
        let json = format!(r#"{{"b": "1", "a\n": "ä\"", "{LAST_APPLIED}": "{{}}", "b": "2"}}"#);
        let annotations = read::<OfAnnotations>(&json);
        assert_eq!(annotations.iter().collect::<Vec<_>>(), [("a\n", "ä\""), ("b", "2")]);
        assert_eq!(read::<OfLabels>(&json).len(), 3);
        assert!(serde_json::from_str::<Texts<OfDrivers>>(r#"{"a": 1}"#).is_err());
    }

    #[test]
    fn values_are_shared_where_they_repeat() {
        let value = |map: &StringMap, name: &str| map.get(name).unwrap().as_ptr();
        let json = r#"{"pv.kubernetes.io/bind-completed": "yes of text", "example.com/note": "yes of text"}"#;
        let (one, other) = (read::<OfAnnotations>(json), read::<OfAnnotations>(json));
        let of = "pv.kubernetes.io/bind-completed";
        assert_eq!(value(&one, of), value(&other, of));
        assert_ne!(value(&one, "example.com/note"), value(&other, "example.com/note"));
        let (one, other) = (read::<OfDrivers>(json), read::<OfDrivers>(json));
        assert_ne!(value(&one, of), value(&other, of), "what drivers say is not shared");
        let names = |map: &StringMap| map.iter().map(|(name, _)| name.as_ptr()).collect::<Vec<_>>();
        assert_eq!(names(&one), names(&other));
    }
}
