//! Parameters and topology segments.

use std::collections::BTreeMap;

/// Opaque key-value pairs of a class, a driver or a volume, sorted by key.
pub type Parameters = BTreeMap<String, String>;

/// Total size of all keys and values, in bytes.
pub fn total_bytes(map: &Parameters) -> usize {
    map.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// A topology segment: topology keys and their values.
pub type Segments = BTreeMap<String, String>;
