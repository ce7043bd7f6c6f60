//! Ports, settings and drivers of the controllers, and the result of a reconcile after a failed write.

use std::{collections::HashMap, sync::Arc, time::Duration};

use cofferdam_backend::Backend;
use cofferdam_cluster::{
    ApiError, Cache, Change, Clock, Event, EventSink, Journal, Kind, ObjectReference, ObjectStore, Writer,
    deletion_freeze, index::Indexed, queue::Action, writer::CachedKind,
};
use cofferdam_domain::{Claim, ClaimKey, ClusterId, DriverName, Volume, VolumeName};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::{
    channels::Channels,
    event_spec::EventSpec,
    live_reads::SingleFlightReads,
    observer::{ReconcileStep, StepObserver, StepResult},
    provisioner::placement::LocalNode,
    role::Role,
    settings::Settings,
};

/// Maximum effects per reconcile. A reconcile that reaches it is racing with other writers and is requeued.
pub(crate) const MAX_EFFECTS: usize = 16;

/// Interval after which the event of a lasting problem is repeated: the API server keeps events for an hour.
pub(crate) const EVENT_REPEAT_INTERVAL: Duration = Duration::from_secs(1800);

/// A driver with its journal and its names.
pub(crate) struct ManagedDriver {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) journal: Journal,
    /// `spec.csi.volumeAttributes["storage.kubernetes.io/csiProvisionerIdentity"]` of provisioned volumes.
    pub(crate) identity: String,
    /// `source.component` of events.
    pub(crate) component: Box<str>,
}

/// Ports, settings and drivers of the controllers of a process, for one lifetime of the cache.
pub(crate) struct ControllerContext {
    pub(crate) cache: Arc<Cache>,
    pub(crate) writer: Writer,
    pub(crate) events: EventSink,
    pub(crate) observer: Arc<dyn StepObserver>,
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) cluster: ClusterId,
    pub(crate) drivers: HashMap<DriverName, ManagedDriver>,
    /// The node of the process, with its node-local drivers.
    pub(crate) local_node: Option<LocalNode>,
    /// A controller of this process creates and deletes volumes.
    pub(crate) provisions: bool,
    /// Messages between the controllers of this process.
    pub(crate) channels: Channels,
    /// Shares concurrent reads of [`ControllerContext::check_live`].
    pub(crate) live_reads: SingleFlightReads,
}

impl ControllerContext {
    /// The wall clock.
    pub(crate) fn now(&self) -> jiff::Timestamp {
        (self.clock)()
    }

    /// The provisioner of this driver runs in this process. That of a node-local driver runs
    /// on every node; other processes communicate with it through the API only.
    pub(crate) fn has_provisioner(&self, driver: &DriverName) -> bool {
        self.provisions && self.drivers.contains_key(driver) && !self.is_node_local(driver)
    }

    /// The driver is node-local to the node of this process.
    pub(crate) fn is_node_local(&self, driver: &DriverName) -> bool {
        self.local_node.as_ref().is_some_and(|local_node| local_node.has_driver(driver))
    }

    /// Detects a restore that the watches have not detected yet, from live reads; afterwards
    /// [`deletion_freeze::is_frozen`] is true. Concurrent callers share the reads.
    ///
    /// # Errors
    /// [`ApiError`] of the reads.
    pub(crate) async fn check_live(&self) -> Result<(), ApiError> {
        self.live_reads.read_live("", |_| deletion_freeze::check_live(&self.writer)).await
    }

    /// Publishes an event on an object.
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

    /// The result of a reconcile after a failed write: a conflict refreshes the object and requeues, every
    /// other error backs off.
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
                        tracing::debug!(%error, "cannot refresh an object after a failed write");
                        Action::Backoff
                    }
                }
            }
            ApiError::Refused { .. } | ApiError::Unavailable { .. } | ApiError::InvalidResponse { .. } => {
                tracing::warn!(%error, "a write failed; retrying");
                Action::Backoff
            }
        }
    }
}

/// Reports the steps of one object to the observer and to the log.
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

    /// For a VolumeAttachment, by its volume.
    pub(crate) fn of_attachment(
        context: &ControllerContext,
        role: Role,
        name: Option<&VolumeName>,
        volume: Option<&Volume>,
    ) -> Self {
        let claim = volume.and_then(|volume| volume.claim_ref.as_ref()).map(|r| r.key.clone());
        Self { observer: Arc::clone(&context.observer), role, claim, volume: name.cloned() }
    }

    /// For an object without a claim and a volume.
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

    /// Performs one effect and records its result; `text` names it in the present tense. A conflict is not
    /// recorded: it is not a failure, since the rules decide again.
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

/// Calls `handler` after every change in `store`, as long as the controller exists.
pub(crate) fn subscribe<C, K>(
    controller: &Arc<C>,
    store: &ObjectStore<K>,
    handler: impl Fn(&C, &Change<K>) + Send + Sync + 'static,
) where
    C: Send + Sync + 'static,
    K: Indexed,
{
    let controller = Arc::downgrade(controller);
    store.subscribe(move |change| {
        if let Some(controller) = controller.upgrade() {
            handler(&controller, change);
        }
    });
}

/// Calls `callback` once per period, until `stop`.
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

/// `spec.claimRef` of a bound volume: with the claim's uid and resourceVersion.
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
