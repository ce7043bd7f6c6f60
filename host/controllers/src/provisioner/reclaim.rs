//! What becomes of volumes: protected while they are Bound, deleted when they are Released; one effect at a time.

use cofferdam_backend::Call;
use cofferdam_cluster::{Precondition, Seen, WriteError, hold, queue::Outcome};
use cofferdam_domain::{Claim, DriverName, Volume, VolumeName, VolumePhase, names, storage::Ability};
use tokio::time::Instant;

use super::{
    parameters,
    placement::Here,
    reconcile::Provisioner,
    rules::{self, VolumeVerdict},
};
use crate::{
    act::{MAX_EFFECTS, REPEAT, Teller},
    note::Note,
    observer::StepKind,
    protection::{self, rules::Verdict},
    role::Role,
};

impl Provisioner {
    /// Protects, releases or deletes a volume.
    pub(super) async fn volume(&self, name: &VolumeName) -> Outcome {
        let mut deleted = None;
        for _ in 0..MAX_EFFECTS {
            let Seen::Known(volume) = self.context.cache.volumes.get(name) else { return Outcome::Done };
            let teller = Teller::of_volume(&self.context, Role::Provisioner, &volume);
            let holds = |here: &Here| here.holds(&volume, &self.context.cache);
            let here = self.context.here.as_ref().is_some_and(holds);
            let ours = |driver: &DriverName| {
                self.context.drivers.contains_key(driver) && (here || !self.context.is_of_node(driver))
            };
            let writer = &self.context.writer;
            let uid = &volume.meta.uid;
            let finalizer = names::PROVISIONER_FINALIZER;
            let result = match rules::volume(
                &ours,
                &volume,
                deleted.as_ref() == Some(uid),
                hold::is_held(&self.context.cache),
            ) {
                VolumeVerdict::Ignore(_) => return Outcome::Done,
                VolumeVerdict::AddFinalizer => teller
                    .act("protects the volume's object", writer.add_finalizer(&*volume, finalizer))
                    .await
                    .map(drop),
                VolumeVerdict::RemoveFinalizer(at) => {
                    let mut finalizers = vec![(at, finalizer)];
                    // The other role of this process that keeps the object would take its own off next.
                    if self.context.settings.roles.contains(&Role::Protection)
                        && let Verdict::Remove(at) = protection::rules::volume(&volume, false)
                    {
                        finalizers.push((at, names::PV_PROTECTION));
                    }
                    let write = writer.remove_finalizers::<Volume>(name, uid, &mut finalizers);
                    teller.act("releases the volume's object", write).await.map(drop)
                }
                VolumeVerdict::DeleteObject => {
                    let precondition = Precondition { uid: Some(uid.clone()), version: None };
                    teller
                        .act("deletes the volume's object", writer.delete::<Volume>(name, &precondition))
                        .await
                }
                VolumeVerdict::DeleteVolume => {
                    if let Some(outcome) = self.delete(&volume, &teller).await {
                        return outcome;
                    }
                    deleted = Some(uid.clone());
                    Ok(())
                }
                VolumeVerdict::Hold => return self.held(&volume, &teller),
            };
            if let Err(error) = result {
                return self.context.after_failure::<Volume>(name, &error).await;
            }
        }
        Outcome::Again
    }

    /// Why a volume cannot be deleted without a secret: its own annotation names one, or it has none and its class does, as
    /// external-provisioner looks there then. An annotation that is empty says that there is no secret.
    fn needs_secret(&self, volume: &Volume) -> Option<String> {
        match volume.meta.annotation(names::DELETION_SECRET_NAME) {
            Some("") => None,
            Some(secret) => Some(format!(
                "deleting the volume needs the secret {secret:?}: this version passes no secrets to drivers"
            )),
            None => {
                let class = self.context.cache.class(&volume.class).known()?;
                let key = parameters::deletion_secret(&class)?;
                let class = &class.name;
                Some(format!(
                    "deleting the volume may need the secret that StorageClass {class} names with {key:?}: this version passes no \
                     secrets to drivers"
                ))
            }
        }
    }

