//! Key-value entries that are kept across calls. They outlive the host's process only if the operator
//! configures a file for them.
//!
//! A backend reads, decides, and commits its changes atomically. Each change names the version it replaces,
//! or that the key must not exist. A commit fails without an effect if a key that it changes has been changed
//! since. On [`StateError::Conflict`] the backend reads and decides again; [`decide`] does this.
//!
//! ```
//! use cofferdam_guest::{mock, state::{self, StateError, Store as _}};
//!
//! let _host = mock::MockHost::new().install();
//! let first = state::HostStore.commit(&[state::put("volume/a", &7, None).unwrap()]).unwrap();
//! assert_eq!(state::read::<u64>(&state::HostStore, "volume/a").unwrap().unwrap().value, 7);
//! state::HostStore.commit(&[state::put("volume/a", &8, Some(first)).unwrap()]).unwrap();
//! let late = state::HostStore.commit(&[state::remove("volume/a", first)]);
//! assert_eq!(late, Err(StateError::Conflict("volume/a".to_owned())));
//! ```

use serde::{Serialize, de::DeserializeOwned};

pub use crate::bindings::cofferdam::storage::state::{
    Bound, Change, Entry, Page, Precondition, Put, Remove, ScanEntry, StateError, Version,
};
use crate::{StorageError, host};

/// A key-value store. A backend that takes a store as a parameter can be tested without a host.
pub trait Store {
    /// Reads the entry of a key. `None` if the key does not exist.
    ///
    /// # Errors
    ///
    /// The key has an invalid size, or the store is unavailable.
    fn get(&self, key: &str) -> Result<Option<Entry>, StateError>;

    /// Applies 1 to 16 changes of different keys atomically and returns their common new version.
    ///
    /// # Errors
    ///
    /// Nothing was written:
    ///
    /// - [`StateError::Conflict`] if a key is not at the version that a change expects.
    /// - Other errors: a key, value or batch has an invalid size, a key is repeated, or the store is full or
    ///   unavailable.
    fn commit(&self, changes: &[Change]) -> Result<Version, StateError>;

    /// Reads a page of at most `limit` entries whose keys start with `prefix` and follow the key `after`, in
    /// byte order of the keys. If `after` is `None`, the page starts with the first key. The host also limits
    /// a page to 1 MiB.
    ///
    /// # Errors
    ///
    /// The prefix is longer than 512 bytes, or the store is unavailable.
    fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Page, StateError>;
}

/// The store of the import `state`, which the operator grants to the backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostStore;

impl Store for HostStore {
    fn get(&self, key: &str) -> Result<Option<Entry>, StateError> {
        host::state_get(key)
    }

    fn commit(&self, changes: &[Change]) -> Result<Version, StateError> {
        host::state_commit(changes)
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Page, StateError> {
        host::state_scan(prefix, after, limit)
    }
}

/// A value with the version that a change of it must name.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned<T> {
    /// The value.
    pub value: T,
    /// The version of the value.
    pub version: Version,
}

/// Reads the value of a key and decodes it from JSON. `None` if the key does not exist.
///
/// # Errors
///
/// An error of the store, or a value that is not the JSON of a `T`.
pub fn read<T: DeserializeOwned>(store: &impl Store, key: &str) -> crate::Result<Option<Versioned<T>>> {
    let Some(entry) = store.get(key)? else { return Ok(None) };
    match serde_json::from_slice(&entry.value) {
        Ok(value) => Ok(Some(Versioned { value, version: entry.version })),
        Err(error) => Err(StorageError::internal(format!("the state {key:?} is not readable: {error}"))),
    }
}

/// A change that sets a key to JSON. `replaces` is the version that was read, or `None` for a new key.
///
/// # Errors
///
/// The value cannot be encoded as JSON.
pub fn put<T: Serialize>(key: &str, value: &T, replaces: Option<Version>) -> crate::Result<Change> {
    let value = serde_json::to_vec(value).map_err(|error| {
        StorageError::internal(format!("the state {key:?} cannot be written: {error}"))
            .without_effect()
            .final_unless_changed()
    })?;
    let precondition = replaces.map_or(Precondition::Absent, Precondition::At);
    Ok(Change::Put(Put { key: key.to_owned(), value, precondition }))
}

