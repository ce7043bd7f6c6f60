//! Modifies volumes as [`modification`] decides, one effect at a time.

use cofferdam_backend::Backend;
use cofferdam_cluster::{Lookup, observer::StepResult, queue::Action, writer::PatchTarget as Endpoint};
use cofferdam_domain::{
    Claim, ClaimKey, DriverName, ModifyState, Uid, Volume, names,
    storage::{Parameters, StorageError},
    volume::SecretRef,
};
use tokio::time::Instant;

use super::{
    modification::{self, ModificationInput, ModificationVerdict, ModifyCall},
    object,
    reconcile::Resizer,
    rules::ResizeFailure,
    state::ResizeOperation,
    state::time_left,
};
use crate::{
    events::EventSpec,
    reconcile::{EVENT_REPEAT_INTERVAL, MAX_EFFECTS},
};

const VOLUME_MODIFY_FAILED: &str = "VolumeModifyFailed";

impl Resizer {
    /// Reconciles the modification of one claim. See [`modification::decide_modification`].
    pub(super) async fn reconcile_modification(
        &self,
        name: &DriverName,
        driver: &dyn Backend,
        key: &ClaimKey,
    ) -> Action {
        let mut completed: Option<(Uid, Box<str>)> = None;
        for _ in 0..MAX_EFFECTS {
            let Lookup::Found(claim) = self.context.cache.claims.get(key) else { return Action::Done };
            if !self.is_managed_claim(name, &claim) {
                return Action::Done;
            }
            let state = self.state.modification(&claim.meta.uid);
            let wait = time_left(state.infeasible.as_ref());
            let infeasible =
                state.infeasible.as_ref().filter(|_| wait.is_some()).map(|(target, _)| &**target);
            let input = ModificationInput {
                cache: &self.context.cache,
                abilities: Self::abilities(driver),
                is_last_call_final: state.is_last_call_final,
                infeasible,
                pending_reported: state
                    .pending_reported
                    .as_ref()
                    .filter(|pending| self::time_left(Some(pending)).is_some())
                    .map(|(pending, _)| &**pending),
                completed: completed.as_ref().map(|(uid, target)| (uid, &**target)),
            };
            let result = match modification::decide_modification(input, &claim) {
                ModificationVerdict::NoAction(_) => {
                    if claim.progress().modification.is_none() {
                        self.state.remove_modification(&claim.meta.uid);
                    }
                    return Action::Done;
                }
                ModificationVerdict::WaitForRetry => {
                    return wait.map_or(Action::Requeue, Action::RequeueAfter);
                }
                ModificationVerdict::Reject(problem) => {
                    self.emit_failure(name, &claim, VOLUME_MODIFY_FAILED, problem);
                    return Action::Done;
                }
                ModificationVerdict::Retry(problem) => {
                    self.emit_failure(name, &claim, VOLUME_MODIFY_FAILED, problem);
                    return Action::Backoff;
                }
                ModificationVerdict::Modify(modify) => {
                    let target = modify.target.clone();
                    let done = self.call_modify(name, driver, &claim, *modify).await;
                    done.map(|()| completed = Some((claim.meta.uid.clone(), target)))
                }
                verdict @ (ModificationVerdict::Cancel
                | ModificationVerdict::MarkPending(..)
                | ModificationVerdict::MarkInProgress(_)
                | ModificationVerdict::UpdateVolumeClass(..)
                | ModificationVerdict::MarkFinished(_)) => {
                    self.write_modification(name, &claim, verdict).await
                }
            };
            if let Err(outcome) = result {
                return outcome;
            }
        }
        Action::Requeue
    }

    /// Performs a verdict that is an event, or a write of the claim's status or of the PersistentVolume.
    async fn write_modification(
        &self,
        name: &DriverName,
        claim: &Claim,
        verdict: ModificationVerdict,
    ) -> Result<(), Action> {
        let now = (self.context.clock)();
        let claim_name = &claim.key.name;
        let (text, patch, event) = match verdict {
            ModificationVerdict::UpdateVolumeClass(volume, target) => {
                let text = "sets the class of the PersistentVolume";
                let patch = object::attributes_class_patch(&target);
                return self.write_volume((name, claim, VOLUME_MODIFY_FAILED), &volume, text, patch).await;
            }
            ModificationVerdict::Cancel => {
                let event = EventSpec::normal(
                    "VolumeModifyCanceled",
                    format!("claim {claim_name} no longer requests a VolumeAttributesClass"),
                );
                ("cancels the modification", object::modification_cancelled_patch(claim, now), event)
            }
            ModificationVerdict::MarkPending(target, problem) => {
                self.state.update_modification(&claim.meta.uid, |state| {
                    state.pending_reported = Some((target, Instant::now() + EVENT_REPEAT_INTERVAL));
                });
                let event = EventSpec::warning(VOLUME_MODIFY_FAILED, problem);
                if claim.progress().modification.as_ref().is_some_and(modification::is_pending) {
                    self.emit_event(name, claim, event);
                    return Ok(());
                }
                ("waits for its VolumeAttributesClass", object::modification_pending_patch(), event)
            }
            ModificationVerdict::MarkInProgress(target) => {
                // The text of external-resizer.
                let text = format!("external resizer is modifying volume {claim_name} with vac {target}");
                let patch = object::modification_in_progress_patch(claim, now, &target);
                ("starts the modification", patch, EventSpec::normal("VolumeModify", text))
            }
            ModificationVerdict::MarkFinished(target) => {
                let text =
                    format!("external resizer modified volume {claim_name} with vac {target} successfully");
                let patch = object::modification_finished_patch(claim, now, &target);
                ("finishes the modification", patch, EventSpec::normal("VolumeModifySuccessful", text))
            }
            ModificationVerdict::NoAction(_)
            | ModificationVerdict::WaitForRetry
            | ModificationVerdict::Retry(_)
            | ModificationVerdict::Reject(_)
            | ModificationVerdict::Modify(_) => return Ok(()),
        };
        let (writer, version) = (&self.context.writer, claim.meta.resource_version);
        let write = writer.strategic_merge_patch::<Claim>(&claim.key, Endpoint::Status, version, patch);
        match self.recorder(claim).record_effect(text, write).await {
            Ok(_) => {
                self.emit_event(name, claim, event);
                Ok(())
            }
            Err(error) => self.handle_claim_write_error(name, claim, VOLUME_MODIFY_FAILED, &error).await,
        }
    }

