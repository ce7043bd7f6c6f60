//! Reconciles claims and PersistentVolumes as [`rules`] decides, one effect at a time.
//!
//! A claim for which [`crate::pv_controller`] found no volume gets one in these steps. Changes of objects
//! (see `claim_changed`) and the message of the PersistentVolume controller enqueue the claim, and
//! `Provisioner::reconcile_claim` does the rest:
//!
//! | step | function |
//! |---|---|
//! | the watch delivers the claim | `claim_changed` |
//! | decide | [`rules::decide_provisioning`] |
//! | read the Secret of the request, and decide again | `super::secrets` |
//! | write the intent to the journal | `super::create`: `write_intent`, `write_mended` |
//! | decide again | [`rules::decide_provisioning`] |
//! | call the driver | `super::create`: `create` |
//! | create the PersistentVolume, remove the intent | `super::save` |
//! | or delete a volume that the claim does not need | `super::undo` |
//! | or report an intent whose result stays unknown | `super::stuck` |
//!
//! For a claim of a node-local driver without a selected node, `super::immediate_binding` selects the node of
//! this process before the intent is written. `super::reclaim` reconciles a PersistentVolume.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use cofferdam_cluster::{
    Cache, Change, Clock, Intent, Lookup, SecretReader, Writer,
    deletion_freeze::RestoreMarker,
    metrics::Metrics,
    observer::StepResult,
    queue::{Action, Queue},
};
use cofferdam_domain::{
    Claim, ClaimKey, CsiNode, DriverName, Node, NodeName, SourceKey, StorageClass, Uid, Volume,
    VolumeAttachment, VolumeAttributesClass, VolumeName, VolumeSnapshot, VolumeSnapshotKey, names,
    term::Term,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    call_backoff::CallBackoff,
    contests::ImmediateBindingContests,
    create_secret::CreateSecret,
    infeasible::InfeasibleClaims,
    journal_waits::JournalWaits,
    mending::{self, RequestKind},
    metrics::ProvisionerMetrics,
    release_hints::ReleaseHints,
    rules::{self, ProvisionVerdict, ProvisionerOptions},
    source,
    source_waits::SourceWaits,
};
use crate::{
    channels::Channels,
    controller::Controller,
    drivers::ManagedDriver,
    events::{EventRecorder, EventSpec},
    live_reads::SingleFlightReads,
    messages::{ClaimNeedsVolume, VolumeReleased},
    node_local::{LocalNode, NodeDeployment},
    orphans::OrphanScanner,
    reconcile::{EVENT_REPEAT_INTERVAL, MAX_EFFECTS, action_for_write_error, subscribe},
    restore_check::RestoreCheck,
    settings::CallSettings,
    step_recorder::StepRecorders,
};

/// Dependencies of the provisioner.
pub(crate) struct ProvisionerContext {
    pub(super) cache: Arc<Cache>,
    pub(super) writer: Writer,
    pub(super) secrets: SecretReader,
    pub(super) events: EventRecorder,
    pub(super) clock: Clock,
    pub(super) recorders: StepRecorders,
    pub(super) drivers: Arc<HashMap<DriverName, ManagedDriver>>,
    /// The node of this process and its node-local drivers, perhaps none. `None` without `--node-name`.
    pub(super) local_node: Option<LocalNode>,
    pub(super) node_deployment: Option<NodeDeployment>,
    /// Namespace of the restore marker.
    pub(super) namespace: String,
    pub(super) options: ProvisionerOptions,
    /// Maximum number of claims that are reconciled concurrently; the same limit applies separately to
    /// PersistentVolumes.
    pub(super) workers: usize,
    pub(super) calls: CallSettings,
    /// The term in which driver calls may begin.
    pub(super) term: Term,
    /// The role protection runs in this process.
    pub(super) runs_protection: bool,
    /// The role attacher runs in this process, with the same drivers.
    pub(super) runs_attacher: bool,
    /// Receives messages of the PersistentVolume controller.
    pub(super) channels: Arc<Channels>,
    /// An intent of this age is stuck.
    pub(super) stuck_after: Duration,
    pub(super) restore_check: RestoreCheck,
    /// The scan for orphaned volumes. `None` if scans are disabled, or if all drivers are node-local.
    pub(super) orphans: Option<Arc<OrphanScanner>>,
    pub(super) metrics: ProvisionerMetrics,
    pub(super) queue_metrics: Metrics,
}

