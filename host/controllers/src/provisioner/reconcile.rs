//! Carries out what [`rules`] decides: journal, driver call, object; one effect at a time.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_backend::Call;
use cofferdam_cluster::{
    Change, Intent, Seen, WriteError, hold,
    metrics::Metrics,
    queue::{Outcome, Queue},
    watch::Scope,
};
use cofferdam_domain::{
    Attachment, AttributesClass, Claim, CsiNode, DriverName, Node, NodeName, StorageClass, Uid, Volume,
    VolumeName, names,
    storage::{Ability, CreatedVolume, Feature, StorageError},
};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    metrics::ProvisionerMetrics,
    object::{self, ClaimShape},
    placement::{self, Races},
    rules::{self, ClaimVerdict, Created, Options},
};
use crate::{
    act::{Context, Driver, MAX_EFFECTS, Teller},
    note::Note,
    observer::StepKind,
    role::Role,
};

/// A claim that has no volume after this time gets the event that says that one is being made.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many claims are remembered as infeasible; beyond it the oldest get a fresh try.
const INFEASIBLE: usize = 10_000;

/// What is to become of a volume that its claim seems not to want.
enum Fate {
    /// Nobody has it.
    Abandoned,
    /// Its claim wants it after all, or has it.
    Wanted,
    /// An object stands for it: why it is not deleted.
    Known(String),
    /// An object that cannot be read may stand for it.
    Unclear(String),
}

/// Why a volume is neither saved nor deleted.
fn known(intent: &Intent, created: &CreatedVolume, other: &VolumeName) -> String {
    let (driver, handle) = (&intent.driver, &created.handle);
    format!("driver {driver} answers with volume {handle}, which is PersistentVolume {other}'s")
}

/// The role.
pub(crate) struct Provisioner {
    pub(super) context: Arc<Context>,
    options: Options,
    claims: Queue<Uid>,
    volumes: Queue<VolumeName>,
    /// Claims whose request the driver found invalid: the class at that time, and until when that is remembered.
    infeasible: Mutex<HashMap<Uid, (Uid, Instant)>>,
    /// Claims for which the nodes did not tell enough.
    await_nodes: Mutex<HashSet<Uid>>,
    /// Claims that this process would take for its node.
    races: Mutex<Races>,
    pub(super) metrics: ProvisionerMetrics,
}

