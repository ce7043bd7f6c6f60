//! Reconciles VolumeSnapshots and VolumeSnapshotContents as [`rules`] decides, one effect at a time.

use std::{collections::HashMap, sync::Arc, time::Duration};

use cofferdam_cluster::{
    ApiError, Cache, Change, Clock, Lookup, Precondition, Writer,
    metrics::Metrics,
    queue::{Action, ExponentialBackoff, Queue},
    writer::{CachedKind, PatchTarget},
};
use cofferdam_domain::{
    Claim, ClaimKey, DriverName, Uid, Volume, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
    VolumeSnapshotContentName, VolumeSnapshotKey, names,
    volume_snapshot::{DeletionPolicy, VolumeSnapshotSource, VolumeSnapshotStatus},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    conflict,
    content::new_content,
    managing_node::{NodeReads, managing_node},
    metrics::{SnapshotControllerMetrics, SnapshotOperation},
    rules::{self, ContentVerdict, Dependency, SnapshotFailure, SnapshotVerdict},
    secret_references, status,
};
use crate::{
    conflicts::ConflictDetector,
    controller::Controller,
    events::{EventRecorder, EventSpec},
    reconcile::{EVENT_REPEAT_INTERVAL, MAX_EFFECTS, action_for_write_error, refresh_reason, subscribe},
    step_recorder::StepRecorders,
};

/// Interval of the checks whether VolumeSnapshots are served again.
const KIND_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// `source.component` of the events, as in external-snapshotter.
const COMPONENT: &str = "snapshot-controller";

/// Dependencies of the snapshot controller.
pub(crate) struct SnapshotControllerContext {
    pub(super) cache: Arc<Cache>,
    pub(super) writer: Writer,
    pub(super) events: EventRecorder,
    pub(super) recorders: StepRecorders,
    pub(super) clock: Clock,
    /// Write the volumeMode of the source to new contents (`--prevent-volume-mode-conversion`).
    pub(super) prevent_volume_mode_conversion: bool,
    /// Read the Nodes to find the node of a volume (`--enable-distributed-snapshotting`).
    pub(super) distributed: bool,
    /// Maximum number of objects of each kind that are reconciled concurrently.
    pub(super) workers: usize,
    pub(super) backoff: ExponentialBackoff,
    pub(super) conflicts: Arc<ConflictDetector>,
    pub(super) metrics: SnapshotControllerMetrics,
    pub(super) queue_metrics: Metrics,
}

/// The snapshot controller.
pub(crate) struct SnapshotController {
    context: SnapshotControllerContext,
    snapshots: Queue<VolumeSnapshotKey>,
    contents: Queue<VolumeSnapshotContentName>,
    /// Claims with the finalizer of a source.
    claims: Queue<ClaimKey>,
    /// By content, the VolumeSnapshots that disappeared although they had the content, or a finalizer, and
    /// were not being deleted, and those of contents that are abandoned. See [`rules::decide_content`].
    disappeared: Mutex<HashMap<VolumeSnapshotContentName, Uid>>,
    node_reads: NodeReads,
}

impl Controller for SnapshotController {
    type Context = SnapshotControllerContext;

    fn new(context: SnapshotControllerContext) -> Arc<Self> {
        let (backoff, queue_metrics) = (context.backoff, &context.queue_metrics);
        context.metrics.begin_term();
        Arc::new(Self {
            snapshots: Queue::new("snapshot-controller-snapshot", backoff, queue_metrics),
            contents: Queue::new("snapshot-controller-content", backoff, queue_metrics),
            claims: Queue::new("snapshot-controller-claim", backoff, queue_metrics),
            disappeared: Mutex::default(),
            node_reads: NodeReads::default(),
            context,
        })
    }

