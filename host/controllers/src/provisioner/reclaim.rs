//! Reconciles PersistentVolumes, one step at a time. With the reclaim policy Delete, adds a finalizer while
//! they are Bound, and deletes volume and PersistentVolume when they are Released. With the policy Retain or
//! Recycle, removes the finalizer.

use cofferdam_cluster::{
    ApiError, Lookup, Precondition, deletion_freeze, observer::StepResult, queue::Action,
};
use cofferdam_domain::{
    Claim, DriverName, Volume, VolumeName, VolumePhase, names,
    storage::{Ability, ContentSource},
};
use tokio::time::Instant;

use super::{
    reconcile::Provisioner,
    rules::{self, ReclaimVerdict},
};
use crate::{
    attacher,
    events::EventSpec,
    node_local::{LocalNode, OnlyNodeError},
    protection,
    reconcile::{EVENT_REPEAT_INTERVAL, MAX_EFFECTS, action_for_write_error},
    step_recorder::StepRecorder,
};

/// Result of live reads, or of a release hint, about a volume that the cache shows as Released.
enum ReleaseCheck {
    /// The volume is Released, and its claim is deleted or bound to another volume.
    Released,
    /// The PersistentVolume is deleted or has changed, or its claim still exists and may use it.
    NotReleased,
}

impl Provisioner {
    /// Reconciles one PersistentVolume. See [`rules::decide_reclaim`].
    pub(super) async fn reconcile_volume(&self, name: &VolumeName) -> Action {
        let mut deleted = None;
        for _ in 0..MAX_EFFECTS {
            let Lookup::Found(volume) = self.context.cache.volumes.get(name) else { return Action::Done };
            let recorder = self.context.recorders.of_volume(&volume);
            let has_volume = |local_node: &LocalNode| local_node.has_volume(&volume, &self.context.cache);
            let local_node = self.context.local_node.as_ref().is_some_and(has_volume);
            let is_managed_driver = |driver: &DriverName| {
                self.context.drivers.contains_key(driver)
                    && (local_node || self.context.local_node_of(driver).is_none())
            };
            let writer = &self.context.writer;
            let uid = &volume.meta.uid;
            let result = match rules::decide_reclaim(
                &is_managed_driver,
                &volume,
                deleted.as_ref() == Some(uid),
                deletion_freeze::is_frozen(&self.context.cache),
            ) {
                ReclaimVerdict::NoAction(_) => return Action::Done,
                ReclaimVerdict::AddFinalizer => recorder
                    .record_effect(
                        "adds the finalizer of the PersistentVolume",
                        writer.add_finalizer(&*volume, names::PROVISIONER_FINALIZER),
                    )
                    .await
                    .map(drop),
                ReclaimVerdict::RemoveFinalizer(at) => {
                    self.remove_finalizers(&volume, at, volume.meta.deleting, &recorder).await
                }
                ReclaimVerdict::DeleteObject => self.delete_object(&volume, &recorder).await,
                ReclaimVerdict::DeleteObjectAndFinalizer(at) => {
                    let (deletion, removal) = tokio::join!(
                        self.delete_object(&volume, &recorder),
                        self.remove_finalizers(&volume, at, true, &recorder)
                    );
                    deletion.and(removal)
                }
                ReclaimVerdict::DeleteVolume => {
                    if let Some(outcome) = self.delete_volume(&volume, &recorder).await {
                        return outcome;
                    }
                    deleted = Some(uid.clone());
                    Ok(())
                }
                ReclaimVerdict::DeletionFrozen => return self.report_deletion_frozen(&volume, &recorder),
                ReclaimVerdict::InTreeSource => return self.report_in_tree_source(&volume, &recorder),
            };
            if let Err(error) = result {
                return action_for_write_error::<Volume>(&self.context.writer, name, &error).await;
            }
        }
        Action::Requeue
    }

    async fn delete_object(&self, volume: &Volume, recorder: &StepRecorder) -> Result<(), ApiError> {
        let precondition = Precondition { uid: Some(volume.meta.uid.clone()), resource_version: None };
        let write = self.context.writer.delete::<Volume>(&volume.name, &precondition);
        recorder.record_effect("deletes the PersistentVolume", write).await
    }

