//! Carries out what [`rules`] decides: journal, driver call, object; one effect at a time.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_backend::Call;
use cofferdam_cluster::{
    ApiError, Change, Intent, Lookup, deletion_freeze,
    metrics::Metrics,
    queue::{Action, Queue},
    reflector::Scope,
};
use cofferdam_domain::{
    Claim, CsiNode, DriverName, Node, NodeName, StorageClass, Uid, Volume, VolumeAttachment,
    VolumeAttributesClass, VolumeName, names,
    storage::{Ability, CreatedVolume, Feature, StorageError},
};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    metrics::ProvisionerMetrics,
    object::{self, ClaimFields},
    placement::{self, ImmediateBindingContests},
    release_hints::ReleaseHints,
    rules::{self, CreateVerdict, ProvisionVerdict, ProvisionerOptions},
};
use crate::{
    context::{ControllerContext, MAX_EFFECTS, ManagedDriver, StepRecorder},
    event_spec::EventSpec,
    observer::StepResult,
    orphans::OrphanScanner,
    provisioner::ROLE,
    pv_controller::{
        self,
        messages::{ProvisioningRequested, VolumeReleased},
    },
};

/// A claim that has no volume after this time gets the event that says that one is being made.
const PROVISIONING_EVENT_DELAY: Duration = Duration::from_secs(1);
/// How many claims are remembered as infeasible; beyond it the oldest get a fresh try.
const MAX_INFEASIBLE: usize = 10_000;

/// What is to become of a volume that its claim seems not to want.
enum CreatedVolumeCheck {
    /// Nobody has it.
    Unclaimed,
    /// Its claim wants it after all, or has it.
    Claimed,
    /// An object stands for it: why it is not deleted.
    Recorded(String),
    /// An object that cannot be read may stand for it.
    Undecided(String),
}

/// Why a volume is neither saved nor deleted.
fn recorded_volume_message(intent: &Intent, created: &CreatedVolume, other: &VolumeName) -> String {
    let (driver, handle) = (&intent.driver, &created.handle);
    format!("driver {driver} answers with volume {handle}, which is PersistentVolume {other}'s")
}

/// The role.
pub(crate) struct Provisioner {
    pub(super) context: Arc<ControllerContext>,
    options: ProvisionerOptions,
    claims: Queue<Uid>,
    volumes: Queue<VolumeName>,
    /// Claims whose request the driver found invalid: the class at that time, and until when that is
    /// remembered.
    infeasible: Mutex<HashMap<Uid, (Uid, Instant)>>,
    /// Claims for which the nodes did not tell enough.
    waiting_for_topology: Mutex<HashSet<Uid>>,
    /// Claims that this process would take for its node.
    contests: Mutex<ImmediateBindingContests>,
    pub(super) release_hints: ReleaseHints,
    pub(super) metrics: ProvisionerMetrics,
    /// The scan for orphaned volumes, in a process that scans.
    pub(super) orphans: Option<Arc<OrphanScanner>>,
}

impl Provisioner {
    pub(super) fn new(
        context: Arc<ControllerContext>,
        queue_metrics: &Metrics,
        metrics: ProvisionerMetrics,
        orphans: Option<Arc<OrphanScanner>>,
    ) -> Arc<Self> {
        let settings = &context.settings;
        let backoff = settings.backoff();
        let options = ProvisionerOptions {
            prefix: settings.volume_name_prefix.clone(),
            default_fs_type: settings.default_fs_type.clone(),
            extra_create_metadata: settings.extra_create_metadata,
            cluster: context.cluster.clone(),
            runs_pv_controller: pv_controller::is_enabled(settings),
            single_node_multi_writer_drivers: context
                .drivers
                .iter()
                .filter(|(_, driver)| {
                    driver.backend.description().has_feature(Feature::SingleNodeMultiWriter)
                })
                .map(|(name, _)| name.clone())
                .collect(),
            modification_drivers: context
                .drivers
                .iter()
                .filter(|(_, driver)| driver.backend.abilities().contains(&Ability::Modification))
                .map(|(name, _)| name.clone())
                .collect(),
            topology_drivers: context
                .drivers
                .iter()
                .filter(|(_, driver)| driver.backend.has_topology())
                .map(|(name, _)| name.clone())
                .collect(),
            strict_topology: settings.strict_topology,
            immediate_topology: settings.immediate_topology,
            local_node: context.local_node.clone(),
        };
        Arc::new(Self {
            claims: Queue::new("provisioner_claims", backoff, queue_metrics),
            volumes: Queue::new("provisioner_volumes", backoff, queue_metrics),
            infeasible: Mutex::default(),
            waiting_for_topology: Mutex::default(),
            contests: Mutex::default(),
            release_hints: ReleaseHints::default(),
            metrics,
            orphans,
            options,
            context,
        })
    }

