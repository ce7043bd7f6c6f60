//! Reconciles VolumeSnapshotContents as [`rules`] decides, one effect at a time.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use cofferdam_cluster::{
    ApiError, Cache, Change, Clock, SecretError, SecretReader, Writer,
    deletion_freeze::{self, RestoreMarker},
    metrics::Metrics,
    observer::StepResult,
    queue::{Action, Queue},
    writer::PatchTarget,
};
use cofferdam_domain::{
    ClusterId, DriverName, SnapshotHandle, VolumeSnapshotClass, VolumeSnapshotContent,
    VolumeSnapshotContentName, names,
    storage::{ContentSource, CreateSnapshot, ErrorKind, Finality, Secrets, Snapshot},
    term::Term,
    volume::SecretRef,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    event_component,
    polls::Polls,
    rules::{self, ContentError, CreatedVerdict, SnapshotIdentity, SnapshotterVerdict},
    settings::SnapshotSettings,
    unlabelled::UnlabelledContents,
};
use crate::{
    controller::Controller,
    drivers::ManagedDriver,
    events::{EventRecorder, EventSpec},
    node_local::LocalNode,
    orphans::OrphanScanner,
    reconcile::{EVENT_REPEAT_INTERVAL, MAX_EFFECTS, action_for_write_error, refresh_reason, subscribe},
    restore_check::RestoreCheck,
    settings::CallSettings,
    snapshot_controller::{error_now, error_value},
    step_recorder::{StepRecorder, StepRecorders},
};

/// Dependencies of the snapshotter.
pub(crate) struct SnapshotterContext {
    pub(super) cache: Arc<Cache>,
    pub(super) writer: Writer,
    pub(super) secrets: SecretReader,
    pub(super) events: EventRecorder,
    pub(super) recorders: StepRecorders,
    pub(super) clock: Clock,
    pub(super) cluster: ClusterId,
    /// Namespace of the restore marker.
    pub(super) namespace: String,
    /// Drivers of this process with snapshots.
    pub(super) drivers: HashMap<DriverName, ManagedDriver>,
    /// The node of this process and its node-local drivers, perhaps none. `None` without `--node-name`.
    pub(super) local_node: Option<LocalNode>,
    pub(super) settings: SnapshotSettings,
    pub(super) calls: CallSettings,
    /// The term in which driver calls may begin.
    pub(super) term: Term,
    pub(super) restore_check: RestoreCheck,
    /// The scan for orphaned snapshots. `None` if scans are disabled.
    pub(super) orphans: Option<Arc<OrphanScanner>>,
    pub(super) queue_metrics: Metrics,
}

/// The snapshotter.
pub(crate) struct Snapshotter {
    context: SnapshotterContext,
    /// A queue for each driver: a slow driver does not delay others.
    contents: HashMap<DriverName, Queue<VolumeSnapshotContentName>>,
    polls: Polls,
    /// Contents whose annotation of a creation this controller has written, in this term.
    marked: Mutex<HashSet<VolumeSnapshotContentName>>,
    unlabelled: UnlabelledContents,
}

impl Controller for Snapshotter {
    type Context = SnapshotterContext;

    fn new(context: SnapshotterContext) -> Arc<Self> {
        let (backoff, queue_metrics) = (context.calls.backoff(), &context.queue_metrics);
        let queue = || Queue::new("csi-snapshotter-content", backoff, queue_metrics);
        let contents = context.drivers.keys().map(|driver| (driver.clone(), queue())).collect();
        let local_drivers = context.local_node.iter().flat_map(|node| node.drivers.keys().cloned());
        let unlabelled = UnlabelledContents::new(context.writer.clone(), local_drivers.collect());
        Arc::new(Self { contents, polls: Polls::new(backoff), marked: Mutex::default(), unlabelled, context })
    }