impl Provisioner {
    /// The role, woken by every change from now on.
    pub(crate) fn new(context: Arc<Context>, metrics: &Metrics, own: ProvisionerMetrics) -> Arc<Self> {
        let settings = &context.settings;
        let backoff = settings.backoff();
        let options = Options {
            prefix: settings.volume_name_prefix.clone(),
            default_fs_type: settings.default_fs_type.clone(),
            extra_create_metadata: settings.extra_create_metadata,
            cluster: context.cluster.clone(),
            binder_here: settings.roles.contains(&Role::PvController),
            tell_writers: context
                .drivers
                .iter()
                .filter(|(_, driver)| driver.backend.description().has(Feature::SingleNodeMultiWriter))
                .map(|(name, _)| name.clone())
                .collect(),
            modifying: context
                .drivers
                .iter()
                .filter(|(_, driver)| driver.backend.abilities().contains(&Ability::Modification))
                .map(|(name, _)| name.clone())
                .collect(),
            topology: context
                .drivers
                .iter()
                .filter(|(_, driver)| driver.backend.has_topology())
                .map(|(name, _)| name.clone())
                .collect(),
            strict_topology: settings.strict_topology,
            immediate_topology: settings.immediate_topology,
            here: context.here.clone(),
        };
        let role = Arc::new(Self {
            claims: Queue::new("provisioner_claims", backoff, metrics),
            volumes: Queue::new("provisioner_volumes", backoff, metrics),
            infeasible: Mutex::default(),
            await_nodes: Mutex::default(),
            races: Mutex::default(),
            metrics: own,
            options,
            context,
        });
        // Nobody else sets it: a process has one provisioner.
        let _ = role.context.wanted.set(role.claims.clone());
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
        cache.classes.subscribe(move |change: &Change<StorageClass>| {
            if let Some(me) = me.upgrade() {
                for key in me.context.cache.unbound_claims_of_class(change.key.as_str()) {
                    if let Some(claim) = me.context.cache.claims.get(&key).known() {
                        me.claims.add(claim.meta.uid.clone());
                    }
                }
            }
        });
        let me = Arc::downgrade(&role);
        cache.attributes_classes.subscribe(move |change: &Change<AttributesClass>| {
            let Some(me) = me.upgrade() else { return };
            let waits = |claim: &&Arc<Claim>| {
                claim.volume.is_none() && *claim.attributes_class == *change.key.as_str()
            };
            let claims = me.context.cache.claims.list();
            claims.iter().filter(waits).for_each(|claim| me.claims.add(claim.meta.uid.clone()));
        });
        let me = Arc::downgrade(&role);
        cache.attachments.subscribe(move |change: &Change<Attachment>| {
            let gone = change.old.as_ref().filter(|_| change.new.is_none());
            if let (Some(me), Some(volume)) = (me.upgrade(), gone.and_then(|gone| gone.volume())) {
                me.volumes.add(volume.clone());
            }
        });
        let me = Arc::downgrade(&role);
        cache.csi_nodes.subscribe(move |change: &Change<CsiNode>| {
            let [old, new] =
                [&change.old, &change.new].map(|node| node.as_ref().map(|node| &node.topology_keys));
            if let Some(me) = me.upgrade().filter(|_| old != new) {
                me.nodes_changed();
            }
        });
        let me = Arc::downgrade(&role);
        cache.nodes.subscribe(move |change: &Change<Node>| {
            let [old, new] = [&change.old, &change.new].map(|node| node.as_ref().map(|node| &node.labels));
            if let Some(me) = me.upgrade().filter(|_| old != new) {
                me.nodes_changed();
            }
        });
        let me = Arc::downgrade(&role);
        cache.restore_marks.subscribe(move |_| {
            if let Some(me) = me.upgrade() {
                me.context.cache.volumes.list().iter().for_each(|volume| me.volumes.add(volume.name.clone()));
                me.add_intents();
            }
        });
        role
    }

    /// What is written down as begun is to be looked at.
    fn add_intents(&self) {
        for driver in self.context.drivers.values() {
            driver.journal.uids().into_iter().for_each(|uid| self.claims.add(uid));
        }
    }

    /// Works until `stop`.
    pub(crate) async fn run(self: &Arc<Self>, stop: CancellationToken) {
        self.add_intents();
        let workers = self.context.settings.worker_threads;
        let (claims, volumes) = (Arc::clone(self), Arc::clone(self));
        let journals = futures::future::join_all(self.context.drivers.values().map(|driver| async {
            loop {
                driver.journal.adopted().await.into_iter().for_each(|uid| self.claims.add(uid));
            }
        }));
        let queues = async {
            tokio::join!(
                self.claims.run(workers, stop.clone(), move |uid| {
                    let me = Arc::clone(&claims);
                    async move { me.claim(&uid).await }
                }),
                self.volumes.run(workers, stop.clone(), move |name| {
                    let me = Arc::clone(&volumes);
                    async move { me.volume(&name).await }
                }),
            )
        };
        tokio::select! {
            _ = queues => {}
            _ = journals => {}
        }
    }

    fn claim_changed(&self, change: &Change<Claim>) {
        for claim in [&change.old, &change.new].into_iter().flatten() {
            self.claims.add(claim.meta.uid.clone());
        }
        if let (Some(old), None) = (&change.old, &change.new) {
            self.infeasible().remove(&old.meta.uid);
            self.await_nodes().remove(&old.meta.uid);
        }
        if let Some(claim) = change.old.as_ref().or(change.new.as_ref())
            && change.new.as_ref().is_none_or(|claim| claim.volume.is_some())
        {
            self.races().over(&claim.meta.uid);
        }
    }

    /// Wakes the claims for which the nodes did not tell enough.
    fn nodes_changed(&self) {
        let waiting = std::mem::take(&mut *self.await_nodes());
        waiting.into_iter().for_each(|uid| self.claims.add(uid));
    }