    /// Subscribes to the messages of the PersistentVolume controller.
    pub(super) fn subscribe_to_messages(self: &Arc<Self>) {
        let claims = self.claims.clone();
        self.context.channels.subscribe(move |request: &ProvisioningRequested| {
            claims.add_if_absent(request.claim.clone());
        });
        let controller = Arc::downgrade(self);
        self.context.channels.subscribe(move |released: &VolumeReleased| {
            if let Some(controller) = controller.upgrade() {
                controller.release_hints.insert(released);
            }
        });
    }

    pub(super) fn subscribe_to_cache(self: &Arc<Self>) {
        let cache = &self.context.cache;
        let controller = Arc::downgrade(self);
        cache.claims.subscribe(move |change| {
            if let Some(controller) = controller.upgrade() {
                controller.claim_changed(change);
            }
        });
        let controller = Arc::downgrade(self);
        cache.volumes.subscribe(move |change| {
            if let Some(controller) = controller.upgrade() {
                controller.volume_changed(change);
            }
        });
        let controller = Arc::downgrade(self);
        cache.classes.subscribe(move |change: &Change<StorageClass>| {
            if let Some(controller) = controller.upgrade() {
                for key in controller.context.cache.unbound_claims_of_class(change.key.as_str()) {
                    if let Some(claim) = controller.context.cache.claims.get(&key).into_object() {
                        controller.claims.add(claim.meta.uid.clone());
                    }
                }
            }
        });
        let controller = Arc::downgrade(self);
        cache.attributes_classes.subscribe(move |change: &Change<VolumeAttributesClass>| {
            let Some(controller) = controller.upgrade() else { return };
            let is_waiting = |claim: &&Arc<Claim>| {
                claim.volume.is_none() && *claim.attributes_class == *change.key.as_str()
            };
            let claims = controller.context.cache.claims.list();
            claims.iter().filter(is_waiting).for_each(|claim| controller.claims.add(claim.meta.uid.clone()));
        });
        let controller = Arc::downgrade(self);
        cache.attachments.subscribe(move |change: &Change<VolumeAttachment>| {
            let deleted = change.old.as_ref().filter(|_| change.new.is_none());
            if let (Some(controller), Some(volume)) =
                (controller.upgrade(), deleted.and_then(|deleted| deleted.volume()))
            {
                controller.volumes.add(volume.clone());
            }
        });
        let controller = Arc::downgrade(self);
        cache.csi_nodes.subscribe(move |change: &Change<CsiNode>| {
            let [old, new] =
                [&change.old, &change.new].map(|node| node.as_ref().map(|node| &node.topology_keys));
            if let Some(controller) = controller.upgrade().filter(|_| old != new) {
                controller.nodes_changed();
            }
        });
        let controller = Arc::downgrade(self);
        cache.nodes.subscribe(move |change: &Change<Node>| {
            let [old, new] = [&change.old, &change.new].map(|node| node.as_ref().map(|node| &node.labels));
            if let Some(controller) = controller.upgrade().filter(|_| old != new) {
                controller.nodes_changed();
            }
        });
        let controller = Arc::downgrade(self);
        cache.restore_markers.subscribe(move |_| {
            if let Some(controller) = controller.upgrade() {
                controller
                    .context
                    .cache
                    .volumes
                    .list()
                    .iter()
                    .for_each(|volume| controller.volumes.add(volume.name.clone()));
                controller.enqueue_intents();
            }
        });
    }

    /// What is written down as begun is to be looked at.
    fn enqueue_intents(&self) {
        for driver in self.context.drivers.values() {
            driver.journal.uids().into_iter().for_each(|uid| self.claims.add(uid));
        }
    }