    fn subscribe(self: &Arc<Self>) {
        let cache = &self.context.cache;
        subscribe(self, &cache.snapshots, Self::snapshot_changed);
        subscribe(self, &cache.snapshot_contents, Self::content_changed);
        subscribe(self, &cache.snapshot_classes, Self::class_changed);
        subscribe(self, &cache.claims, Self::claim_changed);
        subscribe(self, &cache.volumes, Self::volume_changed);
        let cache_of_snapshots = Arc::clone(cache);
        self.context.conflicts.subscribe(&cache.snapshot_contents, move |change| {
            conflict::content_field(&cache_of_snapshots, change)
        });
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let [snapshots, contents, claims] = std::array::from_fn(|_| Arc::clone(&self));
        let workers = self.context.workers;
        self.context.conflicts.activate();
        tokio::join!(
            self.snapshots.run(workers, stop.clone(), move |key| {
                let controller = Arc::clone(&snapshots);
                async move { controller.reconcile_snapshot(&key).await }
            }),
            self.contents.run(workers, stop.clone(), move |name| {
                let controller = Arc::clone(&contents);
                async move { controller.reconcile_content(&name).await }
            }),
            self.claims.run(workers, stop, move |key| {
                let controller = Arc::clone(&claims);
                async move { controller.reconcile_claim(&key).await }
            }),
        );
    }
}

fn has_finalizer(claim: &Claim) -> bool {
    claim.meta.finalizer_index(names::SNAPSHOT_CLAIM_PROTECTION).is_some()
}

impl SnapshotController {
    fn snapshot_changed(&self, change: &Change<VolumeSnapshot>) {
        self.snapshots.add(change.key.clone());
        let is_gone =
            |old: &VolumeSnapshot| change.new.as_ref().is_none_or(|new| new.meta.uid != old.meta.uid);
        if let Some(old) = change.old.as_ref().filter(|old| is_gone(old)) {
            self.context.metrics.forget(&old.meta.uid, || self.driver_of(old));
            if self.context.cache.snapshots.is_served() {
                self.note_disappearance(old);
            }
        }
        if let Some(snapshot) = change.new.as_ref().or(change.old.as_ref()) {
            self.enqueue_source(snapshot);
        }
    }

    /// Remembers a VolumeSnapshot that disappeared, if kube-apiserver may have lost its finalizer, and
    /// enqueues its content.
    fn note_disappearance(&self, snapshot: &VolumeSnapshot) {
        let content = rules::expected_content_name(snapshot);
        let has_finalizer = snapshot.meta.finalizer_index(names::SNAPSHOT_SOURCE_PROTECTION).is_some();
        let has_content = || !matches!(self.context.cache.snapshot_contents.get(&content), Lookup::Missing);
        if !snapshot.meta.deleting && (has_finalizer || has_content()) {
            self.disappeared.lock().insert(content.clone(), snapshot.meta.uid.clone());
        }
        self.contents.add(content);
    }

    /// The driver of a VolumeSnapshot: of its content, else of its class.
    fn driver_of(&self, snapshot: &VolumeSnapshot) -> Option<DriverName> {
        let cache = &self.context.cache;
        let content = cache.snapshot_contents.get(&rules::expected_content_name(snapshot)).into_object();
        let class = || cache.snapshot_classes.get(snapshot.class.as_ref()?).into_object();
        content.map(|content| content.driver.clone()).or_else(|| Some(class()?.driver.clone()))
    }

    /// Starts the operations whose duration is measured.
    fn start_operations(&self, snapshot: &VolumeSnapshot, verdict: &SnapshotVerdict) {
        let metrics = &self.context.metrics;
        if snapshot.meta.deleting {
            let waits = matches!(verdict, SnapshotVerdict::DeletePending(_) | SnapshotVerdict::NoAction(_));
            if !waits {
                metrics.start(snapshot, SnapshotOperation::Delete);
            }
        } else if !snapshot.is_ready() && !snapshot.is_group_member() {
            if snapshot.status.as_ref().is_none_or(|status| status.creation_time.is_none()) {
                metrics.start(snapshot, SnapshotOperation::Create);
            }
            metrics.start(snapshot, SnapshotOperation::CreateAndReady);
        } else if snapshot.is_ready() {
            // The response of the write that ended them may have been lost.
            self.succeed(snapshot, SnapshotOperation::Create);
            self.succeed(snapshot, SnapshotOperation::CreateAndReady);
        }
    }

    fn succeed(&self, snapshot: &VolumeSnapshot, operation: SnapshotOperation) {
        self.context.metrics.succeed(&snapshot.meta.uid, operation, || self.driver_of(snapshot));
    }