    pub(super) fn races(&self) -> MutexGuard<'_, Races> {
        self.races.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn await_nodes(&self) -> MutexGuard<'_, HashSet<Uid>> {
        self.await_nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn volume_changed(&self, change: &Change<Volume>) {
        self.volumes.add(change.key.clone());
        for volume in [&change.old, &change.new].into_iter().flatten() {
            if let Some(uid) = volume.claim_ref.as_ref().and_then(|r| r.uid.clone()) {
                self.claims.add(uid);
            }
        }
    }

    fn driver_of(&self, uid: &Uid) -> Option<(&Driver, Arc<Intent>)> {
        self.context.drivers.values().find_map(|driver| Some((driver, driver.journal.get(uid)?)))
    }

    async fn claim(&self, uid: &Uid) -> Outcome {
        for _ in 0..MAX_EFFECTS {
            let recorded = self.driver_of(uid);
            let intent = recorded.as_ref().map(|(_, intent)| intent);
            let ours = |driver: &DriverName| self.context.drivers.contains_key(driver);
            let infeasible = self.infeasible_class(uid);
            let view = rules::View {
                cache: &self.context.cache,
                intent,
                ours: &ours,
                infeasible: infeasible.as_ref().map(|(class, _)| class),
                options: &self.options,
            };
            match rules::claim(view, uid) {
                // What waits for another class, or for its time, keeps its turn whatever woke it in between.
                ClaimVerdict::Ignore(_) => {
                    return infeasible.map_or(Outcome::Done, |(_, until)| {
                        Outcome::After(until.saturating_duration_since(Instant::now()))
                    });
                }
                ClaimVerdict::Record(intent) => {
                    if let Some(outcome) = self.record(*intent).await {
                        return outcome;
                    }
                }
                ClaimVerdict::Create(intent) => {
                    let Some((driver, _)) = recorded else { return Outcome::Again };
                    return self.create(driver, &intent).await;
                }
                ClaimVerdict::Forget => {
                    if let Some((driver, intent)) = recorded {
                        // Written by a process that did not live to hear of it, or to tell.
                        self.succeeded(driver, &intent);
                        driver.journal.forget(uid);
                    }
                    return Outcome::Done;
                }
                ClaimVerdict::Take { claim, node, request } => {
                    if let Some(outcome) = self.take(&claim, &node, request.map(|request| *request)).await {
                        return outcome;
                    }
                }
                ClaimVerdict::Refuse { message, lasting } => {
                    if let Some(claim) = self.context.cache.claim_by_uid(uid) {
                        let teller = Teller::of_claim(&self.context, Role::Provisioner, &claim.key);
                        teller.tell(StepKind::Fails, message.clone(), None);
                    }
                    return self.refuse(uid, message, lasting);
                }
                ClaimVerdict::AwaitNodes(message) => {
                    if let Some(outcome) = self.wait_for_nodes(uid, message) {
                        return outcome;
                    }
                }
                ClaimVerdict::Reschedule { node, message } => {
                    if let Some(outcome) = self.node_is_gone(uid, &node, message).await {
                        return outcome;
                    }
                }
                ClaimVerdict::LeaveToPopulator => {
                    if let Some(claim) = self.context.cache.claim_by_uid(uid) {
                        let text = "Assuming an external populator will provision the volume".to_owned();
                        let note = Note::normal("Provisioning", text);
                        self.context.note(&*claim, "external-provisioner", note);
                    }
                    return Outcome::Done;
                }
            }
        }
        Outcome::Again
    }

    /// The claim's next turn comes when a node changes, or after its back-off. Absent where nobody would have told of a change
    /// since it was decided that it waits: then it is decided once more.
    fn wait_for_nodes(&self, uid: &Uid, message: String) -> Option<Outcome> {
        if self.await_nodes().insert(uid.clone()) {
            return None;
        }
        if let Some(claim) = self.context.cache.claim_by_uid(uid) {
            let teller = Teller::of_claim(&self.context, Role::Provisioner, &claim.key);
            teller.tell(StepKind::Waits, message.clone(), None);
        }
        Some(self.refuse(uid, message, false))
    }