    /// Processes the queues until `stop`.
    pub(super) async fn run_queues(self: &Arc<Self>, stop: CancellationToken) {
        self.enqueue_intents();
        let workers = self.context.settings.worker_threads;
        let (claims, volumes) = (Arc::clone(self), Arc::clone(self));
        let journals = futures::future::join_all(self.context.drivers.values().map(|driver| async {
            loop {
                driver.journal.wait_recovered().await.into_iter().for_each(|uid| self.claims.add(uid));
            }
        }));
        let queues = async {
            tokio::join!(
                self.claims.run(workers, stop.clone(), move |uid| {
                    let me = Arc::clone(&claims);
                    async move { me.reconcile_claim(&uid).await }
                }),
                self.volumes.run(workers, stop.clone(), move |name| {
                    let me = Arc::clone(&volumes);
                    async move { me.reconcile_volume(&name).await }
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
            self.waiting_for_topology().remove(&old.meta.uid);
        }
        if let Some(claim) = change.old.as_ref().or(change.new.as_ref())
            && change.new.as_ref().is_none_or(|claim| claim.volume.is_some())
        {
            self.contests().remove(&claim.meta.uid);
        }
    }

    /// Wakes the claims for which the nodes did not tell enough.
    fn nodes_changed(&self) {
        let waiting = std::mem::take(&mut *self.waiting_for_topology());
        waiting.into_iter().for_each(|uid| self.claims.add(uid));
    }

    pub(super) fn contests(&self) -> MutexGuard<'_, ImmediateBindingContests> {
        self.contests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting_for_topology(&self) -> MutexGuard<'_, HashSet<Uid>> {
        self.waiting_for_topology.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn volume_changed(&self, change: &Change<Volume>) {
        self.volumes.add(change.key.clone());
        for volume in [&change.old, &change.new].into_iter().flatten() {
            if let Some(uid) = volume.claim_ref.as_ref().and_then(|r| r.uid.clone()) {
                self.claims.add(uid);
            }
        }
    }

    fn find_intent(&self, uid: &Uid) -> Option<(&ManagedDriver, Arc<Intent>)> {
        self.context.drivers.values().find_map(|driver| Some((driver, driver.journal.get(uid)?)))
    }

    async fn reconcile_claim(&self, uid: &Uid) -> Action {
        for _ in 0..MAX_EFFECTS {
            let recorded = self.find_intent(uid);
            let intent = recorded.as_ref().map(|(_, intent)| intent);
            let is_managed_driver = |driver: &DriverName| self.context.drivers.contains_key(driver);
            let infeasible = self.infeasible_class(uid);
            let input = rules::ProvisionerInput {
                cache: &self.context.cache,
                intent,
                is_managed_driver: &is_managed_driver,
                infeasible: infeasible.as_ref().map(|(class, _)| class),
                options: &self.options,
            };
            match rules::provision(input, uid) {
                // What waits for another class, or for its time, keeps its turn whatever woke it in between.
                ProvisionVerdict::Ignore(_) => {
                    return infeasible.map_or(Action::Done, |(_, until)| {
                        Action::RequeueAfter(until.saturating_duration_since(Instant::now()))
                    });
                }
                ProvisionVerdict::Record(intent) => {
                    if let Some(outcome) = self.record(*intent).await {
                        return outcome;
                    }
                }
                ProvisionVerdict::Create(intent) => {
                    let Some((driver, _)) = recorded else { return Action::Requeue };
                    return self.create(driver, &intent).await;
                }
                ProvisionVerdict::RemoveIntent => {
                    if let Some((driver, intent)) = recorded {
                        // Written by a process that did not live to hear of it, or to tell.
                        self.emit_provisioning_succeeded(driver, &intent);
                        driver.journal.remove(uid);
                    }
                    return Action::Done;
                }
                ProvisionVerdict::SelectNode { claim, node, request } => {
                    if let Some(outcome) =
                        self.select_node(&claim, &node, request.map(|request| *request)).await
                    {
                        return outcome;
                    }
                }
                ProvisionVerdict::Reject { message, permanent } => {
                    if let Some(claim) = self.context.cache.claim_by_uid(uid) {
                        let recorder = StepRecorder::of_claim(&self.context, ROLE, &claim.key);
                        recorder.record(StepResult::Failed, message.clone(), None);
                    }
                    return self.fail(uid, message, permanent);
                }
                ProvisionVerdict::WaitForTopology(message) => {
                    if let Some(outcome) = self.wait_for_topology(uid, message) {
                        return outcome;
                    }
                }
                ProvisionVerdict::Reschedule { node, message } => {
                    if let Some(outcome) = self.handle_missing_node(uid, &node, message).await {
                        return outcome;
                    }
                }
                ProvisionVerdict::LeaveToPopulator => {
                    if let Some(claim) = self.context.cache.claim_by_uid(uid) {
                        let text = "Assuming an external populator will provision the volume".to_owned();
                        let event = EventSpec::normal("Provisioning", text);
                        self.context.emit_event(&*claim, "external-provisioner", event);
                    }
                    return Action::Done;
                }
            }
        }
        Action::Requeue
    }

    /// The claim's next turn comes when a node changes, or after its back-off. Absent where nobody would have
    /// told of a change since it was decided that it waits: then it is decided once more.
    fn wait_for_topology(&self, uid: &Uid, message: String) -> Option<Action> {
        if self.waiting_for_topology().insert(uid.clone()) {
            return None;
        }
        if let Some(claim) = self.context.cache.claim_by_uid(uid) {
            let recorder = StepRecorder::of_claim(&self.context, ROLE, &claim.key);
            recorder.record(StepResult::Waiting, message.clone(), None);
        }
        Some(self.fail(uid, message, false))
    }

    /// Takes the scheduler's choice back, unless the node is one that the watch has not shown yet.
    async fn handle_missing_node(&self, uid: &Uid, node: &NodeName, message: String) -> Option<Action> {
        if let Err(error) = self.context.writer.refresh::<CsiNode>(node).await {
            return Some(self.fail(uid, error.to_string(), false));
        }
        match self.context.cache.csi_nodes.get(node) {
            Lookup::Found(_) => None,
            Lookup::Undecodable(_) => self.wait_for_topology(uid, message),
            Lookup::Missing => Some(self.reschedule(uid, node, message).await),
        }
    }

    /// Tells the claim and takes the scheduler's choice back, if it is still this node: the scheduler chooses
    /// again.
    async fn reschedule(&self, uid: &Uid, node: &NodeName, message: String) -> Action {
        let Some(claim) = self.context.cache.claim_by_uid(uid) else { return Action::Requeue };
        let recorder = StepRecorder::of_claim(&self.context, ROLE, &claim.key);
        recorder.record(StepResult::Failed, message.clone(), None);
        let outcome = self.fail(uid, message, false);
        let path = format!("/metadata/annotations/{}", names::SELECTED_NODE.replace('/', "~1"));
        let operations =
            vec![json!({"op": "test", "path": path, "value": node}), json!({"op": "remove", "path": path})];
        let write = self.context.writer.json_patch::<Claim>(&claim.key, uid, operations);
        match recorder.record_effect(&format!("takes the choice of node {node} back"), write).await {
            Ok(_) => Action::Done,
            Err(error) => match self.context.action_for_write_error::<Claim>(&claim.key, &error).await {
                // Whatever there is now, the driver is not asked anew without a pause.
                Action::Requeue => outcome,
                other
                @ (Action::Done | Action::RequeueAfter(_) | Action::Backoff | Action::BackoffFor(_)) => other,
            },
        }
    }

    /// Effect 1: the intent.
    async fn record(&self, intent: Intent) -> Option<Action> {
        let Some(driver) = self.context.drivers.get(&intent.driver) else { return Some(Action::Requeue) };
        let recorder = StepRecorder::of_claim(&self.context, ROLE, &intent.claim);
        let started = Instant::now();
        let uid = intent.claim_uid.clone();
        match driver.journal.record(intent).await {
            Ok(_) => {
                recorder.record(StepResult::Applied, "writes the intent down", Some(started.elapsed()));
                None
            }
            Err(error) => {
                recorder.record(StepResult::Failed, error.to_string(), Some(started.elapsed()));
                Some(self.fail(&uid, error.to_string(), false))
            }
        }
    }

    /// Effect 2: the driver call, and what follows from its answer.
    async fn create(&self, driver: &ManagedDriver, intent: &Arc<Intent>) -> Action {
        let recorder = StepRecorder::of_claim(&self.context, ROLE, &intent.claim);
        let started = Instant::now();
        let answer = self.call_create(driver, intent, &recorder).await;
        let elapsed = started.elapsed();
        let retry_after =
            answer.as_ref().err().and_then(|error| error.retry_after_ms).map(Duration::from_millis);
        match rules::decide_after_create(
            &self.context.cache,
            self.context.local_node.as_ref(),
            intent,
            answer,
        ) {
            CreateVerdict::Save(created, capacity) => {
                self.save(driver, intent, created, capacity, &recorder, started).await
            }
            CreateVerdict::DeleteUnclaimed(created, message) => {
                self.delete_unclaimed(driver, intent, &created, message, &recorder).await
            }
            CreateVerdict::Failed { message, permanent } => {
                recorder.record(StepResult::Failed, message.clone(), Some(elapsed));
                self.metrics.record_provision_failure(&intent.class.name);
                driver.journal.remove(&intent.claim_uid);
                if permanent {
                    self.remember_infeasible(&intent.claim_uid, &intent.class.uid);
                }
                self.requeue_after(
                    self.fail(&intent.claim_uid, message, permanent),
                    &intent.claim_uid,
                    retry_after,
                )
            }
            CreateVerdict::Reschedule { node, message } => {
                self.metrics.record_provision_failure(&intent.class.name);
                driver.journal.remove(&intent.claim_uid);
                self.reschedule(&intent.claim_uid, &node, message).await
            }
            CreateVerdict::Retry(message) => {
                recorder.record(StepResult::Failed, message.clone(), Some(elapsed));
                self.metrics.record_provision_failure(&intent.class.name);
                self.requeue_after(
                    self.fail(&intent.claim_uid, message, false),
                    &intent.claim_uid,
                    retry_after,
                )
            }
        }
    }

    async fn call_create(
        &self,
        driver: &ManagedDriver,
        intent: &Intent,
        recorder: &StepRecorder,
    ) -> Result<CreatedVolume, StorageError> {
        let call = Call::with_deadline(self.context.settings.timeout);
        let started = Instant::now();
        let mut answer = driver.backend.create_volume(call, intent.request.clone());
        let answer = match tokio::time::timeout(PROVISIONING_EVENT_DELAY, &mut answer).await {
            Ok(answer) => answer,
            Err(_) => {
                recorder.record(StepResult::Waiting, "the driver is still at work", None);
                if let Some(claim) = self.context.cache.claim_by_uid(&intent.claim_uid) {
                    let text =
                        format!("External provisioner is provisioning volume for claim \"{}\"", intent.claim);
                    let event = EventSpec::normal("Provisioning", text);
                    self.context.emit_event(&*claim, &driver.component, event);
                }
                answer.await
            }
        };
        if answer.is_ok() {
            recorder.record(
                StepResult::Applied,
                format!("{} creates the volume", intent.driver),
                Some(started.elapsed()),
            );
        }
        answer
    }

    /// Effect 3: the object.
    async fn save(
        &self,
        driver: &ManagedDriver,
        intent: &Arc<Intent>,
        created: CreatedVolume,
        capacity: u64,
        recorder: &StepRecorder,
        started: Instant,
    ) -> Action {
        if let Some(other) = self.other_volume_with_handle(intent, &created) {
            // Saved, deleting one of the two would delete the other's data.
            let message = recorded_volume_message(intent, &created, &other);
            recorder.record(StepResult::Failed, message.clone(), None);
            return self.fail(&intent.claim_uid, message, true);
        }
        let claim = self
            .context
            .cache
            .claims
            .get(&intent.claim)
            .into_object()
            .filter(|c| c.meta.uid == intent.claim_uid);
        let claim_fields = ClaimFields {
            access_modes: claim.as_ref().map_or_else(|| rules::modes_of(&intent.request), |c| c.access_modes),
            version: claim.as_ref().map(|c| c.meta.resource_version.to_string()),
        };
        let body = object::persistent_volume(intent, &created, capacity, &driver.identity, &claim_fields);
        let write = self.context.writer.create::<Volume>(None, &body);
        match recorder.record_effect(&format!("writes PersistentVolume {}", intent.request.name), write).await
        {
            Ok(_) => {
                driver.journal.remove(&intent.claim_uid);
                self.metrics.record_provision(&intent.class.name, started.elapsed());
                self.emit_provisioning_succeeded(driver, intent);
                Action::Done
            }
            Err(ApiError::AlreadyExists(_)) => {
                self.resolve_name_conflict(driver, intent, &created, recorder).await
            }
            // The volume exists: it is never rolled back because its object cannot be written; the journal
            // remembers it.
            Err(error) => self.fail(&intent.claim_uid, error.to_string(), false),
        }
    }

    /// Tells the claim that its volume is there.
    fn emit_provisioning_succeeded(&self, driver: &ManagedDriver, intent: &Intent) {
        if let Some(claim) = self.context.cache.claim_by_uid(&intent.claim_uid) {
            let text = format!("Successfully provisioned volume {}", intent.request.name);
            self.context.emit_event(
                &*claim,
                &driver.component,
                EventSpec::normal("ProvisioningSucceeded", text),
            );
        }
    }

    /// An object of the volume's name exists: ours from before a crash, or a stranger's.
    async fn resolve_name_conflict(
        &self,
        driver: &ManagedDriver,
        intent: &Arc<Intent>,
        created: &CreatedVolume,
        recorder: &StepRecorder,
    ) -> Action {
        let name = VolumeName::from(intent.request.name.as_str());
        match self.context.writer.get::<Volume>(&name).await {
            // The claim has its volume on another node: this one is one too many, and has no object that
            // names it, whatever its handle.
            Ok(Some(volume)) if self.is_on_other_node(intent, &volume) => {
                self.delete_unclaimed(driver, intent, created, None, recorder).await
            }
            Ok(Some(volume))
                if volume.claim_ref.as_ref().and_then(|r| r.uid.as_ref()) == Some(&intent.claim_uid) =>
            {
                self.emit_provisioning_succeeded(driver, intent);
                driver.journal.remove(&intent.claim_uid);
                Action::Done
            }
            Ok(Some(volume)) if volume.csi.as_ref().is_some_and(|csi| csi.handle == created.handle) => {
                let message = format!(
                    "a PersistentVolume {name} exists already, uses the volume {} and is not of this claim",
                    created.handle
                );
                self.fail(&intent.claim_uid, message, true)
            }
            Ok(Some(_)) => {
                let message = format!("a PersistentVolume {name} exists already and is not of this claim");
                self.delete_unclaimed(driver, intent, created, Some(message), recorder).await
            }
            Ok(None) => Action::Backoff,
            Err(error) => self.fail(&intent.claim_uid, error.to_string(), false),
        }
    }

    /// Deletes by its id what nobody wants, then drops the intent.
    async fn delete_unclaimed(
        &self,
        driver: &ManagedDriver,
        intent: &Arc<Intent>,
        created: &CreatedVolume,
        message: Option<String>,
        recorder: &StepRecorder,
    ) -> Action {
        if deletion_freeze::is_frozen(&self.context.cache) {
            return self.keep_intent_while_frozen(recorder);
        }
        match self.check_created_volume(intent, created).await {
            Ok(CreatedVolumeCheck::Unclaimed) => {}
            Ok(CreatedVolumeCheck::Claimed) => return Action::Backoff,
            Ok(CreatedVolumeCheck::Undecided(message)) => {
                // The intent stays: nobody else knows of the volume.
                recorder.record(StepResult::Failed, message.clone(), None);
                let _ = self.fail(&intent.claim_uid, message, false);
                return Action::BackoffFor(self.context.settings.retry_interval_max);
            }
            Ok(CreatedVolumeCheck::Recorded(message)) => {
                recorder.record(StepResult::Failed, message.clone(), None);
                if self.context.cache.claim_by_uid(&intent.claim_uid).is_some() {
                    return self.fail(&intent.claim_uid, message, true);
                }
                // Nobody waits for it, and whoever has it keeps it.
                driver.journal.remove(&intent.claim_uid);
                return Action::Done;
            }
            Err(error) => return self.fail(&intent.claim_uid, error.to_string(), false),
        }
        if deletion_freeze::is_frozen(&self.context.cache) {
            return self.keep_intent_while_frozen(recorder);
        }
        let call = Call::with_deadline(self.context.settings.timeout);
        let started = Instant::now();
        match driver.backend.delete_volume(call, created.handle.clone()).await {
            Ok(()) => {
                let text = format!("{} deletes the volume that nobody wants any more", intent.driver);
                recorder.record(StepResult::Applied, text, Some(started.elapsed()));
                driver.journal.remove(&intent.claim_uid);
                match message {
                    Some(message) => self.fail(&intent.claim_uid, message, false),
                    // The claim may want another one.
                    None => Action::Requeue,
                }
            }
            Err(error) => {
                let text = format!(
                    "{} cannot delete the unwanted volume {}: {error}",
                    intent.driver, created.handle
                );
                recorder.record(StepResult::Failed, text.clone(), Some(started.elapsed()));
                self.fail(&intent.claim_uid, message.unwrap_or(text), false)
            }
        }
    }

    /// The intent stays until the operator has looked. One that the backup does not know ends with this life
    /// of the process: its volume is an orphan then, as are all that were made since.
    fn keep_intent_while_frozen(&self, recorder: &StepRecorder) -> Action {
        recorder.record(StepResult::Waiting, "deletions are held back since the cluster was restored", None);
        Action::BackoffFor(self.context.settings.retry_interval_max)
    }

    /// Whether really nobody has or wants the volume, read past the cache: an object that another process or
    /// a person wrote, or whose answer was lost, and a claim that the watch has not shown yet keep it.
    async fn check_created_volume(
        &self,
        intent: &Intent,
        created: &CreatedVolume,
    ) -> Result<CreatedVolumeCheck, ApiError> {
        let name = VolumeName::from(intent.request.name.as_str());
        if let Some(volume) = self.context.writer.get::<Volume>(&name).await?
            && !self.is_on_other_node(intent, &volume)
        {
            if volume.claim_ref.as_ref().and_then(|r| r.uid.as_ref()) == Some(&intent.claim_uid) {
                return Ok(CreatedVolumeCheck::Claimed);
            }
            if volume.csi.as_ref().is_some_and(|csi| csi.handle == created.handle) {
                return Ok(CreatedVolumeCheck::Recorded(recorded_volume_message(intent, created, &name)));
            }
        }
        let volumes = self.context.writer.list_scope::<Volume>(&Scope::default()).await?;
        if let Some(opaque) = volumes.into_iter().find_map(Result::err) {
            let (handle, key) = (&created.handle, opaque.key);
            return Ok(CreatedVolumeCheck::Undecided(format!(
                "PersistentVolume {key} cannot be read, and may stand for volume {handle}: it is not deleted"
            )));
        }
        if let Some(other) = self.other_volume_with_handle(intent, created) {
            return Ok(CreatedVolumeCheck::Recorded(recorded_volume_message(intent, created, &other)));
        }
        self.context.writer.refresh::<Claim>(&intent.claim).await?;
        self.context.check_live().await?;
        // The volume itself may be what is not wanted: too small, or its name taken.
        let too_small =
            created.capacity.is_some_and(|bytes| bytes > 0 && Some(bytes) < intent.request.capacity.required);
        let is_name_taken = matches!(self.context.cache.volumes.get(&name), Lookup::Found(_));
        let local_node = self.context.local_node.as_ref();
        let is_claimed =
            !too_small && !is_name_taken && rules::is_claimed(&self.context.cache, local_node, intent);
        Ok(if is_claimed { CreatedVolumeCheck::Claimed } else { CreatedVolumeCheck::Unclaimed })
    }

    /// Another object that stands for the volume, as far as it can be of the same storage.
    fn other_volume_with_handle(&self, intent: &Intent, created: &CreatedVolume) -> Option<VolumeName> {
        let name = VolumeName::from(intent.request.name.as_str());
        let may_share_storage = |other: &Volume| !self.is_on_other_node(intent, other);
        self.context.cache.other_volume_with_handle(&intent.driver, &created.handle, &name, may_share_storage)
    }

    fn is_on_other_node(&self, intent: &Intent, volume: &Volume) -> bool {
        placement::is_on_other_node(self.context.local_node.as_ref(), intent, volume)
    }

    /// Tells the claim, where it still exists, and chooses when to try again.
    fn fail(&self, uid: &Uid, message: String, permanent: bool) -> Action {
        if let Some(claim) = self.context.cache.claim_by_uid(uid) {
            let component = self.component_for(&claim);
            let text = if permanent {
                format!("{message}; it is tried again after a change, or later")
            } else {
                message
            };
            let event = EventSpec::warning("ProvisioningFailed", text);
            self.context.emit_event(&*claim, &component, event);
        }
        if permanent { Action::BackoffFor(self.context.settings.retry_interval_max) } else { Action::Backoff }
    }

    /// A back-off that is no shorter than what the driver wishes.
    fn requeue_after(&self, outcome: Action, uid: &Uid, retry_after: Option<Duration>) -> Action {
        match (outcome, retry_after) {
            (Action::Backoff, Some(retry_after)) => {
                self.context.settings.retry_after_hint(retry_after, self.claims.failures(uid))
            }
            (outcome, _) => outcome,
        }
    }

    pub(super) fn component_for(&self, claim: &Claim) -> Box<str> {
        let class = self.context.cache.class(claim.class_name()).into_object();
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
        if infeasible.len() >= MAX_INFEASIBLE {
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
