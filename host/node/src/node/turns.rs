//! Which volumes are being staged or unstaged right now: two that turn out to be the same storage must not
//! both find it free.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The volumes that are being staged or unstaged.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<BTreeSet<String>>);

/// A volume is being staged or unstaged until this is dropped.
#[must_use = "the turn ends with it"]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    volume: &'a str,
}

impl Turns {
    /// Begins a turn; there is one at a time for a volume.
    pub(super) fn begin<'a>(&'a self, volume: &'a str) -> Turn<'a> {
        self.lock().insert(volume.to_owned());
        Turn { turns: self, volume }
    }

    /// The volumes whose turn it is. None begins while this is held.
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.lock().remove(self.volume);
    }
}
