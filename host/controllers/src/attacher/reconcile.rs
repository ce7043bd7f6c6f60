//! Reconciles VolumeAttachments as [`rules`] decides, one effect at a time, and removes the attacher's
//! finalizer from PersistentVolumes.

mod handlers;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use cofferdam_backend::{Backend, Call};
use cofferdam_cluster::{
    ApiError, Cache, Clock, Lookup, SecretReader, Writer,
    metrics::Metrics,
    observer::StepResult,
    queue::{Action, Queue},
    writer::PatchTarget,
};
use cofferdam_domain::{
    DriverName, Node, NodeId, Volume, VolumeAttachment, VolumeAttachmentName, VolumeHandle, VolumeName,
    names,
    storage::{
        Ability, ErrorKind, Feature, Parameters, PublishVolume, Secrets, StorageError,
        connection_info::into_publish_context,
    },
    term::Term,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    metrics::AttacherMetrics,
    rules::{self, AttacherInput, AttachmentVerdict, ConfirmationError, PublishAbilities, Unpublish},
    settings::AttacherSettings,
    status,
    work_queues::{QueueKind, WorkQueues},
};
use crate::{
    controller::Controller,
    drivers::Backends,
    events::{EventRecorder, EventSpec},
    provisioner,
    reconcile::{MAX_EFFECTS, action_for_write_error, run_periodically},
    settings::CallSettings,
    step_recorder::{StepRecorder, StepRecorders},
    volume_locks::{LockGuard, VolumeLocks, WakePolicy},
};

/// Number of consecutive listings that have to show a volume as detached before they count as proof: a
/// publish call in doubt may take effect after the first one.
pub(super) const LISTINGS_FOR_PROOF: u32 = 2;

/// Identity of a volume, for its lock: driver and volume handle.
type VolumeKey = (DriverName, VolumeHandle);

/// Dependencies of the attacher.
pub(crate) struct AttacherContext {
    pub(super) cache: Arc<Cache>,
    pub(super) writer: Writer,
    pub(super) secrets: SecretReader,
    pub(super) events: EventRecorder,
    pub(super) recorders: StepRecorders,
    pub(super) clock: Clock,
    pub(super) drivers: Backends,
    pub(super) settings: AttacherSettings,
    pub(super) calls: CallSettings,
    /// The term in which driver calls may begin.
    pub(super) term: Term,
    /// Drivers whose provisioner runs in this process, without node-local drivers.
    pub(super) provisioned_drivers: Arc<BTreeSet<DriverName>>,
    pub(super) metrics: AttacherMetrics,
    pub(super) queue_metrics: Metrics,
}

/// The attacher.
pub(crate) struct Attacher {
    pub(super) context: AttacherContext,
    queues: HashMap<DriverName, WorkQueues>,
    volumes: Queue<VolumeName>,
    volume_locks: VolumeLocks<VolumeKey, VolumeAttachmentName>,
    /// Attachments whose status contradicts the driver's ListVolumes. Their next reconcile calls the driver.
    force_sync: Mutex<HashSet<VolumeAttachmentName>>,
    /// Number of consecutive listings that showed the volume of an attachment as detached, although its
    /// detach has failed.
    listed_as_detached: Mutex<HashMap<VolumeAttachmentName, u32>>,
}

/// The result of a reconcile of an attachment.
enum ReconcileResult {
    /// The attachment needs no effect, is not in the cache, cannot be decoded, or belongs to another queue.
    Done,
    /// The volume's lock is not free: another attachment has it or is the next in turn, or the other queue is
    /// reconciling this attachment. This attachment is enqueued when the lock is reserved for it.
    WaitingForLock,
    /// The attachment is reconciled again, by this action.
    Requeue(Action),
}

/// A failed driver call, a write that the API server refused, a Secret that cannot be read, or the reason why
/// a call is impossible. It is written to the status of the VolumeAttachment.
struct AttacherFailure {
    message: String,
    /// gRPC status code of the driver's error; `None` for other failures.
    code: Option<i32>,
    /// Delay that the driver's error suggests; `None` if it suggests none, and for other failures.
    retry_after: Option<Duration>,
}

