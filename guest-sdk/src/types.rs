//! Constructors of what a backend returns.

use std::collections::BTreeMap;

use crate::{Attachment, Description, KeyValues, Placement, Volume};

impl Description {
    /// A backend without topology, limits and features, that runs anywhere.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            topology_keys: Vec::new(),
            placement: Placement::Central,
            volumes_per_node: None,
            features: Vec::new(),
        }
    }
}

impl Volume {
    /// A volume that is reached from everywhere and needs neither attributes nor an attachment.
    pub fn new(handle: impl Into<String>, capacity_bytes: u64) -> Self {
        Self {
            handle: handle.into(),
            capacity_bytes: Some(capacity_bytes),
            context: Vec::new(),
            topology: Vec::new(),
            attachment: None,
        }
    }
}

impl Attachment {
    /// There is nothing to do on a node.
    pub fn none() -> Self {
        Self { kind: "none".to_owned(), version: 1, fields: Vec::new() }
    }
}

/// Pairs as a map: the contract says that keys are unique and that their order means nothing.
pub fn to_map(pairs: KeyValues) -> BTreeMap<String, String> {
    pairs.into_iter().collect()
}
