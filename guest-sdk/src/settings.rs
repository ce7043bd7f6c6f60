//! The backend's own section of the operator's configuration.

use std::collections::BTreeMap;

use crate::host;

/// The value of a key; `None` when the operator has not set it.
pub fn get(key: &str) -> Option<String> {
    host::setting(key)
}

/// Every key with its value.
pub fn all() -> BTreeMap<String, String> {
    host::settings().into_iter().collect()
}
