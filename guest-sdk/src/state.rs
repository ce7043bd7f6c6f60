//! Keyed blobs that outlive a call.
//!
//! A backend reads, decides, and commits its changes as one: each change states which version it replaces, so
//! a decision that was made on old values has no effect. On [`StateError::Conflict`] read again and decide
//! anew; [`decide`] does.
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
    Bound, Change, Entry, Expected, Found, Page, Put, Remove, StateError, Version,
};
use crate::{StorageError, host};

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
    /// Nothing was written: [`StateError::Conflict`] when a key is not at the version that a change expects,
    /// the others when something is out of bounds or the store cannot be used.
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
        StorageError::internal(format!("the state {key:?} cannot be written: {error}"))
            .without_effect()
            .final_unless_changed()
    })?;
    let expected = replaces.map_or(Expected::Absent, Expected::At);
    Ok(Change::Put(Put { key: key.to_owned(), value, expected }))
}

/// The change that removes a key that was read.
pub fn remove(key: &str, version: Version) -> Change {
    Change::Remove(Remove { key: key.to_owned(), version })
}

/// What a look at the store leads to: see [`decide`].
#[derive(Clone, Debug, PartialEq)]
pub enum Decision<T> {
    /// Nothing is to be written.
    Done(T),
    /// These changes make the answer true.
    Commit(Vec<Change>, T),
}

/// How often [`decide`] looks again. Every conflict means that another call got on, so the bound is only met
/// when as many calls finish within this one's few microseconds.
const MAX_ATTEMPTS: usize = 64;

/// Looks, decides and commits; anew as long as others write in between. The whole of a change is one commit,
/// so it happens or it does not, whenever the call dies.
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
/// What `look` returned, the store's errors, and [`aborted`](StorageError::aborted) when others wrote in
/// between for too long: final unless this call has [changed](crate::changed) something before.
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
    /// Final for what the store refuses (a bound, or no room) as long as this call has
    /// [changed](crate::changed) nothing before. A store that cannot be used leaves the outcome unknown, and
    /// a foreign write leaves it in progress: the same call again tells.
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
                // How much is kept of a volume is up to who asks for it: mount options, parameters, nodes.
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
