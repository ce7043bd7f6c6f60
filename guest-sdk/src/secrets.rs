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
//! assert!(error.message.starts_with(r#"there is no secret "password"; expected it in"#));
//! ```
//!
//! A secret comes from the operator's configuration, for every call, or for one call from its caller: the
//! Secret that a StorageClass or a volume names, if the operator grants that with `class-secrets = true`. The
//! caller's secret replaces the operator's of the same name. The backend does not see the difference, and a
//! handle ends with its call. Each set of secrets has its own [sessions](crate::session), so that one key
//! serves the tenants of all classes:
//!
//! ```
//! use std::time::Duration;
//!
//! use cofferdam_guest::{Result, http, mock::MockHost, secrets, session};
//!
//! fn log_in() -> Result<Vec<u8>> {
//!     let password = secrets::require("password")?;
//!     let request = http::Request::post("https://array/login").basic("admin", &password).read_only();
//!     Ok(request.send()?.ok_or(|_| None)?.body)
//! }
//!
//! fn token() -> Result<String> {
//!     session::login("array", Duration::from_secs(600), log_in)?.text()
//! }
//!
//! let host = MockHost::new()
//!     .secret("password", "of-the-operator")
//!     .on(http::Method::Post, "https://array/login", |request| {
//!         let (_, password) = request.basic().unwrap();
//!         Ok(http::Response::new(200).with_body(format!("token-for-{password}")))
//!     })
//!     .install();
//! for tenant in ["tenant-a", "tenant-b", "tenant-a"] {
//!     let token = host.call_with_secrets(&[("password", tenant)], token).unwrap();
//!     assert_eq!(token, format!("token-for-{tenant}"));
//! }
//! assert_eq!(host.call(token).unwrap(), "token-for-of-the-operator");
//! assert_eq!(host.requests().len(), 3, "one login for each set of secrets");
//! ```
//!
//! The host sends a secret only to the origins to which the operator has bound it; another request fails with
//! [`Failure::Forbidden`](crate::http::Failure::Forbidden).

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
        StorageError::failed_precondition(format!(
            "there is no secret {name:?}; expected it in the backend's configuration or, except for `describe` \
             and `probe`, among the secrets of the class"
        ))
        .final_unless_changed()
    })
}
