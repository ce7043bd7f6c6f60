//! Expands volumes as [`rules`] decides, one effect at a time.

use cofferdam_backend::Backend;
use cofferdam_cluster::{
    ApiError, Lookup,
    observer::StepResult,
    queue::Action,
    writer::{CachedKind, PatchTarget as Endpoint},
};
use cofferdam_domain::{
    Claim, ClaimKey, DriverName, Quantity, ResizeState, Volume,
    storage::{Ability, ErrorKind, Feature, Finality, StorageError},
};
use tokio::time::Instant;

use super::{
    object,
    reconcile::Resizer,
    rules::{
        self, ExpandCall, ExpansionInput, ExpansionResult, ExpansionVerdict, LastExpansion, ResizeFailure,
    },
    state::ResizeOperation,
    state::time_left,
};
use crate::{
    events::EventSpec,
    reconcile::{MAX_EFFECTS, action_for_write_error},
};

const VOLUME_RESIZE_FAILED: &str = "VolumeResizeFailed";

impl Resizer {
    /// Reconciles the expansion of one claim. See [`rules::decide_expansion`].
    pub(super) async fn reconcile_expansion(
        &self,
        name: &DriverName,
        driver: &dyn Backend,
        key: &ClaimKey,
    ) -> Action {
        let mut expansion_result: Option<ExpansionResult> = None;
        for _ in 0..MAX_EFFECTS {
            let Lookup::Found(claim) = self.context.cache.claims.get(key) else { return Action::Done };
            if !self.is_managed_claim(name, &claim) {
                return Action::Done;
            }
            let state = self.state.expansion(&claim.meta.uid);
            let wait = time_left(state.infeasible.as_ref());
            let infeasible = wait.is_some()
                && state.infeasible.map(|(target, _)| target) == claim.progress().allocated_resources;
            let last_expansion =
                LastExpansion { finality: state.last_finality, in_use: state.in_use, infeasible };
            let input = ExpansionInput {
                annotates_size: self.context.settings.annotate_fs_resize,
                cache: &self.context.cache,
                abilities: Self::abilities(driver),
                last_expansion,
                result: expansion_result.as_ref(),
            };
            let result = match rules::decide_expansion(input, &claim) {
                ExpansionVerdict::NoAction(_) => {
                    if claim.progress().resize.is_none() {
                        self.state.remove_expansion(&claim.meta.uid);
                    }
                    return Action::Done;
                }
                ExpansionVerdict::WaitForRetry => return wait.map_or(Action::Requeue, Action::RequeueAfter),
                ExpansionVerdict::Reject(problem) => {
                    self.emit_failure(name, &claim, VOLUME_RESIZE_FAILED, problem);
                    return Action::Done;
                }
                ExpansionVerdict::Retry(problem) => {
                    self.emit_failure(name, &claim, VOLUME_RESIZE_FAILED, problem);
                    return Action::Backoff;
                }
                ExpansionVerdict::Expand(expand) => {
                    let result = self.call_expand(name, driver, &claim, *expand).await;
                    result.map(|result| expansion_result = Some(result))
                }
                verdict @ (ExpansionVerdict::RemovePreResizeCapacity(_)
                | ExpansionVerdict::MarkInProgress(_)
                | ExpansionVerdict::UpdateVolumeCapacity(_)
                | ExpansionVerdict::MarkNodePending
                | ExpansionVerdict::MarkFinished(_)) => self.write_expansion(name, &claim, verdict).await,
            };
            if let Err(outcome) = result {
                return outcome;
            }
        }
        Action::Requeue
    }