impl From<StorageError> for AttacherFailure {
    fn from(error: StorageError) -> Self {
        let retry_after = error.retry_after_ms.map(Duration::from_millis);
        Self { message: error.to_string(), code: Some(error.kind.grpc_code()), retry_after }
    }
}

impl From<String> for AttacherFailure {
    fn from(message: String) -> Self {
        Self { message, code: None, retry_after: None }
    }
}

/// Releases, on drop, a lock that was reserved for the attachment and that its reconcile did not acquire.
struct ReservationGuard<'a> {
    attacher: &'a Attacher,
    name: &'a VolumeAttachmentName,
}

impl Drop for ReservationGuard<'_> {
    fn drop(&mut self) {
        self.attacher.enqueue_lock_owner(self.attacher.volume_locks.release_reservation(self.name));
    }
}

/// State of one reconcile.
#[derive(Default)]
struct ReconcileState<'a> {
    unpublished_from: Vec<NodeId>,
    secrets: Option<Secrets>,
    /// The Node's identities from a live read; `None` before it.
    node_identities: Option<Parameters>,
    lock: Option<LockGuard<'a, VolumeKey, VolumeAttachmentName>>,
    /// See [`AttacherInput::is_detach_proven`].
    is_detach_proven: bool,
}

impl Controller for Attacher {
    type Context = AttacherContext;

    fn new(context: AttacherContext) -> Arc<Self> {
        let (backoff, queue_metrics) = (context.calls.backoff(), &context.queue_metrics);
        context.metrics.add_drivers(context.drivers.keys());
        Arc::new(Self {
            queues: context
                .drivers
                .keys()
                .map(|name| (name.clone(), WorkQueues::new(backoff, queue_metrics)))
                .collect(),
            volumes: Queue::new("attacher_volumes", backoff, queue_metrics),
            volume_locks: VolumeLocks::new(WakePolicy::Next),
            force_sync: Mutex::default(),
            listed_as_detached: Mutex::default(),
            context,
        })
    }

    fn subscribe(self: &Arc<Self>) {
        self.subscribe_to_cache();
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let workers = self.context.settings.worker_threads;
        let attachments = self.queues.iter().flat_map(|(driver, queues)| {
            QueueKind::ALL.map(|kind| {
                let (controller, driver) = (Arc::clone(&self), driver.clone());
                queues.queue(kind).run(workers, stop.clone(), move |name| {
                    let (controller, driver) = (Arc::clone(&controller), driver.clone());
                    async move { controller.reconcile_attachment(&driver, kind, &name).await }
                })
            })
        });
        let volumes = Arc::clone(&self);
        let volumes = self.volumes.run(workers, stop.clone(), move |name| {
            let controller = Arc::clone(&volumes);
            async move { controller.reconcile_volume(&name).await }
        });
        let listing_drivers =
            self.context.drivers.iter().filter(|(_, driver)| Self::can_list_published_nodes(&***driver));
        let checks =
            listing_drivers.map(|(name, driver)| self.run_list_volumes_checks(name, &**driver, stop.clone()));
        tokio::join!(
            futures::future::join_all(attachments),
            volumes,
            futures::future::join_all(checks),
            self.resync(stop.clone()),
        );
    }
}

impl Attacher {
    /// Enqueues every attachment of this process's drivers, and every PersistentVolume that is being deleted,
    /// once per resync period (`--resync`).
    async fn resync(&self, stop: CancellationToken) {
        run_periodically(self.context.settings.resync, stop, || {
            for attachment in self.context.cache.attachments.list() {
                if let Some(queues) = self.queues.get(&attachment.attacher) {
                    queues
                        .queue(QueueKind::for_attachment(&attachment))
                        .add_if_absent(attachment.name.clone());
                }
            }
            let volumes = self.context.cache.volumes.list();
            volumes.iter().filter(|volume| volume.meta.deleting).for_each(|volume| {
                self.volumes.add_if_absent(volume.name.clone());
            });
        })
        .await;
    }