    /// Takes the scheduler's choice back, unless the node is one that the watch has not shown yet.
    async fn node_is_gone(&self, uid: &Uid, node: &NodeName, message: String) -> Option<Outcome> {
        if let Err(error) = self.context.writer.refresh::<CsiNode>(node).await {
            return Some(self.refuse(uid, error.to_string(), false));
        }
        match self.context.cache.csi_nodes.get(node) {
            Seen::Known(_) => None,
            Seen::Opaque(_) => self.wait_for_nodes(uid, message),
            Seen::Absent => Some(self.reschedule(uid, node, message).await),
        }
    }

    /// Tells the claim and takes the scheduler's choice back, if it is still this node: the scheduler chooses again.
    async fn reschedule(&self, uid: &Uid, node: &NodeName, message: String) -> Outcome {
        let Some(claim) = self.context.cache.claim_by_uid(uid) else { return Outcome::Again };
        let teller = Teller::of_claim(&self.context, Role::Provisioner, &claim.key);
        teller.tell(StepKind::Fails, message.clone(), None);
        let outcome = self.refuse(uid, message, false);
        let path = format!("/metadata/annotations/{}", names::SELECTED_NODE.replace('/', "~1"));
        let operations =
            vec![json!({"op": "test", "path": path, "value": node}), json!({"op": "remove", "path": path})];
        let write = self.context.writer.json_patch::<Claim>(&claim.key, uid, operations);
        match teller.act(&format!("takes the choice of node {node} back"), write).await {
            Ok(_) => Outcome::Done,
            Err(error) => match self.context.after_failure::<Claim>(&claim.key, &error).await {
                // Whatever there is now, the driver is not asked anew without a pause.
                Outcome::Again => outcome,
                other @ (Outcome::Done | Outcome::After(_) | Outcome::Retry | Outcome::RetryAfter(_)) => {
                    other
                }
            },
        }
    }

    /// Effect 1: the intent.
    async fn record(&self, intent: Intent) -> Option<Outcome> {
        let Some(driver) = self.context.drivers.get(&intent.driver) else { return Some(Outcome::Again) };
        let teller = Teller::of_claim(&self.context, Role::Provisioner, &intent.claim);
        let started = Instant::now();
        let uid = intent.uid.clone();
        match driver.journal.record(intent).await {
            Ok(_) => {
                teller.tell(StepKind::Acts, "writes the intent down", Some(started.elapsed()));
                None
            }
            Err(error) => {
                teller.tell(StepKind::Fails, error.to_string(), Some(started.elapsed()));
                Some(self.refuse(&uid, error.to_string(), false))
            }
        }
    }

    /// Effect 2: the driver call, and what follows from its answer.
    async fn create(&self, driver: &Driver, intent: &Arc<Intent>) -> Outcome {
        let teller = Teller::of_claim(&self.context, Role::Provisioner, &intent.claim);
        let started = Instant::now();
        let answer = self.call_create(driver, intent, &teller).await;
        let took = started.elapsed();
        let wish = answer.as_ref().err().and_then(|error| error.retry_after_ms).map(Duration::from_millis);
        match rules::created(&self.context.cache, self.context.here.as_ref(), intent, answer) {
            Created::Save(created, capacity) => {
                self.save(driver, intent, created, capacity, &teller, started).await
            }
            Created::Undo(created, message) => self.undo(driver, intent, &created, message, &teller).await,
            Created::Failed { message, lasting } => {
                teller.tell(StepKind::Fails, message.clone(), Some(took));
                self.metrics.provision_failed(&intent.class.name);
                driver.journal.forget(&intent.uid);
                if lasting {
                    self.remember_infeasible(&intent.uid, &intent.class.uid);
                }
                self.later(self.refuse(&intent.uid, message, lasting), &intent.uid, wish)
            }
            Created::Reschedule { node, message } => {
                self.metrics.provision_failed(&intent.class.name);
                driver.journal.forget(&intent.uid);
                self.reschedule(&intent.uid, &node, message).await
            }
            Created::Repeat(message) => {
                teller.tell(StepKind::Fails, message.clone(), Some(took));
                self.metrics.provision_failed(&intent.class.name);
                self.later(self.refuse(&intent.uid, message, false), &intent.uid, wish)
            }
        }
    }