    async fn call_modify(
        &self,
        name: &DriverName,
        driver: &dyn Backend,
        claim: &Claim,
        modify: ModifyCall,
    ) -> Result<(), Action> {
        let ModifyCall { volume, target, handle, mut parameters } = modify;
        let secret = secret_of(&volume);
        let secret = secret.as_ref();
        let (call, _running) = self
            .prepare_call((name, claim, VOLUME_MODIFY_FAILED), &volume, secret, ResizeOperation::Modification)
            .await?;
        if self.context.settings.extra_modify_metadata {
            add_metadata(&mut parameters, claim, &volume);
        }
        self.state.update_modification(&claim.meta.uid, |state| state.is_last_call_final = false);
        let started = Instant::now();
        match driver.modify_volume(call, handle, parameters).await {
            Ok(()) => {
                let text = format!("{name} modifies the volume to class {target}");
                self.recorder(claim).record(StepResult::Applied, text, Some(started.elapsed()));
                Ok(())
            }
            Err(error) => Err(self.handle_modification_failure(name, claim, &target, error).await),
        }
    }

    /// Records and emits the failure, and returns the action for the next attempt. Writes the failure to the
    /// status, unless the target class there has changed. Does nothing if the claim is deleted.
    async fn handle_modification_failure(
        &self,
        name: &DriverName,
        claim: &Claim,
        target: &str,
        error: StorageError,
    ) -> Action {
        if !self.is_claim_present(claim) {
            return Action::Done;
        }
        let failure = modification::classify_failure(&error);
        let infeasible = failure == ResizeFailure::Infeasible;
        let delay = self.context.calls.retry_interval_max;
        self.state.update_modification(&claim.meta.uid, |modification_state| {
            modification_state.is_last_call_final = failure != ResizeFailure::InDoubt;
            modification_state.infeasible = infeasible.then(|| (target.into(), Instant::now() + delay));
        });
        self.emit_failure(name, claim, VOLUME_MODIFY_FAILED, error.to_string());
        let state = if infeasible { ModifyState::Infeasible } else { ModifyState::InProgress };
        let error_text = (error.kind.as_str(), error.message.as_str());
        self.write_failure(claim, "reports the failed modification", |current| {
            let status = current.progress().modification.as_ref();
            status.filter(|status| &*status.target_class == target)?;
            let failed = (target, state, failure == ResizeFailure::InDoubt);
            object::modification_failed_patch(current, (self.context.clock)(), error_text, failed)
        })
        .await;
        if infeasible {
            return Action::BackoffFor(delay);
        }
        self.requeue_after(name, ResizeOperation::Modification, &claim.key, error.retry_after_ms)
    }
}

/// The Secret of a modification: the one that two annotations of the PersistentVolume name, else the Secret
/// of expansions. `None` if the PersistentVolume names neither.
fn secret_of(volume: &Volume) -> Option<SecretRef> {
    let annotation = |key| volume.meta.annotation(key).filter(|text| !text.is_empty());
    match (annotation(names::MODIFY_SECRET_NAME), annotation(names::MODIFY_SECRET_NAMESPACE)) {
        (Some(name), Some(namespace)) => Some(SecretRef { namespace: namespace.into(), name: name.into() }),
        _ => volume.csi.as_ref().and_then(|csi| csi.expand_secret.as_deref().cloned()),
    }
}

/// Adds the parameters of `--extra-modify-metadata`.
fn add_metadata(parameters: &mut Parameters, claim: &Claim, volume: &Volume) {
    let pairs = [
        ("csi.storage.k8s.io/pvc/name", &*claim.key.name),
        ("csi.storage.k8s.io/pvc/namespace", &*claim.key.namespace),
        ("csi.storage.k8s.io/pv/name", volume.name.as_str()),
    ];
    parameters.extend(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())));
}
