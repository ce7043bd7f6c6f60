//! Writes the intent of a claim to the journal, and calls the driver.

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{
    Intent, JournalError,
    journal::{JournalLoss, OWNER_CHECK_INTERVAL},
    observer::StepResult,
    queue::Action,
};
use cofferdam_domain::{
    VolumeHandle,
    storage::{CreatedVolume, Secrets, StorageError},
};
use tokio::time::Instant;

use super::{
    mending::{self, RequestKind},
    reconcile::Provisioner,
    rules::{self, CreateVerdict},
    stuck::StuckCause,
    undo::CompletionError,
};
use crate::{drivers::ManagedDriver, events::EventSpec, step_recorder::StepRecorder};

/// A claim whose driver call takes longer gets the event `Provisioning`.
const PROVISIONING_EVENT_DELAY: Duration = Duration::from_secs(1);

impl Provisioner {
    /// Makes this process the owner of the journal before a request is recorded or sent. Returns `None` after
    /// success, else the action that the reconcile of the claim returns.
    pub(super) async fn acquire_journal(&self, intent: &Intent) -> Option<Action> {
        let Some(driver) = self.context.drivers.get(&intent.driver) else { return Some(Action::Requeue) };
        let Err(error) = driver.journal.acquire().await else {
            self.journal_waits.remove(&intent.claim_uid);
            return None;
        };
        Some(self.action_for_journal_error(intent, &error, None))
    }

    /// The action after an error of the journal. Another owner of the journal is no failure.
    fn action_for_journal_error(
        &self,
        intent: &Intent,
        error: &JournalError,
        elapsed: Option<Duration>,
    ) -> Action {
        let recorder = self.context.recorders.of_claim(&intent.claim);
        if let JournalError::Lost(loss) = error {
            self.emit_journal_lost(intent, loss);
            recorder.record(StepResult::Waiting, error.to_string(), elapsed);
            return Action::RequeueAfter(OWNER_CHECK_INTERVAL);
        }
        recorder.record(StepResult::Failed, error.to_string(), elapsed);
        self.backoff_after_failure(&intent.claim_uid, error.to_string(), false)
    }

    /// Emits an event on a claim that waits for another owner of the journal.
    fn emit_journal_lost(&self, intent: &Intent, loss: &JournalLoss) {
        let Some(claim) = self.context.cache.claim_by_uid(&intent.claim_uid) else { return };
        if self.journal_waits.record(&intent.claim_uid, loss) {
            let text = format!("this process waits: {loss} of driver {}", intent.driver);
            let event = EventSpec::normal("WaitingForJournal", text);
            self.context.events.emit(&*claim, &self.component_for(&claim), event);
        }
    }

    /// Takes the driver's journal, and writes the intent to it. Returns `None` after success, else the action
    /// that the reconcile of the claim returns.
    pub(super) async fn write_intent(&self, mut intent: Intent) -> Option<Action> {
        if let Some(wait) = self.acquire_journal(&intent).await {
            return Some(wait);
        }
        intent.recorded_at = Some((self.context.clock)());
        let Some(driver) = self.context.drivers.get(&intent.driver) else { return Some(Action::Requeue) };
        let recorder = self.context.recorders.of_claim(&intent.claim);
        let started = Instant::now();
        match driver.journal.write(intent.clone()).await {
            Ok(_) => {
                recorder.record(
                    StepResult::Applied,
                    "writes the intent to the journal",
                    Some(started.elapsed()),
                );
                None
            }
            Err(error) => Some(self.action_for_journal_error(&intent, &error, Some(started.elapsed()))),
        }
    }

