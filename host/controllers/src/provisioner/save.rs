//! Creates the PersistentVolume of a volume that the driver has created.

use std::sync::Arc;

use cofferdam_cluster::{ApiError, Intent, observer::StepResult, queue::Action};
use cofferdam_domain::{AccessMode, Volume, VolumeName, storage::CreatedVolume};
use tokio::time::Instant;

use super::{
    object::{self, ClaimFields},
    reconcile::Provisioner,
    rules,
    undo::{CompletionError, has_created_volume, referenced_volume_message},
};
use crate::{drivers::ManagedDriver, events::EventSpec, step_recorder::StepRecorder};

impl Provisioner {
    /// Creates the PersistentVolume, then removes the intent. Creates none if another PersistentVolume refers
    /// to the volume already. `started`: the start of the driver call, for the metric of the duration.
    ///
    /// # Errors
    /// The PersistentVolume was not created: retried with back-off.
    pub(super) async fn save(
        &self,
        driver: &ManagedDriver,
        intent: &Arc<Intent>,
        mut created: CreatedVolume,
        capacity: u64,
        recorder: &StepRecorder,
        started: Instant,
    ) -> Result<Action, CompletionError> {
        // 1. Two PersistentVolumes must not refer to one volume: to delete one would delete the other's data.
        if let Some(other) = self.other_volume_with_handle(intent, &created.handle) {
            let message = referenced_volume_message(intent, &created.handle, &other);
            recorder.record(StepResult::Failed, message.clone(), None);
            return Err(self.fail_completion(intent, message, true));
        }

        // 2. Create the PersistentVolume.
        let claim = self.context.cache.claims.get(&intent.claim).into_object();
        let claim = claim.filter(|claim| claim.meta.uid == intent.claim_uid);
        let access_modes =
            claim.as_ref().map_or_else(|| rules::modes_of(&intent.request), |claim| claim.access_modes);
        let is_read_only_many = access_modes.iter().eq([AccessMode::ReadOnlyMany]);
        let claim_fields = ClaimFields {
            access_modes,
            version: claim.as_ref().map(|claim| claim.meta.resource_version.to_string()),
            read_only: self.context.options.controller_publish_read_only && is_read_only_many,
        };
        if !self.context.options.topology_drivers.contains(&intent.driver) {
            created.topology.clear();
        }
        let body = object::persistent_volume(intent, &created, capacity, &driver.identity, &claim_fields);
        let write = self.context.writer.create::<Volume>(None, &body);
        let text = format!("creates PersistentVolume {}", intent.request.name);
        match recorder.record_effect(&text, write).await {
            // 3. Remove the intent.
            Ok(_) => {
                driver.journal.remove(intent);
                self.context.metrics.record_provision(intent, started.elapsed());
                self.emit_provisioning_succeeded(driver, intent);
                Ok(Action::Done)
            }
            Err(ApiError::AlreadyExists(_)) => {
                self.resolve_name_conflict(driver, intent, &created, recorder).await
            }
            // The volume is kept although its PersistentVolume cannot be created: the intent stays in the
            // journal, and its request is repeated.
            Err(error) => Err(self.fail_completion(intent, error.to_string(), false)),
        }
    }

    /// Emits the event of a provisioned claim.
    pub(super) fn emit_provisioning_succeeded(&self, driver: &ManagedDriver, intent: &Intent) {
        if let Some(claim) = self.context.cache.claim_by_uid(&intent.claim_uid) {
            let text = format!("Successfully provisioned volume {}", intent.request.name);
            let event = EventSpec::normal("ProvisioningSucceeded", text);
            self.context.events.emit(&*claim, &driver.component, event);
        }
    }

    /// Handles the case that a PersistentVolume of this name exists already. It belongs to this claim, and
    /// was created for example before a crash or on another node; or it does not belong to this claim.
    async fn resolve_name_conflict(
        &self,
        driver: &ManagedDriver,
        intent: &Arc<Intent>,
        created: &CreatedVolume,
        recorder: &StepRecorder,
    ) -> Result<Action, CompletionError> {
        let name = VolumeName::from(intent.request.name.as_str());
        match self.context.writer.get::<Volume>(&name).await {
            // The claim has a volume on another node. No PersistentVolume refers to this one, whatever its
            // handle is.
            Ok(Some(volume)) if self.is_on_other_node(intent, &volume) => {
                self.delete_unneeded(driver, intent, created, None, recorder).await
            }
            Ok(Some(volume))
                if volume.claim_ref.as_ref().and_then(|r| r.uid.as_ref()) == Some(&intent.claim_uid) =>
            {
                // Another process or a user created the PersistentVolume during the call, for another volume.
                if !has_created_volume(&volume, intent, &created.handle) {
                    return self.delete_unneeded(driver, intent, created, None, recorder).await;
                }
                self.emit_provisioning_succeeded(driver, intent);
                driver.journal.remove(intent);
                Ok(Action::Done)
            }
            Ok(Some(volume)) if volume.csi.as_ref().is_some_and(|csi| csi.handle == created.handle) => {
                let message = format!(
                    "a PersistentVolume {name} exists already, uses the volume {} and is not of this claim",
                    created.handle
                );
                Err(self.fail_completion(intent, message, true))
            }
            Ok(Some(_)) => {
                let message = format!("a PersistentVolume {name} exists already and is not of this claim");
                self.delete_unneeded(driver, intent, created, Some(message), recorder).await
            }
            Ok(None) => {
                let message = format!("PersistentVolume {name} existed, and was deleted since");
                Err(CompletionError { action: Action::Backoff, message })
            }
            Err(error) => Err(self.fail_completion(intent, error.to_string(), false)),
        }
    }
}
