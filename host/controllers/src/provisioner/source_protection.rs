//! The finalizers of content sources: adds them before the intent is written, and removes them as
//! [`source::claim::decide_source_protection`] and [`source::snapshot::decide_snapshot_protection`] decide.

use std::sync::Arc;

use cofferdam_cluster::{ApiError, Lookup, queue::Action};
use cofferdam_domain::{
    Claim, ClaimKey, DriverName, SourceKey, Uid, VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotKey,
    names, storage::ContentSource,
};

use super::{
    reconcile::Provisioner,
    source::{self, SourceObject, SourceProtectionVerdict, snapshot::LiveSnapshot},
};
use crate::reconcile::{MAX_EFFECTS, action_for_write_error};

impl Provisioner {
    /// Adds the finalizer to the source of the claim `uid`. Returns `None` after success, else the action
    /// that the reconcile of the claim returns.
    pub(super) async fn protect_source(&self, uid: &Uid, source: &SourceObject) -> Option<Action> {
        let writer = &self.context.writer;
        let recorder = self.context.recorders.of_role();
        let (key, error, action) = match source {
            SourceObject::Claim(claim) => {
                let write = writer.add_finalizer(&**claim, names::CLONING_PROTECTION);
                let text = format!("adds the finalizer of claim {}, which is cloned", claim.key);
                let error = recorder.record_effect(&text, write).await.err()?;
                let action = action_for_write_error::<Claim>(writer, &claim.key, &error).await;
                (SourceKey::Claim(claim.key.clone()), error, action)
            }
            SourceObject::Snapshot(snapshot) => {
                let write = writer.add_finalizer(&**snapshot, names::RESTORE_PROTECTION);
                let text =
                    format!("adds the finalizer of VolumeSnapshot {}, which is restored", snapshot.key);
                let error = recorder.record_effect(&text, write).await.err()?;
                let action = action_for_write_error::<VolumeSnapshot>(writer, &snapshot.key, &error).await;
                (SourceKey::Snapshot(snapshot.key.clone()), error, action)
            }
        };
        Some(match action {
            // The event names a reason that lasts, such as a missing permission.
            Action::Backoff => {
                let message = format!("cannot add the finalizer of {key}, the source: {error}");
                self.backoff_after_failure(uid, message, false)
            }
            other @ (Action::Done | Action::Requeue | Action::RequeueAfter(_) | Action::BackoffFor(_)) => {
                other
            }
        })
    }

    /// Reads a VolumeSnapshot and its content live.
    ///
    /// # Errors
    /// The action that the reconcile of the claim `uid` returns.
    pub(super) async fn read_snapshot(
        &self,
        uid: &Uid,
        key: &VolumeSnapshotKey,
    ) -> Result<LiveSnapshot, Action> {
        let writer = &self.context.writer;
        let read = async {
            let Some(snapshot) = writer.read::<VolumeSnapshot>(key).await? else {
                return Ok(LiveSnapshot::default());
            };
            let content = match snapshot.bound_content() {
                Some(name) => writer.read::<VolumeSnapshotContent>(name).await?.map(Arc::new),
                None => None,
            };
            Ok(LiveSnapshot { snapshot: Some(Arc::new(snapshot)), content })
        };
        let read: Result<LiveSnapshot, ApiError> = read.await;
        read.map_err(|error| self.backoff_after_failure(uid, error.to_string(), false))
    }

    /// Enqueues the source of a claim, if it has a finalizer that may be removed.
    pub(super) fn enqueue_source(&self, source: &SourceKey) {
        match source {
            SourceKey::Claim(key) => self.enqueue_protected_source(key),
            SourceKey::Snapshot(key) => self.enqueue_protected_snapshot(key),
        }
    }

    /// Enqueues a VolumeSnapshot that has the finalizer.
    pub(super) fn enqueue_protected_snapshot(&self, key: &VolumeSnapshotKey) {
        let snapshot = self.context.cache.snapshots.get(key).into_object();
        let is_protected = |snapshot: Arc<VolumeSnapshot>| {
            snapshot.meta.finalizer_index(names::RESTORE_PROTECTION).is_some()
        };
        if self.protects_snapshots && snapshot.is_some_and(is_protected) {
            self.snapshots.add(key.clone());
        }
    }

