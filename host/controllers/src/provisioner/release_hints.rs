//! Volumes that the PersistentVolume controller of this process has just released.

use std::{collections::HashMap, time::Duration};

use cofferdam_domain::{Volume, VolumeName, ids::ResourceVersion};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::messages::VolumeReleased;

/// A live read counts as current for this long: a change within so short a time could as well happen between
/// a read and the request that follows it.
const HINT_TTL: Duration = Duration::from_secs(1);
/// Number of hints from which expired ones are removed on insertion.
const PRUNE_THRESHOLD: usize = 1024;

/// Volumes that were set to Released after a live read of their claim. The provisioner reads volume and claim
/// from the API server before it deletes a volume, unless such a read is current and the volume has not
/// changed since.
#[derive(Debug, Default)]
pub(super) struct ReleaseHints(Mutex<HashMap<VolumeName, (ResourceVersion, Instant)>>);

impl ReleaseHints {
    /// Adds a released volume.
    pub(super) fn insert(&self, released: &VolumeReleased) {
        let VolumeReleased { volume, resource_version, claim_read_at } = released;
        let mut hints = self.0.lock();
        if hints.len() >= PRUNE_THRESHOLD {
            hints.retain(|_, (_, read_at)| read_at.elapsed() < HINT_TTL);
        }
        hints.insert(volume.clone(), (*resource_version, *claim_read_at));
    }

    /// Removes the hint of a volume. Returns true if the hint has the volume's version and has not expired.
    pub(super) fn take(&self, volume: &Volume) -> bool {
        let hint = self.0.lock().remove(&volume.name);
        hint.is_some_and(|(version, read_at)| {
            version == volume.meta.resource_version && read_at.elapsed() < HINT_TTL
        })
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

    fn released(name: &str, version: u64, claim_read_at: Instant) -> VolumeReleased {
        VolumeReleased { volume: name.into(), resource_version: ResourceVersion(version), claim_read_at }
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_hint_is_taken_once_within_its_ttl_and_for_its_version() {
        let hints = ReleaseHints::default();
        let now = Instant::now();
        hints.insert(&released("a", 7, now));
        assert!(!hints.take(&volume("b", 7)), "another volume");
        assert!(hints.take(&volume("a", 7)));
        assert!(!hints.take(&volume("a", 7)), "already taken");

        hints.insert(&released("a", 7, now));
        assert!(!hints.take(&volume("a", 8)), "the volume has changed since");

        hints.insert(&released("a", 7, now));
        tokio::time::advance(HINT_TTL).await;
        assert!(!hints.take(&volume("a", 7)), "expired");

        for number in 0..2 * PRUNE_THRESHOLD {
            hints.insert(&released(&number.to_string(), 1, now));
        }
        assert!(hints.0.lock().len() <= PRUNE_THRESHOLD, "expired hints are removed");
    }
}