    async fn call_create(
        &self,
        driver: &Driver,
        intent: &Intent,
        teller: &Teller,
    ) -> Result<CreatedVolume, StorageError> {
        let call = Call::within(self.context.settings.timeout);
        let started = Instant::now();
        let mut answer = driver.backend.create_volume(call, intent.request.clone());
        let answer = match tokio::time::timeout(PATIENCE, &mut answer).await {
            Ok(answer) => answer,
            Err(_) => {
                teller.tell(StepKind::Waits, "the driver is still at work", None);
                if let Some(claim) = self.context.cache.claim_by_uid(&intent.uid) {
                    let text =
                        format!("External provisioner is provisioning volume for claim \"{}\"", intent.claim);
                    let note = Note::normal("Provisioning", text);
                    self.context.note(&*claim, &driver.component, note);
                }
                answer.await
            }
        };
        if answer.is_ok() {
            teller.tell(
                StepKind::Acts,
                format!("{} creates the volume", intent.driver),
                Some(started.elapsed()),
            );
        }
        answer
    }

    /// Effect 3: the object.
    async fn save(
        &self,
        driver: &Driver,
        intent: &Arc<Intent>,
        created: CreatedVolume,
        capacity: u64,
        teller: &Teller,
        started: Instant,
    ) -> Outcome {
        if let Some(other) = self.other(intent, &created) {
            // Saved, deleting one of the two would delete the other's data.
            let message = known(intent, &created, &other);
            teller.tell(StepKind::Fails, message.clone(), None);
            return self.refuse(&intent.uid, message, true);
        }
        let claim = self.context.cache.claims.get(&intent.claim).known().filter(|c| c.meta.uid == intent.uid);
        let shape = ClaimShape {
            access_modes: claim.as_ref().map_or_else(|| rules::modes_of(&intent.request), |c| c.access_modes),
            version: claim.as_ref().map(|c| c.meta.version.to_string()),
        };
        let body = object::persistent_volume(intent, &created, capacity, &driver.identity, &shape);
        let write = self.context.writer.create::<Volume>(None, &body);
        match teller.act(&format!("writes PersistentVolume {}", intent.request.name), write).await {
            Ok(_) => {
                driver.journal.forget(&intent.uid);
                self.metrics.provisioned(&intent.class.name, started.elapsed());
                self.succeeded(driver, intent);
                Outcome::Done
            }
            Err(WriteError::AlreadyExists(_)) => self.name_taken(driver, intent, &created, teller).await,
            // The volume exists: it is never rolled back because its object cannot be written; the journal remembers it.
            Err(error) => self.refuse(&intent.uid, error.to_string(), false),
        }
    }

    /// Tells the claim that its volume is there.
    fn succeeded(&self, driver: &Driver, intent: &Intent) {
        if let Some(claim) = self.context.cache.claim_by_uid(&intent.uid) {
            let text = format!("Successfully provisioned volume {}", intent.request.name);
            self.context.note(&*claim, &driver.component, Note::normal("ProvisioningSucceeded", text));
        }
    }

    /// An object of the volume's name exists: ours from before a crash, or a stranger's.
    async fn name_taken(
        &self,
        driver: &Driver,
        intent: &Arc<Intent>,
        created: &CreatedVolume,
        teller: &Teller,
    ) -> Outcome {
        let name = VolumeName::from(intent.request.name.as_str());
        match self.context.writer.get::<Volume>(&name).await {
            // The claim has its volume on another node: this one is one too many, and has no object that names it, whatever its handle.
            Ok(Some(volume)) if self.is_elsewhere(intent, &volume) => {
                self.undo(driver, intent, created, None, teller).await
            }
            Ok(Some(volume))
                if volume.claim_ref.as_ref().and_then(|r| r.uid.as_ref()) == Some(&intent.uid) =>
            {
                self.succeeded(driver, intent);
                driver.journal.forget(&intent.uid);
                Outcome::Done
            }
            Ok(Some(volume)) if volume.csi.as_ref().is_some_and(|csi| csi.handle == created.handle) => {
                let message = format!(
                    "a PersistentVolume {name} exists already, uses the volume {} and is not of this claim",
                    created.handle
                );
                self.refuse(&intent.uid, message, true)
            }
            Ok(Some(_)) => {
                let message = format!("a PersistentVolume {name} exists already and is not of this claim");
                self.undo(driver, intent, created, Some(message), teller).await
            }
            Ok(None) => Outcome::Retry,
            Err(error) => self.refuse(&intent.uid, error.to_string(), false),
        }
    }

