//! Leases in the [`state`]: at most one call at a time works on a name.
//!
//! A lease is an entry of the state with an expiry. The version of the entry identifies the holder: an
//! expired lease that another call takes over has another version. A call that ends without releasing its
//! lease, such as one at its deadline, blocks the name until the lease expires.
//!
//! A lease orders the calls of one Cofferdam process, because the state belongs to one process. It keeps a
//! call apart from an earlier one whose request the storage may still execute. It does not order two
//! processes with states of their own. In storage without unique names, combine it with
//! [`oldest_wins`](crate::idempotent::oldest_wins) where two processes may run.
//!
//! The wall clock measures a lease. A lease that has more time left than its whole `ttl` counts as expired:
//! it was written while the clock was ahead, and would otherwise block its key until the clock has caught up.
//! A clock that is set back while a call holds a lease may therefore end the lease early.
//!
//! ```
//! use std::time::Duration;
//!
//! use cofferdam_guest::{
//!     Finality, Result, http::{Failure, HttpError, Method, Request, Response}, lease, mock::MockHost, state,
//! };
//!
//! const TTL: Duration = Duration::from_secs(30);
//!
//! fn create(name: &str) -> Result<String> {
//!     lease::with_lease(&state::HostStore, &format!("lease/{name}"), TTL, |lease| {
//!         // The request ends before the lease expires.
//!         let request = Request::post("http://cloud/volumes").json(&name)?.timeout(lease.remaining());
//!         Ok(request.send()?.ok_or(|_| None)?.text())
//!     })
//! }
//!
//! let mut requests = 0;
//! let host = MockHost::new()
//!     .on(Method::Post, "http://cloud/", move |_| {
//!         requests += 1;
//!         match requests {
//!             1 => Err(HttpError::lost(Failure::Timeout, "no response")),
//!             _ => Ok(Response::new(201).with_body("vol-1")),
//!         }
//!     })
//!     .install();
//! assert_eq!(host.call(|| create("a")).unwrap_err().finality, Finality::Unknown);
//! let waiting = host.call(|| create("a")).unwrap_err();
//! assert_eq!((waiting.finality, waiting.retry_after_ms), (Finality::InProgress, Some(30_000)));
//! host.advance(TTL);
//! assert_eq!(host.call(|| create("a")).unwrap(), "vol-1");
//! assert!(host.state_keys().is_empty(), "the lease is released");
//! ```
//!
//! The functions of this module do not count as changes for [`has_changed`](crate::has_changed): a lease that
//! remains expires by itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    Finality, Result, StorageError, ambient, host,
    state::{self, Change, StateError, Store, Version},
};

/// The value of a lease in the state.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct StoredLease {
    /// Milliseconds since the Unix epoch.
    expires_at_ms: u64,
    /// The time from the writing of the lease to its expiry. Absent in a lease of an earlier version of the
    /// SDK.
    ttl_ms: Option<u64>,
}

impl StoredLease {
    /// The time until the lease expires; zero after it.
    fn remaining(&self, now: Duration) -> Duration {
        let remaining = Duration::from_millis(self.expires_at_ms).saturating_sub(now);
        // A lease with more time left than it ever had was written while the clock was ahead.
        let was_ahead = self.ttl_ms.is_some_and(|ttl_ms| remaining > Duration::from_millis(ttl_ms));
        if was_ahead { Duration::ZERO } else { remaining }
    }
}

/// A lease that this call holds, unless it has expired.
#[derive(Debug)]
#[must_use = "a lease that is not released blocks its key until it expires"]
pub struct Lease<'s, S> {
    store: &'s S,
    key: String,
    version: Version,
    expires_at: Duration,
}

