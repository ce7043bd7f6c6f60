//! The role: who is woken by what. `expand` and `modify` carry out what the rules decide.

use std::{collections::HashMap, sync::Arc, time::Duration};

use cofferdam_backend::Call;
use cofferdam_cluster::{
    Change, WriteError,
    metrics::Metrics,
    queue::{Outcome, Queue},
    secrets,
};
use cofferdam_domain::{
    AttributesClass, Claim, ClaimKey, DriverName, Pod, Volume,
    storage::{Ability, Feature, Secrets},
    volume::SecretRef,
};
use tokio_util::sync::CancellationToken;

use super::{
    calls::{Calls, Part, Running},
    memory::Memory,
    modification,
    rules::{self, Able},
};
use crate::{
    act::{Context, Driver, Teller, every},
    note::Note,
    observer::StepKind,
    provisioner::placement::Here,
    role::Role,
};

/// The role.
pub(crate) struct Resizer {
    pub(super) context: Arc<Context>,
    queues: HashMap<DriverName, Queues>,
    pub(super) memory: Memory,
    pub(super) calls: Calls,
}

/// The queues of one driver: no driver holds up another.
struct Queues {
    growth: Queue<ClaimKey>,
    modification: Queue<ClaimKey>,
}

impl Queues {
    const fn of(&self, part: Part) -> &Queue<ClaimKey> {
        match part {
            Part::Growth => &self.growth,
            Part::Modification => &self.modification,
        }
    }
}

impl Resizer {
    /// The role, woken by every change from now on.
    pub(crate) fn new(context: Arc<Context>, metrics: &Metrics) -> Arc<Self> {
        let backoff = context.settings.backoff();
        let queues = |name: &DriverName| {
            let growth = Queue::new("resizer_growth", backoff, metrics);
            (
                name.clone(),
                Queues { growth, modification: Queue::new("resizer_modification", backoff, metrics) },
            )
        };
        let role = Arc::new(Self {
            queues: context.drivers.keys().map(queues).collect(),
            memory: Memory::default(),
            calls: Calls::default(),
            context,
        });
        role.subscribe();
        role
    }

    fn subscribe(self: &Arc<Self>) {
        let cache = &self.context.cache;
        let me = Arc::downgrade(self);
        cache.claims.subscribe(move |change| {
            if let Some(me) = me.upgrade() {
                me.claim_changed(change);
            }
        });
        let me = Arc::downgrade(self);
        cache.volumes.subscribe(move |change| {
            if let Some(me) = me.upgrade() {
                me.volume_changed(change);
            }
        });
        let me = Arc::downgrade(self);
        cache.attributes_classes.subscribe(move |change| {
            if let Some(me) = me.upgrade() {
                me.class_changed(change);
            }
        });
        let me = Arc::downgrade(self);
        cache.pods.subscribe(move |change| {
            if let Some(me) = me.upgrade() {
                me.pod_changed(change);
            }
        });
    }