    /// Deletes by its id what nobody wants, then drops the intent.
    async fn undo(
        &self,
        driver: &Driver,
        intent: &Arc<Intent>,
        created: &CreatedVolume,
        message: Option<String>,
        teller: &Teller,
    ) -> Outcome {
        if hold::is_held(&self.context.cache) {
            return self.keep(teller);
        }
        match self.fate(intent, created).await {
            Ok(Fate::Abandoned) => {}
            Ok(Fate::Wanted) => return Outcome::Retry,
            Ok(Fate::Unclear(message)) => {
                // The intent stays: nobody else knows of the volume.
                teller.tell(StepKind::Fails, message.clone(), None);
                let _ = self.refuse(&intent.uid, message, false);
                return Outcome::RetryAfter(self.context.settings.retry_interval_max);
            }
            Ok(Fate::Known(message)) => {
                teller.tell(StepKind::Fails, message.clone(), None);
                if self.context.cache.claim_by_uid(&intent.uid).is_some() {
                    return self.refuse(&intent.uid, message, true);
                }
                // Nobody waits for it, and whoever has it keeps it.
                driver.journal.forget(&intent.uid);
                return Outcome::Done;
            }
            Err(error) => return self.refuse(&intent.uid, error.to_string(), false),
        }
        if hold::is_held(&self.context.cache) {
            return self.keep(teller);
        }
        let call = Call::within(self.context.settings.timeout);
        let started = Instant::now();
        match driver.backend.delete_volume(call, created.handle.clone()).await {
            Ok(()) => {
                let text = format!("{} deletes the volume that nobody wants any more", intent.driver);
                teller.tell(StepKind::Acts, text, Some(started.elapsed()));
                driver.journal.forget(&intent.uid);
                match message {
                    Some(message) => self.refuse(&intent.uid, message, false),
                    // The claim may want another one.
                    None => Outcome::Again,
                }
            }
            Err(error) => {
                let text = format!(
                    "{} cannot delete the unwanted volume {}: {error}",
                    intent.driver, created.handle
                );
                teller.tell(StepKind::Fails, text.clone(), Some(started.elapsed()));
                self.refuse(&intent.uid, message.unwrap_or(text), false)
            }
        }
    }

    /// The intent stays until the operator has looked. One that the backup does not know ends with this life of the process: its
    /// volume is an orphan then, as are all that were made since.
    fn keep(&self, teller: &Teller) -> Outcome {
        teller.tell(StepKind::Waits, "deletions are held back since the cluster was restored", None);
        Outcome::RetryAfter(self.context.settings.retry_interval_max)
    }

