//! Queues and event handlers of the resizer. `super::expand` and `super::modify` perform what the rules
//! decide.

use std::{collections::HashMap, sync::Arc, time::Duration};

use cofferdam_backend::{Backend, Call};
use cofferdam_cluster::{
    Cache, Change, Clock, SecretError, SecretReader, Writer,
    metrics::Metrics,
    observer::StepResult,
    queue::{Action, Queue},
};
use cofferdam_domain::{
    Claim, ClaimKey, CsiNode, DriverName, Node, NodeName, Pod, Volume, VolumeAttributesClass,
    storage::{Ability, Feature, Secrets},
    term::Term,
    volume::SecretRef,
};
use tokio_util::sync::CancellationToken;

use super::{
    modification,
    rules::{self, ResizerAbilities},
    settings::ResizerSettings,
    state::{ResizeOperation, ResizerState},
};
use crate::{
    controller::Controller,
    drivers::Backends,
    events::{EventRecorder, EventSpec},
    node_local::{LocalNode, OnlyNodeError},
    reconcile::{run_periodically, subscribe},
    settings::CallSettings,
    step_recorder::{StepRecorder, StepRecorders},
    volume_locks::{LockGuard, VolumeLocks, WakePolicy},
};

/// Dependencies of the resizer.
pub(crate) struct ResizerContext {
    pub(super) cache: Arc<Cache>,
    pub(super) writer: Writer,
    pub(super) secrets: SecretReader,
    pub(super) events: EventRecorder,
    pub(super) recorders: StepRecorders,
    pub(super) clock: Clock,
    pub(super) drivers: Backends,
    /// The node of the process, with its node-local drivers. `None` without `--node-name`.
    pub(super) local_node: Option<LocalNode>,
    pub(super) settings: ResizerSettings,
    pub(super) calls: CallSettings,
    /// The term in which driver calls may begin.
    pub(super) term: Term,
    pub(super) queue_metrics: Metrics,
}

/// The resizer.
pub(crate) struct Resizer {
    pub(super) context: ResizerContext,
    queues: HashMap<DriverName, Queues>,
    pub(super) state: ResizerState,
    pub(super) volume_locks: VolumeLocks<ClaimKey, ResizeOperation>,
}

/// The queues of one driver: a slow driver does not delay others.
struct Queues {
    expansion: Queue<ClaimKey>,
    modification: Queue<ClaimKey>,
}

impl Queues {
    const fn get(&self, operation: ResizeOperation) -> &Queue<ClaimKey> {
        match operation {
            ResizeOperation::Expansion => &self.expansion,
            ResizeOperation::Modification => &self.modification,
        }
    }
}

impl Controller for Resizer {
    type Context = ResizerContext;

    fn new(context: ResizerContext) -> Arc<Self> {
        let (backoff, queue_metrics) = (context.calls.backoff(), &context.queue_metrics);
        let queues = |name: &DriverName| {
            let expansion = Queue::new("resizer_expansion", backoff, queue_metrics);
            let modification = Queue::new("resizer_modification", backoff, queue_metrics);
            (name.clone(), Queues { expansion, modification })
        };
        Arc::new(Self {
            queues: context.drivers.keys().map(queues).collect(),
            state: ResizerState::default(),
            volume_locks: VolumeLocks::new(WakePolicy::All),
            context,
        })
    }

