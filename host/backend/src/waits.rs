//! Waiting is not computing.
//!
//! The engine's clock goes on while a guest waits for the host, so that the first thing it does afterwards meets a tick that it
//! has not computed through. That tick is forgiven, once for each wait.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use crate::limits::TICK;

/// Whether a call has waited lately. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits(Arc<AtomicBool>);

impl Waits {
    /// A guest waits from here on until the value is dropped.
    pub(crate) fn begin(&self) -> Wait {
        Wait { waits: self.clone(), begun: Instant::now() }
    }

    /// Whether a wait of a tick or more has ended since this was asked last.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }
}

/// A guest that waits.
#[derive(Debug)]
pub(crate) struct Wait {
    waits: Waits,
    begun: Instant,
}

impl Drop for Wait {
    fn drop(&mut self) {
        if self.begun.elapsed() >= TICK {
            self.waits.0.store(true, Ordering::Release);
        }
    }
}
