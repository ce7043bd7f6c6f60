//! Deletes a volume that the driver has created and that its claim does not need. Live reads precede the
//! deletion.

use std::sync::Arc;

use cofferdam_cluster::{
    ApiError, Intent, JournalError, Lookup, deletion_freeze, observer::StepResult, queue::Action,
    reflector::Scope,
};
use cofferdam_domain::{
    Claim, Volume, VolumeHandle, VolumeName,
    storage::{CreatedVolume, Secrets},
};
use tokio::time::Instant;

use super::{placement, reconcile::Provisioner, rules};
use crate::{drivers::ManagedDriver, step_recorder::StepRecorder};

/// A created volume has got no PersistentVolume and was not deleted: its intent remains.
#[derive(Debug)]
pub(super) struct CompletionError {
    /// The action that the reconcile of the claim returns.
    pub(super) action: Action,
    /// The reason.
    pub(super) message: String,
}

/// Result of live reads about a created volume.
enum CreatedVolumeCheck {
    /// No claim needs the volume, and no PersistentVolume refers to it.
    Unneeded,
    /// The claim needs the volume, or has it.
    Needed,
    /// A PersistentVolume refers to the volume; the message names it.
    Referenced(String),
    /// A PersistentVolume that cannot be decoded may refer to the volume; the message names it.
    Undecided(String),
}

/// Returns true if the PersistentVolume has the volume that the driver created for the intent.
pub(super) fn has_created_volume(volume: &Volume, intent: &Intent, created: &VolumeHandle) -> bool {
    volume.csi.as_ref().is_some_and(|csi| csi.driver == intent.driver && csi.handle == *created)
}

/// The reason why a created volume gets no PersistentVolume and is not deleted: the PersistentVolume `other`
/// refers to it.
pub(super) fn referenced_volume_message(
    intent: &Intent,
    handle: &VolumeHandle,
    other: &VolumeName,
) -> String {
    let driver = &intent.driver;
    format!("driver {driver} returned volume {handle}, which PersistentVolume {other} refers to already")
}

impl Provisioner {
    /// Deletes a volume that no claim needs, by its handle, then removes the intent. The handle is written to
    /// the intent before. `message` is the reason for an event on the claim, which is then retried with
    /// back-off; `None` if the volume is deleted only because no claim needs it.
    ///
    /// # Errors
    /// The volume may still exist, or its claim needs another one: retried with back-off.
    pub(super) async fn delete_unneeded(
        &self,
        driver: &ManagedDriver,
        intent: &Arc<Intent>,
        created: &CreatedVolume,
        message: Option<String>,
        recorder: &StepRecorder,
    ) -> Result<Action, CompletionError> {
        let handle = &created.handle;
        let secrets = self.prepare_deletion(intent, handle, recorder).await?;
        let check = self.check_created_volume(intent, created).await;
        if let Some(action) = self.act_on_check(driver, intent, check, recorder)? {
            return Ok(action);
        }
        let recorded = self.record_unneeded(driver, intent, handle, recorder).await?;
        self.call_delete(driver, &recorded, handle, secrets, message, recorder).await
    }

    /// As [`delete_unneeded`](Self::delete_unneeded), for a volume that the intent names as unneeded. The
    /// driver may have deleted it already: no claim gets it any more.
    ///
    /// # Errors
    /// The volume may still exist: retried with back-off.
    pub(super) async fn delete_recorded(
        &self,
        driver: &ManagedDriver,
        intent: &Arc<Intent>,
        handle: &VolumeHandle,
        recorder: &StepRecorder,
    ) -> Result<Action, CompletionError> {
        let secrets = self.prepare_deletion(intent, handle, recorder).await?;
        let check = self.check_references(intent, handle).await;
        if matches!(check, Ok(CreatedVolumeCheck::Needed)) {
            // A user has created the claim's PersistentVolume for it.
            driver.journal.remove(intent);
            return Ok(Action::Requeue);
        }
        if let Some(action) = self.act_on_check(driver, intent, check, recorder)? {
            return Ok(action);
        }
        self.call_delete(driver, intent, handle, secrets, None, recorder).await
    }

    /// Returns the secrets of the deletion. They are read before the checks, so that fewer requests separate
    /// these from the deletion.
    ///
    /// # Errors
    /// Deletions are frozen, or the Secret cannot be read.
    async fn prepare_deletion(
        &self,
        intent: &Intent,
        handle: &VolumeHandle,
        recorder: &StepRecorder,
    ) -> Result<Secrets, CompletionError> {
        if deletion_freeze::is_frozen(&self.context.cache) {
            return Err(self.requeue_while_frozen(recorder));
        }
        let secret = intent.secrets.provisioner.as_ref();
        self.read_delete_secret(secret, &intent.request.name).await.map_err(|error| {
            let text = format!("cannot delete the unneeded volume {handle}: {error}");
            recorder.record(StepResult::Failed, text.clone(), None);
            self.fail_completion(intent, text, false)
        })
    }

