//! Dispatch of the imports: to the host in a component, to the [mock](crate::mock) in a native build.
//!
//! Each import has its own function, so that a component imports exactly the functions that its code calls.
//! Functions of the imports `state` and `pool` that have or may have changed something are recorded here for
//! [`has_changed`](crate::has_changed). [`Request::send`](crate::http::Request::send) records those of
//! `http`.

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

/// Records a successful change.
fn record_change<T, E>(result: Result<T, E>) -> Result<T, E> {
    if result.is_ok() {
        set_changed(true);
    }
    result
}

/// Runs a function whose changes do not count.
pub(crate) fn preserving_has_changed<T>(run: impl FnOnce() -> T) -> T {
    let had_changed = has_changed();
    let value = run();
    set_changed(had_changed);
    value
}

pub(crate) fn state_commit(changes: &[Change]) -> Result<Version, StateError> {
    record_change(imports::state_commit(changes))
}
