//! Parameters and topology segments.

use std::collections::BTreeMap;

/// Key-value pairs, sorted by key: parameters of a class, and the volume context, the connection info and the
/// publish context of a driver. Their keys have no meaning for this crate.
pub type Parameters = BTreeMap<String, String>;

/// Total size of all keys and values, in bytes.
pub fn total_bytes(map: &Parameters) -> usize {
    map.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// A topology segment: topology keys and their values.
pub type Segments = BTreeMap<String, String>;
