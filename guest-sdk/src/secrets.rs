//! The secrets of this call, as handles: a backend can use one without seeing it.
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

/// A secret of this call. It shows its name and never what it holds.
pub struct Secret {
    name: String,
    handle: host::ImportedSecret,
}

impl Secret {
    /// The name that the operator gave it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it holds. This needs a grant of its own, `reveal`, which only components have that call this:
    /// pass the secret to [`http`](crate::http) where that is enough.
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

/// The names of this call's secrets, in their order.
pub fn names() -> Vec<String> {
    host::secret_names()
}

/// A secret by its name; `None` when the call has none of that name.
pub fn get(name: &str) -> Option<Secret> {
    Some(Secret { name: name.to_owned(), handle: host::secret(name)? })
}

/// A secret that the backend cannot do without.
///
/// # Errors
///
/// [`failed_precondition`](StorageError::failed_precondition) when the call has none of that name.
pub fn require(name: &str) -> Result<Secret> {
    get(name).ok_or_else(|| {
        StorageError::failed_precondition(format!("there is no secret {name:?}")).final_unless_changed()
    })
}