    /// Works until `stop`.
    pub(crate) async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let workers = self.context.settings.resizer_workers;
        let queues = self.queues.iter().flat_map(|(driver, queues)| {
            [Part::Growth, Part::Modification].map(|part| {
                let (me, driver) = (Arc::clone(self), driver.clone());
                queues.of(part).run(workers, stop.clone(), move |key| {
                    let (me, driver) = (Arc::clone(&me), driver.clone());
                    async move {
                        let Some(backend) = me.context.drivers.get(&driver) else { return Outcome::Done };
                        match part {
                            Part::Growth => me.grow(&driver, backend, &key).await,
                            Part::Modification => me.modify(&driver, backend, &key).await,
                        }
                    }
                })
            })
        });
        tokio::join!(futures::future::join_all(queues), self.remind(stop.clone()));
    }

    /// Looks at everything now and then (`--resync-period`).
    async fn remind(&self, stop: CancellationToken) {
        every(self.context.settings.resync_period, stop, || {
            for claim in self.context.cache.claims.list() {
                if let Some(queues) = self.queues_of(&claim) {
                    queues.growth.wake(claim.key.clone());
                    queues.modification.wake(claim.key.clone());
                }
            }
        })
        .await;
    }

    fn claim_changed(&self, change: &Change<Claim>) {
        let old = change.old.as_deref();
        if let Some(old) = old
            && change.new.as_ref().is_none_or(|new| new.meta.uid != old.meta.uid)
        {
            self.memory.forget_growth(&old.meta.uid);
            self.memory.forget_modification(&old.meta.uid);
        }
        let Some(new) = &change.new else { return };
        if rules::matters(old, new) {
            self.add(new, Part::Growth);
        }
        if modification::matters(old, new) {
            self.add(new, Part::Modification);
        }
    }

    fn volume_changed(&self, change: &Change<Volume>) {
        let Some(new) = &change.new else { return };
        let same = |old: &Arc<Volume>| {
            (&old.meta.uid, &old.claim_ref, old.access_modes, &old.csi)
                == (&new.meta.uid, &new.claim_ref, new.access_modes, &new.csi)
        };
        if change.old.as_ref().is_some_and(same) {
            return;
        }
        for claim in self.context.cache.claims_naming(&change.key) {
            if let Some(claim) = self.context.cache.claims.get(&claim).known() {
                self.add(&claim, Part::Growth);
                self.add(&claim, Part::Modification);
            }
        }
    }

    /// A class comes seldom, and any claim may wait for it.
    fn class_changed(&self, change: &Change<AttributesClass>) {
        let Some(class) = &change.new else { return };
        let name = class.name.as_str();
        let waits = |claim: &Arc<Claim>| {
            let target = claim.progress().modification.as_ref().map(|status| &*status.target);
            target == Some(name)
                || (&*claim.attributes_class == name
                    && claim.status_attributes_class.as_deref() != Some(name))
        };
        self.context.cache.claims.list().iter().filter(|claim| waits(claim)).for_each(|claim| {
            self.add(claim, Part::Modification);
        });
    }

    /// A driver that does not grow what is in use waits for the last pod.
    fn pod_changed(&self, change: &Change<Pod>) {
        let uses = |pod: &Option<Arc<Pod>>| pod.as_ref().is_some_and(|pod| !pod.terminated);
        let Some(old) = change.old.as_ref().filter(|_| uses(&change.old) && !uses(&change.new)) else {
            return;
        };
        for key in cofferdam_cluster::cache::PodIndex::claims_of(old) {
            if let Some(claim) = self.context.cache.claims.get(&key).known()
                && self.memory.growth(&claim.meta.uid).in_use
            {
                self.add(&claim, Part::Growth);
            }
        }
    }

    fn add(&self, claim: &Claim, part: Part) {
        if let Some(queues) = self.queues_of(claim) {
            queues.of(part).add(claim.key.clone());
        }
    }

    /// The queues of the claim's driver, where it is ours.
    fn queues_of(&self, claim: &Claim) -> Option<&Queues> {
        let (_, csi) = rules::volume_of(&self.context.cache, claim).ok()?;
        self.queues.get(&csi.driver)
    }

    /// Whether a claim's volume is this process' to change: of this driver, and where its storage is in nodes, on this one.
    pub(super) fn is_ours(&self, driver: &DriverName, claim: &Claim) -> bool {
        let cache = &self.context.cache;
        let Ok((volume, csi)) = rules::volume_of(cache, claim) else { return false };
        let holds = |here: &Here| here.holds(&volume, cache);
        csi.driver == *driver
            && (!self.context.is_of_node(driver) || self.context.here.as_ref().is_some_and(holds))
    }

    /// Wakes the part of a claim that waited for the other one's call.
    pub(super) fn wake(&self, driver: &DriverName, claim: &ClaimKey, part: Part) {
        if let Some(queues) = self.queues.get(driver) {
            queues.of(part).add(claim.clone());
        }
    }

    pub(super) fn able(driver: &Driver) -> Able {
        let abilities = driver.backend.abilities();
        Able {
            expands: abilities.contains(&Ability::Expansion),
            modifies: abilities.contains(&Ability::Modification),
            tells_writers: driver.backend.description().has(Feature::SingleNodeMultiWriter),
        }
    }

    /// Reads the Secret that a volume names for a call.
    async fn call(&self, secret: Option<&SecretRef>) -> Result<Call, WriteError> {
        let secrets = match secret {
            Some(secret) => secrets::read(&self.context.writer, secret).await?,
            None => Secrets::default(),
        };
        Ok(Call { deadline: self.context.settings.timeout, secrets })
    }

    /// What a call needs: its Secret, a world that has not gone on while that was read, and the volume for itself.
    pub(super) async fn ready(
        &self,
        (name, claim, failed): (&DriverName, &Claim, &'static str),
        volume: &Volume,
        secret: Option<&SecretRef>,
        part: Part,
    ) -> Result<(Call, Running<'_, impl Fn(Part)>), Outcome> {
        let call = match self.call(secret).await {
            Ok(call) => call,
            Err(error) => {
                self.warn(name, claim, failed, error.to_string());
                return Err(Outcome::Retry);
            }
        };
        if secret.is_some() && self.has_changed(claim, volume) {
            return Err(Outcome::Again);
        }
        let (name, key) = (name.clone(), claim.key.clone());
        let wake = move |part| self.wake(&name, &key, part);
        let running = self.calls.begin(&claim.key, part, wake).ok_or(Outcome::Done)?;
        Ok((call, running))
    }

    /// Sends an event as external-resizer.
    pub(super) fn note(&self, driver: &DriverName, claim: &Claim, note: Note) {
        self.context.note(claim, &format!("external-resizer {driver}"), note);
    }

    /// Tells of something that hinders a claim.
    pub(super) fn warn(&self, driver: &DriverName, claim: &Claim, reason: &'static str, text: String) {
        self.teller(claim).tell(StepKind::Fails, text.clone(), None);
        self.note(driver, claim, Note::warning(reason, text));
    }

    pub(super) fn teller(&self, claim: &Claim) -> Teller {
        Teller::of_claim(&self.context, Role::Resizer, &claim.key)
    }

    /// A back-off that is no shorter than what the driver wishes.
    pub(super) fn later(
        &self,
        driver: &DriverName,
        part: Part,
        claim: &ClaimKey,
        wish: Option<u64>,
    ) -> Outcome {
        let (Some(wish), Some(queues)) = (wish, self.queues.get(driver)) else { return Outcome::Retry };
        let failures = queues.of(part).failures(claim);
        self.context.settings.retry_as_wished(Duration::from_millis(wish), failures)
    }
}