    /// Returns `None` if the volume may be deleted, or the action that ends the reconcile of the claim.
    ///
    /// # Errors
    /// The volume is not deleted now.
    fn act_on_check(
        &self,
        driver: &ManagedDriver,
        intent: &Intent,
        check: Result<CreatedVolumeCheck, ApiError>,
        recorder: &StepRecorder,
    ) -> Result<Option<Action>, CompletionError> {
        match check {
            Ok(CreatedVolumeCheck::Unneeded) => {}
            Ok(CreatedVolumeCheck::Needed) => {
                let message = format!("claim {} needs the volume", intent.claim);
                return Err(CompletionError { action: Action::Backoff, message });
            }
            Ok(CreatedVolumeCheck::Undecided(message)) => {
                // The intent stays: it may be the only reference to the volume.
                recorder.record(StepResult::Failed, message.clone(), None);
                self.emit_provisioning_failed(&intent.claim_uid, message.clone());
                let action = Action::BackoffFor(self.context.calls.retry_interval_max);
                return Err(CompletionError { action, message });
            }
            Ok(CreatedVolumeCheck::Referenced(message)) => {
                recorder.record(StepResult::Failed, message.clone(), None);
                if self.context.cache.claim_by_uid(&intent.claim_uid).is_some() {
                    return Err(self.fail_completion(intent, message, true));
                }
                // The claim is deleted, and the volume belongs to the PersistentVolume that refers to it.
                driver.journal.remove(intent);
                return Ok(Some(Action::Done));
            }
            Err(error) => return Err(self.fail_completion(intent, error.to_string(), false)),
        }
        // A restore may have been detected by these reads, or by others.
        match deletion_freeze::is_frozen(&self.context.cache) {
            true => Err(self.requeue_while_frozen(recorder)),
            false => Ok(None),
        }
    }

    /// Writes the handle to the intent, so that a later attempt, also of another process, deletes the volume
    /// without a CreateVolume call. Such a call would be [blocked](cofferdam_backend::in_flight) by a
    /// deletion in doubt. Returns the intent with the handle.
    ///
    /// Without a record, this call deletes the volume of a late response after another process has taken the
    /// journal, or removed the intent or written another one: no process else knows of this volume.
    ///
    /// # Errors
    /// The intent was not written.
    async fn record_unneeded(
        &self,
        driver: &ManagedDriver,
        intent: &Intent,
        handle: &VolumeHandle,
        recorder: &StepRecorder,
    ) -> Result<Arc<Intent>, CompletionError> {
        let started = Instant::now();
        match driver.journal.record_unneeded(intent, handle).await {
            Ok(Some(recorded)) => Ok(recorded),
            Ok(None) | Err(JournalError::Lost(_)) => Ok(Arc::new(intent.with_unneeded(handle))),
            Err(error) => {
                let text = format!("cannot delete the unneeded volume {handle}: {error}");
                recorder.record(StepResult::Failed, text.clone(), Some(started.elapsed()));
                Err(self.fail_completion(intent, text, false))
            }
        }
    }

    async fn call_delete(
        &self,
        driver: &ManagedDriver,
        intent: &Intent,
        handle: &VolumeHandle,
        secrets: Secrets,
        message: Option<String>,
        recorder: &StepRecorder,
    ) -> Result<Action, CompletionError> {
        let call = self.context.calls.call(&self.context.term, secrets);
        let started = Instant::now();
        match driver.backend.delete_volume(call, handle.clone()).await {
            Ok(()) => {
                let text = format!("{} deletes the volume, which no claim needs", intent.driver);
                recorder.record(StepResult::Applied, text, Some(started.elapsed()));
                driver.journal.remove(intent);
                match message {
                    Some(message) => Err(self.fail_completion(intent, message, false)),
                    // The claim may need another volume.
                    None => Ok(Action::Requeue),
                }
            }
            Err(error) => {
                let text = format!("{} cannot delete the unneeded volume {handle}: {error}", intent.driver);
                recorder.record(StepResult::Failed, text.clone(), Some(started.elapsed()));
                let action = self.backoff_after_failure(
                    &intent.claim_uid,
                    message.unwrap_or_else(|| text.clone()),
                    false,
                );
                Err(CompletionError { action, message: text })
            }
        }
    }

    /// Emits the event of a failure after CreateVolume on the claim, if it still exists.
    pub(super) fn fail_completion(
        &self,
        intent: &Intent,
        message: String,
        permanent: bool,
    ) -> CompletionError {
        let action = self.backoff_after_failure(&intent.claim_uid, message.clone(), permanent);
        CompletionError { action, message }
    }