/// A change that removes a key at a version.
pub fn remove(key: &str, version: Version) -> Change {
    Change::Remove(Remove { key: key.to_owned(), version })
}

/// Result of one attempt of [`decide`].
#[derive(Clone, Debug, PartialEq)]
pub enum Decision<T> {
    /// Nothing has to be written.
    Done(T),
    /// Changes to commit, and the result to return after the commit.
    Commit(Vec<Change>, T),
}

/// Maximum attempts of [`decide`]. A conflict means that another call has committed a change of the same key
/// between the read and the commit of an attempt. The limit is reached only if that happens in each of these
/// attempts.
const MAX_ATTEMPTS: usize = 64;

/// Runs `attempt`, which reads from the store and decides, and commits the changes that it returns. After a
/// conflict with another writer, runs `attempt` again. All changes of an attempt are one commit, so they are
/// atomic even if the call ends early.
///
/// ```
/// use cofferdam_guest::{Result, mock, state};
///
/// fn count(store: &impl state::Store) -> Result<u64> {
///     state::decide(store, |store| {
///         let (count, version) = match state::read::<u64>(store, "count")? {
///             Some(read) => (read.value, Some(read.version)),
///             None => (0, None),
///         };
///         Ok(state::Decision::Commit(vec![state::put("count", &(count + 1), version)?], count + 1))
///     })
/// }
///
/// let host = mock::MockHost::new().install();
/// let mut strangers = 2;
/// host.before_each_commit(move |host| {
///     if strangers > 0 {
///         strangers -= 1;
///         host.write_state("count", b"10");
///     }
/// });
/// assert_eq!(count(&state::HostStore).unwrap(), 11);
/// ```
///
/// # Errors
///
/// - The errors of `attempt` and of the store.
/// - [`aborted`](StorageError::aborted) after a conflict in each of 64 attempts. The error is final unless
///   this call [has changed](crate::has_changed) something before.
pub fn decide<S: Store, T>(
    store: &S,
    mut attempt: impl FnMut(&S) -> crate::Result<Decision<T>>,
) -> crate::Result<T> {
    for _ in 0..MAX_ATTEMPTS {
        match attempt(store)? {
            Decision::Done(answer) => return Ok(answer),
            Decision::Commit(changes, answer) => match store.commit(&changes) {
                Ok(_) => return Ok(answer),
                Err(StateError::Conflict(_)) => {}
                Err(
                    error @ (StateError::KeySize(_)
                    | StateError::ValueSize(_)
                    | StateError::BatchSize(_)
                    | StateError::RepeatedKey(_)
                    | StateError::Full(_)
                    | StateError::Unavailable(_)),
                ) => return Err(error.into()),
            },
        }
    }
    Err(StorageError::aborted(format!("{MAX_ATTEMPTS} other calls changed the state at the same time"))
        .without_effect()
        .final_unless_changed())
}

impl From<StateError> for StorageError {
    /// The error is final for requests that the store rejects because of a limit, a repeated key or no space,
    /// unless this call [has changed](crate::has_changed) something before. [`StateError::Unavailable`]
    /// leaves the outcome unknown. [`StateError::Conflict`] becomes an error in progress: the caller repeats
    /// its call.
    fn from(error: StateError) -> Self {
        let refused = |message| Self::internal(message).without_effect();
        match error {
            StateError::Conflict(key) => {
                Self::aborted(format!("the state {key:?} was changed by another call"))
            }
            StateError::Full(Bound { limit, given }) => {
                Self::resource_exhausted(format!("the state would hold {given} bytes; its limit is {limit}"))
            }
            StateError::KeySize(Bound { limit, given }) => {
                refused(format!("a state key of {given} bytes; 1 to {limit} are allowed"))
            }
            StateError::ValueSize(Bound { limit, given }) => {
                // The size of a volume's entry depends on the request: mount options, parameters, nodes.
                Self::resource_exhausted(format!(
                    "a state value of {given} bytes; at most {limit} are allowed"
                ))
            }
            StateError::BatchSize(Bound { limit, given }) => {
                refused(format!("{given} state changes at once; 1 to {limit} are allowed"))
            }
            StateError::RepeatedKey(key) => refused(format!("the state {key:?} is changed twice at once")),
            StateError::Unavailable(message) => {
                Self::unavailable(format!("the state cannot be used: {message}"))
            }
        }
        .final_unless_changed()
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