    fn content_changed(&self, change: &Change<VolumeSnapshotContent>) {
        self.contents.add(change.key.clone());
        for content in [&change.old, &change.new].into_iter().flatten() {
            self.snapshots.add(content.snapshot.key.clone());
            let snapshot = self.context.cache.snapshots.get(&content.snapshot.key).into_object();
            snapshot.iter().for_each(|snapshot| self.enqueue_source(snapshot));
        }
    }

    /// Enqueues the VolumeSnapshots that may wait for a class.
    fn class_changed(&self, _: &Change<VolumeSnapshotClass>) {
        let snapshots = self.context.cache.snapshots.list();
        let waiting = snapshots.iter().filter(|snapshot| !snapshot.is_ready());
        waiting.for_each(|snapshot| self.snapshots.add(snapshot.key.clone()));
    }

    /// Enqueues the VolumeSnapshots of the claim, and the one from which it is restored.
    fn claim_changed(&self, change: &Change<Claim>) {
        if change.new.as_ref().is_some_and(|claim| has_finalizer(claim)) {
            self.claims.add(change.key.clone());
        }
        self.enqueue_snapshots_of(&change.key);
        for claim in [&change.old, &change.new].into_iter().flatten() {
            let source = claim.source_snapshot();
            source.into_iter().for_each(|snapshot| self.snapshots.add(snapshot));
        }
    }

    fn volume_changed(&self, change: &Change<Volume>) {
        for volume in [&change.old, &change.new].into_iter().flatten() {
            let claim = volume.claim_ref.as_ref().map(|claim_ref| &claim_ref.key);
            claim.into_iter().for_each(|claim| self.enqueue_snapshots_of(claim));
        }
    }

    fn enqueue_snapshots_of(&self, claim: &ClaimKey) {
        for snapshot in self.context.cache.snapshots_of_claim(claim) {
            if !snapshot.is_ready() {
                self.snapshots.add(snapshot.key.clone());
            }
        }
    }

    /// Enqueues the source claim of a VolumeSnapshot, for its finalizer.
    fn enqueue_source(&self, snapshot: &VolumeSnapshot) {
        if let VolumeSnapshotSource::Claim(claim) = &snapshot.source {
            self.claims.add(ClaimKey::new(Arc::clone(&snapshot.key.namespace), Arc::clone(claim)));
        }
    }

