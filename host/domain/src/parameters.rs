//! Parameters and topology segments.

use std::collections::BTreeMap;

/// Key-value pairs, sorted by key: parameters of a class, a volume context, a publish context, the fields of
/// connection info, and the names of a node in storage protocols. In the two contexts, this crate reads and
/// writes keys with [`RESERVED_ATTRIBUTE_PREFIX`](crate::names::RESERVED_ATTRIBUTE_PREFIX). It does not
/// interpret other keys.
pub type Parameters = BTreeMap<String, String>;

/// Total size of all keys and values, in bytes.
pub fn total_bytes(map: &Parameters) -> usize {
    map.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// A topology segment: topology keys and their values.
pub type Segments = BTreeMap<String, String>;
