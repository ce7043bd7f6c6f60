//! The backend's own section of the operator's configuration. To refuse keys that nobody knows, and values
//! that make no sense, read it with [`parameters::Reader::settings`](crate::parameters::Reader::settings).
//!
//! ```
//! use cofferdam_guest::{mock, settings};
//!
//! let _host = mock::MockHost::new().setting("url", "https://array.example").install();
//! assert_eq!(settings::get("url").as_deref(), Some("https://array.example"));
//! assert_eq!(settings::get("pool"), None);
//! assert_eq!(settings::all().len(), 1);
//! ```

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