    /// Reconciles one VolumeSnapshot. See [`rules::decide_snapshot`].
    async fn reconcile_snapshot(&self, key: &VolumeSnapshotKey) -> Action {
        for _ in 0..MAX_EFFECTS {
            let Lookup::Found(snapshot) = self.context.cache.snapshots.get(key) else { return Action::Done };
            // Without the kind, contents seem to be missing, and no change of one enqueues the VolumeSnapshot.
            if !self.context.cache.snapshot_contents.is_served() {
                return Action::RequeueAfter(KIND_CHECK_INTERVAL);
            }
            let verdict = rules::decide_snapshot(&self.context.cache, &snapshot);
            self.start_operations(&snapshot, &verdict);
            let done = match verdict {
                SnapshotVerdict::NoAction(_) => return Action::Done,
                SnapshotVerdict::DeletePending(text) => {
                    let event = EventSpec::warning("SnapshotDeletePending", text);
                    self.context.events.emit(&*snapshot, COMPONENT, event);
                    // A change of the claim enqueues the VolumeSnapshot.
                    return Action::Backoff;
                }
                SnapshotVerdict::Fail(failure) => return self.fail(&snapshot, failure).await,
                SnapshotVerdict::SetClass(class) => {
                    let patch = json!({"spec": {"volumeSnapshotClassName": class}});
                    let text = format!("sets the class {class} of VolumeSnapshot {key}");
                    self.patch(key, &*snapshot, PatchTarget::Object, &text, patch).await
                }
                SnapshotVerdict::AddFinalizers(missing) => {
                    let text = format!("adds finalizers to VolumeSnapshot {key}");
                    let write = self.context.writer.add_finalizers(&*snapshot, &missing);
                    let added = self.record(key, &text, write).await.map(drop);
                    self.report(&snapshot, "SnapshotFinalizerError", added)
                }
                SnapshotVerdict::RemoveFinalizers { finalizers, unbound_content } => {
                    let removed = self.remove_finalizers(&snapshot, finalizers, unbound_content).await;
                    self.report(&snapshot, "SnapshotFinalizerError", removed)
                }
                SnapshotVerdict::AddClaimFinalizer(claim) => {
                    let text = format!("adds the finalizer of claim {}, the source of a snapshot", claim.key);
                    let write = self.context.writer.add_finalizer(&*claim, names::SNAPSHOT_CLAIM_PROTECTION);
                    match self.record(key, &text, write).await {
                        Ok(_) => Ok(()),
                        Err(error @ ApiError::Refused { .. }) => {
                            let failure = SnapshotFailure::new(rules::CREATION_FAILED, error.to_string());
                            return self.fail(&snapshot, failure).await;
                        }
                        Err(error) => {
                            let writer = &self.context.writer;
                            return action_for_write_error::<Claim>(writer, &claim.key, &error).await;
                        }
                    }
                }
                SnapshotVerdict::CreateContent { class, volume } => {
                    match self.create_content(&snapshot, &class, &volume).await {
                        Ok(()) => Ok(()),
                        Err(action) => return action,
                    }
                }
                SnapshotVerdict::BindContent(content) => {
                    let bound = self.bind_content(&snapshot, &content).await;
                    if let Err(error @ ApiError::Refused { .. }) = bound {
                        let failure = SnapshotFailure::new("SnapshotBindFailed", error.to_string());
                        return self.fail(&snapshot, failure).await;
                    }
                    match self.after_content_write(&snapshot, &content, "SnapshotBindFailed", bound).await {
                        None => Ok(()),
                        Some(action) => return action,
                    }
                }
                SnapshotVerdict::MarkContent(content) => {
                    let marked = self.mark_content(&content).await;
                    let reason = "SnapshotContentObjectDeleteError";
                    match self.after_content_write(&snapshot, &content, reason, marked).await {
                        None => Ok(()),
                        Some(action) => return action,
                    }
                }
                SnapshotVerdict::DeleteContent(content) => {
                    let deleted = self.delete_content(&content).await;
                    let reason = "SnapshotContentObjectDeleteError";
                    match self.after_content_write(&snapshot, &content, reason, deleted).await {
                        None => Ok(()),
                        Some(action) => return action,
                    }
                }
                SnapshotVerdict::UpdateStatus { status, is_created, is_ready } => {
                    self.update_status(&snapshot, &status, is_created, is_ready).await
                }
            };
            if let Err(error) = done {
                return action_for_write_error::<VolumeSnapshot>(&self.context.writer, key, &error).await;
            }
        }
        Action::Requeue
    }

    /// Performs a write of a VolumeSnapshot, or for it.
    async fn record<T>(
        &self,
        snapshot: &VolumeSnapshotKey,
        text: &str,
        write: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        self.context.recorders.of_snapshot(snapshot).record_effect(text, write).await
    }

    /// Patches a VolumeSnapshot, or its content.
    async fn patch<K: CachedKind>(
        &self,
        snapshot: &VolumeSnapshotKey,
        object: &K,
        target: PatchTarget,
        text: &str,
        patch: Value,
    ) -> Result<(), ApiError> {
        let (key, version) = (object.key(), object.meta().resource_version);
        let write = self.context.writer.merge_patch::<K>(key, target, version, patch);
        self.record(snapshot, text, write).await.map(drop)
    }

    /// Emits a failed write of a VolumeSnapshot as an event, and returns its result.
    fn report(
        &self,
        snapshot: &VolumeSnapshot,
        reason: &'static str,
        written: Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        written.inspect_err(|error| self.emit_error(snapshot, reason, error))
    }

    /// Emits an event, unless a later attempt with a newer version can succeed at once.
    fn emit_error(&self, snapshot: &VolumeSnapshot, reason: &'static str, error: &ApiError) {
        if !matches!(error, ApiError::Conflict(_) | ApiError::NotFound(_)) {
            let event = EventSpec::warning(reason, error.to_string());
            self.context.events.emit(snapshot, COMPONENT, event);
        }
    }