    /// The one effect that cannot be taken back: before it, object and claim are read past the cache, and then the version of the
    /// cluster, unless the binder of this process has just done so.
    async fn delete(&self, volume: &Volume, teller: &Teller) -> Option<Outcome> {
        let Some(csi) = &volume.csi else { return Some(Outcome::Done) };
        let Some(driver) = self.context.drivers.get(&csi.driver) else { return Some(Outcome::Done) };
        if let Some(text) = self.needs_secret(volume) {
            self.context.note(volume, &driver.component, Note::warning("VolumeFailedDelete", text));
            return Some(Outcome::RetryAfter(self.context.settings.retry_interval_max));
        }
        let here = self.context.here.as_ref().filter(|here| here.has(&csi.driver));
        let place = here.and_then(|here| here.segments(&csi.driver, &self.context.cache).ok());
        let may = |other: &Volume| !place.as_ref().is_some_and(|place| other.is_never_at(place));
        let cache = &self.context.cache;
        if let Some(other) = cache.other_with_handle(&csi.driver, &csi.handle, &volume.name, may) {
            let text = format!(
                "PersistentVolume {other} stands for the same volume {}: it is not deleted",
                csi.handle
            );
            self.context.note(volume, &driver.component, Note::warning("VolumeFailedDelete", text));
            return Some(Outcome::RetryAfter(self.context.settings.retry_interval_max));
        }
        let publishes = driver.backend.abilities().contains(&Ability::Publishing);
        let attached = self.context.cache.attachments_of_volume(&volume.name);
        if let Some(attachment) = attached.first().filter(|_| publishes) {
            let text =
                format!("persistentvolume {} is still attached to node {}", volume.name, attachment.node);
            teller.tell(StepKind::Waits, text.clone(), None);
            self.context.note(volume, &driver.component, Note::warning("VolumeFailedDelete", text));
            return Some(Outcome::Retry);
        }
        match self.still_released(volume).await {
            Ok(true) => {}
            // The binder has not said so yet, or is not there to say it: its word wakes this volume.
            Ok(false) => return Some(Outcome::Retry),
            Err(error) => return Some(self.context.after_failure::<Volume>(&volume.name, &error).await),
        }
        if hold::is_held(&self.context.cache) {
            return Some(self.held(volume, teller));
        }
        let call = Call::within(self.context.settings.timeout);
        let started = Instant::now();
        let class = volume.class.as_ref().into();
        match driver.backend.delete_volume(call, csi.handle.clone()).await {
            Ok(()) => {
                self.metrics.deleted(&class, started.elapsed());
                teller.tell(
                    StepKind::Acts,
                    format!("{} deletes the volume", csi.driver),
                    Some(started.elapsed()),
                );
                None
            }
            Err(error) => {
                self.metrics.delete_failed(&class);
                let text = format!("{} cannot delete the volume: {error}", csi.driver);
                teller.tell(StepKind::Fails, text, Some(started.elapsed()));
                let note = Note::warning("VolumeFailedDelete", error.to_string());
                self.context.note(volume, &driver.component, note);
                Some(Outcome::Retry)
            }
        }
    }

    async fn still_released(&self, volume: &Volume) -> Result<bool, WriteError> {
        if self.context.released.take(volume) {
            return Ok(true);
        }
        let Some(live) = self.context.writer.get::<Volume>(&volume.name).await? else { return Ok(false) };
        let same = live.meta.uid == volume.meta.uid && live.phase == VolumePhase::Released;
        if !same || live.reclaim_policy != volume.reclaim_policy {
            return Ok(false);
        }
        let Some(claim_ref) = live.claim_ref.as_ref().filter(|r| r.uid.is_some()) else { return Ok(false) };
        let claim = self.context.writer.get::<Claim>(&claim_ref.key).await?;
        self.context.look().await?;
        // A claim of that uid that names another volume is the winner of a double provisioning; this one is the loser's.
        Ok(claim.is_none_or(|claim| {
            claim_ref.uid.as_ref() != Some(&claim.meta.uid)
                || claim.volume.is_some_and(|name| name != live.name)
        }))
    }

    fn held(&self, volume: &Volume, teller: &Teller) -> Outcome {
        let text = format!(
            "The cluster was restored from a backup: the volume is not deleted until ConfigMap {}/{} is deleted",
            self.context.settings.namespace,
            hold::MARK
        );
        teller.tell(StepKind::Waits, text.clone(), None);
        let note = Note::warning("DeletionHeld", text);
        let component = volume.csi.as_ref().and_then(|csi| self.context.drivers.get(&csi.driver));
        let component =
            component.map_or_else(|| "external-provisioner".into(), |driver| driver.component.clone());
        self.context.note(volume, &component, note);
        Outcome::After(REPEAT)
    }
}