    /// Returns true if an intent names the snapshot as its source. Its claim may be deleted.
    async fn is_restored_from(&self, snapshot: &VolumeSnapshot) -> Result<bool, ApiError> {
        let drivers = self.context.drivers.values();
        let journals: Vec<_> =
            drivers.map(|driver| &driver.journal).filter(|journal| journal.intent_count() > 0).collect();
        let Some(name) = snapshot.bound_content().filter(|_| !journals.is_empty()) else { return Ok(false) };
        let content = self.context.writer.read::<VolumeSnapshotContent>(name).await?;
        let handle = content.and_then(|content| content.handle().cloned());
        let source = handle.map(ContentSource::Snapshot);
        Ok(source.is_some_and(|source| {
            journals.iter().any(|journal| journal.claim_with_source(&source).is_some())
        }))
    }

    /// Reconciles the finalizer of a VolumeSnapshot.
    pub(super) async fn reconcile_snapshot(&self, key: &VolumeSnapshotKey) -> Action {
        for _ in 0..MAX_EFFECTS {
            let Lookup::Found(snapshot) = self.context.cache.snapshots.get(key) else { return Action::Done };
            let is_managed_driver = |driver: &DriverName| self.context.drivers.contains_key(driver);
            let has_intent = |uid: &Uid| self.has_intent_for(uid);
            let cache = &self.context.cache;
            let verdict = source::snapshot::decide_snapshot_protection(
                cache,
                &snapshot,
                &is_managed_driver,
                &has_intent,
            );
            match verdict {
                SourceProtectionVerdict::NoAction => return Action::Done,
                SourceProtectionVerdict::Wait(_) => return Action::Backoff,
                SourceProtectionVerdict::Remove(index) => {
                    let mut finalizers = [(index, names::RESTORE_PROTECTION)];
                    let writer = &self.context.writer;
                    match self.is_restored_from(&snapshot).await {
                        Ok(false) => {}
                        // The removal of an intent does not enqueue the VolumeSnapshot.
                        Ok(true) => return Action::Backoff,
                        Err(error) => {
                            return action_for_write_error::<VolumeSnapshot>(writer, key, &error).await;
                        }
                    }
                    let uid = &snapshot.meta.uid;
                    let write = writer.remove_finalizers::<VolumeSnapshot>(key, uid, &mut finalizers);
                    let text = format!("removes the finalizer of VolumeSnapshot {key}, which was restored");
                    if let Err(error) = self.context.recorders.of_role().record_effect(&text, write).await {
                        return action_for_write_error::<VolumeSnapshot>(writer, key, &error).await;
                    }
                }
            }
        }
        Action::Requeue
    }

    /// Enqueues a claim that is being deleted and has the finalizer.
    pub(super) fn enqueue_protected_source(&self, key: &ClaimKey) {
        let is_protected = |claim: &Claim| {
            claim.meta.deleting && claim.meta.finalizer_index(names::CLONING_PROTECTION).is_some()
        };
        if self.protects_sources
            && self.context.cache.claims.get(key).into_object().is_some_and(|c| is_protected(&c))
        {
            self.sources.add(key.clone());
        }
    }

    /// Reconciles the finalizer of a source claim.
    pub(super) async fn reconcile_source(&self, key: &ClaimKey) -> Action {
        for _ in 0..MAX_EFFECTS {
            let Lookup::Found(claim) = self.context.cache.claims.get(key) else { return Action::Done };
            let recorder = self.context.recorders.of_claim(key);
            let is_managed_driver = |driver: &DriverName| {
                self.context.drivers.contains_key(driver) && self.context.local_node_of(driver).is_none()
            };
            let has_intent = |uid: &Uid| self.has_intent_for(uid);
            let cache = &self.context.cache;
            match source::claim::decide_source_protection(cache, &claim, &is_managed_driver, &has_intent) {
                SourceProtectionVerdict::NoAction => return Action::Done,
                // A change of that claim enqueues this one; the removal of an intent does not.
                SourceProtectionVerdict::Wait(_) => return Action::Backoff,
                SourceProtectionVerdict::Remove(index) => {
                    let finalizer = names::CLONING_PROTECTION;
                    let mut finalizers = [(index, finalizer)];
                    let write =
                        self.context.writer.remove_finalizers::<Claim>(key, &claim.meta.uid, &mut finalizers);
                    let text = "removes the finalizer of a claim that was cloned";
                    if let Err(error) = recorder.record_effect(text, write).await {
                        return action_for_write_error::<Claim>(&self.context.writer, key, &error).await;
                    }
                }
            }
        }
        Action::Requeue
    }
}
