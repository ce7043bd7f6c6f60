//! Reconciles claims and volumes as [`rules`] decides, one step at a time: one write, or two that do not
//! depend on each other.

use std::{
    cell::Cell,
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use cofferdam_cluster::{
    ApiError, Cache, Change, Lookup, Writer,
    metrics::Metrics,
    observer::StepResult,
    queue::{Action, ExponentialBackoff, Queue},
    writer::PatchTarget,
};
use cofferdam_domain::{
    Claim, ClaimKey, ClaimRef, DriverName, StorageClass, Uid, Volume, VolumeName, VolumePhase, names,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    conflict,
    metrics::PvControllerMetrics,
    rules::{
        self, AttributesClassWrite, BindingInput, CapacityWrite, ClaimBindingVerdict, ClaimEffect,
        ClaimStatus, MigratedToWrite, VolumeBindingVerdict, VolumeEffect,
    },
};
use crate::{
    channels::Channels,
    conflicts::ConflictDetector,
    controller::Controller,
    events::EventRecorder,
    messages::{ClaimNeedsVolume, VolumeReleased},
    reconcile::{EVENT_REPEAT_INTERVAL, MAX_EFFECTS, action_for_write_error, subscribe},
    restore_check::RestoreCheck,
    step_recorder::{StepRecorder, StepRecorders},
    volume_locks::{VolumeLocks, WakePolicy},
};

/// `source.component` of this controller's events.
const COMPONENT: &str = "persistentvolume-controller";
/// Delay of the event `ExternalProvisioning` on a claim that waits for a provisioner in another process or
/// for a node-local driver's. kube-controller-manager emits the event immediately and with every resync; most
/// claims are bound within this time.
const PROVISIONING_EVENT_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of claims that are reconciled concurrently; the same limit applies separately to volumes.
const WORKERS: usize = 64;

/// Dependencies of the PersistentVolume controller.
pub(crate) struct PvControllerContext {
    pub(super) cache: Arc<Cache>,
    pub(super) writer: Writer,
    pub(super) events: EventRecorder,
    pub(super) recorders: StepRecorders,
    pub(super) backoff: ExponentialBackoff,
    pub(super) queue_metrics: Metrics,
    /// Drivers whose provisioner runs in this process, without node-local drivers.
    pub(super) provisioned_drivers: Arc<BTreeSet<DriverName>>,
    /// Sends messages to the provisioner.
    pub(super) channels: Arc<Channels>,
    pub(super) restore_check: RestoreCheck,
    pub(super) conflicts: Arc<ConflictDetector>,
    pub(super) metrics: PvControllerMetrics,
}

/// The PersistentVolume controller.
pub(crate) struct PvController {
    context: PvControllerContext,
    claims: Queue<ClaimKey>,
    volumes: Queue<VolumeName>,
    /// Claims that wait for a provisioner that gets no messages from this controller, because it runs in
    /// another process or its driver is node-local. The value is the start of the wait.
    waiting: Mutex<HashMap<Uid, Instant>>,
    /// Locks of volumes that a claim is reserving or binding. The lock is held during the write of the
    /// claimRef, and during that of the phase if the claim is written at the same time.
    volume_locks: VolumeLocks<VolumeName, ClaimKey>,
}

impl Controller for PvController {
    type Context = PvControllerContext;

    fn new(context: PvControllerContext) -> Arc<Self> {
        context.metrics.set_cache(&context.cache);
        Arc::new(Self {
            claims: Queue::new("claims", context.backoff, &context.queue_metrics),
            volumes: Queue::new("volumes", context.backoff, &context.queue_metrics),
            waiting: Mutex::default(),
            volume_locks: VolumeLocks::new(WakePolicy::All),
            context,
        })
    }

    fn subscribe(self: &Arc<Self>) {
        let cache = &self.context.cache;
        subscribe(self, &cache.claims, Self::claim_changed);
        subscribe(self, &cache.volumes, Self::volume_changed);
        subscribe(self, &cache.classes, Self::class_changed);
        self.context.conflicts.subscribe(&cache.claims, conflict::claim_field);
        self.context.conflicts.subscribe(&cache.volumes, conflict::volume_field);
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let (claims, volumes) = (Arc::clone(&self), Arc::clone(&self));
        self.context.conflicts.activate();
        tokio::join!(
            self.claims.run(WORKERS, stop.clone(), move |key| {
                let controller = Arc::clone(&claims);
                async move { controller.reconcile_claim(&key).await }
            }),
            self.volumes.run(WORKERS, stop, move |name| {
                let controller = Arc::clone(&volumes);
                async move { controller.reconcile_volume(&name).await }
            }),
        );
    }
}

impl PvController {
    fn claim_changed(&self, change: &Change<Claim>) {
        self.claims.add(change.key.clone());
        for claim in [&change.old, &change.new].into_iter().flatten() {
            if let Some(volume) = &claim.volume {
                self.volumes.add(volume.clone());
            }
        }
        // Created, deleted, replaced by another claim of the same name, or bound to another volume: reconcile
        // the volumes that refer to it.
        let identity = |claim: &Option<Arc<Claim>>| {
            claim.as_ref().map(|claim| (claim.meta.uid.clone(), claim.volume.clone()))
        };
        if identity(&change.old) != identity(&change.new) || change.new.is_none() {
            for volume in self.context.cache.volumes_of_claim(&change.key) {
                self.volumes.add(volume.name.clone());
            }
            if let Some(old) = &change.old {
                self.waiting.lock().remove(&old.meta.uid);
            }
        }
    }

    fn volume_changed(&self, change: &Change<Volume>) {
        self.volumes.add(change.key.clone());
        for volume in [&change.old, &change.new].into_iter().flatten() {
            if let Some(claim) = &volume.claim_ref {
                self.claims.add(claim.key.clone());
            }
        }
        for claim in self.context.cache.claims_referencing_volume(&change.key) {
            self.claims.add(claim);
        }
        let free = |volume: &Option<Arc<Volume>>| volume.as_ref().is_some_and(|v| v.claim_ref.is_none());
        if free(&change.new) {
            let class = change.new.as_ref().map(|volume| volume.class.clone()).unwrap_or_default();
            for claim in self.context.cache.unbound_claims_of_class(&class) {
                self.claims.add(claim);
            }
        }
    }

    fn class_changed(&self, change: &Change<StorageClass>) {
        if !rules::is_relevant_class_change(change.old.as_deref(), change.new.as_deref()) {
            return;
        }
        let mut claims = self.context.cache.unbound_claims_of_class(change.key.as_str());
        if change.new.as_ref().is_some_and(|class| class.is_default()) {
            claims.extend(self.context.cache.unbound_claims_of_class(""));
        }
        claims.into_iter().for_each(|claim| self.claims.add(claim));
    }

    /// Reconciles one claim. See [`rules::decide_claim`].
    async fn reconcile_claim(&self, key: &ClaimKey) -> Action {
        let recorder = self.context.recorders.of_claim(key);
        for _ in 0..MAX_EFFECTS {
            // 1. Decide from the cache.
            let Lookup::Found(claim) = self.context.cache.claims.get(key) else { return Action::Done };
            let (verdict, locked_volume) = self.verdict(&claim);

            // 2. Wait for a lock on the volume; its release enqueues the claim.
            if let Some(volume) = locked_volume {
                if self.volume_locks.add_waiter(&volume, key) {
                    return Action::Done;
                }
                continue;
            }
            if !matches!(verdict, ClaimBindingVerdict::WaitForProvisioner(..)) {
                self.waiting.lock().remove(&claim.meta.uid);
            }

            // 3. Write, then decide again; or wait, or report.
            match verdict {
                ClaimBindingVerdict::Apply(effect, event) => {
                    if let Err(error) = self.perform(&recorder, &claim, effect).await {
                        return action_for_write_error::<Claim>(&self.context.writer, key, &error).await;
                    }
                    if let Some(event) = event {
                        self.context.events.emit(&*claim, COMPONENT, event);
                    }
                }
                ClaimBindingVerdict::ApplyBoth([first, second]) => {
                    if let Err(error) = self.perform_both(&recorder, &claim, first, second).await {
                        return action_for_write_error::<Claim>(&self.context.writer, key, &error).await;
                    }
                }
                ClaimBindingVerdict::NoAction(reason) => {
                    recorder.record(StepResult::UpToDate, reason, None);
                    return Action::Done;
                }
                ClaimBindingVerdict::Wait(event) => {
                    recorder.record(StepResult::Waiting, event.text.clone(), None);
                    self.context.events.emit(&*claim, COMPONENT, event);
                    return Action::RequeueAfter(EVENT_REPEAT_INTERVAL);
                }
                ClaimBindingVerdict::WaitForProvisioner(_, driver) => {
                    return self.wait_for_provisioner(&recorder, &claim, &driver);
                }
                ClaimBindingVerdict::Fail(message, event) => {
                    recorder.record(StepResult::Failed, message, None);
                    if let Some(event) = event {
                        self.context.events.emit(&*claim, COMPONENT, event);
                    }
                    return Action::Backoff;
                }
            }
        }
        Action::Requeue
    }

    /// Decides on a claim. Also returns a volume that the claim could get if another claim had not locked it;
    /// `None` if there is none, or if the claim gets another volume.
    fn verdict(&self, claim: &Claim) -> (ClaimBindingVerdict, Option<VolumeName>) {
        let locked_volume = Cell::new(None);
        let has_provisioner = |driver: &DriverName| self.context.provisioned_drivers.contains(driver);
        let is_locked_by_other = |volume: &VolumeName| {
            let is = self.volume_locks.is_locked_by_other(volume, &claim.key);
            if is {
                locked_volume.set(Some(volume.clone()));
            }
            is
        };
        let input = BindingInput {
            cache: &self.context.cache,
            has_provisioner: &has_provisioner,
            is_locked_by_other: &is_locked_by_other,
        };
        let verdict = rules::decide_claim(input, claim);
        let found = matches!(verdict, ClaimBindingVerdict::Apply(ClaimEffect::ReserveVolume { .. }, _));
        (verdict, locked_volume.take().filter(|_| !found))
    }

    fn wait_for_provisioner(&self, recorder: &StepRecorder, claim: &Claim, driver: &DriverName) -> Action {
        // The provisioner may have reconciled the claim before the claim lost an existing volume to another
        // claim.
        let message = ClaimNeedsVolume { claim: claim.meta.uid.clone() };
        if self.context.provisioned_drivers.contains(driver) && self.context.channels.send(&message) {
            // The provisioner emits the events of the claim. In a burst, an event for each waiting claim
            // would delay all of them.
            recorder.record(StepResult::Waiting, format!("waits for {driver} to provision a volume"), None);
            return Action::Done;
        }
        let since = *self.waiting.lock().entry(claim.meta.uid.clone()).or_insert_with(Instant::now);
        match PROVISIONING_EVENT_DELAY.checked_sub(since.elapsed()) {
            Some(left) if !left.is_zero() => Action::RequeueAfter(left),
            Some(_) | None => {
                let event = rules::external_provisioning_event(driver);
                recorder.record(
                    StepResult::Waiting,
                    format!("waits for {driver} to provision a volume"),
                    None,
                );
                self.context.events.emit(claim, COMPONENT, event);
                Action::RequeueAfter(EVENT_REPEAT_INTERVAL)
            }
        }
    }

    /// Performs two effects concurrently. Both end before the next decision, also if one of them fails.
    async fn perform_both(
        &self,
        recorder: &StepRecorder,
        claim: &Claim,
        first: ClaimEffect,
        second: ClaimEffect,
    ) -> Result<(), ApiError> {
        // The reconcile of the volume does not repeat the write of the phase meanwhile. Without the lock, it may:
        // one of both writes then conflicts.
        let enqueue = |claim| self.claims.add(claim);
        let _lock = if let ClaimEffect::MarkVolumeBound(volume) = &first {
            self.volume_locks.try_acquire(&volume.name, &claim.key, enqueue)
        } else {
            None
        };
        let (first, second) =
            tokio::join!(self.perform(recorder, claim, first), self.perform(recorder, claim, second));
        first.and(second)
    }

    async fn perform(
        &self,
        recorder: &StepRecorder,
        claim: &Claim,
        effect: ClaimEffect,
    ) -> Result<(), ApiError> {
        let writer = &self.context.writer;
        let version = claim.meta.resource_version;
        match effect {
            ClaimEffect::AssignClass(class) => {
                let patch = json!({"spec": {"storageClassName": class}});
                let text = format!("assigns the default class {class}");
                recorder
                    .record_effect(
                        &text,
                        writer.merge_patch::<Claim>(&claim.key, PatchTarget::Object, version, patch),
                    )
                    .await?;
            }
            ClaimEffect::ReserveVolume { volume, by_controller } => {
                let mut patch = json!({"spec": {"claimRef": claim_reference(claim)}});
                if let Some(patch) = patch.as_object_mut().filter(|_| by_controller) {
                    let annotations = json!({"annotations": {names::BOUND_BY_CONTROLLER: "yes"}});
                    patch.insert("metadata".to_owned(), annotations);
                }
                let enqueue = |claim| self.claims.add(claim);
                let Some(_lock) = self.volume_locks.try_acquire(&volume.name, &claim.key, enqueue) else {
                    return Err(ApiError::Conflict(format!("PersistentVolume {}", volume.name)));
                };
                let text = format!("reserves {}", volume.name);
                let write = writer.merge_patch::<Volume>(
                    &volume.name,
                    PatchTarget::Object,
                    volume.meta.resource_version,
                    patch,
                );
                self.with_refresh(&volume.name, recorder.record_effect(&text, write).await).await?;
            }
            ClaimEffect::MarkVolumeBound(volume) => {
                let patch = json!({"status": {"phase": "Bound", "message": null}});
                let text = format!("sets the phase of {} to Bound", volume.name);
                let write = writer.merge_patch::<Volume>(
                    &volume.name,
                    PatchTarget::Status,
                    volume.meta.resource_version,
                    patch,
                );
                self.with_refresh(&volume.name, recorder.record_effect(&text, write).await).await?;
            }
            ClaimEffect::BindClaim { volume, by_controller, provisioner } => {
                let patch = bind_patch(&volume, by_controller, provisioner.as_ref());
                let text = format!("binds to {volume}");
                recorder
                    .record_effect(
                        &text,
                        writer.merge_patch::<Claim>(&claim.key, PatchTarget::Object, version, patch),
                    )
                    .await?;
            }
            ClaimEffect::SetStatus(status) => {
                let text = format!("sets the phase to {}", status.phase.as_str());
                let patch = json!({"status": status_patch(&status)});
                recorder
                    .record_effect(
                        &text,
                        writer.merge_patch::<Claim>(&claim.key, PatchTarget::Status, version, patch),
                    )
                    .await?;
            }
            ClaimEffect::SetProvisioner(driver) => {
                let patch = json!({"metadata": {"annotations": {
                    names::STORAGE_PROVISIONER: driver,
                    names::STORAGE_PROVISIONER_BETA: driver,
                }}});
                let text = format!("requests a volume from {driver}");
                recorder
                    .record_effect(
                        &text,
                        writer.merge_patch::<Claim>(&claim.key, PatchTarget::Object, version, patch),
                    )
                    .await?;
            }
            ClaimEffect::SetMigratedTo(migrated_to) => {
                let patch = json!({"metadata": migration_metadata(&migrated_to)});
                recorder
                    .record_effect(
                        migration_text(&migrated_to),
                        writer.merge_patch::<Claim>(&claim.key, PatchTarget::Object, version, patch),
                    )
                    .await?;
            }
        }
        Ok(())
    }

    /// Reads a volume live after a write of it failed with Conflict or NotFound in the reconcile of a claim.
    /// The error handling of that reconcile reads only the claim.
    async fn with_refresh<T>(&self, name: &VolumeName, result: Result<T, ApiError>) -> Result<(), ApiError> {
        match result {
            Ok(_) => Ok(()),
            Err(error) => {
                if matches!(error, ApiError::Conflict(_) | ApiError::NotFound(_)) {
                    self.context.writer.refresh::<Volume>(name).await?;
                }
                Err(error)
            }
        }
    }

    /// Reconciles one volume. See [`rules::decide_volume`].
    async fn reconcile_volume(&self, name: &VolumeName) -> Action {
        let mut refreshed_claim: Option<(ClaimRef, Instant)> = None;
        for _ in 0..MAX_EFFECTS {
            // 1. Decide from the cache, and from the claim if it was refreshed for this volume, or if a write
            //    of this process has removed it.
            let Lookup::Found(volume) = self.context.cache.volumes.get(name) else { return Action::Done };
            if refreshed_claim.is_none() {
                refreshed_claim = self.removed_claim(&volume);
            }
            let recorder = self.context.recorders.of_volume(&volume);
            let has_provisioner = |driver: &DriverName| self.context.provisioned_drivers.contains(driver);
            let input = BindingInput {
                cache: &self.context.cache,
                has_provisioner: &has_provisioner,
                is_locked_by_other: &|volume| self.volume_locks.is_locked(volume),
            };
            // 2. Write or refresh, then decide again; or finish.
            match rules::decide_volume(input, &volume, refreshed_claim.as_ref().map(|(claim, _)| claim)) {
                VolumeBindingVerdict::Apply(effect, event) => {
                    if let VolumeEffect::RefreshBeforeRelease(_) = effect {
                        refreshed_claim = volume.claim_ref.clone().map(|claim| (claim, Instant::now()));
                    }
                    let refreshed_at = refreshed_claim
                        .as_ref()
                        .filter(|(claim, _)| volume.claim_ref.as_ref() == Some(claim));
                    let refreshed_at = refreshed_at.map(|(_, at)| *at);
                    if let Err(error) = self.perform_on_volume(&recorder, &volume, effect, refreshed_at).await
                    {
                        return action_for_write_error::<Volume>(&self.context.writer, name, &error).await;
                    }
                    if let Some(event) = event {
                        self.context.events.emit(&*volume, COMPONENT, event);
                    }
                }
                VolumeBindingVerdict::EnqueueClaim(key) => {
                    self.claims.add(key);
                    return Action::Done;
                }
                VolumeBindingVerdict::VolumeModeMismatch(key, on_volume, on_claim) => {
                    self.context.events.emit(&*volume, COMPONENT, on_volume);
                    if let Some(claim) = self.context.cache.claims.get(&key).into_object() {
                        self.context.events.emit(&*claim, COMPONENT, on_claim);
                    }
                    return Action::RequeueAfter(EVENT_REPEAT_INTERVAL);
                }
                VolumeBindingVerdict::NoAction(reason) => {
                    recorder.record(StepResult::UpToDate, reason, None);
                    return Action::Done;
                }
            }
        }
        Action::Requeue
    }

    /// Returns the volume's claimRef and the time at which a write of this process removed its claim; `None`
    /// if none did.
    fn removed_claim(&self, volume: &Volume) -> Option<(ClaimRef, Instant)> {
        let claim_ref = volume.claim_ref.as_ref()?;
        let removed_at =
            self.context.cache.claims.removed_by_own_write(&claim_ref.key, claim_ref.uid.as_ref()?)?;
        Some((claim_ref.clone(), removed_at))
    }

    /// Sets the phase to Released, and meanwhile checks whether the cluster was restored. The write does not
    /// wait for the check: Released deletes nothing by itself, and the provisioner deletes nothing while
    /// deletions are frozen. The provisioner waits for the result of both.
    async fn release(
        &self,
        volume: &Volume,
        claim_read_at: Instant,
        write: impl Future<Output = Result<Volume, ApiError>>,
    ) -> Result<(), ApiError> {
        let (result, released) = watch::channel(None);
        let volume = volume.name.clone();
        self.context.channels.send(&VolumeReleased { volume, claim_read_at, released });
        // After the read of the claim, which may come from the restored cluster.
        let (written, checked) = tokio::join!(write, self.context.restore_check.detect_live());
        let written = written?;
        match checked {
            Ok(()) => drop(result.send(Some(written.meta.resource_version))),
            // Without a result, the provisioner reads by itself.
            Err(error) => tracing::debug!(%error, volume = %written.name, "cannot check for a restore"),
        }
        Ok(())
    }

    async fn perform_on_volume(
        &self,
        recorder: &StepRecorder,
        volume: &Volume,
        effect: VolumeEffect,
        claim_refreshed_at: Option<Instant>,
    ) -> Result<(), ApiError> {
        let writer = &self.context.writer;
        let version = volume.meta.resource_version;
        match effect {
            VolumeEffect::SetPhase(phase, message) => {
                let message = if message.is_empty() { Value::Null } else { json!(message) };
                let patch = json!({"status": {"phase": phase.as_str(), "message": message}});
                let text = format!("sets the phase to {}", phase.as_str());
                let write = writer.merge_patch::<Volume>(&volume.name, PatchTarget::Status, version, patch);
                let write = recorder.record_effect(&text, write);
                match claim_refreshed_at.filter(|_| phase == VolumePhase::Released) {
                    Some(refreshed_at) => self.release(volume, refreshed_at, write).await?,
                    None => drop(write.await?),
                }
            }
            VolumeEffect::Unbind { whole } => {
                let patch = if whole {
                    json!({
                        "metadata": {"annotations": {names::BOUND_BY_CONTROLLER: null}},
                        "spec": {"claimRef": null},
                    })
                } else {
                    json!({"spec": {"claimRef": {"uid": null}}})
                };
                recorder
                    .record_effect(
                        "removes its claim",
                        writer.merge_patch::<Volume>(&volume.name, PatchTarget::Object, version, patch),
                    )
                    .await?;
            }
            VolumeEffect::UpdateMigration { migrated_to, finalizers } => {
                let mut metadata = migration_metadata(&migrated_to);
                if let Some(finalizers) = finalizers {
                    let finalizers: Vec<&str> = finalizers.iter().map(AsRef::as_ref).collect();
                    metadata.insert("finalizers".to_owned(), json!(finalizers));
                }
                let patch = json!({"metadata": metadata});
                recorder
                    .record_effect(
                        migration_text(&migrated_to),
                        writer.merge_patch::<Volume>(&volume.name, PatchTarget::Object, version, patch),
                    )
                    .await?;
            }
            VolumeEffect::RefreshBeforeRelease(key) => writer.refresh::<Claim>(&key).await?,
        }
        Ok(())
    }
}

/// `spec.claimRef` of a bound volume: with the claim's uid and resourceVersion.
fn claim_reference(claim: &Claim) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": &*claim.key.namespace,
        "name": &*claim.key.name,
        "uid": claim.meta.uid,
        "resourceVersion": claim.meta.resource_version.to_string(),
    })
}

