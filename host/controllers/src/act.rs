//! What every reconcile needs: the ports, and how a failed write ends a run.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use cofferdam_backend::Backend;
use cofferdam_cluster::{
    Cache, Clock, Event, EventSink, Journal, Kind, Subject, WriteError, Writer, hold,
    queue::{Outcome, Queue},
    writer::Cached,
};
use cofferdam_domain::{Claim, ClaimKey, ClusterId, DriverName, Uid, Volume, VolumeName};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::{
    lookups::Lookups,
    note::Note,
    observer::{Observer, Step, StepKind},
    process::Settings,
    provisioner::placement::Here,
    released::Released,
    role::Role,
};

/// More effects than any flow has in a row. A run that gets there chases a world that changes as fast as it writes, and
/// goes back to the end of the queue.
pub(crate) const MAX_EFFECTS: usize = 16;

/// A complaint that stands is repeated: the API keeps events for an hour.
pub(crate) const REPEAT: Duration = Duration::from_secs(1800);

/// A driver with what belongs to it.
pub(crate) struct Driver {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) journal: Journal,
    /// `spec.csi.volumeAttributes["storage.kubernetes.io/csiProvisionerIdentity"]` of what this process provisions.
    pub(crate) identity: String,
    /// `source.component` of events.
    pub(crate) component: Box<str>,
}

/// The ports and facts of a process.
pub(crate) struct Context {
    pub(crate) cache: Arc<Cache>,
    pub(crate) writer: Writer,
    pub(crate) events: EventSink,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) cluster: ClusterId,
    pub(crate) drivers: HashMap<DriverName, Driver>,
    /// The node that the process is on, with the drivers whose storage is in it.
    pub(crate) here: Option<Here>,
    /// The provisioner's claims, where it runs in this process: binding hands over what needs a new volume.
    pub(crate) wanted: OnceLock<Queue<Uid>>,
    /// What the binder of this process has released.
    pub(crate) released: Released,
    /// Looks whether the cluster was restored.
    pub(crate) looks: Lookups,
}

impl Context {
    /// The wall clock.
    pub(crate) fn now(&self) -> jiff::Timestamp {
        (self.clock)()
    }

    /// Whether the provisioner of this driver runs in this process. That of a driver whose storage is in one node runs on every
    /// node, and what other processes have to hear of stands in the API.
    pub(crate) fn provisions(&self, driver: &DriverName) -> bool {
        self.settings.roles.contains(&Role::Provisioner)
            && self.drivers.contains_key(driver)
            && !self.is_of_node(driver)
    }

    /// Whether the driver's storage is in the node of this process.
    pub(crate) fn is_of_node(&self, driver: &DriverName) -> bool {
        self.here.as_ref().is_some_and(|here| here.has(driver))
    }

    /// Looks whether the cluster was restored, for `hold::is_held` to say so: together with whoever looks at the same time.
    ///
    /// # Errors
    /// [`WriteError`] of the reads.
    pub(crate) async fn look(&self) -> Result<(), WriteError> {
        self.looks.look("", |_| hold::look(&self.writer)).await
    }

    /// Sends a note as an event on an object.
    pub(crate) fn note<K: Kind>(&self, object: &K, component: &str, note: Note) {
        let Note { kind, reason, text } = note;
        let event =
            Event { subject: Subject::of(object), kind, reason, note: text, component: component.into() };
        self.events.publish(event);
    }

    /// How a run ends after a write that failed: a conflict reads again and decides again, everything else backs off.
    pub(crate) async fn after_failure<K: Cached>(&self, key: &K::Key, error: &WriteError) -> Outcome {
        match error {
            WriteError::Conflict(_) | WriteError::NotFound(_) | WriteError::AlreadyExists(_) => {
                match self.writer.refresh::<K>(key).await {
                    Ok(()) => Outcome::Again,
                    Err(error) => {
                        tracing::debug!(%error, "reading again failed");
                        Outcome::Retry
                    }
                }
            }
            WriteError::Refused { .. } | WriteError::Unavailable { .. } | WriteError::Answer { .. } => {
                tracing::warn!(%error, "a write failed; it is tried again");
                Outcome::Retry
            }
        }
    }
}

/// Tells the observer of the steps for one object.
#[derive(Clone)]
pub(crate) struct Teller {
    observer: Arc<dyn Observer>,
    role: Role,
    claim: Option<ClaimKey>,
    volume: Option<VolumeName>,
}

impl Teller {
    pub(crate) fn of_claim(context: &Context, role: Role, claim: &ClaimKey) -> Self {
        Self { observer: Arc::clone(&context.observer), role, claim: Some(claim.clone()), volume: None }
    }

    pub(crate) fn of_volume(context: &Context, role: Role, volume: &Volume) -> Self {
        let claim = volume.claim_ref.as_ref().map(|r| r.key.clone());
        Self { observer: Arc::clone(&context.observer), role, claim, volume: Some(volume.name.clone()) }
    }

    /// For an attachment, by what its volume tells.
    pub(crate) fn of_attachment(
        context: &Context,
        name: Option<&VolumeName>,
        volume: Option<&Volume>,
    ) -> Self {
        let claim = volume.and_then(|volume| volume.claim_ref.as_ref()).map(|r| r.key.clone());
        Self { observer: Arc::clone(&context.observer), role: Role::Attacher, claim, volume: name.cloned() }
    }

    /// For an object that belongs to no claim and no volume.
    pub(crate) fn of_nothing(context: &Context, role: Role) -> Self {
        Self { observer: Arc::clone(&context.observer), role, claim: None, volume: None }
    }

    pub(crate) fn tell(&self, kind: StepKind, text: impl Into<String>, took: Option<Duration>) {
        let text = text.into();
        let claim = self.claim.as_ref().map(tracing::field::display);
        let volume = self.volume.as_ref().map(tracing::field::display);
        match kind {
            StepKind::Fails => tracing::info!(role = %self.role, claim, volume, "{text}"),
            StepKind::Acts | StepKind::Waits | StepKind::Settled => {
                tracing::debug!(role = %self.role, claim, volume, "{text}");
            }
        }
        let (claim, volume) = (self.claim.clone(), self.volume.clone());
        self.observer.step(Step { role: self.role, claim, volume, kind, text, took });
    }

    /// Performs one effect and tells how it went; `text` names it in the present tense. A conflict is not told: it is no
    /// failure, and the decision is made again.
    pub(crate) async fn act<T>(
        &self,
        text: &str,
        effect: impl Future<Output = Result<T, WriteError>>,
    ) -> Result<T, WriteError> {
        let started = Instant::now();
        let result = effect.await;
        match &result {
            Ok(_) => self.tell(StepKind::Acts, text, Some(started.elapsed())),
            Err(WriteError::Conflict(_)) => {}
            Err(error) => self.tell(StepKind::Fails, format!("{text}: {error}"), Some(started.elapsed())),
        }
        result
    }
}

/// Does something once in a period, until `stop`.
pub(crate) async fn every(period: Duration, stop: CancellationToken, mut then: impl FnMut()) {
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = ticks.tick() => then(),
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
        "resourceVersion": claim.meta.version.to_string(),
    })
}
