//! Sessions that are kept across calls.
//!
//! A login per call makes an array slow and soon exceeds its session limit. [`with_login`] keeps one session
//! per key: it logs in if there is no session, in one call at a time, and once more if the array no longer
//! accepts the session.
//!
//! ```
//! use std::time::Duration;
//!
//! use cofferdam_guest::{Result, http, mock, secrets, session};
//!
//! fn log_in() -> Result<Vec<u8>> {
//!     let password = secrets::require("password")?;
//!     let request = http::Request::post("http://array/login").basic("admin", &password).read_only();
//!     let response = request.send()?;
//!     Ok(response.ok_or(|_| None)?.body)
//! }
//!
//! fn volumes() -> Result<http::Response> {
//!     session::with_login("array", Duration::from_secs(600), log_in, |login| {
//!         let response = http::Request::get("http://array/volumes").token(&login.text()?).send()?;
//!         Ok(match response.status {
//!             401 => session::SessionOutcome::Expired,
//!             _ => session::SessionOutcome::Done(response),
//!         })
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
//! Every set of secrets has its own sessions: a call never receives a session that a call with other secrets
//! stored. The host may drop a session at any time.

use std::time::Duration;

pub use crate::bindings::cofferdam::storage::session::{Acquired, Entry, Generation, SessionError};
use crate::{Result, StorageError, host};

/// Returns the value of a key, or locks the key so that this call can create the value. While another call
/// holds the lock, this function waits until there is a value or the lock is free, at most until the deadline
/// of this call.
///
/// # Errors
///
/// See [`SessionError`].
pub fn acquire(key: &str) -> std::result::Result<Acquired, SessionError> {
    host::session_acquire(key)
}

/// Stores a value of at most 8 KiB for `ttl` and releases this call's lock on the key. The operator may limit
/// `ttl`.
///
/// # Errors
///
/// See [`SessionError`]. A lock that this call holds on the key remains.
pub fn put(key: &str, value: &[u8], ttl: Duration) -> std::result::Result<Generation, SessionError> {
    host::session_put(key, value, u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
}

/// Releases this call's lock on a key without storing a value. Does nothing if this call has not locked the
/// key.
pub fn release(key: &str) {
    host::session_release(key);
}

/// Removes the value of a key if it still has this generation.
pub fn invalidate(key: &str, generation: Generation) {
    host::session_invalidate(key, generation);
}

/// The value of a session, such as a token, for use in this call. Another call has stored the session, or
/// this call has created it.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    value: Vec<u8>,
    /// The generation of the stored session; `None` if the host has no room to store it.
    generation: Option<Generation>,
}

/// Never shows the value.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl Login {
    /// The bytes that the login function returned when the session was created.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// The [value](Self::value) as text.
    ///
    /// # Errors
    ///
    /// - [`internal`](StorageError::internal) if the value is not UTF-8.
    pub fn text(&self) -> Result<String> {
        String::from_utf8(self.value.clone()).map_err(|_| {
            StorageError::internal("the login is not a text").without_effect().final_unless_changed()
        })
    }
}

/// Returns the stored session of a key, or the one that `log_in` creates. If several calls find no session,
/// one logs in and the others wait. If that login fails, the next call logs in.
///
/// A login does not count as a change of the storage, so a later error may still be final. If the host has no
/// room for another session ([`SessionError::Full`]), the new session is used for this call only.
///
/// # Errors
///
/// The errors of `log_in`, and a [`SessionError`] for a key or value of invalid size, or if this call has
/// locked another key.
pub fn login(key: &str, ttl: Duration, log_in: impl FnOnce() -> Result<Vec<u8>>) -> Result<Login> {
    match acquire(key) {
        Ok(Acquired::Found(Entry { value, generation })) => {
            return Ok(Login { value, generation: Some(generation) });
        }
        Ok(Acquired::Locked) => {}
        Err(SessionError::Full(_)) => {
            return host::preserving_has_changed(log_in).map(|value| Login { value, generation: None });
        }
        Err(error @ (SessionError::KeySize(_) | SessionError::ValueSize(_) | SessionError::LockHeld(_))) => {
            return Err(error.into());
        }
    }
    let value = match host::preserving_has_changed(log_in) {
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
        Err(error @ (SessionError::KeySize(_) | SessionError::ValueSize(_) | SessionError::LockHeld(_))) => {
            release(key);
            Err(error.into())
        }
    }
}

/// Result of an operation that uses a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionOutcome<T> {
    /// The storage accepted the session.
    Done(T),
    /// The storage rejected the session and did nothing.
    Expired,
}

/// Runs an operation with a session. If the storage rejects the session, the session is removed, and the
/// operation runs once more with a new one. A session that another call has created in the meantime is
/// reused.
///
/// # Errors
///
/// - The errors of `log_in`, of `run` and of [`login`].
/// - [`unauthenticated`](StorageError::unauthenticated) if the storage rejects the new session too.
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
    /// These errors occur before any effect. They are final unless this call has changed something before.
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
            SessionError::LockHeld(key) => {
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