    fn subscribe(self: &Arc<Self>) {
        let cache = &self.context.cache;
        subscribe(self, &cache.claims, Self::claim_changed);
        subscribe(self, &cache.volumes, Self::volume_changed);
        subscribe(self, &cache.attributes_classes, Self::class_changed);
        subscribe(self, &cache.pods, Self::pod_changed);
        subscribe(self, &cache.csi_nodes, Self::csi_node_changed);
        subscribe(self, &cache.nodes, Self::node_changed);
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let workers = self.context.settings.workers;
        let queues = self.queues.iter().flat_map(|(driver, queues)| {
            [ResizeOperation::Expansion, ResizeOperation::Modification].map(|operation| {
                let (controller, driver) = (Arc::clone(&self), driver.clone());
                queues.get(operation).run(workers, stop.clone(), move |key| {
                    let (controller, driver) = (Arc::clone(&controller), driver.clone());
                    async move {
                        let Some(backend) = controller.context.drivers.get(&driver) else {
                            return Action::Done;
                        };
                        match operation {
                            ResizeOperation::Expansion => {
                                controller.reconcile_expansion(&driver, &**backend, &key).await
                            }
                            ResizeOperation::Modification => {
                                controller.reconcile_modification(&driver, &**backend, &key).await
                            }
                        }
                    }
                })
            })
        });
        tokio::join!(futures::future::join_all(queues), self.resync(stop.clone()));
    }
}

