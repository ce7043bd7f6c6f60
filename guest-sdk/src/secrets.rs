//! Secrets of the call, as handles. A backend can use a secret in an HTTP request without seeing its value.
//!
//! ```
//! use cofferdam_guest::{Result, StorageError, http, secrets};
//!
//! fn volumes() -> Result<http::Response> {
//!     let password = secrets::require("password")?;
//!     Ok(http::Request::get("https://array.example/volumes").basic("admin", &password).send()?)
//! }
//!
//! let error = volumes().unwrap_err();
//! assert_eq!(error.message, r#"there is no secret "password""#);
//! ```

use std::fmt;

use crate::{Result, StorageError, host};

/// A secret of this call. `Debug` shows its name, never its value.
pub struct Secret {
    name: String,
    handle: host::ImportedSecret,
}

impl Secret {
    /// The name of the secret in the operator's configuration, or its name among the caller's secrets: for
    /// example, the key in the Secret that a class names.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value of the secret. It requires the additional grant `reveal`, which only components that call
    /// this function need. Prefer to pass the secret to [`http`](crate::http).
    pub fn reveal(&self) -> String {
        host::reveal(&self.handle)
    }

    pub(crate) fn handle(&self) -> &host::ImportedSecret {
        &self.handle
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The names of this call's secrets, sorted.
pub fn names() -> Vec<String> {
    host::secret_names()
}

/// The secret with the name, or `None` if the call has no such secret.
pub fn get(name: &str) -> Option<Secret> {
    Some(Secret { name: name.to_owned(), handle: host::secret(name)? })
}

/// A secret that the backend requires.
///
/// # Errors
///
/// - [`failed_precondition`](StorageError::failed_precondition) if the call has no secret with this name.
pub fn require(name: &str) -> Result<Secret> {
    get(name).ok_or_else(|| {
        StorageError::failed_precondition(format!("there is no secret {name:?}")).final_unless_changed()
    })
}