impl ProvisionerContext {
    /// Returns the node of this process if the driver is node-local, else `None`.
    pub(super) fn local_node_of(&self, driver: &DriverName) -> Option<&LocalNode> {
        self.local_node.as_ref().filter(|local_node| local_node.has_driver(driver))
    }

    /// Returns true if one of these drivers is not node-local.
    fn has_central(&self, drivers: &BTreeSet<DriverName>) -> bool {
        drivers.iter().any(|driver| self.local_node_of(driver).is_none())
    }
}

/// The provisioner.
pub(crate) struct Provisioner {
    pub(super) context: ProvisionerContext,
    /// Queue of claims, by UID as in the journal: an intent may outlive its claim.
    pub(super) claims: Queue<Uid>,
    volumes: Queue<VolumeName>,
    /// Queue of claims that are cloned, for their finalizer.
    pub(super) sources: Queue<ClaimKey>,
    /// A driver of this process that is not node-local clones volumes.
    pub(super) protects_sources: bool,
    /// Queue of VolumeSnapshots that are restored, for their finalizer.
    pub(super) snapshots: Queue<VolumeSnapshotKey>,
    /// A driver of this process that is not node-local restores snapshots.
    pub(super) protects_snapshots: bool,
    /// Claims whose request the driver has rejected as invalid.
    pub(super) infeasible: InfeasibleClaims,
    /// Claims waiting for another owner of the driver's journal.
    pub(super) journal_waits: JournalWaits,
    /// Claims whose last CreateVolume call failed.
    pub(super) call_backoff: CallBackoff,
    /// Claims waiting for topology keys of CSINodes or topology labels of Nodes.
    waiting_for_topology: Mutex<HashSet<Uid>>,
    /// Claims waiting for their source.
    source_waits: SourceWaits,
    /// Attempts of this process to select its own node for claims of node-local drivers. Processes of other
    /// nodes compete for the same claims. An entry is removed when its claim has a volume or is deleted.
    pub(super) contests: Mutex<ImmediateBindingContests>,
    pub(super) release_hints: ReleaseHints,
    /// Lists of all PersistentVolumes. The result is one that cannot be decoded, or `None`.
    pub(super) volume_lists: SingleFlightReads<Option<VolumeName>>,
}

impl Controller for Provisioner {
    type Context = ProvisionerContext;

    fn new(context: ProvisionerContext) -> Arc<Self> {
        let (backoff, queue_metrics) = (context.calls.backoff(), &context.queue_metrics);
        let journals = context.drivers.values().map(|driver| driver.journal.clone());
        context.metrics.add_journals(journals, &context.clock, context.stuck_after);
        Arc::new(Self {
            claims: Queue::new("provisioner_claims", backoff, queue_metrics),
            volumes: Queue::new("provisioner_volumes", backoff, queue_metrics),
            sources: Queue::new("provisioner_sources", backoff, queue_metrics),
            protects_sources: context.has_central(&context.options.cloning_drivers),
            snapshots: Queue::new("provisioner_snapshots", backoff, queue_metrics),
            protects_snapshots: context.has_central(&context.options.restoring_drivers),
            infeasible: InfeasibleClaims::default(),
            journal_waits: JournalWaits::default(),
            call_backoff: CallBackoff::new(backoff),
            waiting_for_topology: Mutex::default(),
            source_waits: SourceWaits::default(),
            contests: Mutex::default(),
            release_hints: ReleaseHints::default(),
            volume_lists: SingleFlightReads::default(),
            context,
        })
    }

    fn subscribe(self: &Arc<Self>) {
        let cache = &self.context.cache;
        subscribe(self, &cache.claims, Self::claim_changed);
        subscribe(self, &cache.volumes, Self::volume_changed);
        subscribe(self, &cache.classes, Self::class_changed);
        subscribe(self, &cache.attributes_classes, Self::attributes_class_changed);
        subscribe(self, &cache.attachments, Self::attachment_changed);
        subscribe(self, &cache.csi_nodes, Self::csi_node_changed);
        subscribe(self, &cache.nodes, Self::node_changed);
        subscribe(self, &cache.snapshots, Self::snapshot_changed);
        subscribe(self, &cache.restore_markers, Self::restore_marker_changed);
        self.subscribe_to_messages();
        self.context.orphans.iter().for_each(OrphanScanner::subscribe);
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let scans = self.context.orphans.iter().map(|orphans| orphans.run(stop.clone()));
        tokio::join!(self.run_queues(stop.clone()), futures::future::join_all(scans));
    }
}

