//! The pool's imports.

use super::{imports, set_changed};
use crate::bindings::cofferdam::storage::pool::{CopyMode, Item, Page, PoolError, Space};

/// Records a change that has or may have been made.
fn record_change(result: Result<(), PoolError>) -> Result<(), PoolError> {
    if matches!(result, Ok(()) | Err(PoolError::Unknown(_))) {
        set_changed(true);
    }
    result
}

pub(crate) fn create_directory(name: &str) -> Result<(), PoolError> {
    record_change(imports::pool_create_directory(name))
}

pub(crate) fn create_image(name: &str, size_bytes: u64) -> Result<(), PoolError> {
    record_change(imports::pool_create_image(name, size_bytes))
}

pub(crate) fn remove(name: &str) -> Result<(), PoolError> {
    record_change(imports::pool_remove(name))
}

pub(crate) fn grow(name: &str, size_bytes: u64) -> Result<(), PoolError> {
    record_change(imports::pool_grow(name, size_bytes))
}

pub(crate) fn copy(
    source: &str,
    name: &str,
    size_bytes: Option<u64>,
    mode: CopyMode,
) -> Result<(), PoolError> {
    record_change(imports::pool_copy(source, name, size_bytes, mode))
}

pub(crate) fn measure(name: &str) -> Result<Item, PoolError> {
    imports::pool_measure(name)
}

pub(crate) fn scan(prefix: &str, after: Option<&str>, limit: u32) -> Result<Page, PoolError> {
    imports::pool_scan(prefix, after, limit)
}

pub(crate) fn usage() -> Result<Space, PoolError> {
    imports::pool_usage()
}
