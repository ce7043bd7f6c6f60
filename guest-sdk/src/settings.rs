//! The backend's own section of the operator's configuration.

use std::collections::BTreeMap;

use crate::bindings::cofferdam::storage::settings;

/// The value of a key; `None` when the operator has not set it.
pub fn get(key: &str) -> Option<String> {
    settings::get(key)
}

/// Every key with its value.
pub fn all() -> BTreeMap<String, String> {
    settings::entries().into_iter().collect()
}