    /// Takes the driver's journal, and replaces an intent in it by `mended`, which also has the mended
    /// request.
    ///
    /// # Errors
    /// The intent was not replaced: the action that the reconcile of the claim returns; `None` if the journal
    /// has no room for the mended request, so that the first request is repeated.
    pub(super) async fn write_mended(
        &self,
        driver: &ManagedDriver,
        intent: &Intent,
        mut mended: Intent,
    ) -> Result<(), Option<Action>> {
        if let Some(wait) = self.acquire_journal(intent).await {
            return Err(Some(wait));
        }
        let recorder = self.context.recorders.of_claim(&intent.claim);
        let started = Instant::now();
        if let Some(request) = &mut mended.mended {
            request.recorded_at = Some((self.context.clock)());
        }
        let written = driver.journal.replace(intent, mended).await;
        let elapsed = Some(started.elapsed());
        match written {
            Ok(_) => {
                recorder.record(StepResult::Applied, "writes the mended request to the journal", elapsed);
                Ok(())
            }
            Err(error @ (JournalError::Full(_) | JournalError::NamespaceFull { .. })) => {
                recorder.record(StepResult::Failed, error.to_string(), elapsed);
                Err(None)
            }
            Err(error) => Err(Some(self.action_for_journal_error(intent, &error, elapsed))),
        }
    }

    /// Sends a request of the intent to the driver, with the Secret of that request, and continues with its
    /// result.
    pub(super) async fn create(
        &self,
        driver: &ManagedDriver,
        intent: &Arc<Intent>,
        (kind, request): (RequestKind, &Arc<Intent>),
        secrets: Secrets,
    ) -> Action {
        let recorder = self.context.recorders.of_claim(&intent.claim);
        let uid = &intent.claim_uid;
        let started = Instant::now();
        let response = self.call_create(driver, request, secrets, &recorder).await;
        let elapsed = started.elapsed();
        let error = response.as_ref().err().cloned();
        let retry_after = error.as_ref().and_then(|error| error.retry_after_ms).map(Duration::from_millis);
        let local_node = self.context.local_node.as_ref();
        // The process that has taken the journal may have sent the request, too.
        let is_recovered = driver.journal.is_recovered(uid) || driver.journal.loss().is_some();
        let verdict =
            rules::decide_after_create(&self.context.cache, local_node, request, is_recovered, response);
        let action = match verdict {
            CreateVerdict::Save(created, capacity) => {
                let handle = created.handle.clone();
                let saved = self.save(driver, request, created, capacity, &recorder, started).await;
                return self.finish_created(driver, request, handle, saved, &recorder).await;
            }
            CreateVerdict::DeleteUnneeded(created, message) => {
                let deleted = self.delete_unneeded(driver, request, &created, message, &recorder).await;
                return self.finish_created(driver, request, created.handle, deleted, &recorder).await;
            }
            CreateVerdict::Failed { message, .. }
                if kind == RequestKind::Mended && error.as_ref().is_some_and(mending::is_already_exists) =>
            {
                recorder.record(StepResult::Failed, message.clone(), Some(elapsed));
                self.context.metrics.record_provision_failure(request);
                let text = format!("{message}; sending the request again that was sent before the change");
                self.emit_provisioning_failed(uid, text);
                self.call_backoff.record_already_exists(request);
                return Action::Requeue;
            }
            CreateVerdict::Failed { message, permanent } => {
                recorder.record(StepResult::Failed, message.clone(), Some(elapsed));
                self.context.metrics.record_provision_failure(request);
                if permanent {
                    let duration = self.context.calls.retry_interval_max;
                    self.infeasible.insert(uid, &request.class.uid, duration);
                }
                // The intent's other request has a back-off of its own.
                let has_other = self.remove_request(driver, intent, kind, &recorder).await;
                let action = self.backoff_after_failure(uid, message, permanent && !has_other);
                self.requeue_after(action, uid, retry_after)
            }
            CreateVerdict::Reschedule { node, message } => {
                self.context.metrics.record_provision_failure(request);
                if self.remove_request(driver, intent, kind, &recorder).await {
                    recorder.record(StepResult::Failed, message.clone(), Some(elapsed));
                    self.requeue_after(self.backoff_after_failure(uid, message, false), uid, retry_after)
                } else {
                    self.reschedule(uid, &node, message).await
                }
            }
            CreateVerdict::Retry(message) => {
                recorder.record(StepResult::Failed, message.clone(), Some(elapsed));
                self.context.metrics.record_provision_failure(request);
                self.requeue_after(self.backoff_after_failure(uid, message, false), uid, retry_after)
            }
        };
        self.record_failure(request, retry_after);
        match error {
            Some(error) => {
                let cause = StuckCause::NoResult(error.to_string());
                self.report_if_stuck(driver, intent, &cause, &recorder).await.unwrap_or(action)
            }
            None => action,
        }
    }

