//! Writes the intent of a claim to the journal, and calls the driver.

use std::{sync::Arc, time::Duration};

use cofferdam_backend::Call;
use cofferdam_cluster::{Intent, observer::StepResult, queue::Action};
use cofferdam_domain::storage::{CreatedVolume, StorageError};
use tokio::time::Instant;

use super::{
    reconcile::Provisioner,
    rules::{self, CreateVerdict},
};
use crate::{drivers::ManagedDriver, events::EventSpec, step_recorder::StepRecorder};

/// A claim whose driver call takes longer gets the event `Provisioning`.
const PROVISIONING_EVENT_DELAY: Duration = Duration::from_secs(1);

impl Provisioner {
    /// Writes the intent to the driver's journal. Returns `None` after success, else the action that the
    /// reconcile of the claim returns.
    pub(super) async fn write_intent(&self, intent: Intent) -> Option<Action> {
        let Some(driver) = self.context.drivers.get(&intent.driver) else { return Some(Action::Requeue) };
        let recorder = self.context.recorders.of_claim(&intent.claim);
        let started = Instant::now();
        let uid = intent.claim_uid.clone();
        match driver.journal.write(intent).await {
            Ok(_) => {
                recorder.record(
                    StepResult::Applied,
                    "writes the intent to the journal",
                    Some(started.elapsed()),
                );
                None
            }
            Err(error) => {
                recorder.record(StepResult::Failed, error.to_string(), Some(started.elapsed()));
                Some(self.backoff_after_failure(&uid, error.to_string(), false))
            }
        }
    }

    /// Sends the request of the intent to the driver, and continues with its result.
    pub(super) async fn create(&self, driver: &ManagedDriver, intent: &Arc<Intent>) -> Action {
        let recorder = self.context.recorders.of_claim(&intent.claim);
        let uid = &intent.claim_uid;
        let started = Instant::now();
        let response = self.call_create(driver, intent, &recorder).await;
        let elapsed = started.elapsed();
        let retry_after =
            response.as_ref().err().and_then(|error| error.retry_after_ms).map(Duration::from_millis);
        let local_node = self.context.local_node.as_ref();
        match rules::decide_after_create(&self.context.cache, local_node, intent, response) {
            CreateVerdict::Save(created, capacity) => {
                self.save(driver, intent, created, capacity, &recorder, started).await
            }
            CreateVerdict::DeleteUnneeded(created, message) => {
                self.delete_unneeded(driver, intent, &created, message, &recorder).await
            }
            CreateVerdict::Failed { message, permanent } => {
                recorder.record(StepResult::Failed, message.clone(), Some(elapsed));
                self.context.metrics.record_provision_failure(&intent.class.name);
                driver.journal.remove(uid);
                if permanent {
                    let duration = self.context.calls.retry_interval_max;
                    self.infeasible.insert(uid, &intent.class.uid, duration);
                }
                self.requeue_after(self.backoff_after_failure(uid, message, permanent), uid, retry_after)
            }
            CreateVerdict::Reschedule { node, message } => {
                self.context.metrics.record_provision_failure(&intent.class.name);
                driver.journal.remove(uid);
                self.reschedule(uid, &node, message).await
            }
            CreateVerdict::Retry(message) => {
                recorder.record(StepResult::Failed, message.clone(), Some(elapsed));
                self.context.metrics.record_provision_failure(&intent.class.name);
                self.requeue_after(self.backoff_after_failure(uid, message, false), uid, retry_after)
            }
        }
    }

    async fn call_create(
        &self,
        driver: &ManagedDriver,
        intent: &Intent,
        recorder: &StepRecorder,
    ) -> Result<CreatedVolume, StorageError> {
        let call = Call::with_deadline(self.context.calls.timeout);
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
