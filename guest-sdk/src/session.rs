//! Logins that outlive a call.
//!
//! An array that wants a login for every call is slow and soon has too many. [`with_login`] keeps one: it
//! logs in when there is no login, one call at a time, and once more when the array does not know the login
//! any more.
//!
//! ```
//! use std::time::Duration;
//!
//! use cofferdam_guest::{Result, http, mock, secrets, session};
//!
//! fn log_in() -> Result<Vec<u8>> {
//!     let password = secrets::require("password")?;
//!     let response = http::Request::post("http://array/login").basic("admin", &password).read_only().send()?;
//!     Ok(response.ok_or(|_| None)?.body)
//! }
//!
//! fn volumes() -> Result<http::Response> {
//!     session::with_login("array", Duration::from_secs(600), log_in, |login| {
//!         let response = http::Request::get("http://array/volumes").token(&login.text()?).send()?;
//!         Ok(if response.status == 401 { session::SessionOutcome::Expired } else { session::SessionOutcome::Done(response) })
//!     })
//! }
//!
//! let host = mock::MockHost::new()
//!     .secret("password", "hunter2")
//!     .on(http::Method::Post, "http://array/login", |_| Ok(http::Response::new(200).with_body("t-1")))
//!     .on(http::Method::Get, "http://array/volumes", |_| Ok(http::Response::new(200)))
//!     .install();
//! volumes().unwrap();
//! volumes().unwrap();
//! assert_eq!(host.requests().len(), 3, "one login, and two requests with it");
//! ```
//!
//! Logins are kept apart for every set of secrets, so a call with other credentials never gets this one. They
//! may be gone at any time.

use std::time::Duration;

pub use crate::bindings::cofferdam::storage::session::{Acquired, Entry, Generation, SessionError};
use crate::{Result, StorageError, host};

/// Finds a value, or the turn to make it; waits for a call that has the turn.
///
/// # Errors
///
/// See [`SessionError`].
pub fn acquire(key: &str) -> std::result::Result<Acquired, SessionError> {
    host::session_acquire(key)
}

/// Sets a value of at most 8 KiB for a time, and gives the turn back. The operator may bound the time.
///
/// # Errors
///
/// See [`SessionError`]. The turn stays with this call then.
pub fn put(key: &str, value: &[u8], ttl: Duration) -> std::result::Result<Generation, SessionError> {
    host::session_put(key, value, u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
}

/// Gives a turn back without a value.
pub fn release(key: &str) {
    host::session_release(key);
}

/// Removes a value if it still is of this generation.
pub fn invalidate(key: &str, generation: Generation) {
    host::session_invalidate(key, generation);
}

/// A login that can be used in this call.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    value: Vec<u8>,
    generation: Option<Generation>,
}

/// It never shows what it holds.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl Login {
    /// What the login made.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// What the login made, as text.
    ///
    /// # Errors
    ///
    /// [`internal`](StorageError::internal) when it is not UTF-8.
    pub fn text(&self) -> Result<String> {
        String::from_utf8(self.value.clone()).map_err(|_| {
            StorageError::internal("the login is not a text").without_effect().final_unless_changed()
        })
    }
}

/// The value that is held under a key, or the one that `log_in` makes. Of several calls that find none, one
/// logs in and the others wait for it. When it fails, the next one has its turn.
///
/// A login is no change of the storage, whatever it sends: an error after it may still be final.
///
/// # Errors
///
/// What `log_in` returned, and [`SessionError`]s of a key or value that is out of bounds. When the host holds
/// as many logins as it may, the login serves this call alone.
pub fn login(key: &str, ttl: Duration, log_in: impl FnOnce() -> Result<Vec<u8>>) -> Result<Login> {
    match acquire(key) {
        Ok(Acquired::Held(Entry { value, generation })) => {
            return Ok(Login { value, generation: Some(generation) });
        }
        Ok(Acquired::Vacant) => {}
        Err(SessionError::Full(_)) => {
            return preserving_has_changed(log_in).map(|value| Login { value, generation: None });
        }
        Err(error @ (SessionError::KeySize(_) | SessionError::ValueSize(_) | SessionError::TurnHeld(_))) => {
            return Err(error.into());
        }
    }
    let value = match preserving_has_changed(log_in) {
        Ok(value) => value,
        Err(error) => {
            release(key);
            return Err(error);
        }
    };
    match put(key, &value, ttl) {
        Ok(generation) => Ok(Login { value, generation: Some(generation) }),
        Err(SessionError::Full(_)) => {
            release(key);
            Ok(Login { value, generation: None })
        }
        Err(error @ (SessionError::KeySize(_) | SessionError::ValueSize(_) | SessionError::TurnHeld(_))) => {
            release(key);
            Err(error.into())
        }
    }
}

fn preserving_has_changed<T>(log_in: impl FnOnce() -> T) -> T {
    let had_changed = host::has_changed();
    let value = log_in();
    host::set_changed(had_changed);
    value
}

/// How something that needs a login went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionOutcome<T> {
    /// The login served.
    Done(T),
    /// The storage does not know the login, and did nothing.
    Expired,
}

/// Does something with a login; when the storage does not know it any more, forgets it and does it once more
/// with a new one. What another call has made anew meanwhile is used, not made again.
///
/// # Errors
///
/// What `log_in` and `work` returned, [`login`]'s own, and [`unauthenticated`](StorageError::unauthenticated)
/// when the storage refuses the new login too.
pub fn with_login<T>(
    key: &str,
    ttl: Duration,
    mut log_in: impl FnMut() -> Result<Vec<u8>>,
    mut run: impl FnMut(&Login) -> Result<SessionOutcome<T>>,
) -> Result<T> {
    for _ in 0..2 {
        let login = login(key, ttl, &mut log_in)?;
        match run(&login)? {
            SessionOutcome::Done(value) => return Ok(value),
            SessionOutcome::Expired => {
                if let Some(generation) = login.generation {
                    invalidate(key, generation);
                }
            }
        }
    }
    Err(StorageError::unauthenticated("the storage refuses a login that it has just given")
        .final_unless_changed())
}

impl From<SessionError> for StorageError {
    /// All of them are known before anything is done; final unless this call has changed something before.
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::KeySize(bound) => Self::internal(format!(
                "a login's key of {} bytes; 1 to {} are allowed",
                bound.given, bound.limit
            )),
            SessionError::ValueSize(bound) => Self::internal(format!(
                "a login of {} bytes; at most {} are allowed",
                bound.given, bound.limit
            )),
            SessionError::TurnHeld(key) => {
                Self::internal(format!("the login {key:?} is being made; another cannot be waited for"))
            }
            SessionError::Full(bound) => Self::resource_exhausted(format!(
                "{} logins would be held; at most {} are allowed",
                bound.given, bound.limit
            )),
        }
        .without_effect()
        .final_unless_changed()
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
