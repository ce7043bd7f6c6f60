//! The backend's section of the operator's configuration.
//!
//! To reject unknown keys and invalid values, read all of them with [`parse`], or one by one with
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

use serde::de::DeserializeOwned;

use crate::{
    Result, host,
    values::{self, KeyKind},
};

/// The value of a key, or `None` if the operator has not set it.
pub fn get(key: &str) -> Option<String> {
    host::setting(key)
}

/// All keys and values.
pub fn all() -> BTreeMap<String, String> {
    host::settings().into_iter().collect()
}

/// Reads all settings as a type that implements [`Deserialize`](serde::Deserialize). Unknown keys are
/// refused.
///
/// | field | text |
/// |---|---|
/// | text, `char` | the text |
/// | whole number | decimal digits, with a `-` if the type has a sign |
/// | `f32`, `f64` | a finite number in the range of the type, without a `+` |
/// | `bool` | `true` or `false` |
/// | enum of variants without data | the name of a variant |
/// | [`ByteSize`](crate::parameters::ByteSize) | bytes such as `1073741824` or `500Gi` |
/// | `Option<T>` | the text of a `T`; `None` if the key is absent |
/// | `Vec<T>`, set, array, tuple | values separated by commas, without white space around them; none if the text is empty |
/// | map | several keys: the name of the field, a dot and the key of the map |
/// | another struct | several keys: the name of the field, a dot and the name of the inner field |
///
/// The attributes of serde apply, for example `rename_all = "kebab-case"`, and `default` for fields that may
/// be absent. A struct with the attribute `flatten` is refused, because its unknown keys could not be
/// refused. The attribute `expecting` on such a struct hides it from this check, and serde then reads every
/// text as a text. The values of a map are not maps or structs, so a key of a map may have dots.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use cofferdam_guest::{ErrorKind, mock::MockHost, settings};
/// use serde::Deserialize;
///
/// #[derive(Debug, Deserialize)]
/// #[serde(rename_all = "kebab-case")]
/// struct Settings {
///     url: String,
///     port: Option<u16>,
///     #[serde(default)]
///     zones: Vec<String>,
///     #[serde(default)]
///     zone_aliases: BTreeMap<String, String>,
/// }
///
/// let host = MockHost::new().setting("url", "https://array").setting("zones", "a, b");
/// let host = host.setting("zone-aliases.us-east-1a", "a").install();
/// let read: Settings = settings::parse().unwrap();
/// assert_eq!((read.url.as_str(), read.port), ("https://array", None));
/// assert_eq!(read.zones, ["a", "b"]);
/// assert_eq!(read.zone_aliases["us-east-1a"], "a");
/// drop(host);
///
/// let _host = MockHost::new().setting("url", "https://array").setting("port", "http").install();
/// let error = settings::parse::<Settings>().unwrap_err();
/// assert_eq!(error.kind, ErrorKind::FailedPrecondition);
/// assert_eq!(
///     error.message,
///     r#"the setting "port" is "http"; expected a whole number from 0 to 65535"#
/// );
/// ```
///
/// # Errors
///
/// [`failed_precondition`](crate::StorageError::failed_precondition) if a key is unknown or missing, or a
/// value has another form. The message names the key, the value and the expected values. The error is final
/// unless this call [has changed](crate::has_changed) something before.
pub fn parse<T: DeserializeOwned>() -> Result<T> {
    values::from_pairs(KeyKind::SETTING, host::settings())
}
