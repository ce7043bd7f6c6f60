//! Carries out what [`rules`] decides of growing, one effect at a time.

use cofferdam_backend::Backend;
use cofferdam_cluster::{
    Seen, WriteError,
    queue::Outcome,
    writer::{Cached, Part as Endpoint},
};
use cofferdam_domain::{
    Claim, ClaimKey, DriverName, Quantity, ResizeState, Volume,
    storage::{Ability, ErrorKind, Feature, Finality, StorageError},
};
use tokio::time::Instant;

use super::{
    calls::Part,
    memory::left,
    object,
    reconcile::Resizer,
    rules::{self, Expand, Failure, Grown, Known, Verdict, View},
};
use crate::{
    act::{Driver, MAX_EFFECTS},
    note::Note,
    observer::StepKind,
};

const FAILED: &str = "VolumeResizeFailed";

impl Resizer {
    /// Grows a claim's volume as far as it can be done now.
    pub(super) async fn grow(&self, name: &DriverName, driver: &Driver, key: &ClaimKey) -> Outcome {
        let mut grown: Option<Grown> = None;
        for _ in 0..MAX_EFFECTS {
            let Seen::Known(claim) = self.context.cache.claims.get(key) else { return Outcome::Done };
            if !self.is_ours(name, &claim) {
                return Outcome::Done;
            }
            let memory = self.memory.growth(&claim.meta.uid);
            let left = left(memory.slow.as_ref());
            let slow = left.is_some() && memory.slow.map(|(target, _)| target) == claim.progress().allocated;
            let known = Known { last: memory.last, in_use: memory.in_use, slow };
            let view =
                View { cache: &self.context.cache, able: Self::able(driver), known, grown: grown.as_ref() };
            let ended = match rules::growth(view, &claim) {
                Verdict::Settled(_) => {
                    if claim.progress().resize.is_none() {
                        self.memory.forget_growth(&claim.meta.uid);
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
                Verdict::Expand(expand) => {
                    let answer = self.expand(name, driver, &claim, *expand).await;
                    answer.map(|answer| grown = Some(answer))
                }
                verdict @ (Verdict::Forget(_)
                | Verdict::Begin(_)
                | Verdict::Enlarge(_)
                | Verdict::HandOver
                | Verdict::Finish(_)) => self.write(name, &claim, verdict).await,
            };
            if let Err(outcome) = ended {
                return outcome;
            }
        }
        Outcome::Again
    }

    /// Performs a verdict that is a write.
    async fn write(&self, name: &DriverName, claim: &Claim, verdict: Verdict) -> Result<(), Outcome> {
        let (writer, now, teller) = (&self.context.writer, self.context.now(), self.teller(claim));
        let (key, version, status) = (&claim.key, claim.meta.version, Endpoint::Status);
        let (text, patch, note) = match verdict {
            Verdict::Forget(volume) => {
                let (text, patch) = ("forgets the size before", object::forgotten());
                return self.write_volume((name, claim, FAILED), &volume, text, patch).await;
            }
            Verdict::Enlarge(enlarge) => {
                let (text, patch) = ("writes the volume's new size", object::enlarged(&enlarge));
                return self.write_volume((name, claim, FAILED), &enlarge.volume, text, patch).await;
            }
            Verdict::Begin(begin) => {
                self.memory.of_growth(&claim.meta.uid, |memory| {
                    // A mark of an earlier size means nothing for this one.
                    memory.slow = memory.slow.take().filter(|(target, _)| *target == begin.target);
                });
                ("begins to grow", object::begun(claim, now, begin), None)
            }
            Verdict::HandOver => {
                if claim.progress().resize == Some(ResizeState::NodeInfeasible) {
                    // The node could not: it is handed back now, and the next time later.
                    self.slow_down(claim);
                }
                let note =
                    Note::normal("FileSystemResizeRequired", "Require file system resize of volume on node");
                ("is handed over to the node", object::handed_over(claim, now), Some(note))
            }
            Verdict::Finish(size) => {
                let note = Note::normal("VolumeResizeSuccessful", "Resize volume succeeded");
                ("has grown", object::finished(claim, now, size), Some(note))
            }
            Verdict::Settled(_)
            | Verdict::Slow
            | Verdict::Refuse(_)
            | Verdict::Hopeless(_)
            | Verdict::Expand(_) => return Ok(()),
        };
        let done = note.is_some();
        match teller.act(text, writer.strategic::<Claim>(key, status, version, patch)).await {
            Ok(_) => {
                if let Some(note) = note {
                    self.note(name, claim, note);
                }
                if done {
                    self.memory.of_growth(&claim.meta.uid, |memory| {
                        (memory.last, memory.in_use) = (None, false);
                    });
                }
                Ok(())
            }
            Err(error) => self.after_claim(name, claim, FAILED, &error).await,
        }
    }

    /// How a run goes on after a write of the claim that failed. After a conflict it looks again, with what the driver has answered.
    pub(super) async fn after_claim(
        &self,
        name: &DriverName,
        claim: &Claim,
        reason: &'static str,
        error: &WriteError,
    ) -> Result<(), Outcome> {
        self.after::<Claim>((name, claim, reason), &claim.key, error).await
    }

    async fn after<K: Cached>(
        &self,
        (name, claim, reason): (&DriverName, &Claim, &'static str),
        key: &K::Key,
        error: &WriteError,
    ) -> Result<(), Outcome> {
        if let WriteError::Refused { .. } = error {
            self.warn(name, claim, reason, error.to_string());
        }
        match self.context.after_failure::<K>(key, error).await {
            Outcome::Again => Ok(()),
            outcome @ (Outcome::Done | Outcome::After(_) | Outcome::Retry | Outcome::RetryAfter(_)) => {
                Err(outcome)
            }
        }
    }

    /// Writes on the volume's object, in the same way.
    pub(super) async fn write_volume(
        &self,
        (name, claim, reason): (&DriverName, &Claim, &'static str),
        volume: &Volume,
        text: &str,
        patch: serde_json::Value,
    ) -> Result<(), Outcome> {
        let (writer, version) = (&self.context.writer, volume.meta.version);
        let write = writer.merge::<Volume>(&volume.name, Endpoint::Object, version, patch);
        let Err(error) = self.teller(claim).act(text, write).await else { return Ok(()) };
        self.after::<Volume>((name, claim, reason), &volume.name, &error).await
    }

    async fn expand(
        &self,
        name: &DriverName,
        driver: &Driver,
        claim: &Claim,
        expand: Expand,
    ) -> Result<Grown, Outcome> {
        let Expand { volume, target, request } = expand;
        let uid = &claim.meta.uid;
        let secret = volume.csi.as_ref().and_then(|csi| csi.expand_secret.as_deref());
        let (call, _running) = self.ready((name, claim, FAILED), &volume, secret, Part::Growth).await?;
        let text = format!("External resizer is resizing volume {}", volume.name);
        self.note(name, claim, Note::normal("Resizing", text));
        self.memory.of_growth(uid, |memory| memory.last = Some(Finality::Unknown));
        let started = Instant::now();
        let answer = driver.backend.expand_volume(call, request).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return Err(self.expansion_failed(name, claim, &volume, target, error).await),
        };
        if let Err(problem) = rules::large_enough(target, answer) {
            let error = StorageError::last(ErrorKind::Internal, problem);
            return Err(self.expansion_failed(name, claim, &volume, target, error).await);
        }
        let size = Quantity::from_bytes(answer.capacity);
        let text = format!("{name} grows the volume to {size}");
        self.teller(claim).tell(StepKind::Acts, text, Some(started.elapsed()));
        Ok(Grown { claim: uid.clone(), target, volume: answer })
    }

    /// Whether a claim is still there: of one that is gone nothing is remembered.
    pub(super) fn is_there(&self, claim: &Claim) -> bool {
        let now = self.context.cache.claims.get(&claim.key).known();
        now.is_some_and(|now| now.meta.uid == claim.meta.uid)
    }

    /// Whether the world has gone on since a decision was made.
    pub(super) fn has_changed(&self, claim: &Claim, volume: &Volume) -> bool {
        let cache = &self.context.cache;
        let claim_now = cache.claims.get(&claim.key).known();
        let volume_now = cache.volumes.get(&volume.name).known();
        claim_now.is_none_or(|now| now.meta.version != claim.meta.version)
            || volume_now.is_none_or(|now| now.meta.version != volume.meta.version)
    }

    /// Writes the failure into the status, tells of it, and chooses when to try again.
    async fn expansion_failed(
        &self,
        name: &DriverName,
        claim: &Claim,
        volume: &Volume,
        target: Quantity,
        error: StorageError,
    ) -> Outcome {
        if !self.is_there(claim) {
            return Outcome::Done;
        }
        let failure = rules::failure(&error);
        let text = format!("resize volume {:?} by resizer {:?} failed: {error}", volume.name, name);
        let in_use = error.kind == ErrorKind::FailedPrecondition && self.sees_pods(name);
        self.memory.of_growth(&claim.meta.uid, |memory| {
            memory.last = Some(error.finality);
            memory.in_use = in_use;
            memory.slow = None;
        });
        self.warn(name, claim, FAILED, text);
        let infeasible = failure == Failure::Infeasible;
        if failure != Failure::Open {
            self.write_failure(claim, "could not grow", |current| {
                let same = current.progress().allocated == Some(target);
                same.then(|| object::failed(current, self.context.now(), &error, infeasible))?
            })
            .await;
        }
        if infeasible {
            let pause = self.context.settings.retry_interval_max;
            self.memory.of_growth(&claim.meta.uid, |memory| {
                memory.slow = Some((target, Instant::now() + pause));
            });
            return Outcome::RetryAfter(pause);
        }
        self.later(name, Part::Growth, &claim.key, error.retry_after_ms)
    }

    /// Writes into a claim's status how a call has failed, as the claim is by now; once more where it has changed in this moment.
    pub(super) async fn write_failure(
        &self,
        claim: &Claim,
        text: &str,
        patch: impl Fn(&Claim) -> Option<serde_json::Value>,
    ) {
        for _ in 0..2 {
            let now = self.context.cache.claims.get(&claim.key).known();
            let Some(current) = now.filter(|now| now.meta.uid == claim.meta.uid) else { return };
            let Some(patch) = patch(&current) else { return };
            let (key, version) = (&claim.key, current.meta.version);
            let write = self.context.writer.strategic::<Claim>(key, Endpoint::Status, version, patch);
            let Err(error) = self.teller(claim).act(text, write).await else { return };
            // Told or not, the call is tried again in time; but who comes after this process has to know what was impossible.
            if self.context.after_failure::<Claim>(key, &error).await != Outcome::Again {
                return;
            }
        }
    }

    /// The claim's present size is not tried again for a while.
    fn slow_down(&self, claim: &Claim) {
        let pause = self.context.settings.retry_interval_max;
        if let Some(target) = claim.progress().allocated {
            self.memory.of_growth(&claim.meta.uid, |memory| {
                memory.slow = Some((target, Instant::now() + pause));
            });
        }
    }

    /// Whether this process can tell when a volume of the driver is in use.
    fn sees_pods(&self, driver: &DriverName) -> bool {
        let driver = self.context.drivers.get(driver);
        self.context.settings.handle_volume_inuse_error
            && driver.is_some_and(|driver| asks_for_pods(&*driver.backend))
    }
}

/// Whether a driver may refuse to grow what is in use.
pub(crate) fn asks_for_pods(driver: &dyn Backend) -> bool {
    driver.abilities().contains(&Ability::Expansion) && !driver.description().has(Feature::OnlineExpansion)
}
