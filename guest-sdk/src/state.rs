//! Keyed blobs that outlive a call.
//!
//! A backend reads, decides, and commits its changes as one: each change states which version it replaces, so a decision
//! that was made on old values has no effect. On [`StateError::Conflict`] read again and decide anew.

use serde::{Serialize, de::DeserializeOwned};

use crate::{StorageError, bindings::cofferdam::storage::state as host};
pub use host::{Bound, Change, Entry, Expected, Found, Page, Put, Remove, StateError, Version};

/// A store of keyed blobs. A backend that takes one as an argument can be tested without a host.
pub trait Store {
    /// Reads a key.
    ///
    /// # Errors
    ///
    /// When the key's size is out of bounds or the store cannot be used.
    fn get(&self, key: &str) -> Result<Option<Entry>, StateError>;

    /// Makes 1 to 16 writes to different keys as one; returns the version that they all carry.
    ///
    /// # Errors
    ///
    /// Nothing was written: [`StateError::Conflict`] when a key is not at the version that a change expects, the others when
    /// something is out of bounds or the store cannot be used.
    fn commit(&self, changes: &[Change]) -> Result<Version, StateError>;

    /// Reads the keys with a prefix that come after a given one, in the order of their bytes.
    ///
    /// # Errors
    ///
    /// When a key's size is out of bounds or the store cannot be used.
    fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Page, StateError>;
}

/// The store that the host grants.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

impl Store for Host {
    fn get(&self, key: &str) -> Result<Option<Entry>, StateError> {
        host::get(key)
    }

    fn commit(&self, changes: &[Change]) -> Result<Version, StateError> {
        host::commit(changes)
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Page, StateError> {
        host::scan(prefix, after, limit)
    }
}

/// A value that was read, with the version that a change of it must name.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned<T> {
    /// The value.
    pub value: T,
    /// The write that made it.
    pub version: Version,
}

/// Reads a key as JSON.
///
/// # Errors
///
/// What the store refused, and a blob that is not the JSON of a `T`, as an error of the backend.
pub fn read<T: DeserializeOwned>(store: &impl Store, key: &str) -> crate::Result<Option<Versioned<T>>> {
    let Some(entry) = store.get(key)? else { return Ok(None) };
    match serde_json::from_slice(&entry.value) {
        Ok(value) => Ok(Some(Versioned { value, version: entry.version })),
        Err(error) => Err(StorageError::internal(format!("the state {key:?} is not readable: {error}"))),
    }
}

/// The change that sets a key to JSON: in place of what was read, or where nothing was.
///
/// # Errors
///
/// A value that cannot be written as JSON.
pub fn put<T: Serialize>(key: &str, value: &T, replaces: Option<Version>) -> crate::Result<Change> {
    let value = serde_json::to_vec(value).map_err(|error| {
        StorageError::internal(format!("the state {key:?} cannot be written: {error}")).nothing_happened()
    })?;
    let expected = replaces.map_or(Expected::Absent, Expected::At);
    Ok(Change::Put(Put { key: key.to_owned(), value, expected }))
}

/// The change that removes a key that was read.
pub fn remove(key: &str, version: Version) -> Change {
    Change::Remove(Remove { key: key.to_owned(), version })
}

impl From<StateError> for StorageError {
    /// The store did nothing, so neither did the call, unless it had committed something before.
    fn from(error: StateError) -> Self {
        match error {
            StateError::Conflict(key) => {
                Self::aborted(format!("the state {key:?} was changed by another call")).nothing_happened()
            }
            StateError::Full(Bound { limit, given }) => {
                Self::resource_exhausted(format!("the state would hold {given} bytes; its limit is {limit}"))
            }
            StateError::KeySize(Bound { limit, given }) => {
                Self::internal(format!("a state key of {given} bytes; 1 to {limit} are allowed"))
                    .nothing_happened()
            }
            StateError::ValueSize(Bound { limit, given }) => {
                Self::internal(format!("a state value of {given} bytes; at most {limit} are allowed"))
                    .nothing_happened()
            }
            StateError::BatchSize(Bound { limit, given }) => {
                Self::internal(format!("{given} state changes at once; 1 to {limit} are allowed"))
                    .nothing_happened()
            }
            StateError::RepeatedKey(key) => {
                Self::internal(format!("the state {key:?} is changed twice at once")).nothing_happened()
            }
            StateError::Unavailable(message) => {
                Self::unavailable(format!("the state cannot be used: {message}")).nothing_happened()
            }
        }
    }
}