    fn enqueue(&self, attachment: &VolumeAttachment) {
        if let Some(queues) = self.queues.get(&attachment.attacher) {
            let kind = QueueKind::for_attachment(attachment);
            self.context.metrics.add_pending(&attachment.attacher, kind, &attachment.name);
            queues.queue(kind).add(attachment.name.clone());
        }
    }

    /// Makes the next reconcile call the driver regardless of the status, and enqueues the attachment.
    pub(super) fn set_force_sync(&self, attachment: &VolumeAttachment) {
        self.force_sync.lock().insert(attachment.name.clone());
        self.enqueue(attachment);
    }

    /// Removes the mark of [`Attacher::set_force_sync`]. The attachment stays enqueued.
    pub(super) fn clear_force_sync(&self, name: &VolumeAttachmentName) {
        self.force_sync.lock().remove(name);
    }

    /// Records whether a listing shows the volume of the attachment as detached although its detach has
    /// failed. Enqueues the attachment as soon as the listings prove the detach.
    pub(super) fn record_listing(&self, attachment: &VolumeAttachment, is_detached: bool) {
        let mut listed = self.listed_as_detached.lock();
        if !is_detached {
            listed.remove(&attachment.name);
            return;
        }
        let count = listed.entry(attachment.name.clone()).or_default();
        *count = count.saturating_add(1);
        if *count == LISTINGS_FOR_PROOF {
            drop(listed);
            self.enqueue(attachment);
        }
    }

    /// Removes what [`Attacher::record_listing`] recorded.
    pub(super) fn clear_listings(&self, name: &VolumeAttachmentName) {
        self.listed_as_detached.lock().remove(name);
    }

    /// Enqueues `next`, for which the volume's lock is reserved. If it is not in the cache or not of a driver
    /// of this process, the lock passes to the next waiting attachment.
    fn enqueue_lock_owner(&self, mut next: Option<VolumeAttachmentName>) {
        while let Some(name) = next {
            match self.context.cache.attachments.get(&name) {
                Lookup::Found(attachment) if self.queues.contains_key(&attachment.attacher) => {
                    self.enqueue(&attachment);
                    return;
                }
                Lookup::Found(_) | Lookup::Undecodable(_) | Lookup::Missing => {
                    next = self.volume_locks.release_reservation(&name)
                }
            }
        }
    }

    /// Reconciles one VolumeAttachment in the queue of its operation.
    async fn reconcile_attachment(
        &self,
        driver: &DriverName,
        kind: QueueKind,
        name: &VolumeAttachmentName,
    ) -> Action {
        let _reservation = ReservationGuard { attacher: self, name };
        let Some(backend) = self.context.drivers.get(driver) else { return Action::Done };
        match self.perform_effects(driver, &**backend, kind, name).await {
            ReconcileResult::Done => {
                // Otherwise the attachment is pending in the other queue.
                let is_same_queue =
                    |attachment: &Arc<VolumeAttachment>| QueueKind::for_attachment(attachment) == kind;
                if self
                    .context
                    .cache
                    .attachments
                    .get(name)
                    .into_object()
                    .is_none_or(|attachment| is_same_queue(&attachment))
                {
                    self.context.metrics.remove_pending(driver, name);
                }
                Action::Done
            }
            // The attachment is enqueued when the lock is reserved for it, if that is before this delay ends.
            // `Done` would reset its failures.
            ReconcileResult::WaitingForLock => Action::RequeueAfter(self.context.settings.resync),
            ReconcileResult::Requeue(action) => action,
        }
    }

