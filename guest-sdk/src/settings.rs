//! The backend's section of the operator's configuration.
//!
//! To reject unknown keys and invalid values, use
//! [`ParameterReader::settings`](crate::parameters::ParameterReader::settings).
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

/// The value of a key, or `None` if the operator has not set it.
pub fn get(key: &str) -> Option<String> {
    host::setting(key)
}

/// All keys and values.
pub fn all() -> BTreeMap<String, String> {
    host::settings().into_iter().collect()
}