    fn subscribe(self: &Arc<Self>) {
        let cache = &self.context.cache;
        subscribe(self, &cache.snapshot_contents, Self::content_changed);
        subscribe(self, &cache.snapshot_classes, Self::class_changed);
        subscribe(self, &cache.restore_markers, Self::restore_marker_changed);
        self.context.orphans.iter().for_each(OrphanScanner::subscribe);
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let workers = self.context.settings.workers;
        let queues = self.contents.iter().map(|(driver, queue)| {
            let (controller, driver) = (Arc::clone(&self), driver.clone());
            queue.run(workers, stop.clone(), move |name| {
                let (controller, driver) = (Arc::clone(&controller), driver.clone());
                async move { controller.reconcile(&driver, &name).await }
            })
        });
        let scans = self.context.orphans.iter().map(|orphans| orphans.run(stop.clone()));
        tokio::join!(futures::future::join_all(queues), futures::future::join_all(scans));
    }
}

/// The reason why the driver is not called.
#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error(transparent)]
    Content(#[from] ContentError),
    #[error(transparent)]
    Secret(#[from] SecretError),
}

fn is_same_version(live: &VolumeSnapshotContent, cached: &VolumeSnapshotContent) -> bool {
    live.meta.uid == cached.meta.uid && live.meta.resource_version == cached.meta.resource_version
}

impl Snapshotter {
    /// The queue of a content. `None` if this process does not manage it: the driver runs elsewhere, or it is
    /// node-local and the content's node is another one.
    fn queue_of(&self, content: &VolumeSnapshotContent) -> Option<&Queue<VolumeSnapshotContentName>> {
        let is_of_node = self.context.local_node.as_ref().is_some_and(|node| node.manages(content));
        let is_managed = is_of_node || !self.is_node_local(&content.driver);
        self.contents.get(&content.driver).filter(|_| is_managed)
    }

    fn is_node_local(&self, driver: &DriverName) -> bool {
        self.context.local_node.as_ref().is_some_and(|node| node.has_driver(driver))
    }

    fn content_changed(&self, change: &Change<VolumeSnapshotContent>) {
        let Some(content) = change.new.as_ref().or(change.old.as_ref()) else { return };
        let Some(queue) = self.queue_of(content) else { return };
        match (&change.old, &change.new) {
            // A write of this role must not end the back-off.
            (Some(old), Some(new)) if !rules::needs_decision(old, new) => {
                queue.add_if_absent(change.key.clone());
            }
            _ => queue.add(change.key.clone()),
        }
    }

    /// Enqueues the contents that may wait for a class.
    fn class_changed(&self, change: &Change<VolumeSnapshotClass>) {
        self.enqueue(|content| !content.is_ready() && content.class.as_ref() == Some(&change.key));
    }

    fn restore_marker_changed(&self, _: &Change<RestoreMarker>) {
        self.enqueue(|content| content.meta.deleting);
    }

    fn enqueue(&self, is_affected: impl Fn(&VolumeSnapshotContent) -> bool) {
        for content in self.context.cache.snapshot_contents.list() {
            if is_affected(&content)
                && let Some(queue) = self.queue_of(&content)
            {
                queue.add(content.name.clone());
            }
        }
    }

    /// Reconciles one content. See [`rules::decide_content`].
    async fn reconcile(&self, driver_name: &DriverName, name: &VolumeSnapshotContentName) -> Action {
        let Some(driver) = self.context.drivers.get(driver_name) else { return Action::Done };
        // The driver has returned a snapshot in this run.
        let mut is_answered = false;
        // The Secret of the creation, if this run has read it.
        let mut secrets = None;
        // A write of this run has shown that the cached content is current.
        let mut is_current = false;
        for _ in 0..MAX_EFFECTS {
            let cache = &self.context.cache;
            let content = cache.snapshot_contents.get(name).into_object();
            let Some(content) = content.filter(|content| self.queue_of(content).is_some()) else {
                self.forget(name);
                return Action::Done;
            };
            let is_frozen = deletion_freeze::is_frozen(cache);
            let (settings, cluster) = (&self.context.settings, &self.context.cluster);
            let verdict = rules::decide_content(cache, &content, settings, cluster, is_frozen, is_answered);
            let done = match verdict {
                SnapshotterVerdict::NoAction(_) => {
                    self.forget(name);
                    return Action::Done;
                }
                SnapshotterVerdict::DeletionFrozen => return self.report_frozen(&content),
                SnapshotterVerdict::Fail(error) => return self.fail_call(&content, error.into()).await,
                SnapshotterVerdict::FailDeletion(message) => return self.fail_deletion(&content, message),
                SnapshotterVerdict::Create(_) | SnapshotterVerdict::ReadStatus(_)
                    if let Some(delay) = self.polls.delay(name).filter(|_| !rules::is_deleting(&content)) =>
                {
                    return Action::RequeueAfter(delay);
                }
                SnapshotterVerdict::MarkCreating(request) => {
                    // Without the Secret there is no call, and a record would delay the deletion.
                    match self.create_secrets(&content).await {
                        Ok(read) => secrets = Some(read),
                        Err(action) => return action,
                    }
                    is_current = true;
                    self.mark_creating(&content, &request).await
                }
                SnapshotterVerdict::UnmarkCreating => {
                    let text = format!("records that the snapshot of {name} is created");
                    self.unmark_creating(&content, &text).await
                }
                SnapshotterVerdict::Create(request) => {
                    if !is_current && let Err(action) = self.check_current(&content).await {
                        return action;
                    }
                    is_answered = true;
                    self.create(driver, &content, &request, secrets.take()).await
                }
                SnapshotterVerdict::RecordHandle(handle) => {
                    let text = format!("writes the handle to the status of VolumeSnapshotContent {name}");
                    let status = json!({"snapshotHandle": handle, "readyToUse": false});
                    self.patch_status(&content, &text, status).await
                }
                SnapshotterVerdict::ReadStatus(handle) => self.read_status(driver, &content, handle).await,
                SnapshotterVerdict::Delete(handle) => self.delete(driver, &content, handle).await,
                SnapshotterVerdict::RemoveFinalizer(index) => {
                    let mut finalizers = [(index, names::SNAPSHOT_CONTENT_PROTECTION)];
                    let (writer, uid) = (&self.context.writer, &content.meta.uid);
                    let write = writer.remove_finalizers::<VolumeSnapshotContent>(name, uid, &mut finalizers);
                    let text = format!("removes the finalizer of VolumeSnapshotContent {name}");
                    self.record(&content, &text, write).await
                }
            };
            if let Err(action) = done {
                return action;
            }
        }
        Action::Requeue
    }

    /// Performs a write of the content, or of its status.
    ///
    /// # Errors
    /// The action that the reconcile returns.
    async fn record<T>(
        &self,
        content: &VolumeSnapshotContent,
        text: &str,
        write: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<(), Action> {
        match self.recorder(content).record_effect(text, write).await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.action_for_error(content, &error).await),
        }
    }

    fn recorder(&self, content: &VolumeSnapshotContent) -> StepRecorder {
        self.context.recorders.of_snapshot(&content.snapshot.key)
    }

    fn component(content: &VolumeSnapshotContent) -> String {
        event_component(&content.driver)
    }

    /// Forgets a content that needs no further call.
    fn forget(&self, name: &VolumeSnapshotContentName) {
        self.polls.forget(name);
        self.marked.lock().remove(name);
    }

    /// Writes the annotations of a creation.
    async fn mark_creating(
        &self,
        content: &VolumeSnapshotContent,
        request: &CreateSnapshot,
    ) -> Result<(), Action> {
        let annotations = json!({
            names::SNAPSHOT_BEING_CREATED: names::YES,
            names::SNAPSHOT_REQUEST: rules::request_annotation(request),
        });
        let text = format!("records that the snapshot of {} may be created", content.name);
        let patch = json!({"metadata": {"annotations": annotations}});
        let (version, target) = (content.meta.resource_version, PatchTarget::Object);
        let write =
            self.context.writer.merge_patch::<VolumeSnapshotContent>(&content.name, target, version, patch);
        let written = self.recorder(content).record_effect(&text, write).await;
        // A write without a response may have taken effect.
        if matches!(written, Ok(_) | Err(ApiError::Unavailable { .. } | ApiError::InvalidResponse { .. })) {
            self.marked.lock().insert(content.name.clone());
        }
        match written {
            Ok(_) => Ok(()),
            Err(error @ ApiError::Refused { .. }) => Err(self.fail(content, error.to_string(), None).await),
            Err(error) => Err(self.action_for_error(content, &error).await),
        }
    }

    /// Removes the annotations of a creation.
    async fn unmark_creating(&self, content: &VolumeSnapshotContent, text: &str) -> Result<(), Action> {
        let annotations = json!({names::SNAPSHOT_BEING_CREATED: null, names::SNAPSHOT_REQUEST: null});
        let patch = json!({"metadata": {"annotations": annotations}});
        self.patch(content, PatchTarget::Object, text, patch).await?;
        self.marked.lock().remove(&content.name);
        Ok(())
    }

    /// Reads the content from the API server: another process may have deleted its snapshot meanwhile.
    ///
    /// # Errors
    /// The action that the reconcile returns if the cached content is not current.
    async fn check_current(&self, content: &VolumeSnapshotContent) -> Result<(), Action> {
        match self.context.writer.get::<VolumeSnapshotContent>(&content.name).await {
            Ok(live) if live.as_ref().is_some_and(|live| is_same_version(live, content)) => Ok(()),
            Ok(_) => Err(Action::Requeue),
            Err(error) => Err(self.action_for_error(content, &error).await),
        }
    }

    async fn patch_status(
        &self,
        content: &VolumeSnapshotContent,
        text: &str,
        status: Value,
    ) -> Result<(), Action> {
        self.patch(content, PatchTarget::Status, text, json!({"status": status})).await
    }

    async fn patch(
        &self,
        content: &VolumeSnapshotContent,
        target: PatchTarget,
        text: &str,
        patch: Value,
    ) -> Result<(), Action> {
        let (version, writer) = (content.meta.resource_version, &self.context.writer);
        let write = writer.merge_patch::<VolumeSnapshotContent>(&content.name, target, version, patch);
        self.record(content, text, write).await
    }

    async fn action_for_error(&self, content: &VolumeSnapshotContent, error: &ApiError) -> Action {
        action_for_write_error::<VolumeSnapshotContent>(&self.context.writer, &content.name, error).await
    }

    /// Reads the Secret of a call.
    ///
    /// # Errors
    /// [`CallError`]
    async fn read_secret(
        &self,
        secret: Result<Option<SecretRef>, ContentError>,
    ) -> Result<Secrets, CallError> {
        match secret? {
            None => Ok(Secrets::default()),
            Some(secret) => Ok(self.context.secrets.read(&secret).await?),
        }
    }

    /// Reads the Secret of CreateSnapshot.
    ///
    /// # Errors
    /// The action that the reconcile returns.
    async fn create_secrets(&self, content: &VolumeSnapshotContent) -> Result<Secrets, Action> {
        match self.read_secret(rules::secret_of(content)).await {
            Ok(secrets) => Ok(secrets),
            Err(error) => Err(self.fail_call(content, error).await),
        }
    }

    /// Calls CreateSnapshot, writes its result to the status, and removes the annotation after a final
    /// result.
    ///
    /// # Errors
    /// The action that the reconcile returns.
    async fn create(
        &self,
        driver: &ManagedDriver,
        content: &VolumeSnapshotContent,
        request: &CreateSnapshot,
        secrets: Option<Secrets>,
    ) -> Result<(), Action> {
        let secrets = match secrets {
            Some(secrets) => secrets,
            None => self.create_secrets(content).await?,
        };
        let call = self.context.calls.call(&self.context.term, secrets);
        let started = Instant::now();
        let response = driver.backend.create_snapshot(call, request.clone()).await;
        let retry_after = response.as_ref().err().and_then(|error| error.retry_after_ms);
        let is_marked = self.marked.lock().contains(&content.name);
        let is_known = rules::is_known(content);
        let (is_recovered, is_released) = (!is_marked && !is_known, is_known && rules::is_deleting(content));
        match rules::decide_after_create(request, response, is_recovered, is_released) {
            CreatedVerdict::Save(snapshot) => {
                let text = format!("{} creates the snapshot of {}", content.driver, content.name);
                self.recorder(content).record(StepResult::Applied, text, Some(started.elapsed()));
                self.polls.record(&content.name, snapshot.ready);
                // A snapshot of this role is a member of no VolumeGroupSnapshot.
                self.save(content, &Snapshot { group: None, ..snapshot }).await
            }
            CreatedVerdict::Fail { message, is_final } => {
                if is_final {
                    let text = format!("records that the snapshot of {} is not created", content.name);
                    self.unmark_creating(content, &text).await?;
                }
                let current = self.context.cache.snapshot_contents.get(&content.name).into_object();
                let Some(current) = current else { return Err(Action::Requeue) };
                let action = self.fail(&current, message, retry_after).await;
                // The deletion waits for no further call.
                if is_final && rules::is_deleting(&current) { Ok(()) } else { Err(action) }
            }
        }
    }

    /// The current time in nanoseconds since the Unix epoch.
    fn now(&self) -> i64 {
        i64::try_from((self.context.clock)().as_nanosecond()).unwrap_or(i64::MAX)
    }

    /// The creation time of a snapshot in nanoseconds since the Unix epoch: that of the driver, else the
    /// current time.
    fn created_at(&self, snapshot: &Snapshot) -> i64 {
        match snapshot.created_at_ms {
            0 => self.now(),
            milliseconds => i64::try_from(milliseconds).unwrap_or(i64::MAX).saturating_mul(1_000_000),
        }
    }

    /// Writes the result of CreateSnapshot, or of a read, to the status.
    async fn save(&self, content: &VolumeSnapshotContent, snapshot: &Snapshot) -> Result<(), Action> {
        let known = content.status.as_ref();
        let (handle, created) = match rules::compare_with_status(known, snapshot) {
            // As csi-snapshotter, which writes neither a second time.
            SnapshotIdentity::Known => (
                known.and_then(|known| known.handle.as_ref()).unwrap_or(&snapshot.handle),
                known.and_then(|known| known.creation_time).unwrap_or_else(|| self.created_at(snapshot)),
            ),
            SnapshotIdentity::Recreated => {
                tracing::warn!(
                    content = %content.name,
                    handle = %snapshot.handle,
                    "the driver has taken the snapshot again: the first one was lost before it was ready"
                );
                (&snapshot.handle, self.created_at(snapshot))
            }
            SnapshotIdentity::Foreign => {
                tracing::warn!(
                    content = %content.name,
                    handle = %snapshot.handle,
                    "the driver returned another snapshot than the one that was ready"
                );
                return Ok(());
            }
        };
        // A reply without a size says nothing about it.
        let size = snapshot.size.filter(|size| *size > 0).and_then(|size| i64::try_from(size).ok());
        let mut status = json!({
            "snapshotHandle": handle, "creationTime": created, "readyToUse": snapshot.ready,
            "error": null,
        });
        if let Some(status) = status.as_object_mut() {
            if let Some(size) = size {
                status.insert("restoreSize".to_owned(), json!(size));
            }
            if let Some(group) = &snapshot.group {
                status.insert("volumeGroupSnapshotHandle".to_owned(), json!(group));
            }
        }
        let is_known = known.is_some_and(|known| {
            known.handle.as_ref() == Some(handle)
                && known.creation_time == Some(created)
                && known.ready == Some(snapshot.ready)
                && known.error.is_none()
                && (size.is_none() || known.restore_size == size)
        });
        if is_known {
            return Ok(());
        }
        let text = format!("writes the snapshot to the status of VolumeSnapshotContent {}", content.name);
        self.patch_status(content, &text, status).await
    }

    /// Reads an existing snapshot from the driver. A driver that cannot return single snapshots is trusted:
    /// the snapshot is ready.
    async fn read_status(
        &self,
        driver: &ManagedDriver,
        content: &VolumeSnapshotContent,
        handle: SnapshotHandle,
    ) -> Result<(), Action> {
        let secrets = match self.read_secret(rules::list_secret_of(&self.context.cache, content)).await {
            Ok(secrets) => secrets,
            Err(error) => return Err(self.fail_call(content, error).await),
        };
        let call = self.context.calls.call(&self.context.term, secrets);
        match driver.backend.get_snapshot(call, handle.clone()).await {
            Ok(snapshot) => {
                self.polls.record(&content.name, snapshot.ready);
                self.save(content, &snapshot).await
            }
            Err(error) if error.kind == ErrorKind::Unimplemented => {
                let status = json!({
                    "snapshotHandle": handle, "creationTime": self.now(), "readyToUse": true, "error": null,
                });
                let text =
                    format!("writes the handle to the status of VolumeSnapshotContent {}", content.name);
                self.patch_status(content, &text, status).await
            }
            Err(error) => {
                let retry_after = error.retry_after_ms;
                Err(self.fail(content, error.to_string(), retry_after).await)
            }
        }
    }

    /// Deletes the snapshot at the driver, and removes it from the status. Since the deletion cannot be
    /// undone, the content is read from the API server first, and then the current resourceVersions, which
    /// show a restore.
    async fn delete(
        &self,
        driver: &ManagedDriver,
        content: &VolumeSnapshotContent,
        handle: SnapshotHandle,
    ) -> Result<(), Action> {
        self.check_unused(driver, content, &handle).await?;
        let secrets = match self.read_secret(rules::secret_of(content)).await {
            Ok(secrets) => secrets,
            Err(error) => return Err(self.fail_deletion(content, error.to_string())),
        };
        self.check_current(content).await?;
        if let Err(error) = self.context.restore_check.detect_live().await {
            return Err(self.action_for_error(content, &error).await);
        }
        if deletion_freeze::is_frozen(&self.context.cache) {
            return Err(self.report_frozen(content));
        }
        match self.unlabelled.find_keeper(content, &handle).await {
            Ok(None) => {}
            Ok(Some(reason)) => return Err(self.fail_deletion(content, reason)),
            Err(error) => return Err(self.action_for_error(content, &error).await),
        }
        let call = self.context.calls.call(&self.context.term, secrets);
        let started = Instant::now();
        if let Err(error) = driver.backend.delete_snapshot(call, handle).await {
            // The handle of an administrator that was never read may be none of the driver's.
            let is_read = content.status.as_ref().is_some_and(|status| status.creation_time.is_some());
            let is_absent = matches!(error.kind, ErrorKind::InvalidArgument | ErrorKind::NotFound);
            if is_read || !is_absent || error.finality != Finality::Final {
                return Err(self.fail_deletion(content, error.to_string()));
            }
        }
        let text = format!("{} deletes the snapshot of {}", content.driver, content.name);
        self.recorder(content).record(StepResult::Applied, text, Some(started.elapsed()));
        // Without the handle, the next decision is to remove the finalizer.
        let cleared = json!({"snapshotHandle": null, "creationTime": null, "readyToUse": null, "restoreSize": null, "error": null});
        let text = format!("removes the snapshot from the status of VolumeSnapshotContent {}", content.name);
        self.patch_status(content, &text, cleared).await
    }

    /// Checks that no volume is being created from the snapshot. No finalizer of the VolumeSnapshot protects
    /// the source of a node-local driver's volume, so the journal is read, which another process of the node
    /// may write.
    ///
    /// # Errors
    /// The action that the reconcile returns.
    async fn check_unused(
        &self,
        driver: &ManagedDriver,
        content: &VolumeSnapshotContent,
        handle: &SnapshotHandle,
    ) -> Result<(), Action> {
        let source = ContentSource::Snapshot(handle.clone());
        let mut claim = driver.journal.claim_with_source(&source);
        if self.is_node_local(&content.driver) {
            let requested = match driver.journal.sources_live().await {
                Ok(requested) => requested,
                Err(error) => return Err(self.action_for_error(content, &error).await),
            };
            if let Some(uid) = requested.undecodable {
                let text =
                    format!("the intent of claim {uid} cannot be decoded: the snapshot is not deleted");
                return Err(self.fail_deletion(content, text));
            }
            claim = claim.or_else(|| requested.claim_with_source(&source).cloned());
        }
        let Some(claim) = claim else { return Ok(()) };
        let text = format!("claim {claim} is restored from the snapshot: it is not deleted yet");
        Err(self.fail_deletion(content, text))
    }

    /// Fails as [`fail`](Self::fail), unless the reason is a class of which the cache has an outdated state.
    async fn fail_call(&self, content: &VolumeSnapshotContent, error: CallError) -> Action {
        let message = error.to_string();
        if let CallError::Content(error) = &error
            && let Some(class) = error.class()
            && !Self::has_error(content, &message)
        {
            if let Err(error) = refresh_reason::<VolumeSnapshotClass>(&self.context.writer, class).await {
                return self.action_for_error(content, &error).await;
            }
            if rules::find_class(&self.context.cache, content).err().as_ref() != Some(error) {
                return Action::Requeue;
            }
        }
        self.fail(content, message, None).await
    }

    /// Returns true if the status has this error.
    fn has_error(content: &VolumeSnapshotContent, message: &str) -> bool {
        let known = content.status.as_ref().and_then(|status| status.error.as_deref());
        known.is_some_and(|error| *error.message == *message)
    }

    /// Writes a failure to the status, unless the status has it, and emits its event then. Returns the
    /// back-off, or the longer delay that the driver suggests.
    async fn fail(
        &self,
        content: &VolumeSnapshotContent,
        message: String,
        retry_after_ms: Option<u64>,
    ) -> Action {
        let action = match retry_after_ms.map(Duration::from_millis) {
            Some(delay) => {
                let failures =
                    self.contents.get(&content.driver).map_or(0, |queue| queue.failures(&content.name));
                self.context.calls.retry_after_hint(delay, failures)
            }
            None => Action::Backoff,
        };
        if Self::has_error(content, &message) {
            return action;
        }
        let reason = match content.status {
            None => "SnapshotCreationFailed",
            Some(_) => "SnapshotContentCheckandUpdateFailed",
        };
        let error = error_now(&message, (self.context.clock)());
        let status = json!({"error": error_value(&error), "readyToUse": false});
        let event = EventSpec::warning(reason, message.clone());
        self.context.events.emit(content, &Self::component(content), event);
        self.recorder(content).record(StepResult::Failed, message, None);
        let text = format!("writes an error to the status of VolumeSnapshotContent {}", content.name);
        self.patch_status(content, &text, status).await.err().unwrap_or(action)
    }

    /// Emits the event of a failed deletion, and returns the back-off.
    fn fail_deletion(&self, content: &VolumeSnapshotContent, message: String) -> Action {
        self.recorder(content).record(StepResult::Failed, message.clone(), None);
        let event = EventSpec::warning("SnapshotDeleteError", message);
        self.context.events.emit(content, &Self::component(content), event);
        Action::Backoff
    }

    fn report_frozen(&self, content: &VolumeSnapshotContent) -> Action {
        let text = format!(
            "The cluster was restored from a backup: the snapshot is not deleted until ConfigMap {}/{} is \
             deleted",
            self.context.namespace,
            deletion_freeze::RESTORE_MARKER_NAME
        );
        self.recorder(content).record(StepResult::Waiting, text.clone(), None);
        let event = EventSpec::warning("DeletionFrozen", text);
        self.context.events.emit(content, &Self::component(content), event);
        Action::RequeueAfter(EVENT_REPEAT_INTERVAL)
    }
}
