//! Claims that wait for a change of their source.

use std::collections::{HashMap, HashSet};

use cofferdam_domain::{SourceKey, Uid};
use parking_lot::Mutex;

/// Waiting claims by uid, by their source.
#[derive(Debug, Default)]
pub(super) struct SourceWaits(Mutex<HashMap<SourceKey, HashSet<Uid>>>);

impl SourceWaits {
    /// Registers a claim for the next change of its source. Returns true if it was not registered.
    pub(super) fn insert(&self, source: &SourceKey, claim: &Uid) -> bool {
        self.0.lock().entry(source.clone()).or_default().insert(claim.clone())
    }

    /// Removes and returns the claims that wait for a change of this source.
    pub(super) fn take(&self, source: &SourceKey) -> HashSet<Uid> {
        self.0.lock().remove(source).unwrap_or_default()
    }

    /// Forgets a claim that is deleted.
    pub(super) fn remove(&self, source: &SourceKey, claim: &Uid) {
        let mut waits = self.0.lock();
        if let Some(claims) = waits.get_mut(source)
            && claims.remove(claim)
            && claims.is_empty()
        {
            waits.remove(source);
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::{ClaimKey, VolumeSnapshotKey};

    use super::*;

    #[test]
    fn a_change_of_the_source_returns_the_claims_that_wait_for_it() {
        let waits = SourceWaits::default();
        let source = SourceKey::Claim(ClaimKey::new("ns", "source"));
        let other = SourceKey::Snapshot(VolumeSnapshotKey::new("ns", "source"));
        assert!(waits.insert(&source, &"a".into()));
        assert!(!waits.insert(&source, &"a".into()), "it is registered");
        assert!(waits.insert(&source, &"b".into()));
        assert!(waits.insert(&other, &"c".into()));
        waits.remove(&source, &"b".into());
        assert_eq!(waits.take(&source), HashSet::from(["a".into()]));
        assert!(waits.insert(&source, &"a".into()), "a change ends the registration");
        waits.remove(&source, &"a".into());
        waits.remove(&other, &"c".into());
        assert!(waits.0.lock().is_empty());
    }
}