    /// Returns the action while deletions are frozen. The intent stays until an operator deletes the
    /// restore marker. An intent that is missing from the backup is lost when the manager replaces the
    /// cache: its volume is an orphan then, like every volume created since the backup.
    fn requeue_while_frozen(&self, recorder: &StepRecorder) -> CompletionError {
        let message = "deletions are frozen since the cluster was restored".to_owned();
        recorder.record(StepResult::Waiting, message.clone(), None);
        CompletionError { action: Action::BackoffFor(self.context.calls.retry_interval_max), message }
    }

    /// Checks with live reads that no PersistentVolume refers to the volume and that no claim needs it. A
    /// PersistentVolume may have been created by another process, by a user, or by a request without a
    /// response; a claim may be missing from the cache.
    async fn check_created_volume(
        &self,
        intent: &Intent,
        created: &CreatedVolume,
    ) -> Result<CreatedVolumeCheck, ApiError> {
        // 1. The PersistentVolumes.
        let references = self.check_references(intent, &created.handle).await?;
        if !matches!(references, CreatedVolumeCheck::Unneeded) {
            return Ok(references);
        }

        // 2. The claim.
        self.context.writer.refresh::<Claim>(&intent.claim).await?;

        // 3. The claim does not need a volume that is too small, or whose name is taken.
        let name = VolumeName::from(intent.request.name.as_str());
        let too_small =
            created.capacity.is_some_and(|bytes| bytes > 0 && Some(bytes) < intent.request.capacity.required);
        let is_name_taken = matches!(self.context.cache.volumes.get(&name), Lookup::Found(_));
        let local_node = self.context.local_node.as_ref();
        let is_needed =
            !too_small && !is_name_taken && rules::is_needed(&self.context.cache, local_node, intent);
        Ok(if is_needed { CreatedVolumeCheck::Needed } else { CreatedVolumeCheck::Unneeded })
    }

    /// Checks with live reads that no PersistentVolume refers to the volume.
    async fn check_references(
        &self,
        intent: &Intent,
        handle: &VolumeHandle,
    ) -> Result<CreatedVolumeCheck, ApiError> {
        // 1. The PersistentVolume of the request's name.
        let name = VolumeName::from(intent.request.name.as_str());
        if let Some(volume) = self.context.writer.get::<Volume>(&name).await?
            && !self.is_on_other_node(intent, &volume)
            && has_created_volume(&volume, intent, handle)
        {
            let is_of_claim =
                volume.claim_ref.as_ref().and_then(|r| r.uid.as_ref()) == Some(&intent.claim_uid);
            return Ok(match is_of_claim {
                true => CreatedVolumeCheck::Needed,
                false => CreatedVolumeCheck::Referenced(referenced_volume_message(intent, handle, &name)),
            });
        }

        // 2. Every other PersistentVolume. The list updates the cache. Concurrent checks share it: many
        //    claims may be deleted at once while the driver creates their volumes.
        let list = |_| async {
            let volumes = self.context.writer.list_scope::<Volume>(&Scope::default()).await?;
            Ok::<_, ApiError>(volumes.into_iter().find_map(Result::err).map(|undecodable| undecodable.key))
        };
        if let Some(key) = self.volume_lists.read_live("", list).await? {
            return Ok(CreatedVolumeCheck::Undecided(format!(
                "PersistentVolume {key} cannot be decoded and may refer to volume {handle}: \
                 the volume is not deleted"
            )));
        }
        if let Some(other) = self.other_volume_with_handle(intent, handle) {
            return Ok(CreatedVolumeCheck::Referenced(referenced_volume_message(intent, handle, &other)));
        }

        // 3. The current resourceVersions: the reads above may be of a restored cluster.
        self.context.restore_check.detect_live().await?;
        Ok(CreatedVolumeCheck::Unneeded)
    }

    /// Returns the name of another PersistentVolume in the cache that refers to the volume, or `None`. A
    /// PersistentVolume of a node-local driver on another node does not count: the driver may use the same
    /// handle there for another volume.
    pub(super) fn other_volume_with_handle(
        &self,
        intent: &Intent,
        handle: &VolumeHandle,
    ) -> Option<VolumeName> {
        let name = VolumeName::from(intent.request.name.as_str());
        let may_share_storage = |other: &Volume| !self.is_on_other_node(intent, other);
        self.context.cache.other_volume_with_handle(&intent.driver, handle, &name, may_share_storage)
    }

    pub(super) fn is_on_other_node(&self, intent: &Intent, volume: &Volume) -> bool {
        placement::is_on_other_node(self.context.local_node.as_ref(), intent, volume)
    }
}