    /// Returns `None` after a successful write of a content, else the action that the reconcile returns.
    async fn after_content_write(
        &self,
        snapshot: &VolumeSnapshot,
        content: &VolumeSnapshotContent,
        reason: &'static str,
        written: Result<(), ApiError>,
    ) -> Option<Action> {
        let error = written.err()?;
        self.emit_error(snapshot, reason, &error);
        let writer = &self.context.writer;
        Some(action_for_write_error::<VolumeSnapshotContent>(writer, &content.name, &error).await)
    }

    /// Removes the finalizers of a VolumeSnapshot, unless the cached state of its content is outdated. A next
    /// decision then finds the current one in the cache.
    async fn remove_finalizers(
        &self,
        snapshot: &VolumeSnapshot,
        mut finalizers: Vec<(usize, &'static str)>,
        unbound_content: Option<VolumeSnapshotContentName>,
    ) -> Result<(), ApiError> {
        if let Some(name) = unbound_content {
            self.context.writer.get::<VolumeSnapshotContent>(&name).await?;
            let verdict = rules::decide_snapshot(&self.context.cache, snapshot);
            let unbound_content = Some(name);
            if verdict
                != (SnapshotVerdict::RemoveFinalizers { finalizers: finalizers.clone(), unbound_content })
            {
                return Ok(());
            }
        }
        let (key, uid, writer) = (&snapshot.key, &snapshot.meta.uid, &self.context.writer);
        let write = writer.remove_finalizers::<VolumeSnapshot>(key, uid, &mut finalizers);
        self.record(key, &format!("removes finalizers of VolumeSnapshot {key}"), write).await.map(drop)
    }

    /// Creates the content of a VolumeSnapshot.
    ///
    /// # Errors
    /// The action that the reconcile returns.
    async fn create_content(
        &self,
        snapshot: &VolumeSnapshot,
        class: &VolumeSnapshotClass,
        volume: &Volume,
    ) -> Result<(), Action> {
        let name = rules::content_name(snapshot);
        let secret = match secret_references::snapshot_secret(class, &snapshot.key, &name) {
            Ok(secret) => secret,
            Err(error) => {
                let failure = SnapshotFailure::new(rules::CREATION_FAILED, error.to_string());
                return Err(self.fail(snapshot, failure).await);
            }
        };
        let (is_distributed, writer) = (self.context.distributed, &self.context.writer);
        let node = match managing_node(volume, is_distributed, writer, &self.node_reads).await {
            Ok(node) => node,
            Err(error) => {
                self.emit_error(snapshot, "CreateSnapshotContentFailed", &error);
                return Err(Action::Backoff);
            }
        };
        let has_mode = self.context.prevent_volume_mode_conversion;
        let body = new_content(&name, snapshot, class, volume, secret.as_ref(), node.as_ref(), has_mode);
        let write = self.context.writer.create::<VolumeSnapshotContent>(None, &body);
        match self.record(&snapshot.key, &format!("creates VolumeSnapshotContent {name}"), write).await {
            Ok(_) => {
                let text =
                    format!("Waiting for a snapshot {} to be created by the CSI driver.", snapshot.key);
                self.context.events.emit(snapshot, COMPONENT, EventSpec::normal("CreatingSnapshot", text));
                Ok(())
            }
            Err(error) => {
                if !matches!(error, ApiError::AlreadyExists(_)) {
                    self.emit_error(snapshot, "CreateSnapshotContentFailed", &error);
                }
                if matches!(error, ApiError::Refused { .. }) {
                    let failure = SnapshotFailure::new(rules::CREATION_FAILED, error.to_string());
                    return Err(self.fail(snapshot, failure).await);
                }
                let writer = &self.context.writer;
                Err(action_for_write_error::<VolumeSnapshotContent>(writer, &name, &error).await)
            }
        }
    }

    /// Writes the uid of the VolumeSnapshot, and its class if it has one, to the content that is its source.
    /// The finalizer is part of the write: a bound content must not be deleted without its snapshot.
    async fn bind_content(
        &self,
        snapshot: &VolumeSnapshot,
        content: &VolumeSnapshotContent,
    ) -> Result<(), ApiError> {
        let mut spec = json!({"volumeSnapshotRef": {"uid": snapshot.meta.uid}});
        if let Some(class) = &snapshot.class
            && let Some(spec) = spec.as_object_mut()
        {
            spec.insert("volumeSnapshotClassName".to_owned(), json!(class));
        }
        let text = format!("binds VolumeSnapshotContent {} to VolumeSnapshot {}", content.name, snapshot.key);
        let protection = names::SNAPSHOT_CONTENT_PROTECTION;
        let others = content.meta.finalizers.iter().map(|name| &**name).filter(|name| *name != protection);
        let finalizers: Vec<&str> = others.chain([protection]).collect();
        let patch = json!({"metadata": {"finalizers": finalizers}, "spec": spec});
        self.patch(&content.snapshot.key, content, PatchTarget::Object, &text, patch).await
    }

    async fn update_status(
        &self,
        snapshot: &VolumeSnapshot,
        status: &VolumeSnapshotStatus,
        is_created: bool,
        is_ready: bool,
    ) -> Result<(), ApiError> {
        let key = &snapshot.key;
        let text = format!("copies the status of the content to VolumeSnapshot {key}");
        let patch = json!({"status": status::status_patch(status)});
        let written = self.patch(&snapshot.key, snapshot, PatchTarget::Status, &text, patch).await;
        self.report(snapshot, "SnapshotStatusUpdateFailed", written)?;
        let emit = |reason, text| {
            self.context.events.emit(snapshot, COMPONENT, EventSpec::normal(reason, text));
        };
        if is_created {
            self.succeed(snapshot, SnapshotOperation::Create);
            emit("SnapshotCreated", format!("Snapshot {key} was successfully created by the CSI driver."));
        }
        if is_ready {
            self.succeed(snapshot, SnapshotOperation::CreateAndReady);
            emit("SnapshotReady", format!("Snapshot {key} is ready to use."));
        }
        Ok(())
    }

    /// Writes a failure to the status, unless the status has it, and emits its event then. Returns the
    /// back-off.
    async fn fail(&self, snapshot: &VolumeSnapshot, failure: SnapshotFailure) -> Action {
        let known = snapshot.status.as_ref().and_then(|status| status.error.as_deref());
        if known.is_some_and(|error| *error.message == *failure.message) {
            return Action::Backoff;
        }
        if let Some(dependency) = &failure.dependency {
            if let Err(error) = self.refresh_dependency(dependency).await {
                let writer = &self.context.writer;
                return action_for_write_error::<VolumeSnapshot>(writer, &snapshot.key, &error).await;
            }
            let verdict = rules::decide_snapshot(&self.context.cache, snapshot);
            if verdict != SnapshotVerdict::Fail(failure.clone()) {
                return Action::Requeue;
            }
        }
        let resets_ready = failure.resets_ready();
        let SnapshotFailure { reason, message, .. } = failure;
        let error = status::error_now(&message, (self.context.clock)());
        let mut patch = json!({"error": status::error_value(&error)});
        if resets_ready && let Some(patch) = patch.as_object_mut() {
            patch.insert("readyToUse".to_owned(), json!(false));
        }
        self.context.events.emit(snapshot, COMPONENT, EventSpec::warning(reason, message));
        let text = format!("writes an error to the status of VolumeSnapshot {}", snapshot.key);
        let patch = json!({"status": patch});
        match self.patch(&snapshot.key, snapshot, PatchTarget::Status, &text, patch).await {
            Ok(()) => Action::Backoff,
            Err(error) => {
                action_for_write_error::<VolumeSnapshot>(&self.context.writer, &snapshot.key, &error).await
            }
        }
    }

    /// Reads the object that is the reason of a failure from the API server into the cache.
    async fn refresh_dependency(&self, dependency: &Dependency) -> Result<(), ApiError> {
        let writer = &self.context.writer;
        match dependency {
            Dependency::Class(name) => refresh_reason::<VolumeSnapshotClass>(writer, name).await,
            Dependency::Claim(key) => refresh_reason::<Claim>(writer, key).await,
            Dependency::Volume(name) => refresh_reason::<Volume>(writer, name).await,
            Dependency::Content(name) => refresh_reason::<VolumeSnapshotContent>(writer, name).await,
        }
    }

    /// Reconciles one VolumeSnapshotContent. See [`rules::decide_content`].
    async fn reconcile_content(&self, name: &VolumeSnapshotContentName) -> Action {
        let content = match self.context.cache.snapshot_contents.get(name) {
            Lookup::Found(content) => content,
            Lookup::Undecodable(_) => return Action::Done,
            Lookup::Missing => return self.forget_disappeared(name).await,
        };
        let uid = content.snapshot.uid.as_ref();
        let has_disappeared = uid.is_some() && self.disappeared.lock().get(name) == uid;
        let writer = &self.context.writer;
        let written = match rules::decide_content(&self.context.cache, &content, has_disappeared) {
            ContentVerdict::NoAction(_) => return Action::Done,
            ContentVerdict::Invalid(count) => {
                let text = format!("spec.source has {count} sources; expected exactly one");
                let event = EventSpec::warning("ContentValidationError", text);
                self.context.events.emit(&*content, COMPONENT, event);
                return Action::Done;
            }
            ContentVerdict::AddFinalizer => {
                let write = writer.add_finalizer(&*content, names::SNAPSHOT_CONTENT_PROTECTION);
                let text = format!("adds the finalizer of VolumeSnapshotContent {name}");
                self.record(&content.snapshot.key, &text, write).await.map(drop)
            }
            ContentVerdict::SnapshotMissing => match self.has_snapshot(&content).await {
                Ok(true) => return Action::Requeue,
                Ok(false) => return self.report_missing_snapshot(&content),
                Err(error) => Err(error),
            },
            verdict @ (ContentVerdict::MarkAbandoned | ContentVerdict::DeleteAbandoned) => {
                match self.is_abandoned(&content).await {
                    Ok(Some(true)) if verdict == ContentVerdict::DeleteAbandoned => {
                        self.delete_content(&content).await
                    }
                    Ok(Some(true)) => self.mark_abandoned(&content).await,
                    // Kept, as by external-snapshotter.
                    Ok(Some(false)) => return self.report_missing_snapshot(&content),
                    Ok(None) => return Action::Requeue,
                    Err(error) => Err(error),
                }
            }
        };
        match written {
            Ok(()) => Action::Done,
            Err(error) => action_for_write_error::<VolumeSnapshotContent>(writer, name, &error).await,
        }
    }

    /// Returns true if the API server has the VolumeSnapshot of a content.
    async fn has_snapshot(&self, content: &VolumeSnapshotContent) -> Result<bool, ApiError> {
        let snapshot = self.context.writer.get::<VolumeSnapshot>(&content.snapshot.key).await?;
        Ok(snapshot.is_some_and(|snapshot| content.is_bound_to(&snapshot)))
    }

    /// Returns true if a content without its VolumeSnapshot is to be deleted: snapshot controllers of this
    /// cluster have written it. `None` if the VolumeSnapshot exists after all, or may exist, since the API
    /// server does not serve the kind.
    async fn is_abandoned(&self, content: &VolumeSnapshotContent) -> Result<Option<bool>, ApiError> {
        if self.has_snapshot(content).await? || !self.context.cache.snapshots.is_served() {
            return Ok(None);
        }
        conflict::is_written_by_controller(&self.context.writer, &content.name).await.map(Some)
    }

    /// As [`mark_content`](Self::mark_content), for a content without its VolumeSnapshot.
    async fn mark_abandoned(&self, content: &VolumeSnapshotContent) -> Result<(), ApiError> {
        // The decision stays if the creation of the snapshot ends before the write.
        if let Some(uid) = &content.snapshot.uid {
            self.disappeared.lock().insert(content.name.clone(), uid.clone());
        }
        self.mark_content(content).await
    }

    /// Writes the annotation that the VolumeSnapshot is being deleted.
    async fn mark_content(&self, content: &VolumeSnapshotContent) -> Result<(), ApiError> {
        let patch = json!({"metadata": {"annotations": {names::SNAPSHOT_BEING_DELETED: names::YES}}});
        let text = format!("marks VolumeSnapshotContent {} for deletion", content.name);
        self.patch(&content.snapshot.key, content, PatchTarget::Object, &text, patch).await
    }

    async fn delete_content(&self, content: &VolumeSnapshotContent) -> Result<(), ApiError> {
        let precondition = Precondition { uid: Some(content.meta.uid.clone()), resource_version: None };
        let text = format!("deletes VolumeSnapshotContent {}", content.name);
        let write = self.context.writer.delete::<VolumeSnapshotContent>(&content.name, &precondition);
        self.record(&content.snapshot.key, &text, write).await.map(drop)
    }

    /// Forgets a VolumeSnapshot that disappeared, if its content does not exist: the cache may not have it
    /// yet.
    async fn forget_disappeared(&self, content: &VolumeSnapshotContentName) -> Action {
        if !self.disappeared.lock().contains_key(content) {
            return Action::Done;
        }
        match self.context.writer.get::<VolumeSnapshotContent>(content).await {
            Ok(None) if self.context.cache.snapshot_contents.is_served() => {
                self.disappeared.lock().remove(content);
                Action::Done
            }
            // The content, or the kind, enqueues the name again.
            Ok(_) => Action::Done,
            Err(error) => {
                let writer = &self.context.writer;
                action_for_write_error::<VolumeSnapshotContent>(writer, content, &error).await
            }
        }
    }

    /// Emits an event on a content without its VolumeSnapshot: once if the content stays, and again and again
    /// if somebody waits for its deletion.
    fn report_missing_snapshot(&self, content: &VolumeSnapshotContent) -> Action {
        let annotation = format!("the annotation {}: \"yes\"", names::SNAPSHOT_BEING_DELETED);
        let consequence = match (content.meta.deleting, content.deletion_policy) {
            (true, DeletionPolicy::Delete) => {
                format!("the content and its snapshot are deleted once the content has {annotation}")
            }
            (true, DeletionPolicy::Retain) => {
                format!("the content is deleted once it has {annotation}; its snapshot stays")
            }
            (false, _) => format!(
                "the content and its snapshot stay; {annotation} and the deletion of the content delete both"
            ),
        };
        let text = format!(
            "VolumeSnapshot {} with the uid of spec.volumeSnapshotRef does not exist: {consequence}",
            content.snapshot.key
        );
        self.context.events.emit(content, COMPONENT, EventSpec::warning("SnapshotMissing", text));
        if content.meta.deleting { Action::RequeueAfter(EVENT_REPEAT_INTERVAL) } else { Action::Done }
    }

    /// Removes the finalizer of a source claim. See [`rules::removable_claim_finalizer`].
    async fn reconcile_claim(&self, key: &ClaimKey) -> Action {
        let Lookup::Found(claim) = self.context.cache.claims.get(key) else { return Action::Done };
        let cache = &self.context.cache;
        // Without the kind, no change of a VolumeSnapshot enqueues the claim.
        let is_served = cache.snapshots.is_served() && cache.snapshot_contents.is_served();
        if has_finalizer(&claim) && !is_served {
            return Action::RequeueAfter(KIND_CHECK_INTERVAL);
        }
        let Some(index) = rules::removable_claim_finalizer(cache, &claim) else { return Action::Done };
        let mut finalizers = [(index, names::SNAPSHOT_CLAIM_PROTECTION)];
        let uid = &claim.meta.uid;
        let write = self.context.writer.remove_finalizers::<Claim>(key, uid, &mut finalizers);
        let text = format!("removes the finalizer of claim {key}, the source of a snapshot");
        match self.context.recorders.of_claim(key).record_effect(&text, write).await {
            Ok(_) => Action::Done,
            Err(error) => {
                if matches!(error, ApiError::Refused { .. }) {
                    let event = EventSpec::warning("ErrorPVCFinalizer", error.to_string());
                    self.context.events.emit(&*claim, COMPONENT, event);
                }
                action_for_write_error::<Claim>(&self.context.writer, key, &error).await
            }
        }
    }
}
