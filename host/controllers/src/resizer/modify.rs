//! Carries out what [`modification`] decides, one effect at a time.

use cofferdam_cluster::{Seen, queue::Outcome, writer::Part as Endpoint};
use cofferdam_domain::{
    Claim, ClaimKey, DriverName, ModifyState, Uid, Volume, names,
    storage::{Parameters, StorageError},
    volume::SecretRef,
};
use tokio::time::Instant;

use super::{
    calls::Part,
    memory::left,
    modification::{self, Modify, Verdict, View},
    object,
    reconcile::Resizer,
    rules::Failure,
};
use crate::{
    act::{Driver, MAX_EFFECTS, REPEAT},
    note::Note,
    observer::StepKind,
};

const FAILED: &str = "VolumeModifyFailed";

impl Resizer {
    /// Gives a claim's volume the class that it asks for, as far as it can be done now.
    pub(super) async fn modify(&self, name: &DriverName, driver: &Driver, key: &ClaimKey) -> Outcome {
        let mut modified: Option<(Uid, Box<str>)> = None;
        for _ in 0..MAX_EFFECTS {
            let Seen::Known(claim) = self.context.cache.claims.get(key) else { return Outcome::Done };
            if !self.is_ours(name, &claim) {
                return Outcome::Done;
            }
            let memory = self.memory.modification(&claim.meta.uid);
            let left = left(memory.slow.as_ref());
            let slow = memory.slow.as_ref().filter(|_| left.is_some()).map(|(target, _)| &**target);
            let view = View {
                cache: &self.context.cache,
                able: Self::able(driver),
                closed: memory.closed,
                slow,
                told: memory
                    .told
                    .as_ref()
                    .filter(|told| self::left(Some(told)).is_some())
                    .map(|(told, _)| &**told),
                modified: modified.as_ref().map(|(uid, target)| (uid, &**target)),
            };
            let ended = match modification::modification(view, &claim) {
                Verdict::Settled(_) => {
                    if claim.progress().modification.is_none() {
                        self.memory.forget_modification(&claim.meta.uid);
                    }
                    return Outcome::Done;
                }
                Verdict::Slow => return left.map_or(Outcome::Again, Outcome::After),
                Verdict::Hopeless(problem) => {
                    self.warn(name, &claim, FAILED, problem);
                    return Outcome::Done;
                }
                Verdict::Refuse(problem) => {
                    self.warn(name, &claim, FAILED, problem);
                    return Outcome::Retry;
                }
                Verdict::Modify(modify) => {
                    let target = modify.target.clone();
                    let done = self.call_modify(name, driver, &claim, *modify).await;
                    done.map(|()| modified = Some((claim.meta.uid.clone(), target)))
                }
                verdict @ (Verdict::Cancel
                | Verdict::Pend(..)
                | Verdict::Begin(_)
                | Verdict::Record(..)
                | Verdict::Finish(_)) => self.write_modification(name, &claim, verdict).await,
            };
            if let Err(outcome) = ended {
                return outcome;
            }
        }
        Outcome::Again
    }

    /// Performs a verdict that is a write.
    async fn write_modification(
        &self,
        name: &DriverName,
        claim: &Claim,
        verdict: Verdict,
    ) -> Result<(), Outcome> {
        let now = self.context.now();
        let called = &claim.key.name;
        let (text, patch, note) = match verdict {
            Verdict::Record(volume, target) => {
                let text = "writes the volume's class";
                let patch = object::classed(&target);
                return self.write_volume((name, claim, FAILED), &volume, text, patch).await;
            }
            Verdict::Cancel => {
                let note =
                    Note::normal("VolumeModifyCanceled", format!("no class is asked for {called} any more"));
                ("is modified no more", object::cancelled(claim, now), note)
            }
            Verdict::Pend(target, problem) => {
                self.memory.of_modification(&claim.meta.uid, |memory| {
                    memory.told = Some((target, Instant::now() + REPEAT));
                });
                let note = Note::warning(FAILED, problem);
                if claim.progress().modification.as_ref().is_some_and(modification::waits) {
                    self.note(name, claim, note);
                    return Ok(());
                }
                ("waits for its class", object::pending(), note)
            }
            Verdict::Begin(target) => {
                // external-resizer's words.
                let text = format!("external resizer is modifying volume {called} with vac {target}");
                let patch = object::modification_begun(claim, now, &target);
                ("begins to be modified", patch, Note::normal("VolumeModify", text))
            }
            Verdict::Finish(target) => {
                let text =
                    format!("external resizer modified volume {called} with vac {target} successfully");
                let patch = object::modified(claim, now, &target);
                ("is modified", patch, Note::normal("VolumeModifySuccessful", text))
            }
            Verdict::Settled(_)
            | Verdict::Slow
            | Verdict::Refuse(_)
            | Verdict::Hopeless(_)
            | Verdict::Modify(_) => return Ok(()),
        };
        let (writer, version) = (&self.context.writer, claim.meta.version);
        let write = writer.strategic::<Claim>(&claim.key, Endpoint::Status, version, patch);
        match self.teller(claim).act(text, write).await {
            Ok(_) => {
                self.note(name, claim, note);
                Ok(())
            }
            Err(error) => self.after_claim(name, claim, FAILED, &error).await,
        }
    }

