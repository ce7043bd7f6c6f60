//! What every reconcile needs: the ports, and how a failed write ends a run.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use cofferdam_backend::Backend;
use cofferdam_cluster::{
    ApiError, Cache, Clock, Event, EventSink, Journal, Kind, ObjectReference, Writer, deletion_freeze,
    queue::{Action, Queue},
    writer::CachedKind,
};
use cofferdam_domain::{Claim, ClaimKey, ClusterId, DriverName, Uid, Volume, VolumeName};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::{
    event_spec::EventSpec,
    live_reads::SingleFlightReads,
    manager::Settings,
    observer::{ReconcileStep, StepObserver, StepResult},
    provisioner::placement::LocalNode,
    release_hints::ReleaseHints,
    role::Role,
};

/// More effects than any flow has in a row. A run that gets there chases a world that changes as fast as it
/// writes, and goes back to the end of the queue.
pub(crate) const MAX_EFFECTS: usize = 16;

/// A complaint that stands is repeated: the API keeps events for an hour.
pub(crate) const EVENT_REPEAT_INTERVAL: Duration = Duration::from_secs(1800);

/// A driver with what belongs to it.
pub(crate) struct ManagedDriver {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) journal: Journal,
    /// `spec.csi.volumeAttributes["storage.kubernetes.io/csiProvisionerIdentity"]` of what this process
    /// provisions.
    pub(crate) identity: String,
    /// `source.component` of events.
    pub(crate) component: Box<str>,
}

/// The ports and facts of a process.
pub(crate) struct ControllerContext {
    pub(crate) cache: Arc<Cache>,
    pub(crate) writer: Writer,
    pub(crate) events: EventSink,
    pub(crate) observer: Arc<dyn StepObserver>,
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) cluster: ClusterId,
    pub(crate) drivers: HashMap<DriverName, ManagedDriver>,
    /// The node that the process is on, with the drivers whose storage is in it.
    pub(crate) local_node: Option<LocalNode>,
    /// The provisioner's claims, where it runs in this process: binding hands over what needs a new volume.
    pub(crate) provisioner_queue: OnceLock<Queue<Uid>>,
    /// What the binder of this process has released.
    pub(crate) release_hints: ReleaseHints,
    /// Looks whether the cluster was restored.
    pub(crate) live_reads: SingleFlightReads,
}

impl ControllerContext {
    /// The wall clock.
    pub(crate) fn now(&self) -> jiff::Timestamp {
        (self.clock)()
    }

    /// Whether the provisioner of this driver runs in this process. That of a driver whose storage is in one
    /// node runs on every node, and what other processes have to hear of stands in the API.
    pub(crate) fn has_provisioner(&self, driver: &DriverName) -> bool {
        self.settings.roles.contains(&Role::Provisioner)
            && self.drivers.contains_key(driver)
            && !self.is_node_local(driver)
    }

    /// Whether the driver's storage is in the node of this process.
    pub(crate) fn is_node_local(&self, driver: &DriverName) -> bool {
        self.local_node.as_ref().is_some_and(|local_node| local_node.has_driver(driver))
    }

    /// Looks whether the cluster was restored, for `hold::is_held` to say so: together with whoever looks at
    /// the same time.
    ///
    /// # Errors
    /// [`WriteError`] of the reads.
    pub(crate) async fn check_live(&self) -> Result<(), ApiError> {
        self.live_reads.read_live("", |_| deletion_freeze::check_live(&self.writer)).await
    }

    /// Sends a note as an event on an object.
    pub(crate) fn emit_event<K: Kind>(&self, object: &K, component: &str, spec: EventSpec) {
        let EventSpec { kind: event_type, reason, text } = spec;
        let event = Event {
            involved_object: ObjectReference::from_object(object),
            event_type,
            reason,
            note: text,
            component: component.into(),
        };
        self.events.publish(event);
    }

