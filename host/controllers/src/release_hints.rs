//! Volumes that this process has released itself a moment ago.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_domain::{Volume, VolumeName, ids::ResourceVersion};
use tokio::time::Instant;

/// How long a look past the cache counts: what changes in so short a time could as well change between a look
/// and what follows it.
const HINT_TTL: Duration = Duration::from_secs(1);
/// From here on old entries are dropped when one is added.
const PRUNE_THRESHOLD: usize = 1024;

/// Which volumes pv-controller has written `Released` on, with the claim read past the cache before. The
/// provisioner, which must not delete what it only believes to be released, need not look again while that is
/// fresh and the object is still the written one.
#[derive(Debug, Default)]
pub(crate) struct ReleaseHints(Mutex<HashMap<VolumeName, (ResourceVersion, Instant)>>);

impl ReleaseHints {
    /// Notes a volume as it was written; its claim was read at `looked` or later.
    pub(crate) fn insert(&self, volume: &Volume, read_at: Instant) {
        let mut hints = self.lock();
        if hints.len() >= PRUNE_THRESHOLD {
            hints.retain(|_, (_, read_at)| read_at.elapsed() < HINT_TTL);
        }
        hints.insert(volume.name.clone(), (volume.meta.resource_version, read_at));
    }

    /// Whether the volume, in this version, was released here just now. Tells so once.
    pub(crate) fn take(&self, volume: &Volume) -> bool {
        let hint = self.lock().remove(&volume.name);
        hint.is_some_and(|(version, read_at)| {
            version == volume.meta.resource_version && read_at.elapsed() < HINT_TTL
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<VolumeName, (ResourceVersion, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_cluster::decode::object;
    use serde_json::json;

    use super::*;

    fn volume(name: &str, version: u64) -> Volume {
        let metadata = json!({"name": name, "uid": "u", "resourceVersion": version.to_string()});
        object::<Volume>(&json!({"metadata": metadata}).to_string()).unwrap().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_hint_is_taken_once_within_its_ttl_and_for_its_version() {
        let hints = ReleaseHints::default();
        let now = Instant::now();
        hints.insert(&volume("a", 7), now);
        assert!(!hints.take(&volume("b", 7)), "another volume");
        assert!(hints.take(&volume("a", 7)));
        assert!(!hints.take(&volume("a", 7)), "told already");

        hints.insert(&volume("a", 7), now);
        assert!(!hints.take(&volume("a", 8)), "somebody has written since");

        hints.insert(&volume("a", 7), now);
        tokio::time::advance(HINT_TTL).await;
        assert!(!hints.take(&volume("a", 7)), "long ago");

        for number in 0..2 * PRUNE_THRESHOLD {
            hints.insert(&volume(&number.to_string(), 1), now);
        }
        assert!(hints.lock().len() <= PRUNE_THRESHOLD, "old ones are dropped");
    }
}