    async fn call_modify(
        &self,
        name: &DriverName,
        driver: &Driver,
        claim: &Claim,
        modify: Modify,
    ) -> Result<(), Outcome> {
        let Modify { volume, target, handle, mut parameters } = modify;
        let secret = secret_of(&volume);
        let secret = secret.as_ref();
        let (call, _running) = self.ready((name, claim, FAILED), &volume, secret, Part::Modification).await?;
        if self.context.settings.extra_modify_metadata {
            add_metadata(&mut parameters, claim, &volume);
        }
        self.memory.of_modification(&claim.meta.uid, |memory| memory.closed = false);
        let started = Instant::now();
        match driver.backend.modify_volume(call, handle, parameters).await {
            Ok(()) => {
                let text = format!("{name} gives the volume the class {target}");
                self.teller(claim).tell(StepKind::Acts, text, Some(started.elapsed()));
                Ok(())
            }
            Err(error) => Err(self.modification_failed(name, claim, &target, error).await),
        }
    }

    /// Writes the failure into the status, tells of it, and chooses when to try again.
    async fn modification_failed(
        &self,
        name: &DriverName,
        claim: &Claim,
        target: &str,
        error: StorageError,
    ) -> Outcome {
        if !self.is_there(claim) {
            return Outcome::Done;
        }
        let failure = modification::failure(&error);
        let infeasible = failure == Failure::Infeasible;
        let pause = self.context.settings.retry_interval_max;
        self.memory.of_modification(&claim.meta.uid, |memory| {
            memory.closed = failure != Failure::Open;
            memory.slow = infeasible.then(|| (target.into(), Instant::now() + pause));
        });
        self.warn(name, claim, FAILED, error.to_string());
        let state = if infeasible { ModifyState::Infeasible } else { ModifyState::InProgress };
        let said = (error.kind.as_str(), error.message.as_str());
        self.write_failure(claim, "could not be modified", |current| {
            let status = current.progress().modification.as_ref();
            status.filter(|status| &*status.target == target)?;
            let failed = (target, state, failure == Failure::Open);
            object::modification_failed(current, self.context.now(), said, failed)
        })
        .await;
        if infeasible {
            return Outcome::RetryAfter(pause);
        }
        self.later(name, Part::Modification, &claim.key, error.retry_after_ms)
    }
}

/// The Secret that a volume is modified with.
fn secret_of(volume: &Volume) -> Option<SecretRef> {
    let annotation = |key| volume.meta.annotation(key).filter(|text| !text.is_empty());
    match (annotation(names::MODIFY_SECRET_NAME), annotation(names::MODIFY_SECRET_NAMESPACE)) {
        (Some(name), Some(namespace)) => Some(SecretRef { namespace: namespace.into(), name: name.into() }),
        _ => volume.csi.as_ref().and_then(|csi| csi.expand_secret.as_deref().cloned()),
    }
}

/// `--extra-modify-metadata`
fn add_metadata(parameters: &mut Parameters, claim: &Claim, volume: &Volume) {
    let pairs = [
        ("csi.storage.k8s.io/pvc/name", &*claim.key.name),
        ("csi.storage.k8s.io/pvc/namespace", &*claim.key.namespace),
        ("csi.storage.k8s.io/pv/name", volume.name.as_str()),
    ];
    parameters.extend(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())));
}
