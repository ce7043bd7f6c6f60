//! Volumes that the PersistentVolume controller of this process has just released.

use std::{collections::HashMap, time::Duration};

use cofferdam_domain::{Volume, VolumeName, ids::ResourceVersion};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use crate::messages::VolumeReleased;

/// A live read counts as current for this long: a change within so short a time could as well happen between
/// a read and the request that follows it.
const HINT_TTL: Duration = Duration::from_secs(1);
/// Number of hints from which expired ones are removed on insertion.
const PRUNE_THRESHOLD: usize = 1024;

/// Volumes that are set to Released after a live read of their claim, or after its removal by this process.
/// The provisioner reads volume and claim from the API server before it deletes a volume, unless such a
/// read is current and the volume has not changed since.
#[derive(Debug, Default)]
pub(super) struct ReleaseHints(Mutex<HashMap<VolumeName, Hint>>);

/// As [`VolumeReleased`].
#[derive(Debug)]
struct Hint {
    released: watch::Receiver<Option<ResourceVersion>>,
    claim_read_at: Instant,
}

impl ReleaseHints {
    /// Adds a volume that is being released.
    pub(super) fn insert(&self, volume: &VolumeReleased) {
        let VolumeReleased { volume, claim_read_at, released } = volume;
        let mut hints = self.0.lock();
        if hints.len() >= PRUNE_THRESHOLD {
            hints.retain(|_, hint| hint.claim_read_at.elapsed() < HINT_TTL);
        }
        hints.insert(volume.clone(), Hint { released: released.clone(), claim_read_at: *claim_read_at });
    }

    /// Removes the hint of a volume, and waits for the end of its release. Returns true if the release has
    /// succeeded, the hint has the volume's version and has not expired.
    pub(super) async fn take(&self, volume: &Volume) -> bool {
        let hint = self.0.lock().remove(&volume.name);
        let Some(Hint { mut released, claim_read_at }) = hint else { return false };
        let version = released.wait_for(Option::is_some).await.ok().and_then(|version| *version);
        version == Some(volume.meta.resource_version) && claim_read_at.elapsed() < HINT_TTL
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
        let (_, released) = watch::channel(Some(ResourceVersion(version)));
        VolumeReleased { volume: name.into(), claim_read_at, released }
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_hint_is_taken_once_within_its_ttl_and_for_its_version() {
        let hints = ReleaseHints::default();
        let now = Instant::now();
        hints.insert(&released("a", 7, now));
        assert!(!hints.take(&volume("b", 7)).await, "another volume");
        assert!(hints.take(&volume("a", 7)).await);
        assert!(!hints.take(&volume("a", 7)).await, "already taken");

        hints.insert(&released("a", 7, now));
        assert!(!hints.take(&volume("a", 8)).await, "the volume has changed since");

        hints.insert(&released("a", 7, now));
        tokio::time::advance(HINT_TTL).await;
        assert!(!hints.take(&volume("a", 7)).await, "expired");

        for number in 0..2 * PRUNE_THRESHOLD {
            hints.insert(&released(&number.to_string(), 1, now));
        }
        assert!(hints.0.lock().len() <= PRUNE_THRESHOLD, "expired hints are removed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_hint_waits_for_the_end_of_the_release() {
        let hints = ReleaseHints::default();
        let insert = |claim_read_at| {
            let (sender, released) = watch::channel(None);
            hints.insert(&VolumeReleased { volume: "a".into(), claim_read_at, released });
            sender
        };
        let a = volume("a", 7);
        let end = async |sender: watch::Sender<_>, after, version: Option<u64>| {
            tokio::time::sleep(after).await;
            if let Some(version) = version {
                sender.send(Some(ResourceVersion(version))).unwrap();
            }
        };
        for (name, after, version, expected) in [
            ("released", HINT_TTL / 2, Some(7), true),
            ("the volume has changed during the release", HINT_TTL / 2, Some(6), false),
            ("the release has failed", HINT_TTL / 2, None, false),
            ("the release took too long", HINT_TTL * 2, Some(7), false),
        ] {
            let sender = insert(Instant::now());
            let (taken, ()) = tokio::join!(hints.take(&a), end(sender, after, version));
            assert_eq!(taken, expected, "{name}");
        }
    }
}
