//! Volumes that this process has released itself a moment ago.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_domain::{Volume, VolumeName, ids::ResourceVersion};
use tokio::time::Instant;

/// How long a look past the cache counts: what changes in so short a time could as well change between a look and what follows it.
const FRESH: Duration = Duration::from_secs(1);
/// From here on old entries are dropped when one is added.
const MANY: usize = 1024;

/// Which volumes pv-controller has written `Released` on, with the claim read past the cache before. The provisioner, which must not
/// delete what it only believes to be released, need not look again while that is fresh and the object is still the written one.
#[derive(Debug, Default)]
pub(crate) struct Released(Mutex<HashMap<VolumeName, (ResourceVersion, Instant)>>);

impl Released {
    /// Notes a volume as it was written; its claim was read at `looked` or later.
    pub(crate) fn note(&self, volume: &Volume, looked: Instant) {
        let mut released = self.lock();
        if released.len() >= MANY {
            released.retain(|_, (_, looked)| looked.elapsed() < FRESH);
        }
        released.insert(volume.name.clone(), (volume.meta.version, looked));
    }

    /// Whether the volume, in this version, was released here just now. Tells so once.
    pub(crate) fn take(&self, volume: &Volume) -> bool {
        let noted = self.lock().remove(&volume.name);
        noted.is_some_and(|(version, looked)| version == volume.meta.version && looked.elapsed() < FRESH)
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
    async fn a_release_is_told_once_while_it_is_fresh_and_of_this_version() {
        let released = Released::default();
        let now = Instant::now();
        released.note(&volume("a", 7), now);
        assert!(!released.take(&volume("b", 7)), "another volume");
        assert!(released.take(&volume("a", 7)));
        assert!(!released.take(&volume("a", 7)), "told already");

        released.note(&volume("a", 7), now);
        assert!(!released.take(&volume("a", 8)), "somebody has written since");

        released.note(&volume("a", 7), now);
        tokio::time::advance(FRESH).await;
        assert!(!released.take(&volume("a", 7)), "long ago");

        for number in 0..2 * MANY {
            released.note(&volume(&number.to_string(), 1), now);
        }
        assert!(released.lock().len() <= MANY, "old ones are dropped");
    }
}