    /// Performs a verdict that is a write of the claim's status or of the PersistentVolume.
    async fn write_expansion(
        &self,
        name: &DriverName,
        claim: &Claim,
        verdict: ExpansionVerdict,
    ) -> Result<(), Action> {
        let (writer, now, recorder) = (&self.context.writer, (self.context.clock)(), self.recorder(claim));
        let (key, version, status) = (&claim.key, claim.meta.resource_version, Endpoint::Status);
        let (text, patch, event) = match verdict {
            ExpansionVerdict::RemovePreResizeCapacity(volume) => {
                let (text, patch) = (
                    "removes the annotation of the previous size",
                    object::remove_pre_resize_capacity_patch(),
                );
                return self.write_volume((name, claim, VOLUME_RESIZE_FAILED), &volume, text, patch).await;
            }
            ExpansionVerdict::UpdateVolumeCapacity(enlarge) => {
                let (text, patch) =
                    ("sets the capacity of the PersistentVolume", object::capacity_patch(&enlarge));
                return self
                    .write_volume((name, claim, VOLUME_RESIZE_FAILED), &enlarge.volume, text, patch)
                    .await;
            }
            ExpansionVerdict::MarkInProgress(begin) => {
                self.state.update_expansion(&claim.meta.uid, |state| {
                    // An earlier size that was infeasible says nothing about this one.
                    state.infeasible = state.infeasible.take().filter(|(target, _)| *target == begin.target);
                });
                ("starts the expansion", object::in_progress_patch(claim, now, begin), None)
            }
            ExpansionVerdict::MarkNodePending => {
                if claim.progress().resize == Some(ResizeState::NodeInfeasible) {
                    // The node could not expand the volume. The expansion is requested again now, and after
                    // another failure only after a delay.
                    self.mark_infeasible(claim);
                }
                let event = EventSpec::normal(
                    "FileSystemResizeRequired",
                    "Require file system resize of volume on node",
                );
                ("requests the expansion on the node", object::node_pending_patch(claim, now), Some(event))
            }
            ExpansionVerdict::MarkFinished(size) => {
                let event = EventSpec::normal("VolumeResizeSuccessful", "Resize volume succeeded");
                ("finishes the expansion", object::finished_patch(claim, now, size), Some(event))
            }
            ExpansionVerdict::NoAction(_)
            | ExpansionVerdict::WaitForRetry
            | ExpansionVerdict::Retry(_)
            | ExpansionVerdict::Reject(_)
            | ExpansionVerdict::Expand(_) => return Ok(()),
        };
        let is_finished = event.is_some();
        match recorder
            .record_effect(text, writer.strategic_merge_patch::<Claim>(key, status, version, patch))
            .await
        {
            Ok(_) => {
                if let Some(event) = event {
                    self.emit_event(name, claim, event);
                }
                if is_finished {
                    self.state.update_expansion(&claim.meta.uid, |state| {
                        (state.last_finality, state.in_use) = (None, false);
                    });
                }
                Ok(())
            }
            Err(error) => self.handle_claim_write_error(name, claim, VOLUME_RESIZE_FAILED, &error).await,
        }
    }

    /// Handles a failed write of the claim. Returns `Ok` if the claim was refreshed after Conflict, NotFound
    /// or AlreadyExists: the reconcile decides again and still has the driver's response. A refused write is
    /// also emitted as a failure, with `reason`.
    pub(super) async fn handle_claim_write_error(
        &self,
        name: &DriverName,
        claim: &Claim,
        reason: &'static str,
        error: &ApiError,
    ) -> Result<(), Action> {
        self.handle_write_error::<Claim>((name, claim, reason), &claim.key, error).await
    }