/// Takes the lease of a key for `ttl`, if no other call holds it or that lease has expired.
///
/// ```
/// use std::time::Duration;
///
/// use cofferdam_guest::{Finality, lease, mock::MockHost, state::HostStore};
///
/// let host = MockHost::new().install();
/// let mut held = lease::acquire(&HostStore, "lease/a", Duration::from_secs(10)).unwrap();
/// let refused = lease::acquire(&HostStore, "lease/a", Duration::from_secs(10)).unwrap_err();
/// assert_eq!(refused.finality, Finality::InProgress);
///
/// host.advance(Duration::from_secs(9));
/// assert_eq!(held.remaining(), Duration::from_secs(1));
/// held.renew(Duration::from_secs(10)).unwrap();
/// assert_eq!(held.remaining(), Duration::from_secs(10));
/// held.release().unwrap();
/// assert!(lease::acquire(&HostStore, "lease/a", Duration::from_secs(10)).is_ok());
/// ```
///
/// # Errors
///
/// - [`in_progress`](StorageError::in_progress) if another call holds the lease, with the remaining time as
///   delay.
/// - The errors of the store.
pub fn acquire<'s, S: Store>(store: &'s S, key: &str, ttl: Duration) -> Result<Lease<'s, S>> {
    let now = ambient::now();
    let found = state::read::<StoredLease>(store, key)?;
    if let Some(found) = &found {
        let remaining = found.value.remaining(now);
        if !remaining.is_zero() {
            return Err(held_by_another(key).retry_after(remaining));
        }
    }
    let (version, expires_at) = write(store, key, now, ttl, found.map(|found| found.version))?;
    Ok(Lease { store, key: key.to_owned(), version, expires_at })
}

/// Runs a function while this call holds the lease of a key.
///
/// The lease is released afterwards, except if the outcome of the function is unknown: then the storage may
/// still execute a request, and the lease remains until it expires. `ttl` is therefore at least the time
/// limit of the requests; [`Lease::remaining`] is a limit for each of them.
///
/// # Errors
///
/// - The errors of [`acquire`] and of `run`. An error of the release is ignored, because the lease expires.
pub fn with_lease<S: Store, T>(
    store: &S,
    key: &str,
    ttl: Duration,
    run: impl FnOnce(&mut Lease<'_, S>) -> Result<T>,
) -> Result<T> {
    let mut lease = acquire(store, key, ttl)?;
    let result = run(&mut lease);
    if !matches!(&result, Err(StorageError { finality: Finality::Unknown, .. })) {
        let _ = lease.release();
    }
    result
}

impl<S: Store> Lease<'_, S> {
    /// The time until the lease expires; zero after it.
    pub fn remaining(&self) -> Duration {
        self.expires_at.saturating_sub(ambient::now())
    }

    /// Extends the lease to `ttl` from now. Succeeds after the expiry if no other call has taken the lease.
    ///
    /// # Errors
    ///
    /// - [`in_progress`](StorageError::in_progress) if another call has taken the lease over.
    /// - The errors of the store.
    pub fn renew(&mut self, ttl: Duration) -> Result<()> {
        (self.version, self.expires_at) =
            write(self.store, &self.key, ambient::now(), ttl, Some(self.version))?;
        Ok(())
    }

    /// Gives the lease back. Does nothing if another call has taken it over.
    ///
    /// # Errors
    ///
    /// The errors of the store. The lease then remains until it expires.
    pub fn release(self) -> Result<()> {
        match commit(self.store, state::remove(&self.key, self.version)) {
            Ok(_) | Err(StateError::Conflict(_)) => Ok(()),
            Err(
                error @ (StateError::KeySize(_)
                | StateError::ValueSize(_)
                | StateError::BatchSize(_)
                | StateError::RepeatedKey(_)
                | StateError::Full(_)
                | StateError::Unavailable(_)),
            ) => Err(error.into()),
        }
    }
}

/// Writes a lease. Returns its version and its expiry.
fn write(
    store: &impl Store,
    key: &str,
    now: Duration,
    ttl: Duration,
    replaces: Option<Version>,
) -> Result<(Version, Duration)> {
    let expires_at = now.saturating_add(ttl);
    let stored = StoredLease { expires_at_ms: milliseconds(expires_at), ttl_ms: Some(milliseconds(ttl)) };
    let change = state::put(key, &stored, replaces)?;
    let version = commit(store, change).map_err(|error| match error {
        StateError::Conflict(_) => held_by_another(key),
        error @ (StateError::KeySize(_)
        | StateError::ValueSize(_)
        | StateError::BatchSize(_)
        | StateError::RepeatedKey(_)
        | StateError::Full(_)
        | StateError::Unavailable(_)) => error.into(),
    })?;
    Ok((version, expires_at))
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn commit(store: &impl Store, change: Change) -> Result<Version, StateError> {
    host::preserving_has_changed(|| store.commit(&[change]))
}

fn held_by_another(key: &str) -> StorageError {
    StorageError::in_progress(format!("another call holds the lease {key:?}"))
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
