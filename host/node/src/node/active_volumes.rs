//! Volumes with a stage or unstage in flight. If two of them resolve to the same storage, only one may use
//! it.

use std::collections::BTreeSet;

use parking_lot::{Mutex, MutexGuard};

/// The volumes with a stage or unstage in flight.
#[derive(Debug, Default)]
pub(super) struct ActiveVolumes(Mutex<BTreeSet<String>>);

/// Keeps a volume active until dropped.
#[must_use = "the volume is inactive once this is dropped"]
pub(super) struct ActiveVolumeGuard<'a> {
    active_volumes: &'a ActiveVolumes,
    volume: &'a str,
}

impl ActiveVolumes {
    /// Marks a volume active. The caller runs at most one operation per volume.
    pub(super) fn mark_active<'a>(&'a self, volume: &'a str) -> ActiveVolumeGuard<'a> {
        self.lock().insert(volume.to_owned());
        ActiveVolumeGuard { active_volumes: self, volume }
    }

    /// Locks the set of active volumes. No volume becomes active while the lock is held.
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock()
    }
}

impl Drop for ActiveVolumeGuard<'_> {
    fn drop(&mut self) {
        self.active_volumes.lock().remove(self.volume);
    }
}
