//! Uids of Kubernetes objects.

use std::{cmp::Ordering, fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Visitor},
};

/// Length of a UUID as text.
const UUID_TEXT_LEN: usize = 36;
/// Positions of the dashes in a UUID.
const DASHES: [usize; 4] = [8, 13, 18, 23];

/// `metadata.uid`. A recreated object of the same name has another uid.
///
/// The API server's uids are UUIDs, which are stored as 16 bytes and not as text: every cached object has a
/// uid, and some have that of another object. Any other text is kept as it is.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Uid(Repr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    /// The text is a UUID in lower case. It is never [`Repr::Text`], so that equal uids compare equal.
    Uuid([u8; 16]),
    Text(Arc<str>),
}

/// The text of a uid.
enum UidText<'a> {
    Uuid([u8; UUID_TEXT_LEN]),
    Text(&'a str),
}

impl UidText<'_> {
    fn as_str(&self) -> &str {
        match self {
            // Hexadecimal digits and dashes are UTF-8.
            Self::Uuid(text) => std::str::from_utf8(text).unwrap_or_default(),
            Self::Text(text) => text,
        }
    }
}

impl Uid {
    /// Wraps a uid without validation.
    pub fn new(uid: impl AsRef<str> + Into<Arc<str>>) -> Self {
        Self(parse_uuid(uid.as_ref()).map_or_else(|| Repr::Text(uid.into()), Repr::Uuid))
    }

    /// Returns `true` for the empty text, which means that the uid is unknown.
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Repr::Text(text) if text.is_empty())
    }

    fn text(&self) -> UidText<'_> {
        match &self.0 {
            Repr::Uuid(bytes) => UidText::Uuid(uuid_text(*bytes)),
            Repr::Text(text) => UidText::Text(text),
        }
    }
}

/// The bytes of a UUID. `None` for any other text, such as a UUID with upper-case digits.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let text: &[u8; UUID_TEXT_LEN] = text.as_bytes().try_into().ok()?;
    let mut bytes = [0; 16];
    let mut digits = 0;
    for (position, character) in text.iter().enumerate() {
        if DASHES.contains(&position) {
            if *character != b'-' {
                return None;
            }
            continue;
        }
        let digit = match character {
            b'0'..=b'9' => character - b'0',
            b'a'..=b'f' => character - b'a' + 10,
            _ => return None,
        };
        let byte = bytes.get_mut(digits / 2)?;
        *byte = *byte << 4 | digit;
        digits += 1;
    }
    Some(bytes)
}

fn uuid_text(bytes: [u8; 16]) -> [u8; UUID_TEXT_LEN] {
    let digit = |value: u8| if value < 10 { b'0' + value } else { b'a' + value - 10 };
    let mut digits = bytes.into_iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]);
    std::array::from_fn(
        |position| {
            if DASHES.contains(&position) { b'-' } else { digits.next().unwrap_or_default() }
        },
    )
}

impl Default for Uid {
    fn default() -> Self {
        Self(Repr::Text(Arc::default()))
    }
}

impl PartialOrd for Uid {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The order of the texts.
impl Ord for Uid {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text().as_str().cmp(other.text().as_str())
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text().as_str())
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text().as_str())
    }
}

impl Serialize for Uid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text().as_str())
    }
}

impl<'de> Deserialize<'de> for Uid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Deserializes a uid without an intermediate copy.
        struct UidVisitor;

        impl Visitor<'_> for UidVisitor {
            type Value = Uid;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Uid, E> {
                Ok(text.into())
            }
        }

        deserializer.deserialize_str(UidVisitor)
    }
}

impl From<&str> for Uid {
    fn from(uid: &str) -> Self {
        Self::new(uid)
    }
}

impl From<String> for Uid {
    fn from(uid: String) -> Self {
        Self::new(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "d4d56198-5568-487c-8386-36f057908f93";

    #[test]
    fn every_text_is_kept() {
        for text in [
            UUID,
            "00000000-0000-0000-0000-000000000000",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
            "D4D56198-5568-487c-8386-36f057908f93",
            "d4d561985568487c838636f057908f93",
            "d4d56198-5568-487c-8386-36f057908f9",
            "d4d56198-5568-487c-8386-36f057908f93 ",
            "d4d5619-85568-487c-8386-36f057908f93",
            "d4d56198-5568-487c-8386-36f05790-f93",
            "d4d56198-5568-487c-8386-36f05790\u{e9}93",
            "uid",
            "",
        ] {
            let uid = Uid::from(text);
            assert_eq!((uid.to_string(), format!("{uid:?}")), (text.to_owned(), format!("{text:?}")));
            let json = serde_json::to_string(&uid).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<Uid>(&json).unwrap(), uid);
            assert_eq!(uid.is_empty(), text.is_empty());
        }
        assert_eq!(Uid::default(), Uid::from(""));
    }

    #[test]
    fn only_a_canonical_uuid_is_stored_without_text() {
        for (text, is_uuid) in [(UUID, true), ("D4D56198-5568-487c-8386-36f057908f93", false), ("uid", false)]
        {
            assert_eq!(matches!(Uid::from(text).0, Repr::Uuid(_)), is_uuid, "{text}");
        }
        assert!(size_of::<Uid>() <= 24);
    }

    #[test]
    fn the_order_is_that_of_the_texts() {
        let mut texts =
            [UUID, "d4d56198-5568-487c-8386-36f057908f92", "e", "d", "", "d4d56198-6", "D", "0", "-"];
        let mut uids = texts.map(Uid::from);
        uids.sort();
        texts.sort_unstable();
        assert_eq!(uids.map(|uid| uid.to_string()), texts);
    }
}