    /// Performs the effects that [`rules::decide_attachment`] returns, until there is none, one fails or
    /// waits for the volume's lock, the attachment is deleted or belongs to another queue, or [`MAX_EFFECTS`]
    /// is reached.
    async fn perform_effects(
        &self,
        driver: &DriverName,
        backend: &dyn Backend,
        kind: QueueKind,
        name: &VolumeAttachmentName,
    ) -> ReconcileResult {
        let mut state = ReconcileState::default();
        for _ in 0..MAX_EFFECTS {
            let Lookup::Found(attachment) = self.context.cache.attachments.get(name) else {
                return ReconcileResult::Done;
            };
            if attachment.attacher != *driver || QueueKind::for_attachment(&attachment) != kind {
                return ReconcileResult::Done;
            }
            let verdict = self.verdict(backend, &attachment, &state);
            if let AttachmentVerdict::NoAction(_) = verdict {
                self.clear_force_sync(name);
                return ReconcileResult::Done;
            }
            match self.perform(backend, &attachment, verdict, &mut state).await {
                Ok(()) => {}
                Err(end) => return end,
            }
        }
        ReconcileResult::Requeue(Action::Requeue)
    }

    fn verdict(
        &self,
        backend: &dyn Backend,
        attachment: &VolumeAttachment,
        state: &ReconcileState<'_>,
    ) -> AttachmentVerdict {
        let description = backend.description();
        let abilities = PublishAbilities {
            publishes: backend.abilities().contains(&Ability::Publishing),
            read_only: description.has_feature(Feature::PublishReadonly),
            single_node_multi_writer: description.has_feature(Feature::SingleNodeMultiWriter),
        };
        let input = AttacherInput {
            cache: &self.context.cache,
            abilities,
            default_fs_type: self.context.settings.default_fs_type.as_deref(),
            force_sync: self.force_sync.lock().contains(&attachment.name),
            unpublished_from: &state.unpublished_from,
            is_detach_proven: state.is_detach_proven,
        };
        rules::decide_attachment(input, attachment)
    }