impl Provisioner {
    /// Subscribes to the messages of the PersistentVolume controller.
    fn subscribe_to_messages(self: &Arc<Self>) {
        let claims = self.claims.clone();
        self.context.channels.subscribe(move |message: &ClaimNeedsVolume| {
            claims.add_if_absent(message.claim.clone());
        });
        let controller = Arc::downgrade(self);
        self.context.channels.subscribe(move |volume: &VolumeReleased| {
            if let Some(controller) = controller.upgrade() {
                controller.release_hints.insert(volume);
            }
        });
    }

    /// Enqueues the claims that have an intent, and processes the queues of claims and volumes until `stop`.
    /// Meanwhile enqueues claims whose intents a journal reads from its ConfigMaps, such as those that
    /// another process wrote.
    async fn run_queues(self: &Arc<Self>, stop: CancellationToken) {
        self.enqueue_intents();
        let workers = self.context.workers;
        let [claims, volumes, sources, snapshots] = std::array::from_fn(|_| Arc::clone(self));
        let journals = futures::future::join_all(self.context.drivers.values().map(|driver| async {
            loop {
                driver.journal.wait_recovered().await.into_iter().for_each(|uid| self.claims.add(uid));
            }
        }));
        let queues = async {
            tokio::join!(
                self.claims.run(workers, stop.clone(), move |uid| {
                    let controller = Arc::clone(&claims);
                    async move { controller.reconcile_claim(&uid).await }
                }),
                self.volumes.run(workers, stop.clone(), move |name| {
                    let controller = Arc::clone(&volumes);
                    async move { controller.reconcile_volume(&name).await }
                }),
                self.sources.run(workers, stop.clone(), move |key| {
                    let controller = Arc::clone(&sources);
                    async move { controller.reconcile_source(&key).await }
                }),
                self.snapshots.run(workers, stop.clone(), move |key| {
                    let controller = Arc::clone(&snapshots);
                    async move { controller.reconcile_snapshot(&key).await }
                }),
            )
        };
        tokio::select! {
            biased;
            _ = queues => {}
            _ = journals => {}
        }
    }