    /// Whether really nobody has or wants the volume, read past the cache: an object that another process or a person wrote, or
    /// whose answer was lost, and a claim that the watch has not shown yet keep it.
    async fn fate(&self, intent: &Intent, created: &CreatedVolume) -> Result<Fate, WriteError> {
        let name = VolumeName::from(intent.request.name.as_str());
        if let Some(volume) = self.context.writer.get::<Volume>(&name).await?
            && !self.is_elsewhere(intent, &volume)
        {
            if volume.claim_ref.as_ref().and_then(|r| r.uid.as_ref()) == Some(&intent.uid) {
                return Ok(Fate::Wanted);
            }
            if volume.csi.as_ref().is_some_and(|csi| csi.handle == created.handle) {
                return Ok(Fate::Known(known(intent, created, &name)));
            }
        }
        let volumes = self.context.writer.list_in::<Volume>(&Scope::default()).await?;
        if let Some(opaque) = volumes.into_iter().find_map(Result::err) {
            let (handle, key) = (&created.handle, opaque.key);
            return Ok(Fate::Unclear(format!(
                "PersistentVolume {key} cannot be read, and may stand for volume {handle}: it is not deleted"
            )));
        }
        if let Some(other) = self.other(intent, created) {
            return Ok(Fate::Known(known(intent, created, &other)));
        }
        self.context.writer.refresh::<Claim>(&intent.claim).await?;
        self.context.look().await?;
        // The volume itself may be what is not wanted: too small, or its name taken.
        let too_small =
            created.capacity.is_some_and(|bytes| bytes > 0 && Some(bytes) < intent.request.capacity.required);
        let taken = matches!(self.context.cache.volumes.get(&name), Seen::Known(_));
        let here = self.context.here.as_ref();
        let is_wanted = !too_small && !taken && rules::is_wanted(&self.context.cache, here, intent);
        Ok(if is_wanted { Fate::Wanted } else { Fate::Abandoned })
    }

    /// Another object that stands for the volume, as far as it can be of the same storage.
    fn other(&self, intent: &Intent, created: &CreatedVolume) -> Option<VolumeName> {
        let name = VolumeName::from(intent.request.name.as_str());
        let may = |other: &Volume| !self.is_elsewhere(intent, other);
        self.context.cache.other_with_handle(&intent.driver, &created.handle, &name, may)
    }

    fn is_elsewhere(&self, intent: &Intent, volume: &Volume) -> bool {
        placement::is_elsewhere(self.context.here.as_ref(), intent, volume)
    }

    /// Tells the claim, where it still exists, and chooses when to try again.
    fn refuse(&self, uid: &Uid, message: String, lasting: bool) -> Outcome {
        if let Some(claim) = self.context.cache.claim_by_uid(uid) {
            let component = self.component_for(&claim);
            let text = if lasting {
                format!("{message}; it is tried again after a change, or later")
            } else {
                message
            };
            let note = Note::warning("ProvisioningFailed", text);
            self.context.note(&*claim, &component, note);
        }
        if lasting { Outcome::RetryAfter(self.context.settings.retry_interval_max) } else { Outcome::Retry }
    }

    /// A back-off that is no shorter than what the driver wishes.
    fn later(&self, outcome: Outcome, uid: &Uid, wish: Option<Duration>) -> Outcome {
        match (outcome, wish) {
            (Outcome::Retry, Some(wish)) => {
                self.context.settings.retry_as_wished(wish, self.claims.failures(uid))
            }
            (outcome, _) => outcome,
        }
    }

    pub(super) fn component_for(&self, claim: &Claim) -> Box<str> {
        let class = self.context.cache.class(claim.class_name()).known();
        let driver = class.and_then(|class| self.context.drivers.get(&class.provisioner));
        driver.map_or_else(|| "external-provisioner".into(), |driver| driver.component.clone())
    }

    fn infeasible_class(&self, uid: &Uid) -> Option<(Uid, Instant)> {
        let mut infeasible = self.infeasible();
        match infeasible.get(uid) {
            Some((class, until)) if Instant::now() < *until => Some((class.clone(), *until)),
            Some(_) => {
                infeasible.remove(uid);
                None
            }
            None => None,
        }
    }

    fn remember_infeasible(&self, uid: &Uid, class: &Uid) {
        let mut infeasible = self.infeasible();
        if infeasible.len() >= INFEASIBLE {
            let oldest = infeasible.iter().min_by_key(|(_, (_, until))| *until).map(|(uid, _)| uid.clone());
            oldest.and_then(|uid| infeasible.remove(&uid));
        }
        let until = Instant::now() + self.context.settings.retry_interval_max;
        infeasible.insert(uid.clone(), (class.clone(), until));
    }

    fn infeasible(&self) -> MutexGuard<'_, HashMap<Uid, (Uid, Instant)>> {
        self.infeasible.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
