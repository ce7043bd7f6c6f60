//! One directory of the host that the operator names, with directories and image files by plain names.
//!
//! Every change is whole: after a crash it has happened or it has not. A copy that has begun runs to its end,
//! also when the call that made it is over; until then its name is [`PoolError::Busy`]. Wherever it is said
//! that nothing was made, [`PoolError::Unknown`] is the exception: the change may be there, and the same call
//! again tells.

pub use crate::bindings::cofferdam::storage::{
    pool::{CopyMode, Item, ItemKind, Page, PoolError, Room},
    types::Bound,
};
use crate::{StorageError, host::pool as host};

/// A pool. A backend that takes one as an argument can be tested without a host.
///
/// Names are 1 to 200 of a-z, A-Z, 0-9, `-`, `_` and `.`, and begin with a letter or digit.
pub trait Pool {
    /// Makes an empty directory.
    ///
    /// # Errors
    ///
    /// [`PoolError::Exists`] when the name is taken, and whatever else went wrong; nothing was made then.
    fn create_directory(&self, name: &str) -> Result<(), PoolError>;

    /// Makes an image of zeros of so many bytes, without taking its room before it is written.
    ///
    /// # Errors
    ///
    /// [`PoolError::Exists`] when the name is taken, [`PoolError::InvalidSize`] for 0, what is no multiple of
    /// 4,096 and what is above the operator's bound, [`PoolError::NoSpace`]; nothing was made then.
    fn create_image(&self, name: &str, size_bytes: u64) -> Result<(), PoolError>;

    /// Removes an item with everything in it.
    ///
    /// # Errors
    ///
    /// [`PoolError::Missing`] when there is none, and whatever else went wrong.
    fn remove(&self, name: &str) -> Result<(), PoolError>;

    /// Makes an image so many bytes large; one that is large enough stays as it is.
    ///
    /// # Errors
    ///
    /// [`PoolError::Missing`], [`PoolError::WrongKind`], [`PoolError::InvalidSize`], [`PoolError::NoSpace`].
    fn grow(&self, name: &str, size_bytes: u64) -> Result<(), PoolError>;

    /// Copies an item to a new name; an image may become larger on the way.
    ///
    /// # Errors
    ///
    /// [`PoolError::Missing`] for a source that does not exist, [`PoolError::Exists`] when the name is taken,
    /// [`PoolError::Busy`] while an earlier copy to this name runs, [`PoolError::Unsupported`] for
    /// [`CopyMode::OneMoment`] where there is no such copy, and whatever else went wrong; nothing was made
    /// then.
    fn copy(
        &self,
        source: &str,
        name: &str,
        size_bytes: Option<u64>,
        mode: CopyMode,
    ) -> Result<(), PoolError>;

    /// Describes an item.
    ///
    /// # Errors
    ///
    /// [`PoolError::Missing`] when there is none, [`PoolError::Busy`] while it is being made or removed.
    fn measure(&self, name: &str) -> Result<Item, PoolError>;

    /// Lists the items whose names have a prefix and come after a given one, at most `limit` and at most
    /// 1,000 of them.
    ///
    /// # Errors
    ///
    /// When the pool cannot be used.
    fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Page, PoolError>;

    /// How much room there is.
    ///
    /// # Errors
    ///
    /// When the pool cannot be used.
    fn usage(&self) -> Result<Room, PoolError>;
}

/// The pool that the host grants.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostPool;

impl Pool for HostPool {
    fn create_directory(&self, name: &str) -> Result<(), PoolError> {
        host::create_directory(name)
    }

    fn create_image(&self, name: &str, size_bytes: u64) -> Result<(), PoolError> {
        host::create_image(name, size_bytes)
    }

    fn remove(&self, name: &str) -> Result<(), PoolError> {
        host::remove(name)
    }

    fn grow(&self, name: &str, size_bytes: u64) -> Result<(), PoolError> {
        host::grow(name, size_bytes)
    }

    fn copy(
        &self,
        source: &str,
        name: &str,
        size_bytes: Option<u64>,
        mode: CopyMode,
    ) -> Result<(), PoolError> {
        host::copy(source, name, size_bytes, mode)
    }

    fn measure(&self, name: &str) -> Result<Item, PoolError> {
        host::measure(name)
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Page, PoolError> {
        host::scan(prefix, after, limit)
    }

    fn usage(&self) -> Result<Room, PoolError> {
        host::usage()
    }
}

impl From<PoolError> for StorageError {
    /// Final for what the pool refuses, as long as this call has [changed](crate::changed) nothing before. A
    /// pool that failed or is not sure leaves the outcome unknown, and what is at work leaves it in progress:
    /// the same call again tells.
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::NoSpace(Bound { limit, given }) => {
                Self::resource_exhausted(format!("{given} bytes do not fit: the pool has {limit} left"))
            }
            PoolError::InvalidSize(reason) => {
                Self::out_of_range(format!("the pool has no image of {reason}"))
            }
            PoolError::Busy(name) => Self::in_progress(format!("an earlier call still works on {name:?}")),
            PoolError::Missing(name) => Self::not_found(format!("the pool has no item {name:?}")),
            PoolError::Exists(name) => {
                Self::internal(format!("the pool has an item {name:?} already")).without_effect()
            }
            PoolError::InvalidName(name) => {
                Self::internal(format!("{name:?} is no name for an item")).without_effect()
            }
            PoolError::WrongKind(name) => {
                Self::failed_precondition(format!("the pool's item {name:?} is of another kind"))
            }
            PoolError::Failed(reason) => Self::unavailable(format!("the pool failed: {reason}")),
            PoolError::Unsupported(reason) => {
                Self::failed_precondition(format!("the pool cannot do this: {reason}"))
            }
            PoolError::Unknown(reason) => Self::unavailable(format!("the pool is not sure: {reason}")),
        }
        .final_unless_changed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Finality, mock};

    #[test]
    fn a_pool_error_after_a_change_is_not_final() {
        let host = mock::MockHost::new().install();
        let outcome = |changes: bool| {
            host.call(|| {
                if changes {
                    HostPool.create_directory("d").unwrap();
                }
                [
                    HostPool.remove("missing").unwrap_err(),
                    HostPool.create_image("i", 1).unwrap_err(),
                    PoolError::Exists("d".to_owned()),
                    PoolError::InvalidName("/".to_owned()),
                    PoolError::NoSpace(Bound { limit: 1, given: 2 }),
                    PoolError::WrongKind("d".to_owned()),
                    PoolError::Unsupported("a device".to_owned()),
                ]
                .map(|error| StorageError::from(error).finality)
            })
        };
        assert_eq!(outcome(false), [Finality::Final; 7]);
        assert_eq!(outcome(true), [Finality::Unknown; 7]);
        for error in [PoolError::Unknown(String::new()), PoolError::Failed(String::new())] {
            assert_eq!(StorageError::from(error).finality, Finality::Unknown);
        }
    }
}