    /// Ends the reconcile of a created volume. `completed` is the result of creating its PersistentVolume or
    /// of deleting it.
    async fn finish_created(
        &self,
        driver: &ManagedDriver,
        request: &Intent,
        handle: VolumeHandle,
        completed: Result<Action, CompletionError>,
        recorder: &StepRecorder,
    ) -> Action {
        match completed {
            Ok(action) => {
                self.call_backoff.remove(&request.claim_uid);
                action
            }
            Err(CompletionError { action, message }) => {
                self.record_failure(request, None);
                let cause = StuckCause::Created { handle, message };
                self.report_if_stuck(driver, request, &cause, recorder).await.unwrap_or(action)
            }
        }
    }

    /// Repeats the deletion of the volume that the intent names as unneeded.
    pub(super) async fn retry_deletion(
        &self,
        driver: &ManagedDriver,
        intent: &Arc<Intent>,
        handle: VolumeHandle,
    ) -> Action {
        let recorder = self.context.recorders.of_claim(&intent.claim);
        let deleted = self.delete_recorded(driver, intent, &handle, &recorder).await;
        self.finish_created(driver, intent, handle, deleted, &recorder).await
    }

    /// Records a call that has not completed the intent. No user waits for the volume of a deleted claim: its
    /// calls have the longest back-off.
    fn record_failure(&self, request: &Intent, retry_after: Option<Duration>) {
        let has_claim = self.context.cache.claim_by_uid(&request.claim_uid).is_some();
        let delay = if has_claim { retry_after } else { Some(self.context.calls.retry_interval_max) };
        self.call_backoff.record_failure(request, delay);
    }

    /// Removes a request whose error is final from the intent, and the intent if it has no other request.
    /// Returns true if it has another request.
    async fn remove_request(
        &self,
        driver: &ManagedDriver,
        intent: &Intent,
        kind: RequestKind,
        recorder: &StepRecorder,
    ) -> bool {
        let Some(remaining) = mending::remaining(intent, kind) else {
            driver.journal.remove(intent);
            return false;
        };
        // After a failed write, the request is sent again.
        if let Err(error) = driver.journal.replace(intent, remaining).await {
            recorder.record(StepResult::Failed, error.to_string(), None);
        }
        true
    }

    async fn call_create(
        &self,
        driver: &ManagedDriver,
        intent: &Intent,
        secrets: Secrets,
        recorder: &StepRecorder,
    ) -> Result<CreatedVolume, StorageError> {
        let call = self.context.calls.call(&self.context.term, secrets);
        let started = Instant::now();
        let mut response = driver.backend.create_volume(call, intent.request.clone());
        let response = match tokio::time::timeout(PROVISIONING_EVENT_DELAY, &mut response).await {
            Ok(response) => response,
            Err(_) => {
                recorder.record(StepResult::Waiting, "waits for the driver to create the volume", None);
                if let Some(claim) = self.context.cache.claim_by_uid(&intent.claim_uid) {
                    let text =
                        format!("External provisioner is provisioning volume for claim \"{}\"", intent.claim);
                    let event = EventSpec::normal("Provisioning", text);
                    self.context.events.emit(&*claim, &driver.component, event);
                }
                response.await
            }
        };
        if response.is_ok() {
            let text = format!("{} creates the volume", intent.driver);
            recorder.record(StepResult::Applied, text, Some(started.elapsed()));
        }
        response
    }

    /// Replaces a back-off by the delay that the driver's error suggests, if the delay is longer; at most
    /// `--retry-interval-max`.
    fn requeue_after(
        &self,
        action: Action,
        uid: &cofferdam_domain::Uid,
        retry_after: Option<Duration>,
    ) -> Action {
        match (action, retry_after) {
            (Action::Backoff, Some(retry_after)) => {
                self.context.calls.retry_after_hint(retry_after, self.claims.failures(uid))
            }
            (action, _) => action,
        }
    }
}