    /// Performs one effect. If the effect is a driver call with a Secret that this reconcile has not read
    /// yet, only reads the Secret: the caller then makes the decision again. `Err` ends the reconcile.
    async fn perform<'a>(
        &'a self,
        backend: &dyn Backend,
        attachment: &VolumeAttachment,
        verdict: AttachmentVerdict,
        state: &mut ReconcileState<'a>,
    ) -> Result<(), ReconcileResult> {
        let recorder = self.recorder(attachment);
        let (writer, key) = (&self.context.writer, &attachment.name);
        let finalizer = names::attacher_finalizer(&attachment.attacher);
        let version = attachment.meta.resource_version;
        let written = match verdict {
            AttachmentVerdict::NoAction(_) => return Ok(()),
            AttachmentVerdict::Fail(message) => {
                return self.fail_or_prove_detach(attachment, message.into(), state).await;
            }
            AttachmentVerdict::AddVolumeFinalizer(volume) => {
                let write = writer.add_finalizer(&*volume, &finalizer);
                let write = recorder.record_effect("adds the finalizer of the PersistentVolume", write);
                let (written, secrets, node_identities) = tokio::join!(
                    write,
                    self.read_secrets_early(attachment, state),
                    self.read_node_identities_early(backend, attachment, state)
                );
                (state.secrets, state.node_identities) = (secrets, node_identities);
                return match written {
                    Ok(_) => Ok(()),
                    Err(error) => Err(ReconcileResult::Requeue(
                        action_for_write_error::<Volume>(&self.context.writer, &volume.name, &error).await,
                    )),
                };
            }
            AttachmentVerdict::RecordNodeId(node) => {
                self.read_secrets(attachment, state).await?;
                let mut finalizers: Vec<&str> =
                    attachment.meta.finalizers.iter().map(AsRef::as_ref).collect();
                if !finalizers.contains(&finalizer.as_str()) {
                    finalizers.push(&finalizer);
                }
                let annotations = json!({names::NODE_ID: node});
                let patch = json!({"metadata": {"finalizers": finalizers, "annotations": annotations}});
                let write = writer.merge_patch::<VolumeAttachment>(key, PatchTarget::Object, version, patch);
                let write = recorder.record_effect("records the node id", write);
                let (written, node_identities) =
                    tokio::join!(write, self.read_node_identities_early(backend, attachment, state));
                state.node_identities = node_identities;
                written
            }
            AttachmentVerdict::Publish(request) => {
                if self.ensure_secrets(attachment, state).await? {
                    return Ok(());
                }
                return self.publish(backend, attachment, *request, state, &recorder).await;
            }
            AttachmentVerdict::MarkAttached => {
                let patch = status::attached_patch(attachment, &Default::default());
                let write = writer.merge_patch::<VolumeAttachment>(key, PatchTarget::Status, version, patch);
                recorder.record_effect("is attached: the driver needs nothing for it", write).await
            }
            AttachmentVerdict::Unpublish(unpublish) => {
                if self.ensure_secrets(attachment, state).await? {
                    return Ok(());
                }
                return self.unpublish(backend, attachment, unpublish, state, &recorder).await;
            }
            AttachmentVerdict::RemoveFinalizer(at) => {
                let write =
                    writer.remove_finalizer::<VolumeAttachment>(key, &attachment.meta.uid, at, &finalizer);
                recorder.record_effect("removes the finalizer of the VolumeAttachment", write).await
            }
            AttachmentVerdict::MarkDetached => {
                let write = writer.merge_patch::<VolumeAttachment>(
                    key,
                    PatchTarget::Status,
                    version,
                    status::detached_patch(),
                );
                recorder.record_effect("is detached", write).await
            }
        };
        match written {
            Ok(_) => Ok(()),
            Err(error) => Err(self.fail_write(attachment, &error).await),
        }
    }

    /// Returns the result of a reconcile that failed to write the attachment. If the API server refused the
    /// write, the refusal is written to the attachment's status.
    async fn fail_write(&self, attachment: &VolumeAttachment, error: &ApiError) -> ReconcileResult {
        match error {
            ApiError::Refused { .. } => self.fail(attachment, error.to_string().into()).await,
            ApiError::Conflict(_)
            | ApiError::NotFound(_)
            | ApiError::NotServed(_)
            | ApiError::AlreadyExists(_)
            | ApiError::TermEnded(_)
            | ApiError::Unavailable { .. }
            | ApiError::InvalidResponse { .. } => ReconcileResult::Requeue(
                action_for_write_error::<VolumeAttachment>(&self.context.writer, &attachment.name, error)
                    .await,
            ),
        }
    }

    fn acquire_lock<'a>(
        &'a self,
        attachment: &VolumeAttachment,
        handle: &VolumeHandle,
        state: &mut ReconcileState<'a>,
    ) -> Result<(), ReconcileResult> {
        if state.lock.is_none() {
            let key = (attachment.attacher.clone(), handle.clone());
            let enqueue = |next| self.enqueue_lock_owner(Some(next));
            let lock = self.volume_locks.acquire_or_wait(&key, &attachment.name, enqueue);
            state.lock = Some(lock.ok_or(ReconcileResult::WaitingForLock)?);
        }
        Ok(())
    }

    async fn publish<'a>(
        &'a self,
        backend: &dyn Backend,
        attachment: &VolumeAttachment,
        mut request: PublishVolume,
        state: &mut ReconcileState<'a>,
        recorder: &StepRecorder,
    ) -> Result<(), ReconcileResult> {
        self.acquire_lock(attachment, &request.handle, state)?;
        if backend.takes_node_identities() {
            request.node_identities = match state.node_identities.take() {
                Some(identities) => identities,
                None => self.read_node_identities(attachment).await?,
            };
        }
        let call = self.call(state);
        let text = format!("{} publishes the volume to {}", attachment.attacher, request.node_id);
        let started = Instant::now();
        let response = backend.publish_volume(call, request).await;
        let connection_info = match response {
            Ok(connection_info) => connection_info,
            Err(error) => return Err(self.fail(attachment, error.into()).await),
        };
        recorder.record(StepResult::Applied, text, Some(started.elapsed()));
        let patch = status::attached_patch(attachment, &into_publish_context(connection_info));
        let (key, version) = (&attachment.name, attachment.meta.resource_version);
        let write =
            self.context.writer.merge_patch::<VolumeAttachment>(key, PatchTarget::Status, version, patch);
        match recorder.record_effect("is attached", write).await {
            Ok(_) => {
                self.clear_force_sync(key);
                Ok(())
            }
            Err(error) => Err(self.fail_write(attachment, &error).await),
        }
    }

    /// Returns the Node's identities of this reconcile, or reads them while the attachment is prepared.
    /// `None` if the driver does not take them. After a failed read also `None`: [`publish`](Self::publish)
    /// reads them again.
    async fn read_node_identities_early(
        &self,
        backend: &dyn Backend,
        attachment: &VolumeAttachment,
        state: &ReconcileState<'_>,
    ) -> Option<Parameters> {
        if state.node_identities.is_some() || !backend.takes_node_identities() {
            return state.node_identities.clone();
        }
        let node = self.context.writer.get::<Node>(&attachment.node).await.ok()?;
        Some(node_identities(node.as_ref()))
    }

    /// Reads the Node's identities live: nothing else in this role needs a watch of Nodes. They are empty if
    /// the Node does not exist.
    async fn read_node_identities(
        &self,
        attachment: &VolumeAttachment,
    ) -> Result<Parameters, ReconcileResult> {
        match self.context.writer.get::<Node>(&attachment.node).await {
            Ok(node) => Ok(node_identities(node.as_ref())),
            Err(error) => {
                let failure = format!("cannot read Node {}: {error}", attachment.node);
                Err(self.fail(attachment, failure.into()).await)
            }
        }
    }

    async fn unpublish<'a>(
        &'a self,
        backend: &dyn Backend,
        attachment: &VolumeAttachment,
        unpublish: Unpublish,
        state: &mut ReconcileState<'a>,
        recorder: &StepRecorder,
    ) -> Result<(), ReconcileResult> {
        let Unpublish { handle, node, former } = unpublish;
        self.acquire_lock(attachment, &handle, state)?;
        let call = self.call(state);
        let started = Instant::now();
        match backend.unpublish_volume(call, handle, Some(node.clone())).await {
            Ok(()) => {
                let text = format!("{} unpublishes the volume from {node}", attachment.attacher);
                recorder.record(StepResult::Applied, text, Some(started.elapsed()));
            }
            Err(error)
                if former && matches!(error.kind, ErrorKind::NotFound | ErrorKind::InvalidArgument) =>
            {
                let text = format!("{} does not know the node's former id {node}", attachment.attacher);
                recorder.record(StepResult::Applied, text, Some(started.elapsed()));
            }
            Err(error) => return self.fail_or_prove_detach(attachment, error.into(), state).await,
        }
        state.unpublished_from.push(node);
        Ok(())
    }

    /// Handles a failure as [`Attacher::fail`] does, unless it is the failure of a detach and there is proof
    /// that the volume is detached. Then returns `Ok`, and the next decision removes the finalizer.
    async fn fail_or_prove_detach(
        &self,
        attachment: &VolumeAttachment,
        failure: AttacherFailure,
        state: &mut ReconcileState<'_>,
    ) -> Result<(), ReconcileResult> {
        let event = match self.find_detach_proof(attachment, &failure).await {
            Ok(Some(event)) => event,
            Ok(None) => return Err(self.fail(attachment, failure).await),
            Err(error) => {
                self.emit_confirmation_error(attachment, &error);
                return Err(self.fail(attachment, failure).await);
            }
        };
        let name = &attachment.name;
        tracing::warn!(attachment = %name, event = %event.text, "a detach ends without the driver");
        let component = component(&attachment.attacher);
        let volume = attachment.volume().and_then(|name| self.context.cache.volumes.get(name).into_object());
        if let Some(volume) = volume {
            self.context.events.emit(&*volume, &component, event.clone());
        }
        self.context.events.emit(attachment, &component, event);
        state.is_detach_proven = true;
        Ok(())
    }

    /// Returns the event of a failed detach for which there is proof that the volume is detached; `None`
    /// without proof, and for other failures.
    ///
    /// # Errors
    /// An operator's confirmation has no effect.
    async fn find_detach_proof(
        &self,
        attachment: &VolumeAttachment,
        failure: &AttacherFailure,
    ) -> Result<Option<EventSpec>, ConfirmationError> {
        let VolumeAttachment { name, node, attacher, .. } = attachment;
        if !attachment.meta.deleting {
            return Ok(None);
        }
        let listings = self.listed_as_detached.lock().get(name).copied().unwrap_or_default();
        if listings >= LISTINGS_FOR_PROOF {
            let text = format!(
                "ListVolumes of {attacher} shows the volume as detached from node {node}: \
                 VolumeAttachment {name} is removed although ControllerUnpublishVolume failed: {}",
                failure.message
            );
            return Ok(Some(EventSpec::warning("DetachObserved", text)));
        }
        if !attachment.meta.has_annotation(names::CONFIRM_DETACHED) {
            return Ok(None);
        }
        let live = match self.context.writer.get::<Node>(node).await {
            Ok(live) => live,
            Err(error) => {
                tracing::warn!(%error, attachment = %name, "cannot check the confirmation of a detach");
                return Ok(None);
            }
        };
        let reason = rules::check_confirmation(attachment, live.as_ref())?;
        Ok(reason.map(|reason| {
            let text = format!(
                "an operator confirmed that the volume is detached from node {node} ({reason:?}): \
                 VolumeAttachment {name} is removed although {attacher} cannot confirm it: {}",
                failure.message
            );
            EventSpec::warning("DetachConfirmed", text)
        }))
    }

    /// Emits an event about an annotation `confirm-detached` that has no effect.
    pub(super) fn emit_confirmation_error(&self, attachment: &VolumeAttachment, error: &ConfirmationError) {
        let event = EventSpec::warning("DetachNotConfirmed", error.to_string());
        self.context.events.emit(attachment, &component(&attachment.attacher), event);
    }

    fn call(&self, state: &ReconcileState<'_>) -> Call {
        self.context.calls.call(&self.context.term, state.secrets.clone().unwrap_or_default())
    }

    /// Reads the Secret of the volume, once per reconcile. If the Secret does not exist, a detach continues
    /// without it: otherwise the volume would stay attached for ever. A driver that needs the Secret rejects
    /// the call.
    async fn read_secrets(
        &self,
        attachment: &VolumeAttachment,
        state: &mut ReconcileState<'_>,
    ) -> Result<(), ReconcileResult> {
        if state.secrets.is_some() {
            return Ok(());
        }
        let Some(reference) = rules::publish_secret(&self.context.cache, attachment) else { return Ok(()) };
        match self.context.secrets.read_if_exists(&reference).await {
            Ok(Some(secrets)) => state.secrets = Some(secrets),
            Ok(None) if attachment.meta.deleting => {
                let attachment = &attachment.name;
                tracing::warn!(%attachment, "Secret {reference} not found; detaching without it");
                state.secrets = Some(Secrets::default());
            }
            Ok(None) => {
                let message = format!("Secret {reference} does not exist");
                return Err(self.fail(attachment, message.into()).await);
            }
            Err(error) => return Err(self.fail(attachment, error.to_string().into()).await),
        }
        Ok(())
    }

    /// Returns the Secret of this reconcile, or reads it while the finalizer of the PersistentVolume is
    /// written.
    /// `None` if the volume has none. If the Secret cannot be read or does not exist also `None`:
    /// [`read_secrets`](Self::read_secrets) reads it again.
    async fn read_secrets_early(
        &self,
        attachment: &VolumeAttachment,
        state: &ReconcileState<'_>,
    ) -> Option<Secrets> {
        if state.secrets.is_some() {
            return state.secrets.clone();
        }
        let reference = rules::publish_secret(&self.context.cache, attachment)?;
        self.context.secrets.read_if_exists(&reference).await.ok().flatten()
    }

    /// Reads the Secret if this reconcile has not read it. Returns true if it was read now: the decision may
    /// be outdated, and has to be made again before the driver is called.
    async fn ensure_secrets(
        &self,
        attachment: &VolumeAttachment,
        state: &mut ReconcileState<'_>,
    ) -> Result<bool, ReconcileResult> {
        let had = state.secrets.is_some();
        self.read_secrets(attachment, state).await?;
        Ok(state.secrets.is_some() && !had)
    }

    /// Writes the failure to the attachment's status, unless the status has it already, and requeues the
    /// attachment.
    async fn fail(&self, attachment: &VolumeAttachment, failure: AttacherFailure) -> ReconcileResult {
        let AttacherFailure { message, code, retry_after } = failure;
        let code = code.filter(|_| self.context.settings.attach_error_code);
        let key = &attachment.name;
        let recorder = self.recorder(attachment);
        recorder.record(StepResult::Failed, message.clone(), None);
        let deleting = attachment.meta.deleting;
        let patch = status::error_patch(deleting, (self.context.clock)(), &message, code);
        // Patch the current version of the attachment: this reconcile may have written it.
        let current = self.context.cache.attachments.get(key).into_object();
        // The same error is written once: its time is that of the first failure.
        let news = |current: &Arc<VolumeAttachment>| {
            current.meta.uid == attachment.meta.uid && !status::has_error(current, &message, code)
        };
        if let Some(current) = current.filter(news) {
            let write = self.context.writer.merge_patch::<VolumeAttachment>(
                key,
                PatchTarget::Status,
                current.meta.resource_version,
                patch,
            );
            if let Err(error) = write.await {
                // The attachment is retried even if the status could not be written.
                action_for_write_error::<VolumeAttachment>(&self.context.writer, key, &error).await;
            }
        }
        ReconcileResult::Requeue(self.requeue_after(attachment, retry_after))
    }

    /// Retries after the delay that the driver's error suggests, but not before the back-off and not later
    /// than `--retry-interval-max`. Without a suggestion, returns the back-off.
    fn requeue_after(&self, attachment: &VolumeAttachment, retry_after: Option<Duration>) -> Action {
        let (Some(retry_after), Some(queues)) = (retry_after, self.queues.get(&attachment.attacher)) else {
            return Action::Backoff;
        };
        let failures = queues.queue(QueueKind::for_attachment(attachment)).failures(&attachment.name);
        self.context.calls.retry_after_hint(retry_after, failures)
    }

    fn recorder(&self, attachment: &VolumeAttachment) -> StepRecorder {
        let name = attachment.volume();
        let volume = name.and_then(|name| self.context.cache.volumes.get(name).into_object());
        self.context.recorders.of_attachment(name, volume.as_deref())
    }

    /// Removes the attacher's finalizer from a PersistentVolume, if [`rules::removable_volume_finalizer`]
    /// allows it.
    async fn reconcile_volume(&self, name: &VolumeName) -> Action {
        let Lookup::Found(volume) = self.context.cache.volumes.get(name) else { return Action::Done };
        let is_managed_driver = |driver: &DriverName| self.queues.contains_key(driver);
        let has_provisioner = |driver: &DriverName| self.context.provisioned_drivers.contains(driver);
        let (Some(at), Some(csi)) = (
            rules::removable_volume_finalizer(
                &self.context.cache,
                &is_managed_driver,
                &volume,
                provisioner::rules::is_managed_volume(&has_provisioner, &volume),
            ),
            &volume.csi,
        ) else {
            return Action::Done;
        };
        let finalizer = names::attacher_finalizer(&csi.driver);
        let recorder = self.context.recorders.of_volume(&volume);
        let write = self.context.writer.remove_finalizer::<Volume>(name, &volume.meta.uid, at, &finalizer);
        match recorder.record_effect("removes the finalizer of the PersistentVolume", write).await {
            Ok(_) => Action::Done,
            Err(error) => action_for_write_error::<Volume>(&self.context.writer, name, &error).await,
        }
    }
}

/// The identities of a Node; none if it does not exist.
fn node_identities(node: Option<&Node>) -> Parameters {
    node.map(rules::node_identities).unwrap_or_default()
}

/// `source.component` of the events of a driver's attachments.
fn component(driver: &DriverName) -> String {
    format!("external-attacher {driver}")
}