impl Resizer {
    /// Enqueues every claim with a volume of this process's drivers once per resync period
    /// (`--resync-period`).
    async fn resync(&self, stop: CancellationToken) {
        run_periodically(self.context.settings.resync_period, stop, || {
            for claim in self.context.cache.claims.list() {
                if let Some(queues) = self.queues_of(&claim) {
                    queues.expansion.add_if_absent(claim.key.clone());
                    if self.context.settings.volume_attributes_class {
                        queues.modification.add_if_absent(claim.key.clone());
                    }
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
            self.state.remove_expansion(&old.meta.uid);
            self.state.remove_modification(&old.meta.uid);
        }
        let Some(new) = &change.new else { return };
        if rules::is_relevant_change(old, new) {
            self.enqueue_changed_claim(new, ResizeOperation::Expansion);
        }
        if modification::is_relevant_change(old, new) {
            self.enqueue_changed_claim(new, ResizeOperation::Modification);
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
        for claim in self.context.cache.claims_referencing_volume(&change.key) {
            if let Some(claim) = self.context.cache.claims.get(&claim).into_object() {
                self.enqueue_claim(&claim, ResizeOperation::Expansion);
                self.enqueue_claim(&claim, ResizeOperation::Modification);
            }
        }
    }

    /// Enqueues the claims that request a created or changed class and do not have it, or whose modification
    /// has it as its target.
    fn class_changed(&self, change: &Change<VolumeAttributesClass>) {
        let Some(class) = &change.new else { return };
        let name = class.name.as_str();
        let is_waiting = |claim: &Arc<Claim>| {
            let target = claim.progress().modification.as_ref().map(|status| &*status.target_class);
            target == Some(name)
                || (&*claim.attributes_class == name
                    && claim.status_attributes_class.as_deref() != Some(name))
        };
        self.context.cache.claims.list().iter().filter(|claim| is_waiting(claim)).for_each(|claim| {
            self.enqueue_claim(claim, ResizeOperation::Modification);
        });
    }

    /// After a pod was terminated or deleted, enqueues those of its claims whose volumes could not be
    /// expanded while in use.
    fn pod_changed(&self, change: &Change<Pod>) {
        let is_in_use = |pod: &Option<Arc<Pod>>| pod.as_ref().is_some_and(|pod| !pod.terminated);
        let Some(old) = change.old.as_ref().filter(|_| is_in_use(&change.old) && !is_in_use(&change.new))
        else {
            return;
        };
        for key in cofferdam_cluster::cache::PodIndex::claims_of(old) {
            if let Some(claim) = self.context.cache.claims.get(&key).into_object()
                && self.state.expansion(&claim.meta.uid).in_use
            {
                self.enqueue_changed_claim(&claim, ResizeOperation::Expansion);
            }
        }
    }

    fn csi_node_changed(&self, change: &Change<CsiNode>) {
        let [old, new] = [&change.old, &change.new].map(|node| node.as_ref().map(|node| &node.topology_keys));
        if old != new {
            self.enqueue_node_local_claims(&change.key);
        }
    }

    fn node_changed(&self, change: &Change<Node>) {
        let [old, new] = [&change.old, &change.new].map(|node| node.as_ref().map(|node| &node.labels));
        if old != new {
            self.enqueue_node_local_claims(&change.key);
        }
    }

    /// Enqueues the claims of the node-local drivers of this process after a change of the topology keys or
    /// labels of `node`, if it is the node of this process: they decide which volumes this process manages,
    /// see [`LocalNode::has_volume`].
    fn enqueue_node_local_claims(&self, node: &NodeName) {
        let Some(local_node) = self.context.local_node.as_ref().filter(|local| local.node == *node) else {
            return;
        };
        let is_node_local = |claim: &&Arc<Claim>| {
            let volume = rules::bound_volume(&self.context.cache, claim).ok();
            let driver = volume.and_then(|volume| rules::driver_of(&volume));
            driver.is_some_and(|driver| local_node.has_driver(&driver))
        };
        self.context.cache.claims.list().iter().filter(is_node_local).for_each(|claim| {
            self.enqueue_claim(claim, ResizeOperation::Expansion);
            self.enqueue_claim(claim, ResizeOperation::Modification);
        });
    }

    fn enqueue_claim(&self, claim: &Claim, operation: ResizeOperation) {
        if let Some(queue) = self.queue_of(claim, operation) {
            queue.add(claim.key.clone());
        }
    }

    /// Enqueues a claim after a change of it or of its pods. Users can change them as often as they like, and
    /// each change could cause a driver call.
    fn enqueue_changed_claim(&self, claim: &Claim, operation: ResizeOperation) {
        if let Some(queue) = self.queue_of(claim, operation) {
            queue.add_once_per_backoff(claim.key.clone());
        }
    }

    /// Returns the queue of an operation of the claim. `None` if this process does not perform it.
    fn queue_of(&self, claim: &Claim, operation: ResizeOperation) -> Option<&Queue<ClaimKey>> {
        let modifies = self.context.settings.volume_attributes_class;
        (operation == ResizeOperation::Expansion || modifies)
            .then(|| self.queues_of(claim))
            .flatten()
            .map(|queues| queues.get(operation))
    }

    /// Returns the queues of the driver of the claim's volume. `None` if the claim is not bound to a volume
    /// with a driver (see [`rules::driver_of`]), or if this process does not have the driver.
    fn queues_of(&self, claim: &Claim) -> Option<&Queues> {
        let volume = rules::bound_volume(&self.context.cache, claim).ok()?;
        self.queues.get(&rules::driver_of(&volume)?)
    }

    /// Returns true if the claim's volume belongs to the driver and, for a node-local driver, to the node of
    /// this process.
    pub(super) fn is_managed_claim(&self, driver: &DriverName, claim: &Claim) -> bool {
        let cache = &self.context.cache;
        let Ok(volume) = rules::bound_volume(cache, claim) else { return false };
        let local_node = self.context.local_node.as_ref().filter(|local_node| local_node.has_driver(driver));
        rules::driver_of(&volume).as_ref() == Some(driver)
            && local_node.is_none_or(|local_node| local_node.has_volume(&volume, cache))
    }

    /// Enqueues the operation of a claim that waited for the other operation's call.
    pub(super) fn enqueue(&self, driver: &DriverName, claim: &ClaimKey, operation: ResizeOperation) {
        if let Some(queues) = self.queues.get(driver) {
            queues.get(operation).add(claim.clone());
        }
    }

    pub(super) fn abilities(driver: &dyn Backend) -> ResizerAbilities {
        let abilities = driver.abilities();
        ResizerAbilities {
            expands: abilities.contains(&Ability::Expansion),
            modifies: abilities.contains(&Ability::Modification),
            single_node_multi_writer: driver.description().has_feature(Feature::SingleNodeMultiWriter),
        }
    }

    /// Creates a driver call with the data of this Secret; with `None`, without secrets.
    async fn build_call(
        &self,
        secret: Option<&SecretRef>,
        operation: ResizeOperation,
    ) -> Result<Call, SecretError> {
        let secrets = match secret {
            Some(secret) => self.context.secrets.read(secret).await?,
            None => Secrets::default(),
        };
        let timeout = match operation {
            ResizeOperation::Expansion => self.context.settings.expand_timeout,
            ResizeOperation::Modification => self.context.settings.modify_timeout,
        };
        let call = self.context.calls.call(&self.context.term, secrets);
        Ok(Call { deadline: timeout.unwrap_or(call.deadline), ..call })
    }

    /// Prepares a call: checks that no other node has the volume if the driver is node-local, reads its
    /// Secret if it has one, checks that claim and volume have not changed during these reads, and locks the
    /// claim, so that its expansion and its modification do not overlap.
    ///
    /// # Errors
    /// The action that ends this reconcile. If the claim's other operation holds the lock, the end of that
    /// operation enqueues this operation.
    pub(super) async fn prepare_call(
        &self,
        (name, claim, reason): (&DriverName, &Claim, &'static str),
        volume: &Volume,
        secret: Option<&SecretRef>,
        operation: ResizeOperation,
    ) -> Result<(Call, LockGuard<'_, ClaimKey, ResizeOperation>), Action> {
        let local_node = self.context.local_node.as_ref().filter(|local_node| local_node.has_driver(name));
        if let Some(local_node) = local_node
            && let Err(error) = local_node.check_only_node(volume, &self.context.writer).await
        {
            self.emit_failure(name, claim, reason, error.to_string());
            return Err(match error {
                OnlyNodeError::Other { .. } => Action::BackoffFor(self.context.calls.retry_interval_max),
                OnlyNodeError::Segments(_) | OnlyNodeError::Read(_) => Action::Backoff,
            });
        }
        let call = match self.build_call(secret, operation).await {
            Ok(call) => call,
            Err(error) => {
                self.emit_failure(name, claim, reason, error.to_string());
                return Err(Action::Backoff);
            }
        };
        if (secret.is_some() || local_node.is_some()) && self.has_changed(claim, volume) {
            return Err(Action::Requeue);
        }
        let (name, key) = (name.clone(), claim.key.clone());
        let enqueue = move |operation| self.enqueue(&name, &key, operation);
        let guard = self.volume_locks.acquire_or_wait(&claim.key, &operation, enqueue).ok_or(Action::Done)?;
        Ok((call, guard))
    }

    /// Emits an event on the claim, with the `source.component` of external-resizer.
    pub(super) fn emit_event(&self, driver: &DriverName, claim: &Claim, event: EventSpec) {
        self.context.events.emit(claim, &format!("external-resizer {driver}"), event);
    }

    /// Records a failure, and emits it as an event of type Warning with this reason on the claim.
    pub(super) fn emit_failure(
        &self,
        driver: &DriverName,
        claim: &Claim,
        reason: &'static str,
        text: String,
    ) {
        self.recorder(claim).record(StepResult::Failed, text.clone(), None);
        self.emit_event(driver, claim, EventSpec::warning(reason, text));
    }

    pub(super) fn recorder(&self, claim: &Claim) -> StepRecorder {
        self.context.recorders.of_claim(&claim.key)
    }

    /// Retries after the delay that the driver's error suggests in milliseconds, but not before the back-off
    /// and not later than `--retry-interval-max`. Without a suggestion, returns the back-off.
    pub(super) fn requeue_after(
        &self,
        driver: &DriverName,
        operation: ResizeOperation,
        claim: &ClaimKey,
        retry_after: Option<u64>,
    ) -> Action {
        let (Some(retry_after), Some(queues)) = (retry_after, self.queues.get(driver)) else {
            return Action::Backoff;
        };
        let failures = queues.get(operation).failures(claim);
        self.context.calls.retry_after_hint(Duration::from_millis(retry_after), failures)
    }
}
