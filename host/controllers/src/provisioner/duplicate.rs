//! Deletes a volume that the driver has created for a claim whose PersistentVolume has another volume: another
//! process or a user created that PersistentVolume during the call. Without this deletion the volume would be
//! forgotten, because the intent of a claim with a PersistentVolume is removed.

use std::sync::Arc;

use cofferdam_cluster::{
    ApiError, Intent, deletion_freeze, observer::StepResult, queue::Action, reflector::Scope,
};
use cofferdam_domain::{Volume, VolumeName, storage::CreatedVolume};
use tokio::time::Instant;

use super::reconcile::Provisioner;
use crate::{drivers::ManagedDriver, step_recorder::StepRecorder};

/// Returns true if the PersistentVolume has the volume that the driver created for the intent.
pub(super) fn has_created_volume(volume: &Volume, intent: &Intent, created: &CreatedVolume) -> bool {
    volume.csi.as_ref().is_some_and(|csi| csi.driver == intent.driver && csi.handle == created.handle)
}

/// Result of live reads about the volume.
enum DuplicateCheck {
    /// No PersistentVolume has the volume, and the claim's has another one.
    Duplicate,
    /// A PersistentVolume has the volume, or the claim's PersistentVolume is deleted: the claim is decided
    /// again.
    Resolved,
    /// A PersistentVolume that cannot be decoded may have the volume.
    Undecided(VolumeName),
}

impl Provisioner {
    /// As [`delete_duplicate`](Self::delete_duplicate), for a volume whose deletion has failed before.
    pub(super) async fn retry_duplicate(
        &self,
        driver: &ManagedDriver,
        intent: &Arc<Intent>,
        created: &CreatedVolume,
    ) -> Action {
        if let Some(time_left) = self.call_backoff.time_left(&intent.claim_uid) {
            return Action::RequeueAfter(time_left);
        }
        let action = self.delete_duplicate(driver, intent, created).await;
        if matches!(action, Action::Backoff | Action::BackoffFor(_)) {
            self.call_backoff.record_failure(intent, None);
        }
        action
    }

    /// Deletes the volume `created`, which the claim's PersistentVolume does not have. Until then the intent
    /// stays, and later reconciles of the claim continue with
    /// [`retry_duplicate`](Self::retry_duplicate). After it, the next reconcile removes the intent.
    pub(super) async fn delete_duplicate(
        &self,
        driver: &ManagedDriver,
        intent: &Arc<Intent>,
        created: &CreatedVolume,
    ) -> Action {
        let uid = &intent.claim_uid;
        let recorder = self.context.recorders.of_claim(&intent.claim);
        // 1. Delete nothing while deletions are frozen.
        if deletion_freeze::is_frozen(&self.context.cache) {
            return self.wait_for_unfreeze(&recorder);
        }

        // 2. Read the Secret, so that no request separates the checks from the deletion.
        let secret = intent.secrets.provisioner.as_ref();
        let secrets = match self.read_delete_secret(secret, &intent.request.name).await {
            Ok(secrets) => secrets,
            Err(error) => return self.fail_duplicate(intent, created, &error.to_string(), &recorder),
        };

        // 3. Check with live reads that no PersistentVolume has the volume.
        match self.check_duplicate(intent, created).await {
            Ok(DuplicateCheck::Duplicate) => {}
            Ok(DuplicateCheck::Resolved) => {
                self.duplicates.lock().remove(uid);
                return Action::Requeue;
            }
            Ok(DuplicateCheck::Undecided(name)) => {
                let reason = format!("PersistentVolume {name} cannot be decoded and may refer to it");
                return self.fail_duplicate(intent, created, &reason, &recorder);
            }
            Err(error) => return self.fail_duplicate(intent, created, &error.to_string(), &recorder),
        }
        if deletion_freeze::is_frozen(&self.context.cache) {
            return self.wait_for_unfreeze(&recorder);
        }

        // 4. Delete the volume.
        let call = self.context.calls.call(&self.context.term, secrets);
        let started = Instant::now();
        if let Err(error) = driver.backend.delete_volume(call, created.handle.clone()).await {
            return self.fail_duplicate(intent, created, &error.to_string(), &recorder);
        }
        let text =
            format!("{} deletes the volume {}: the claim has another one", intent.driver, created.handle);
        recorder.record(StepResult::Applied, text, Some(started.elapsed()));
        self.duplicates.lock().remove(uid);
        Action::Requeue
    }

    async fn check_duplicate(
        &self,
        intent: &Intent,
        created: &CreatedVolume,
    ) -> Result<DuplicateCheck, ApiError> {
        let name = VolumeName::from(intent.request.name.as_str());
        let volume = self.context.writer.get::<Volume>(&name).await?;
        if volume.is_none_or(|volume| has_created_volume(&volume, intent, created)) {
            return Ok(DuplicateCheck::Resolved);
        }
        let list = |_| async {
            let volumes = self.context.writer.list_scope::<Volume>(&Scope::default()).await?;
            Ok::<_, ApiError>(volumes.into_iter().find_map(Result::err).map(|undecodable| undecodable.key))
        };
        if let Some(undecodable) = self.volume_lists.read_live("", list).await? {
            return Ok(DuplicateCheck::Undecided(undecodable));
        }
        if self.other_volume_with_handle(intent, created).is_some() {
            return Ok(DuplicateCheck::Resolved);
        }
        self.context.restore_check.detect_live().await?;
        Ok(DuplicateCheck::Duplicate)
    }

    fn wait_for_unfreeze(&self, recorder: &StepRecorder) -> Action {
        recorder.record(StepResult::Waiting, "deletions are frozen since the cluster was restored", None);
        Action::BackoffFor(self.context.calls.retry_interval_max)
    }

    fn fail_duplicate(
        &self,
        intent: &Intent,
        created: &CreatedVolume,
        reason: &str,
        recorder: &StepRecorder,
    ) -> Action {
        let text = format!(
            "cannot delete volume {}, which driver {} created although PersistentVolume {} has another one: \
             {reason}",
            created.handle, intent.driver, intent.request.name
        );
        recorder.record(StepResult::Failed, text.clone(), None);
        self.backoff_after_failure(&intent.claim_uid, text, false)
    }
}
