//! Where every import goes through: to the host when the crate is part of a component, to the
//! [mock](crate::mock) otherwise.
//!
//! One function for each import, so that a component imports exactly what its code calls. What succeeds in
//! changing something is noted here: see [`changed`](crate::changed).

#[cfg(target_family = "wasm")]
mod component;
#[cfg(not(target_family = "wasm"))]
mod native;
pub(crate) mod pool;

#[cfg(target_family = "wasm")]
use component as imports;
#[cfg(not(target_family = "wasm"))]
use native as imports;

pub(crate) use imports::*;

use crate::bindings::cofferdam::storage::state::{Change, StateError, Version};

/// Notes a change that has been made.
fn record_change<T, E>(result: Result<T, E>) -> Result<T, E> {
    if result.is_ok() {
        set_changed(true);
    }
    result
}

pub(crate) fn state_commit(changes: &[Change]) -> Result<Version, StateError> {
    record_change(imports::state_commit(changes))
}