    /// How a run ends after a write that failed: a conflict reads again and decides again, everything else
    /// backs off.
    pub(crate) async fn action_for_write_error<K: CachedKind>(
        &self,
        key: &K::Key,
        error: &ApiError,
    ) -> Action {
        match error {
            ApiError::Conflict(_) | ApiError::NotFound(_) | ApiError::AlreadyExists(_) => {
                match self.writer.refresh::<K>(key).await {
                    Ok(()) => Action::Requeue,
                    Err(error) => {
                        tracing::debug!(%error, "reading again failed");
                        Action::Backoff
                    }
                }
            }
            ApiError::Refused { .. } | ApiError::Unavailable { .. } | ApiError::InvalidResponse { .. } => {
                tracing::warn!(%error, "a write failed; it is tried again");
                Action::Backoff
            }
        }
    }
}

/// Tells the observer of the steps for one object.
#[derive(Clone)]
pub(crate) struct StepRecorder {
    observer: Arc<dyn StepObserver>,
    role: Role,
    claim: Option<ClaimKey>,
    volume: Option<VolumeName>,
}

impl StepRecorder {
    pub(crate) fn of_claim(context: &ControllerContext, role: Role, claim: &ClaimKey) -> Self {
        Self { observer: Arc::clone(&context.observer), role, claim: Some(claim.clone()), volume: None }
    }

    pub(crate) fn of_volume(context: &ControllerContext, role: Role, volume: &Volume) -> Self {
        let claim = volume.claim_ref.as_ref().map(|r| r.key.clone());
        Self { observer: Arc::clone(&context.observer), role, claim, volume: Some(volume.name.clone()) }
    }

    /// For an attachment, by what its volume tells.
    pub(crate) fn of_attachment(
        context: &ControllerContext,
        name: Option<&VolumeName>,
        volume: Option<&Volume>,
    ) -> Self {
        let claim = volume.and_then(|volume| volume.claim_ref.as_ref()).map(|r| r.key.clone());
        Self { observer: Arc::clone(&context.observer), role: Role::Attacher, claim, volume: name.cloned() }
    }

    /// For an object that belongs to no claim and no volume.
    pub(crate) fn of_role(context: &ControllerContext, role: Role) -> Self {
        Self { observer: Arc::clone(&context.observer), role, claim: None, volume: None }
    }

    pub(crate) fn record(&self, result: StepResult, text: impl Into<String>, took: Option<Duration>) {
        let text = text.into();
        let claim = self.claim.as_ref().map(tracing::field::display);
        let volume = self.volume.as_ref().map(tracing::field::display);
        match result {
            StepResult::Failed => tracing::info!(role = %self.role, claim, volume, "{text}"),
            StepResult::Applied | StepResult::Waiting | StepResult::UpToDate => {
                tracing::debug!(role = %self.role, claim, volume, "{text}");
            }
        }
        let (claim, volume) = (self.claim.clone(), self.volume.clone());
        self.observer.on_step(ReconcileStep { role: self.role, claim, volume, result, text, duration: took });
    }

    /// Performs one effect and tells how it went; `text` names it in the present tense. A conflict is not
    /// told: it is no failure, and the decision is made again.
    pub(crate) async fn record_effect<T>(
        &self,
        text: &str,
        effect: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let started = Instant::now();
        let result = effect.await;
        match &result {
            Ok(_) => self.record(StepResult::Applied, text, Some(started.elapsed())),
            Err(ApiError::Conflict(_)) => {}
            Err(error) => {
                self.record(StepResult::Failed, format!("{text}: {error}"), Some(started.elapsed()))
            }
        }
        result
    }
}

/// Does something once in a period, until `stop`.
pub(crate) async fn run_periodically(period: Duration, stop: CancellationToken, mut callback: impl FnMut()) {
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = ticks.tick() => callback(),
        }
    }
}

/// `claimRef` as binding writes it: with the claim's uid and version.
pub(crate) fn claim_reference(claim: &Claim) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": &*claim.key.namespace,
        "name": &*claim.key.name,
        "uid": claim.meta.uid,
        "resourceVersion": claim.meta.resource_version.to_string(),
    })
}