    /// Removes the provisioner's finalizer, which is at `index`. If the PersistentVolume is deleted, before
    /// or at the same time, the same write removes the finalizers of the protection controller and of the
    /// attacher, if these run in this process: several writers of one list would conflict.
    async fn remove_finalizers(
        &self,
        volume: &Volume,
        index: usize,
        is_deleted: bool,
        recorder: &StepRecorder,
    ) -> Result<(), ApiError> {
        let context = &self.context;
        let attached_by = volume.csi.as_ref().filter(|_| context.runs_attacher).map(|csi| &csi.driver);
        let attacher_finalizer = attached_by.map(names::attacher_finalizer).unwrap_or_default();
        let mut finalizers = vec![(index, names::PROVISIONER_FINALIZER)];
        if is_deleted {
            let protection = protection::rules::removable_volume_finalizer(volume);
            let protection = protection.filter(|_| context.runs_protection);
            finalizers.extend(protection.map(|at| (at, names::PV_PROTECTION)));
            let attacher =
                attached_by.and_then(|_| attacher::rules::unused_volume_finalizer(&context.cache, volume));
            finalizers.extend(attacher.map(|at| (at, &*attacher_finalizer)));
        }
        let write =
            context.writer.remove_finalizers::<Volume>(&volume.name, &volume.meta.uid, &mut finalizers);
        recorder.record_effect("removes the finalizer of the PersistentVolume", write).await.map(drop)
    }

    /// Deletes the volume at the driver. Since this effect cannot be undone, PersistentVolume and claim are
    /// read from the API server first, and then the current resourceVersions, which show a restore. These
    /// reads are omitted if the PersistentVolume controller of this process is setting the phase to
    /// Released, or has just done so. Returns `None` if the driver deleted the volume, else the action that
    /// the reconcile of the PersistentVolume returns.
    async fn delete_volume(&self, volume: &Volume, recorder: &StepRecorder) -> Option<Action> {
        // 1. Check what the cache knows: other PersistentVolumes of the volume, VolumeAttachments.
        let Some(csi) = &volume.csi else { return Some(Action::Done) };
        let Some(driver) = self.context.drivers.get(&csi.driver) else { return Some(Action::Done) };
        let local_node = self.context.local_node_of(&csi.driver);
        let segments =
            local_node.and_then(|local_node| local_node.segments(&csi.driver, &self.context.cache).ok());
        let may_share_storage =
            |other: &Volume| !segments.as_ref().is_some_and(|segments| other.is_inaccessible_from(segments));
        let cache = &self.context.cache;
        if let Some(other) =
            cache.other_volume_with_handle(&csi.driver, &csi.handle, &volume.name, may_share_storage)
        {
            let text = format!(
                "PersistentVolume {other} refers to the same volume {}: it is not deleted",
                csi.handle
            );
            self.context.events.emit(
                volume,
                &driver.component,
                EventSpec::warning("VolumeFailedDelete", text),
            );
            return Some(Action::BackoffFor(self.context.calls.retry_interval_max));
        }
        if let Some(claim) = driver.journal.claim_with_source(&ContentSource::Volume(csi.handle.clone())) {
            let text = format!("claim {claim} is cloned from the volume: it is not deleted yet");
            recorder.record(StepResult::Waiting, text.clone(), None);
            let event = EventSpec::warning("VolumeFailedDelete", text);
            self.context.events.emit(volume, &driver.component, event);
            return Some(Action::Backoff);
        }
        if let Some(local_node) = local_node
            && let Err(error) = local_node.check_only_node(volume, &self.context.writer).await
        {
            let text = format!("{error}: the volume is not deleted");
            recorder.record(StepResult::Failed, text.clone(), None);
            let event = EventSpec::warning("VolumeFailedDelete", text);
            self.context.events.emit(volume, &driver.component, event);
            return Some(match error {
                OnlyNodeError::Other { .. } => Action::BackoffFor(self.context.calls.retry_interval_max),
                OnlyNodeError::Segments(_) | OnlyNodeError::Read(_) => Action::Backoff,
            });
        }
        // Node-local volumes are not attached, and their VolumeAttachments not watched.
        let publishes = local_node.is_none() && driver.backend.abilities().contains(&Ability::Publishing);
        let attached = self.context.cache.attachments_of_volume(&volume.name);
        if let Some(attachment) = attached.first().filter(|_| publishes) {
            let text =
                format!("persistentvolume {} is still attached to node {}", volume.name, attachment.node);
            recorder.record(StepResult::Waiting, text.clone(), None);
            self.context.events.emit(
                volume,
                &driver.component,
                EventSpec::warning("VolumeFailedDelete", text),
            );
            return Some(Action::Backoff);
        }

        // 2. Read the Secret, so that no request separates the next check from the deletion.
        let secrets = match self.read_secret_of(volume).await {
            Ok(secrets) => secrets,
            Err(error) => {
                let text = error.to_string();
                recorder.record(StepResult::Failed, text.clone(), None);
                let event = EventSpec::warning("VolumeFailedDelete", text);
                self.context.events.emit(volume, &driver.component, event);
                return Some(Action::Backoff);
            }
        };

        // 3. Check that the volume is Released, and its claim deleted or bound to another volume.
        match self.check_release(volume).await {
            Ok(ReleaseCheck::Released) => {}
            // The PersistentVolume or its claim differs from the cache; the change enqueues the volume.
            Ok(ReleaseCheck::NotReleased) => return Some(Action::Backoff),
            Err(error) => {
                return Some(
                    action_for_write_error::<Volume>(&self.context.writer, &volume.name, &error).await,
                );
            }
        }
        // A restore may have been detected by these reads, by others, or before the release hint.
        if deletion_freeze::is_frozen(&self.context.cache) {
            return Some(self.report_deletion_frozen(volume, recorder));
        }

        // 4. Call the driver.
        let call = self.context.calls.call(&self.context.term, secrets);
        let started = Instant::now();
        let class = volume.class.as_ref().into();
        match driver.backend.delete_volume(call, csi.handle.clone()).await {
            Ok(()) => {
                self.context.metrics.record_deletion(&class, started.elapsed());
                recorder.record(
                    StepResult::Applied,
                    format!("{} deletes the volume", csi.driver),
                    Some(started.elapsed()),
                );
                None
            }
            Err(error) => {
                self.context.metrics.record_deletion_failure(&class);
                let text = format!("{} cannot delete the volume: {error}", csi.driver);
                recorder.record(StepResult::Failed, text, Some(started.elapsed()));
                let event = EventSpec::warning("VolumeFailedDelete", error.to_string());
                self.context.events.emit(volume, &driver.component, event);
                Some(Action::Backoff)
            }
        }
    }

