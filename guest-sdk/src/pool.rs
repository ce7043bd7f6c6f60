//! A directory of the host, chosen by the operator, that contains directories and image files under plain
//! names.
//!
//! Every change is atomic with respect to a crash. An operation that has started runs to its end even if its
//! call has ended; until then the item that it creates or changes is [`PoolError::Busy`]. The source of a
//! copy is busy for operations that would change it.
//!
//! Failed functions have changed nothing, with one exception. After [`PoolError::Unknown`] the change has or
//! may have been made. The same function called again succeeds, or it returns [`PoolError::Exists`] or
//! [`PoolError::Missing`] because the change is made.

pub use crate::bindings::cofferdam::storage::{
    pool::{CopyMode, Item, ItemKind, Page, PoolError, Space},
    types::Bound,
};
use crate::{StorageError, host::pool as host};

/// A pool. A backend that takes a pool as a parameter can be tested without a host.
///
/// Names have 1 to 200 characters of a-z, A-Z, 0-9, `-`, `_` and `.`, and start with a letter or digit.
pub trait Pool {
    /// Creates an empty directory.
    ///
    /// # Errors
    ///
    /// Nothing was created, except possibly after [`PoolError::Unknown`]:
    ///
    /// - [`PoolError::Exists`] if the name is taken.
    /// - Any other failure of the pool.
    fn create_directory(&self, name: &str) -> Result<(), PoolError>;

    /// Creates a sparse image of `size_bytes` zero bytes. The pool reserves the full size; blocks are
    /// allocated when they are written.
    ///
    /// # Errors
    ///
    /// Nothing was created, except possibly after [`PoolError::Unknown`]:
    ///
    /// - [`PoolError::Exists`] if the name is taken.
    /// - [`PoolError::InvalidSize`] if the size is 0, is not a multiple of 4096, or exceeds the limit of the
    ///   operator or of the filesystem.
    /// - [`PoolError::NoSpace`] if the pool has too little space.
    /// - Any other failure of the pool.
    fn create_image(&self, name: &str, size_bytes: u64) -> Result<(), PoolError>;

    /// Removes an item and its content.
    ///
    /// # Errors
    ///
    /// - [`PoolError::Missing`] if the item does not exist.
    /// - [`PoolError::Busy`] if another operation, possibly of a call that has ended, is using the item.
    /// - Any other failure of the pool. After [`PoolError::Unknown`], the item no longer exists, but a power
    ///   failure may bring it back, or part of its content takes space until the host opens the pool again.
    fn remove(&self, name: &str) -> Result<(), PoolError>;

    /// Expands an image to at least `size_bytes`. A larger image remains unchanged.
    ///
    /// # Errors
    ///
    /// - [`PoolError::Missing`] if the item does not exist.
    /// - [`PoolError::WrongKind`] if the item is not an image.
    /// - [`PoolError::Busy`] if another operation, possibly of a call that has ended, is using the item.
    /// - [`PoolError::InvalidSize`] and [`PoolError::NoSpace`] as for [`create_image`](Self::create_image).
    /// - Any other failure of the pool.
    fn grow(&self, name: &str, size_bytes: u64) -> Result<(), PoolError>;

    /// Copies an item to a new name. `size_bytes` is the size of an image's copy, at least the size of the
    /// source; `None` keeps the size of the source. For a directory it must be `None`.
    ///
    /// # Errors
    ///
    /// Nothing was created, except possibly after [`PoolError::Unknown`]:
    ///
    /// - [`PoolError::Missing`] if the source does not exist.
    /// - [`PoolError::Exists`] if the name is taken.
    /// - [`PoolError::Busy`] if the name is in use, such as by an earlier copy that is still running, or the
    ///   source is being changed.
    /// - [`PoolError::WrongKind`] if the source is a directory and `size_bytes` is not `None`.
    /// - [`PoolError::InvalidSize`] and [`PoolError::NoSpace`] as for [`create_image`](Self::create_image),
    ///   and `InvalidSize` if the size is below that of the source.
    /// - [`PoolError::Unsupported`] if the pool cannot make a [`CopyMode::PointInTime`] copy.
    /// - Any other failure of the pool.
    fn copy(
        &self,
        source: &str,
        name: &str,
        size_bytes: Option<u64>,
        mode: CopyMode,
    ) -> Result<(), PoolError>;

    /// Returns an item with its size and usage.
    ///
    /// # Errors
    ///
    /// - [`PoolError::Missing`] if the item does not exist.
    /// - [`PoolError::Busy`] if the item is being created, changed or removed.
    /// - Any other failure of the pool.
    fn measure(&self, name: &str) -> Result<Item, PoolError>;

    /// Lists the items with a name prefix after a given name: at most `limit`, and at most 1000.
    ///
    /// # Errors
    ///
    /// - [`PoolError::Failed`] if the pool cannot be used.
    fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Page, PoolError>;

    /// Total and available space.
    ///
    /// # Errors
    ///
    /// - [`PoolError::Failed`] if the pool cannot be used.
    fn usage(&self) -> Result<Space, PoolError>;
}

/// The pool of the import `pool`, which the operator grants to the backend.
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

    fn usage(&self) -> Result<Space, PoolError> {
        host::usage()
    }
}

impl From<PoolError> for StorageError {
    /// The error is final for requests that the pool rejects, unless this call [has
    /// changed](crate::has_changed) something before. [`PoolError::Failed`] and [`PoolError::Unknown`] leave
    /// the outcome unknown. [`PoolError::Busy`] becomes an error in progress: the caller repeats its call.
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
