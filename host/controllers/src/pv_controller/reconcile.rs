//! Carries out what [`rules`] decides, one write at a time.

use std::{
    cell::Cell,
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cofferdam_cluster::{
    Change, Seen, WriteError,
    metrics::Metrics,
    queue::{Outcome, Queue},
    writer::Part,
};
use cofferdam_domain::{
    Claim, ClaimKey, ClaimRef, DriverName, StorageClass, Uid, Volume, VolumeName, VolumePhase, names,
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    rules::{
        self, AttributesClassWrite, CapacityWrite, ClaimEffect, ClaimStatus, ClaimVerdict, VolumeEffect,
        VolumeVerdict, World,
    },
    turns::Turns,
};
use crate::{
    act::{Context, MAX_EFFECTS, Teller, claim_reference},
    observer::StepKind,
    role::Role,
};

/// `source.component` of this controller's events.
const COMPONENT: &str = "persistentvolume-controller";
/// A claim that has no volume after this time gets the event that tells what it waits for. Kubernetes sends it at once and
/// then with every resync; most claims are bound before anybody could read it.
const PATIENCE: Duration = Duration::from_secs(1);
/// Claims, and as many volumes, that are worked on at once.
const WORKERS: usize = 64;

/// The role.
pub(crate) struct PvController {
    context: Arc<Context>,
    claims: Queue<ClaimKey>,
    volumes: Queue<VolumeName>,
    /// Since when claims wait for their provisioner.
    waiting: Mutex<HashMap<Uid, Instant>>,
    turns: Turns,
}

impl PvController {
    /// The role, woken by every change from now on.
    pub(crate) fn new(context: Arc<Context>, metrics: &Metrics) -> Arc<Self> {
        let backoff = context.settings.api_backoff();
        let claims = Queue::new("claims", backoff, metrics);
        let role = Arc::new(Self {
            turns: Turns::new(claims.clone()),
            claims,
            volumes: Queue::new("volumes", backoff, metrics),
            waiting: Mutex::default(),
            context,
        });
        let cache = Arc::clone(&role.context.cache);
        let me = Arc::downgrade(&role);
        cache.claims.subscribe(move |change| {
            if let Some(me) = me.upgrade() {
                me.claim_changed(change);
            }
        });
        let me = Arc::downgrade(&role);
        cache.volumes.subscribe(move |change| {
            if let Some(me) = me.upgrade() {
                me.volume_changed(change);
            }
        });
        let me = Arc::downgrade(&role);
        cache.classes.subscribe(move |change| {
            if let Some(me) = me.upgrade() {
                me.class_changed(change);
            }
        });
        role
    }

    /// Works until `stop`.
    pub(crate) async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let (claims, volumes) = (Arc::clone(self), Arc::clone(self));
        tokio::join!(
            self.claims.run(WORKERS, stop.clone(), move |key| {
                let me = Arc::clone(&claims);
                async move { me.claim(&key).await }
            }),
            self.volumes.run(WORKERS, stop, move |name| {
                let me = Arc::clone(&volumes);
                async move { me.volume(&name).await }
            }),
        );
    }

    fn claim_changed(&self, change: &Change<Claim>) {
        self.claims.add(change.key.clone());
        for claim in [&change.old, &change.new].into_iter().flatten() {
            if let Some(volume) = &claim.volume {
                self.volumes.add(volume.clone());
            }
        }
        // Appeared, went, or another of the same name: whoever is reserved for it must look.
        let uid = |claim: &Option<Arc<Claim>>| claim.as_ref().map(|claim| claim.meta.uid.clone());
        if uid(&change.old) != uid(&change.new) || change.new.is_none() {
            for volume in self.context.cache.volumes_of_claim(&change.key) {
                self.volumes.add(volume.name.clone());
            }
            if let Some(old) = &change.old {
                self.waiting().remove(&old.meta.uid);
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
        for claim in self.context.cache.claims_naming(&change.key) {
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
        if !rules::wakes(change.old.as_deref(), change.new.as_deref()) {
            return;
        }
        let mut woken = self.context.cache.unbound_claims_of_class(change.key.as_str());
        if change.new.as_ref().is_some_and(|class| class.is_default()) {
            woken.extend(self.context.cache.unbound_claims_of_class(""));
        }
        woken.into_iter().for_each(|claim| self.claims.add(claim));
    }

    async fn claim(&self, key: &ClaimKey) -> Outcome {
        let teller = Teller::of_claim(&self.context, Role::PvController, key);
        for _ in 0..MAX_EFFECTS {
            let Seen::Known(claim) = self.context.cache.claims.get(key) else { return Outcome::Done };
            let (verdict, passed_over) = self.verdict(&claim);
            if let Some(volume) = passed_over {
                if self.turns.wait(&volume, key) {
                    return Outcome::Done;
                }
                continue;
            }
            if !matches!(verdict, ClaimVerdict::Provision(..)) {
                self.waiting().remove(&claim.meta.uid);
            }
            match verdict {
                ClaimVerdict::Do(effect, note) => {
                    if let Err(error) = self.perform(&teller, &claim, effect).await {
                        return self.context.after_failure::<Claim>(key, &error).await;
                    }
                    if let Some(note) = note {
                        self.context.note(&*claim, COMPONENT, note);
                    }
                }
                ClaimVerdict::Settled(reason) => {
                    teller.tell(StepKind::Settled, reason, None);
                    return Outcome::Done;
                }
                ClaimVerdict::Wait(note) => {
                    teller.tell(StepKind::Waits, note.text.clone(), None);
                    self.context.note(&*claim, COMPONENT, note);
                    return Outcome::Done;
                }
                ClaimVerdict::Provision(_, driver) => return self.provisioning(&teller, &claim, &driver),
                ClaimVerdict::Fail(message, note) => {
                    teller.tell(StepKind::Fails, message, None);
                    if let Some(note) = note {
                        self.context.note(&*claim, COMPONENT, note);
                    }
                    return Outcome::Retry;
                }
            }
        }
        Outcome::Again
    }

    /// What is to be done for a claim; or the volume that would be its, were it not another's turn.
    fn verdict(&self, claim: &Claim) -> (ClaimVerdict, Option<VolumeName>) {
        let passed_over = Cell::new(None);
        let provisions = |driver: &DriverName| self.context.provisions(driver);
        let spoken_for = |volume: &VolumeName| {
            let is = self.turns.is_of_another(volume, &claim.key);
            if is {
                passed_over.set(Some(volume.clone()));
            }
            is
        };
        let world = World { cache: &self.context.cache, provisions: &provisions, spoken_for: &spoken_for };
        let verdict = rules::claim(world, claim);
        let found = matches!(verdict, ClaimVerdict::Do(ClaimEffect::ReserveVolume { .. }, _));
        (verdict, passed_over.take().filter(|_| !found))
    }

    fn provisioning(&self, teller: &Teller, claim: &Claim, driver: &DriverName) -> Outcome {
        // It may have looked before this claim lost the race for a volume that exists.
        if let Some(wanted) = self.context.wanted.get().filter(|_| self.context.provisions(driver)) {
            wanted.wake(claim.meta.uid.clone());
            // It tells by itself what keeps a claim. In a burst, an event for each one whose turn is to come would make all wait longer.
            teller.tell(StepKind::Waits, format!("a volume of {driver} is to come"), None);
            return Outcome::Done;
        }
        let since = *self.waiting().entry(claim.meta.uid.clone()).or_insert_with(Instant::now);
        match PATIENCE.checked_sub(since.elapsed()) {
            Some(left) if !left.is_zero() => Outcome::After(left),
            Some(_) | None => {
                let note = rules::waiting_for(driver);
                teller.tell(StepKind::Waits, format!("a volume of {driver} is to come"), None);
                self.context.note(claim, COMPONENT, note);
                Outcome::Done
            }
        }
    }

    async fn perform(&self, teller: &Teller, claim: &Claim, effect: ClaimEffect) -> Result<(), WriteError> {
        let writer = &self.context.writer;
        let version = claim.meta.version;
        match effect {
            ClaimEffect::AssignClass(class) => {
                let patch = json!({"spec": {"storageClassName": class}});
                let text = format!("assigns the default class {class}");
                teller.act(&text, writer.merge::<Claim>(&claim.key, Part::Object, version, patch)).await?;
            }
            ClaimEffect::ReserveVolume { volume, by_controller } => {
                let mut patch = json!({"spec": {"claimRef": claim_reference(claim)}});
                if let Some(patch) = patch.as_object_mut().filter(|_| by_controller) {
                    let annotations = json!({"annotations": {names::BOUND_BY_CONTROLLER: "yes"}});
                    patch.insert("metadata".to_owned(), annotations);
                }
                let Some(_turn) = self.turns.take(&volume.name, &claim.key) else {
                    return Err(WriteError::Conflict(format!("PersistentVolume {}", volume.name)));
                };
                let text = format!("reserves {}", volume.name);
                let write = writer.merge::<Volume>(&volume.name, Part::Object, volume.meta.version, patch);
                self.with_refresh(&volume.name, teller.act(&text, write).await).await?;
            }
            ClaimEffect::MarkVolumeBound(volume) => {
                let patch = json!({"status": {"phase": "Bound", "message": null}});
                let text = format!("marks {} Bound", volume.name);
                let write = writer.merge::<Volume>(&volume.name, Part::Status, volume.meta.version, patch);
                self.with_refresh(&volume.name, teller.act(&text, write).await).await?;
            }
            ClaimEffect::BindClaim { volume, by_controller, provisioner } => {
                let patch = bind_patch(&volume, by_controller, provisioner.as_ref());
                let text = format!("binds to {volume}");
                teller.act(&text, writer.merge::<Claim>(&claim.key, Part::Object, version, patch)).await?;
            }
            ClaimEffect::SetStatus(status) => {
                let text = format!("becomes {}", status.phase.as_str());
                let patch = json!({"status": status_patch(&status)});
                teller.act(&text, writer.merge::<Claim>(&claim.key, Part::Status, version, patch)).await?;
            }
            ClaimEffect::RequestProvisioning(driver) => {
                let patch = json!({"metadata": {"annotations": {
                    names::STORAGE_PROVISIONER: driver,
                    names::STORAGE_PROVISIONER_BETA: driver,
                }}});
                let text = format!("asks {driver} for a volume");
                teller.act(&text, writer.merge::<Claim>(&claim.key, Part::Object, version, patch)).await?;
            }
        }
        Ok(())
    }

    /// A write on a volume that fails within a claim's run: the volume must be read again, not only the claim.
    async fn with_refresh<T>(
        &self,
        name: &VolumeName,
        result: Result<T, WriteError>,
    ) -> Result<(), WriteError> {
        match result {
            Ok(_) => Ok(()),
            Err(error) => {
                if matches!(error, WriteError::Conflict(_) | WriteError::NotFound(_)) {
                    self.context.writer.refresh::<Volume>(name).await?;
                }
                Err(error)
            }
        }
    }

    async fn volume(&self, name: &VolumeName) -> Outcome {
        let mut looked_up: Option<(ClaimRef, Instant)> = None;
        for _ in 0..MAX_EFFECTS {
            let Seen::Known(volume) = self.context.cache.volumes.get(name) else { return Outcome::Done };
            let teller = Teller::of_volume(&self.context, Role::PvController, &volume);
            let provisions = |driver: &DriverName| self.context.provisions(driver);
            let world = World { cache: &self.context.cache, provisions: &provisions, spoken_for: &|_| false };
            match rules::volume(world, &volume, looked_up.as_ref().map(|(claim, _)| claim)) {
                VolumeVerdict::Do(effect, note) => {
                    if let VolumeEffect::LookUpClaim(_) = effect {
                        looked_up = volume.claim_ref.clone().map(|claim| (claim, Instant::now()));
                    }
                    let looked =
                        looked_up.as_ref().filter(|(claim, _)| volume.claim_ref.as_ref() == Some(claim));
                    let looked = looked.map(|(_, at)| *at);
                    if let Err(error) = self.perform_on_volume(&teller, &volume, effect, looked).await {
                        return self.context.after_failure::<Volume>(name, &error).await;
                    }
                    if let Some(note) = note {
                        self.context.note(&*volume, COMPONENT, note);
                    }
                }
                VolumeVerdict::WakeClaim(key) => {
                    self.claims.add(key);
                    return Outcome::Done;
                }
                VolumeVerdict::Mismatch(key, on_volume, on_claim) => {
                    self.context.note(&*volume, COMPONENT, on_volume);
                    if let Some(claim) = self.context.cache.claims.get(&key).known() {
                        self.context.note(&*claim, COMPONENT, on_claim);
                    }
                    return Outcome::Done;
                }
                VolumeVerdict::Settled(reason) => {
                    teller.tell(StepKind::Settled, reason, None);
                    return Outcome::Done;
                }
            }
        }
        Outcome::Again
    }

    async fn perform_on_volume(
        &self,
        teller: &Teller,
        volume: &Volume,
        effect: VolumeEffect,
        looked_up: Option<Instant>,
    ) -> Result<(), WriteError> {
        let writer = &self.context.writer;
        let version = volume.meta.version;
        match effect {
            VolumeEffect::SetPhase(phase, message) => {
                let message = if message.is_empty() { Value::Null } else { json!(message) };
                let patch = json!({"status": {"phase": phase.as_str(), "message": message}});
                let text = format!("marks it {}", phase.as_str());
                let write = writer.merge::<Volume>(&volume.name, Part::Status, version, patch);
                let written = teller.act(&text, write).await?;
                if let Some(looked) = looked_up.filter(|_| phase == VolumePhase::Released) {
                    self.context.released.note(&written, looked);
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
                teller
                    .act("gives it up", writer.merge::<Volume>(&volume.name, Part::Object, version, patch))
                    .await?;
            }
            VolumeEffect::LookUpClaim(key) => {
                writer.refresh::<Claim>(&key).await?;
                // The volume's deletion may rest on it: not if the cluster that says so is one that was restored.
                self.context.look().await?;
            }
        }
        Ok(())
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<Uid, Instant>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

fn status_patch(status: &ClaimStatus) -> Value {
    let mut patch = serde_json::Map::new();
    patch.insert("phase".to_owned(), json!(status.phase.as_str()));
    let modes = status.access_modes.map(|modes| modes.iter().map(|mode| mode.as_str()).collect::<Vec<_>>());
    patch.insert("accessModes".to_owned(), json!(modes));
    match status.capacity {
        CapacityWrite::Keep => {}
        CapacityWrite::Clear => {
            patch.insert("capacity".to_owned(), Value::Null);
        }
        CapacityWrite::Set(capacity) => {
            patch.insert("capacity".to_owned(), json!({"storage": capacity.to_string()}));
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