fn bind_patch(volume: &VolumeName, by_controller: bool, provisioner: Option<&DriverName>) -> Value {
    let mut annotations = serde_json::Map::new();
    annotations.insert(names::BIND_COMPLETED.to_owned(), json!("yes"));
    if by_controller {
        annotations.insert(names::BOUND_BY_CONTROLLER.to_owned(), json!("yes"));
    }
    if let Some(driver) = provisioner {
        annotations.insert(names::STORAGE_PROVISIONER.to_owned(), json!(driver));
        annotations.insert(names::STORAGE_PROVISIONER_BETA.to_owned(), json!(driver));
    }
    json!({"metadata": {"annotations": annotations}, "spec": {"volumeName": volume}})
}

/// The members of `metadata` in the patch of the annotation `migrated-to`; none if it is unchanged.
fn migration_metadata(migrated_to: &MigratedToWrite) -> serde_json::Map<String, Value> {
    let value = match migrated_to {
        MigratedToWrite::Keep => return serde_json::Map::new(),
        MigratedToWrite::Clear => Value::Null,
        MigratedToWrite::Set(driver) => json!(driver),
    };
    [("annotations".to_owned(), json!({names::MIGRATED_TO: value}))].into_iter().collect()
}

/// Text of the step that updates the annotation `migrated-to`, or only the finalizers.
const fn migration_text(migrated_to: &MigratedToWrite) -> &'static str {
    match migrated_to {
        MigratedToWrite::Keep => "removes finalizers of the in-tree plugin",
        MigratedToWrite::Clear => "removes the annotation of the migration to a CSI driver",
        MigratedToWrite::Set(_) => "records the migration to a CSI driver",
    }
}

fn status_patch(status: &ClaimStatus) -> Value {
    let mut patch = serde_json::Map::new();
    patch.insert("phase".to_owned(), json!(status.phase.as_str()));
    let modes = status.access_modes.as_ref();
    let modes = modes.map(|modes| modes.iter().map(|mode| mode.as_str()).collect::<Vec<_>>());
    patch.insert("accessModes".to_owned(), json!(modes));
    match &status.capacity {
        CapacityWrite::Keep => {}
        CapacityWrite::Clear => {
            patch.insert("capacity".to_owned(), Value::Null);
        }
        CapacityWrite::Set(capacity) => {
            patch.insert("capacity".to_owned(), json!({"storage": capacity}));
        }
    }
    match &status.attributes_class {
        AttributesClassWrite::Keep => {}
        AttributesClassWrite::Clear => {
            patch.insert("currentVolumeAttributesClassName".to_owned(), Value::Null);
        }
        AttributesClassWrite::Set(class) => {
            patch.insert("currentVolumeAttributesClassName".to_owned(), json!(class));
        }
    }
    Value::Object(patch)
}