    /// Checks that the volume is Released and its claim deleted or bound to another volume: with live reads,
    /// or with a current release hint of the PersistentVolume controller of this process. Waits until that
    /// controller has written the phase and has checked whether the cluster was restored.
    async fn check_release(&self, volume: &Volume) -> Result<ReleaseCheck, ApiError> {
        if self.release_hints.take(volume).await {
            return Ok(ReleaseCheck::Released);
        }
        let Some(live) = self.context.writer.get::<Volume>(&volume.name).await? else {
            return Ok(ReleaseCheck::NotReleased);
        };
        let same = live.meta.uid == volume.meta.uid && live.phase == VolumePhase::Released;
        if !same || live.reclaim_policy != volume.reclaim_policy {
            return Ok(ReleaseCheck::NotReleased);
        }
        let Some(claim_ref) = live.claim_ref.as_ref().filter(|r| r.uid.is_some()) else {
            return Ok(ReleaseCheck::NotReleased);
        };
        let claim = self.context.writer.get::<Claim>(&claim_ref.key).await?;
        self.context.restore_check.detect_live().await?;
        // A claim of this uid that is bound to another volume was provisioned twice; this volume is unused.
        let is_unclaimed = claim.is_none_or(|claim| {
            claim_ref.uid.as_ref() != Some(&claim.meta.uid)
                || claim.volume.is_some_and(|name| name != live.name)
        });
        Ok(if is_unclaimed { ReleaseCheck::Released } else { ReleaseCheck::NotReleased })
    }

    fn report_deletion_frozen(&self, volume: &Volume, recorder: &StepRecorder) -> Action {
        let text = format!(
            "The cluster was restored from a backup: the volume is not deleted until ConfigMap {}/{} is \
             deleted",
            self.context.namespace,
            deletion_freeze::RESTORE_MARKER_NAME
        );
        recorder.record(StepResult::Waiting, text.clone(), None);
        let event = EventSpec::warning("DeletionFrozen", text);
        let component = volume.csi.as_ref().and_then(|csi| self.context.drivers.get(&csi.driver));
        let component =
            component.map_or_else(|| "external-provisioner".into(), |driver| driver.component.clone());
        self.context.events.emit(volume, &component, event);
        Action::RequeueAfter(EVENT_REPEAT_INTERVAL)
    }

    /// Reports a released volume of an in-tree plugin that is migrated to a driver of this process.
    fn report_in_tree_source(&self, volume: &Volume, recorder: &StepRecorder) -> Action {
        let driver = volume.migrated_driver().map(DriverName::from);
        let driver = driver.and_then(|driver| self.context.drivers.get_key_value(&driver));
        let Some((name, driver)) = driver else { return Action::Done };
        let source = volume.in_tree_source.unwrap_or("unknown");
        let text = format!(
            "the volume source {source} belongs to an in-tree plugin, whose volumes this version of \
             Cofferdam does not delete: run csi-provisioner for {name}, or delete the volume in the storage \
             system, set persistentVolumeReclaimPolicy to Retain and delete the PersistentVolume"
        );
        recorder.record(StepResult::Failed, text.clone(), None);
        self.context.events.emit(volume, &driver.component, EventSpec::warning("VolumeFailedDelete", text));
        Action::RequeueAfter(EVENT_REPEAT_INTERVAL)
    }
}
