//! `settings`: the backend's settings from the configuration, read-only.

use std::collections::BTreeMap;

use super::Capabilities;
use crate::bindings::cofferdam::storage::settings::Host;

/// Keys and values, as the operator wrote them.
pub(crate) type Settings = BTreeMap<String, String>;

impl Host for Capabilities {
    fn get(&mut self, key: String) -> wasmtime::Result<Option<String>> {
        Ok(self.settings.get(&key).cloned())
    }

    fn entries(&mut self) -> wasmtime::Result<Vec<(String, String)>> {
        Ok(self.settings.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}
