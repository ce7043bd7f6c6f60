//! Which volumes are being staged or unstaged right now: two that turn out to be the same storage must not
//! both find it free.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The volumes that are being staged or unstaged.
#[derive(Debug, Default)]
pub(super) struct ActiveVolumes(Mutex<BTreeSet<String>>);

/// A volume is being staged or unstaged until this is dropped.
#[must_use = "the turn ends with it"]
pub(super) struct ActiveVolumeGuard<'a> {
    active_volumes: &'a ActiveVolumes,
    volume: &'a str,
}

impl ActiveVolumes {
    /// Begins a turn; there is one at a time for a volume.
    pub(super) fn mark_active<'a>(&'a self, volume: &'a str) -> ActiveVolumeGuard<'a> {
        self.lock().insert(volume.to_owned());
        ActiveVolumeGuard { active_volumes: self, volume }
    }

    /// The volumes whose turn it is. None begins while this is held.
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ActiveVolumeGuard<'_> {
    fn drop(&mut self) {
        self.active_volumes.lock().remove(self.volume);
    }
}
