//! Limits and parsing of plain values: texts, lists, numbers, pairs.

use std::{collections::BTreeMap, fmt};

use cofferdam_guest::{KeyValues, Result, StorageError};

/// An invalid value. The text says what was expected in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidValue(pub(crate) String);

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A parsed value, or what was expected in its place.
pub(crate) type Parsed<T> = std::result::Result<T, InvalidValue>;

/// CSI's limit for names, ids and other strings, in bytes.
pub(crate) const MAX_NAME: usize = 128;
/// CSI's limit for node ids, in bytes.
pub(crate) const MAX_NODE_ID: usize = 256;
/// Maximum length of a Kubernetes object name, in bytes.
pub(crate) const MAX_OBJECT_NAME: usize = 253;
/// CSI's limit for maps and mount flags, in bytes.
pub(crate) const MAX_MAP_BYTES: usize = 4 << 10;

/// Converts pairs to a map. Rejects repeated keys and maps above CSI's limit.
pub(crate) fn parse_pairs(what: &str, pairs: &KeyValues) -> Result<BTreeMap<String, String>> {
    let bytes: usize = pairs.iter().map(|(key, value)| key.len().saturating_add(value.len())).sum();
    if bytes > MAX_MAP_BYTES {
        return Err(StorageError::invalid_argument(format!(
            "{what} have {bytes} bytes; at most {MAX_MAP_BYTES} are allowed"
        )));
    }
    let mut map = BTreeMap::new();
    for (key, value) in pairs {
        if map.insert(key.clone(), value.clone()).is_some() {
            return Err(StorageError::invalid_argument(format!("{what} have the key {key:?} twice")));
        }
    }
    Ok(map)
}

/// The access mode of a capability string: its first word.
pub(crate) fn access_mode_of(capability: &str) -> &str {
    capability.split(' ').next().unwrap_or_default()
}

/// The access type of a capability string, `block` or `filesystem`: its second word.
pub(crate) fn access_type_of(capability: &str) -> &str {
    capability.split(' ').nth(1).unwrap_or_default()
}

/// Rejects a text that is too long or contains control characters.
pub(crate) fn check_text(what: &str, text: &str, max_bytes: usize) -> Result<()> {
    if text.len() > max_bytes || text.chars().any(char::is_control) {
        return Err(StorageError::invalid_argument(format!(
            "{what} {text:?} has {} bytes; expected at most {max_bytes} without control characters",
            text.len()
        )));
    }
    Ok(())
}

/// Splits a text at commas and trims its parts. An empty text has no parts.
pub(crate) fn split_list(text: &str) -> Vec<&str> {
    if text.trim().is_empty() { Vec::new() } else { text.split(',').map(str::trim).collect() }
}

/// Parses a number within bounds.
pub(crate) fn parse_number<N: std::str::FromStr + PartialOrd + std::fmt::Display>(
    text: &str,
    allowed: std::ops::RangeInclusive<N>,
) -> Parsed<N> {
    text.parse().ok().filter(|number| allowed.contains(number)).ok_or_else(|| {
        InvalidValue(format!("expected a number from {} to {}", allowed.start(), allowed.end()))
    })
}