    fn claim_changed(&self, change: &Change<Claim>) {
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.meta.uid != old.meta.uid)) {
            self.infeasible.remove(&old.meta.uid);
            self.journal_waits.remove(&old.meta.uid);
            self.call_backoff.remove(&old.meta.uid);
            self.waiting_for_topology.lock().remove(&old.meta.uid);
            if let Some(source) = old.source_key() {
                self.source_waits.remove(&source, &old.meta.uid);
            }
            self.claims.add(old.meta.uid.clone());
        }
        if source::claim::is_source_change(old, new) {
            self.enqueue_waiting_for(&SourceKey::Claim(change.key.clone()));
        }
        self.enqueue_protected_source(&change.key);
        if let Some(source) = old.or(new).and_then(Claim::source_key) {
            self.enqueue_source(&source);
        }
        if let Some(bound) = new.filter(|new| new.volume.is_some()) {
            self.journal_waits.remove(&bound.meta.uid);
        }
        match new {
            Some(new) if rules::is_relevant_change(old, new) => self.claims.add(new.meta.uid.clone()),
            // The claim keeps its back-off: users can make such a change as often as they like.
            Some(new) => self.claims.add_if_absent(new.meta.uid.clone()),
            None => {}
        }
        if let Some(claim) = change.old.as_ref().or(change.new.as_ref())
            && change.new.as_ref().is_none_or(|claim| claim.volume.is_some())
        {
            self.contests.lock().remove(&claim.meta.uid);
        }
    }

    fn volume_changed(&self, change: &Change<Volume>) {
        self.volumes.add(change.key.clone());
        for volume in [&change.old, &change.new].into_iter().flatten() {
            let Some(claim_ref) = &volume.claim_ref else { continue };
            self.enqueue_waiting_for(&SourceKey::Claim(claim_ref.key.clone()));
            if let Some(uid) = &claim_ref.uid {
                self.claims.add(uid.clone());
            }
        }
    }

    fn class_changed(&self, change: &Change<StorageClass>) {
        let cache = &self.context.cache;
        let claims = cache.unbound_claims_of_class(change.key.as_str()).into_iter();
        claims.filter_map(|key| cache.claims.get(&key).into_object()).for_each(|claim| {
            self.claims.add(claim.meta.uid.clone());
        });
    }

    fn attributes_class_changed(&self, change: &Change<VolumeAttributesClass>) {
        let is_waiting =
            |claim: &&Arc<Claim>| claim.volume.is_none() && *claim.attributes_class == *change.key.as_str();
        let claims = self.context.cache.claims.list();
        claims.iter().filter(is_waiting).for_each(|claim| self.claims.add(claim.meta.uid.clone()));
    }

    fn attachment_changed(&self, change: &Change<VolumeAttachment>) {
        let deleted = change.old.as_ref().filter(|_| change.new.is_none());
        if let Some(volume) = deleted.and_then(|deleted| deleted.volume()) {
            self.volumes.add(volume.clone());
        }
    }

    fn csi_node_changed(&self, change: &Change<CsiNode>) {
        let [old, new] = [&change.old, &change.new].map(|node| node.as_ref().map(|node| &node.topology_keys));
        if old != new {
            self.enqueue_waiting_for_topology();
            self.enqueue_node_local_volumes(&change.key);
        }
    }

    fn node_changed(&self, change: &Change<Node>) {
        let [old, new] = [&change.old, &change.new].map(|node| node.as_ref().map(|node| &node.labels));
        if old != new {
            self.enqueue_waiting_for_topology();
            self.enqueue_node_local_volumes(&change.key);
        }
    }

    /// Enqueues the volumes of the node-local drivers of this process after a change of the topology keys or
    /// labels of `node`, if it is the node of this process: they decide which volumes this process manages,
    /// see [`LocalNode::has_volume`].
    fn enqueue_node_local_volumes(&self, node: &NodeName) {
        let Some(local_node) = self.context.local_node.as_ref().filter(|local| local.node == *node) else {
            return;
        };
        let is_node_local =
            |volume: &&Arc<Volume>| volume.csi.as_ref().is_some_and(|csi| local_node.has_driver(&csi.driver));
        let volumes = self.context.cache.volumes.list();
        volumes.iter().filter(is_node_local).for_each(|volume| self.volumes.add(volume.name.clone()));
    }

    fn restore_marker_changed(&self, _: &Change<RestoreMarker>) {
        self.context.cache.volumes.list().iter().for_each(|volume| self.volumes.add(volume.name.clone()));
        self.call_backoff.clear();
        self.enqueue_intents();
    }

    fn enqueue_waiting_for_topology(&self) {
        let waiting = std::mem::take(&mut *self.waiting_for_topology.lock());
        waiting.into_iter().for_each(|uid| self.claims.add(uid));
    }

    fn snapshot_changed(&self, change: &Change<VolumeSnapshot>) {
        self.enqueue_waiting_for(&SourceKey::Snapshot(change.key.clone()));
        self.enqueue_protected_snapshot(&change.key);
    }

    /// Enqueues the claims that wait for a change of this source.
    fn enqueue_waiting_for(&self, source: &SourceKey) {
        self.source_waits.take(source).into_iter().for_each(|uid| self.claims.add(uid));
    }

    /// Enqueues the claims that have an intent.
    fn enqueue_intents(&self) {
        for driver in self.context.drivers.values() {
            driver.journal.uids().into_iter().for_each(|uid| self.claims.add(uid));
        }
    }

    /// Returns true if the claim has an intent, which may not be durable yet.
    pub(super) fn has_intent_for(&self, uid: &Uid) -> bool {
        self.context.drivers.values().any(|driver| driver.journal.has_intent_for_claim(uid))
    }

    fn find_intent(&self, uid: &Uid) -> Option<(&ManagedDriver, Arc<Intent>)> {
        self.context.drivers.values().find_map(|driver| Some((driver, driver.journal.get(uid)?)))
    }

    /// Reconciles one claim. Decides with [`rules::decide_provisioning`] again after each effect, except
    /// after CreateVolume: [`Provisioner::create`] continues with the response.
    async fn reconcile_claim(&self, uid: &Uid) -> Action {
        // Digest of a mended request that cannot be sent now: it does not fit into the journal, or its Secret
        // cannot be read. The first request is sent instead.
        let mut unsendable = None;
        let (mut annotations, mut live_snapshot, mut create_secret) = (None, None, CreateSecret::default());
        for _ in 0..MAX_EFFECTS {
            // 1. Find the intent: the result of its request is determined before anything else.
            let found = self.find_intent(uid);
            let intent = found.as_ref().map(|(_, intent)| intent);

            // 2. Decide from the cache.
            let is_managed_driver = |driver: &DriverName| self.context.drivers.contains_key(driver);
            let infeasible = self.infeasible.get(uid);
            let last_request = unsendable.clone().or_else(|| self.call_backoff.last_request(uid));
            let input = rules::ProvisionerInput {
                cache: &self.context.cache,
                intent,
                is_managed_driver: &is_managed_driver,
                infeasible: infeasible.as_ref().map(|(class, _)| class),
                last_request: last_request.as_deref(),
                annotations: annotations.as_ref(),
                live_snapshot: live_snapshot.as_ref(),
                options: &self.context.options,
            };
            let done = match rules::decide_provisioning(input, uid) {
                ProvisionVerdict::ReadAnnotations(claim) => match self.read_annotations(uid, &claim).await {
                    Ok(found) => {
                        annotations = Some(found);
                        None
                    }
                    Err(action) => Some(action),
                },

                // 3. Read the Secret of the request, then write the intent, and decide again after each step.
                //    A request whose Secret cannot be read leaves no intent.
                ProvisionVerdict::WriteIntent(intent) => match self.call_backoff.time_left_for_new(&intent) {
                    Some(time_left) => Some(Action::RequeueAfter(time_left)),
                    None if !create_secret.is_read(&intent) => {
                        self.read_create_secret(&intent, &mut create_secret, None).await
                    }
                    None => self.write_intent(*intent).await,
                },

                ProvisionVerdict::WriteMended(mended) => {
                    let Some((driver, intent)) = found else { return Action::Requeue };
                    let new_request = mended.mended.as_deref().unwrap_or(&mended);
                    let digest = mending::request_digest(new_request);
                    match self.call_backoff.time_left_for_new(new_request) {
                        Some(time_left) => Some(Action::RequeueAfter(time_left)),
                        None if !create_secret.is_read(new_request) => {
                            let failed = self.read_create_secret(new_request, &mut create_secret, None).await;
                            unsendable = failed.map(|_| digest);
                            None
                        }
                        None => match self.write_mended(driver, &intent, *mended).await {
                            Ok(()) => None,
                            Err(Some(action)) => Some(action),
                            Err(None) => {
                                unsendable = Some(digest);
                                None
                            }
                        },
                    }
                }

                // 4. Send the request of the intent to the driver, and
                // 5. create the PersistentVolume, or delete a volume that the claim does not need.
                ProvisionVerdict::Create(intent) => {
                    let Some((driver, _)) = found else { return Action::Requeue };
                    if let Some(time_left) = self.call_backoff.time_left(uid) {
                        return Action::RequeueAfter(time_left);
                    }
                    let (kind, request) = mending::next_request(&intent, last_request.as_deref());
                    match create_secret.take(&request) {
                        None => {
                            let recorded = (kind == RequestKind::First).then_some(driver);
                            let failed =
                                self.read_create_secret(&request, &mut create_secret, recorded).await;
                            match kind {
                                RequestKind::First => failed,
                                RequestKind::Mended => {
                                    unsendable = failed.map(|_| mending::request_digest(&request));
                                    None
                                }
                            }
                        }
                        Some(secrets) => match self.acquire_journal(&intent).await {
                            Some(wait) => Some(wait),
                            // The owner before may have completed the request: decide again.
                            None if driver.journal.get(uid).as_ref() != Some(&intent) => None,
                            None => Some(self.create(driver, &intent, (kind, &request), secrets).await),
                        },
                    }
                }

                // Delete a volume whose deletion has failed before, or which another process found.
                ProvisionVerdict::DeleteUnneeded(handle) => {
                    let Some((driver, intent)) = found else { return Action::Requeue };
                    if let Some(time_left) = self.call_backoff.time_left(uid) {
                        return Action::RequeueAfter(time_left);
                    }
                    match self.acquire_journal(&intent).await {
                        Some(wait) => Some(wait),
                        None if driver.journal.get(uid).as_ref() != Some(&intent) => None,
                        None => Some(self.retry_deletion(driver, &intent, handle).await),
                    }
                }

                // 6. Remove the intent of a request that is complete.
                ProvisionVerdict::RemoveIntent => {
                    if let Some((driver, intent)) = found {
                        // The PersistentVolume exists, but its event may not have been emitted: the process
                        // ended before, or the response to the create was lost.
                        self.emit_provisioning_succeeded(driver, &intent);
                        driver.journal.remove(&intent);
                        self.call_backoff.remove(uid);
                    }
                    Some(Action::Done)
                }

                // Otherwise, wait or report.
                ProvisionVerdict::SelectNode { claim, node, request } => {
                    self.select_node(&claim, &node, request.map(|request| *request)).await
                }
                ProvisionVerdict::Reject { message, permanent } => {
                    if let Some(claim) = self.context.cache.claim_by_uid(uid) {
                        let recorder = self.context.recorders.of_claim(&claim.key);
                        recorder.record(StepResult::Failed, message.clone(), None);
                    }
                    Some(self.backoff_after_failure(uid, message, permanent))
                }
                ProvisionVerdict::WaitForTopology(message) => self.wait_for_topology(uid, message),
                ProvisionVerdict::Reschedule { node, message } => {
                    self.handle_missing_node(uid, &node, message).await
                }
                ProvisionVerdict::LeaveNode { node, message } => {
                    Some(self.reschedule(uid, &node, message).await)
                }
                ProvisionVerdict::WaitForSource { source, message } => {
                    // If the source has changed meanwhile, the next decision needs its present state.
                    live_snapshot = None;
                    self.wait_for_source(uid, &source, message)
                }
                ProvisionVerdict::ReadSnapshot(key) => match self.read_snapshot(uid, &key).await {
                    Ok(found) => {
                        live_snapshot = Some(found);
                        None
                    }
                    Err(action) => Some(action),
                },
                ProvisionVerdict::ProtectSource(source) => {
                    // The VolumeSnapshot is read again, with its finalizer.
                    live_snapshot = None;
                    self.protect_source(uid, &source).await
                }
                ProvisionVerdict::LeaveToPopulator => {
                    if let Some(claim) = self.context.cache.claim_by_uid(uid) {
                        let text = "Assuming an external populator will provision the volume".to_owned();
                        let event = EventSpec::normal("Provisioning", text);
                        self.context.events.emit(&*claim, "external-provisioner", event);
                    }
                    Some(Action::RequeueAfter(EVENT_REPEAT_INTERVAL))
                }
                // An infeasible claim is retried at its time, whatever else enqueues it before.
                ProvisionVerdict::NoAction(_) => Some(infeasible.map_or(Action::Done, |(_, until)| {
                    Action::RequeueAfter(until.saturating_duration_since(Instant::now()))
                })),
            };
            if let Some(action) = done {
                return action;
            }
        }
        Action::Requeue
    }

    /// Reads all annotations of the claim live.
    ///
    /// # Errors
    /// The action that the reconcile returns: the read failed, or the claim of this UID is deleted.
    async fn read_annotations(
        &self,
        uid: &Uid,
        claim: &ClaimKey,
    ) -> Result<BTreeMap<String, String>, Action> {
        match self.context.writer.read_annotations::<Claim>(claim).await {
            Ok(Some((found, annotations))) if found == *uid => Ok(annotations),
            // The watch delivers the deletion.
            Ok(_) => Err(Action::Backoff),
            Err(error) => Err(self.backoff_after_failure(uid, error.to_string(), false)),
        }
    }

    /// Registers the claim for changes of CSINodes and Nodes. The first call returns `None`, so that the
    /// claim is decided again: it may have missed a change before its registration. A call for a claim that
    /// is still registered emits the event of the failure, and returns the back-off.
    fn wait_for_topology(&self, uid: &Uid, message: String) -> Option<Action> {
        if self.waiting_for_topology.lock().insert(uid.clone()) {
            return None;
        }
        if let Some(claim) = self.context.cache.claim_by_uid(uid) {
            let recorder = self.context.recorders.of_claim(&claim.key);
            recorder.record(StepResult::Waiting, message.clone(), None);
        }
        Some(self.backoff_after_failure(uid, message, false))
    }

    /// Registers the claim for changes of its source, as [`Self::wait_for_topology`] does for CSINodes
    /// and Nodes.
    fn wait_for_source(&self, uid: &Uid, source: &SourceKey, message: String) -> Option<Action> {
        if self.source_waits.insert(source, uid) {
            return None;
        }
        if let Some(claim) = self.context.cache.claim_by_uid(uid) {
            let recorder = self.context.recorders.of_claim(&claim.key);
            recorder.record(StepResult::Waiting, message.clone(), None);
        }
        Some(self.backoff_after_failure(uid, message, false))
    }

    /// Reads the CSINode of the selected node live, because the watch may not have delivered it yet. If the
    /// CSINode exists, returns `None`: the claim is decided again. If the CSINode cannot be decoded, the
    /// claim waits for a change of it. If the CSINode does not exist, reschedules the claim.
    async fn handle_missing_node(&self, uid: &Uid, node: &NodeName, message: String) -> Option<Action> {
        if let Err(error) = self.context.writer.refresh::<CsiNode>(node).await {
            return Some(self.backoff_after_failure(uid, error.to_string(), false));
        }
        match self.context.cache.csi_nodes.get(node) {
            Lookup::Found(_) => None,
            Lookup::Undecodable(_) => self.wait_for_topology(uid, message),
            Lookup::Missing => Some(self.reschedule(uid, node, message).await),
        }
    }

    /// Emits the failure and removes the claim's selected node, if it is still `node`: the scheduler, or the
    /// process of a node-local driver, selects again.
    pub(super) async fn reschedule(&self, uid: &Uid, node: &NodeName, message: String) -> Action {
        let Some(claim) = self.context.cache.claim_by_uid(uid) else { return Action::Requeue };
        let recorder = self.context.recorders.of_claim(&claim.key);
        recorder.record(StepResult::Failed, message.clone(), None);
        let action = self.backoff_after_failure(uid, message, false);
        let path = format!("/metadata/annotations/{}", names::SELECTED_NODE.replace('/', "~1"));
        let operations =
            vec![json!({"op": "test", "path": path, "value": node}), json!({"op": "remove", "path": path})];
        let write = self.context.writer.json_patch::<Claim>(&claim.key, uid, operations);
        match recorder.record_effect(&format!("removes the selected node {node}"), write).await {
            Ok(_) => Action::Done,
            Err(error) => match action_for_write_error::<Claim>(&self.context.writer, &claim.key, &error)
                .await
            {
                // The driver is not called again without a back-off.
                Action::Requeue => action,
                other
                @ (Action::Done | Action::RequeueAfter(_) | Action::Backoff | Action::BackoffFor(_)) => other,
            },
        }
    }

    /// Emits the event of a failure, and returns the back-off until the next attempt. A `permanent` failure
    /// is retried after `--retry-interval-max`.
    pub(super) fn backoff_after_failure(&self, uid: &Uid, message: String, permanent: bool) -> Action {
        if permanent {
            let delay = self.context.calls.retry_interval_max;
            let text = format!("{message}; retrying after a change or in {delay:?}");
            self.emit_provisioning_failed(uid, text);
            Action::BackoffFor(delay)
        } else {
            self.emit_provisioning_failed(uid, message);
            Action::Backoff
        }
    }

    /// Emits the event of a failure on the claim, if it still exists.
    pub(super) fn emit_provisioning_failed(&self, uid: &Uid, text: String) {
        if let Some(claim) = self.context.cache.claim_by_uid(uid) {
            let component = self.component_for(&claim);
            let event = EventSpec::warning("ProvisioningFailed", text);
            self.context.events.emit(&*claim, &component, event);
        }
    }

    /// `source.component` of the claim's events.
    pub(super) fn component_for(&self, claim: &Claim) -> Box<str> {
        let class = self.context.cache.class(claim.class_name()).into_object();
        let driver = class.and_then(|class| self.context.drivers.get(&class.provisioner));
        driver.map_or_else(|| "external-provisioner".into(), |driver| driver.component.clone())
    }
}