    async fn handle_write_error<K: CachedKind>(
        &self,
        (name, claim, reason): (&DriverName, &Claim, &'static str),
        key: &K::Key,
        error: &ApiError,
    ) -> Result<(), Action> {
        if let ApiError::Refused { .. } = error {
            self.emit_failure(name, claim, reason, error.to_string());
        }
        match action_for_write_error::<K>(&self.context.writer, key, error).await {
            Action::Requeue => Ok(()),
            outcome @ (Action::Done | Action::RequeueAfter(_) | Action::Backoff | Action::BackoffFor(_)) => {
                Err(outcome)
            }
        }
    }

    /// Patches the PersistentVolume. Handles errors as
    /// [`handle_claim_write_error`](Self::handle_claim_write_error) does.
    pub(super) async fn write_volume(
        &self,
        (name, claim, reason): (&DriverName, &Claim, &'static str),
        volume: &Volume,
        text: &str,
        patch: serde_json::Value,
    ) -> Result<(), Action> {
        let (writer, version) = (&self.context.writer, volume.meta.resource_version);
        let write = writer.merge_patch::<Volume>(&volume.name, Endpoint::Object, version, patch);
        let Err(error) = self.recorder(claim).record_effect(text, write).await else { return Ok(()) };
        self.handle_write_error::<Volume>((name, claim, reason), &volume.name, &error).await
    }

    async fn call_expand(
        &self,
        name: &DriverName,
        driver: &dyn Backend,
        claim: &Claim,
        expand: ExpandCall,
    ) -> Result<ExpansionResult, Action> {
        let ExpandCall { volume, target, request } = expand;
        let uid = &claim.meta.uid;
        let secret = volume.csi.as_ref().and_then(|csi| csi.expand_secret.as_deref());
        let (call, _running) = self
            .prepare_call((name, claim, VOLUME_RESIZE_FAILED), &volume, secret, ResizeOperation::Expansion)
            .await?;
        let text = format!("External resizer is resizing volume {}", volume.name);
        self.emit_event(name, claim, EventSpec::normal("Resizing", text));
        self.state.update_expansion(uid, |state| state.last_finality = Some(Finality::Unknown));
        let started = Instant::now();
        let response = driver.expand_volume(call, request).await;
        let expanded = match response {
            Ok(expanded) => expanded,
            Err(error) => {
                return Err(self.handle_expansion_failure(name, claim, &volume, target, error).await);
            }
        };
        if let Err(problem) = rules::check_capacity(target, expanded) {
            let error = StorageError::with_known_effect(ErrorKind::Internal, problem.to_string());
            return Err(self.handle_expansion_failure(name, claim, &volume, target, error).await);
        }
        let size = Quantity::from_bytes(expanded.capacity);
        let text = format!("{name} expands the volume to {size}");
        self.recorder(claim).record(StepResult::Applied, text, Some(started.elapsed()));
        Ok(ExpansionResult { claim: uid.clone(), target, volume: expanded })
    }

    /// Returns true if the claim still exists. State of a deleted claim is not retained.
    pub(super) fn is_claim_present(&self, claim: &Claim) -> bool {
        let now = self.context.cache.claims.get(&claim.key).into_object();
        now.is_some_and(|now| now.meta.uid == claim.meta.uid)
    }

    /// Returns true if the claim or the volume has changed since the decision.
    pub(super) fn has_changed(&self, claim: &Claim, volume: &Volume) -> bool {
        let cache = &self.context.cache;
        let claim_now = cache.claims.get(&claim.key).into_object();
        let volume_now = cache.volumes.get(&volume.name).into_object();
        claim_now.is_none_or(|now| now.meta.resource_version != claim.meta.resource_version)
            || volume_now.is_none_or(|now| now.meta.resource_version != volume.meta.resource_version)
    }

    /// Records and emits the failure, and returns the action for the next attempt. Writes the failure to the
    /// status, unless the call may still take effect or the claim's allocated size has changed. Does nothing
    /// if the claim is deleted.
    async fn handle_expansion_failure(
        &self,
        name: &DriverName,
        claim: &Claim,
        volume: &Volume,
        target: Quantity,
        error: StorageError,
    ) -> Action {
        if !self.is_claim_present(claim) {
            return Action::Done;
        }
        let failure = rules::classify_failure(&error);
        let text = format!("resize volume {:?} by resizer {:?} failed: {error}", volume.name, name);
        let in_use = error.kind == ErrorKind::FailedPrecondition && self.has_pod_watch(name);
        self.state.update_expansion(&claim.meta.uid, |state| {
            state.last_finality = Some(error.finality);
            state.in_use = in_use;
            state.infeasible = None;
        });
        self.emit_failure(name, claim, VOLUME_RESIZE_FAILED, text);
        let infeasible = failure == ResizeFailure::Infeasible;
        if failure != ResizeFailure::InDoubt {
            self.write_failure(claim, "reports the failed expansion", |current| {
                let same = current.progress().allocated_resources == Some(target);
                same.then(|| object::failed_patch(current, (self.context.clock)(), &error, infeasible))?
            })
            .await;
        }
        if infeasible {
            let delay = self.context.calls.retry_interval_max;
            self.state.update_expansion(&claim.meta.uid, |state| {
                state.infeasible = Some((target, Instant::now() + delay));
            });
            return Action::BackoffFor(delay);
        }
        self.requeue_after(name, ResizeOperation::Expansion, &claim.key, error.retry_after_ms)
    }

    /// Writes a failure to the status of the current claim, unless the claim is deleted. Retries once after a
    /// conflict. `patch` returns `None` if there is nothing to write.
    pub(super) async fn write_failure(
        &self,
        claim: &Claim,
        text: &str,
        patch: impl Fn(&Claim) -> Option<serde_json::Value>,
    ) {
        for _ in 0..2 {
            let now = self.context.cache.claims.get(&claim.key).into_object();
            let Some(current) = now.filter(|now| now.meta.uid == claim.meta.uid) else { return };
            let Some(patch) = patch(&current) else { return };
            let (key, version) = (&claim.key, current.meta.resource_version);
            let write =
                self.context.writer.strategic_merge_patch::<Claim>(key, Endpoint::Status, version, patch);
            let Err(error) = self.recorder(claim).record_effect(text, write).await else { return };
            // The call is retried even if this write fails; a later process reads from the status what is
            // infeasible.
            if action_for_write_error::<Claim>(&self.context.writer, key, &error).await != Action::Requeue {
                return;
            }
        }
    }

    /// Delays the next attempt of the claim's allocated size by `--retry-interval-max`.
    fn mark_infeasible(&self, claim: &Claim) {
        let delay = self.context.calls.retry_interval_max;
        if let Some(target) = claim.progress().allocated_resources {
            self.state.update_expansion(&claim.meta.uid, |state| {
                state.infeasible = Some((target, Instant::now() + delay));
            });
        }
    }

    /// Returns true if this process watches Pods to find volumes of the driver that are in use.
    fn has_pod_watch(&self, driver: &DriverName) -> bool {
        let driver = self.context.drivers.get(driver);
        self.context.settings.handle_volume_inuse_error
            && driver.is_some_and(|driver| is_offline_expansion_only(&**driver))
    }
}

/// Returns true if the driver can expand volumes only while they are not published.
pub(super) fn is_offline_expansion_only(driver: &dyn Backend) -> bool {
    driver.abilities().contains(&Ability::Expansion)
        && !driver.description().has_feature(Feature::OnlineExpansion)
}
