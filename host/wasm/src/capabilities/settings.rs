//! `settings`: the backend's settings from the configuration, read-only.

use std::collections::BTreeMap;

use wasmtime::component::HasData;

use crate::bindings::cofferdam::storage::settings::Host;

/// Keys and values, as the operator wrote them.
pub(crate) type Settings = BTreeMap<String, String>;

/// The `settings` import of one call.
pub(crate) struct SettingsView<'a>(pub(crate) &'a Settings);

impl HasData for SettingsView<'static> {
    type Data<'a> = SettingsView<'a>;
}

impl Host for SettingsView<'_> {
    fn get(&mut self, key: String) -> wasmtime::Result<Option<String>> {
        Ok(self.0.get(&key).cloned())
    }

    fn entries(&mut self) -> wasmtime::Result<Vec<(String, String)>> {
        Ok(self.0.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}
