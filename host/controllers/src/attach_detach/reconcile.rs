//! Reconciles the VolumeAttachments of volumes and `status.volumesAttached` of Nodes as [`rules`] decides,
//! one effect at a time; the VolumeAttachments of a shared volume for several nodes are created together.

mod handlers;
mod nodes;

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{
    ApiError, Cache, Lookup, Precondition, Writer,
    metrics::Metrics,
    queue::{Action, ExponentialBackoff, Queue},
};
use cofferdam_domain::{
    ClaimKey, Node, NodeName, Pod, ResourceVersion, Volume, VolumeAttachment, VolumeAttachmentName, names,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    conflict, desired_state,
    input::{InputSources, ReconcileState, node_volume_entry},
    metrics::{AttachDetachMetrics, VolumeOperation},
    rules::{
        self, ActualAttachment, AttachDetachStep, AttachmentPurpose, DesiredAttachment, ForceDetachReason,
        ReconcileInput,
    },
    settings::AttachDetachSettings,
    state::{AttachState, Key},
    throttle::NodeStatusThrottle,
};
use crate::{
    conflicts::ConflictDetector,
    controller::Controller,
    events::{EventRecorder, EventSpec},
    live_reads::SingleFlightReads,
    reconcile::{EVENT_REPEAT_INTERVAL, MAX_EFFECTS, action_for_write_error},
    step_recorder::{StepRecorder, StepRecorders},
};

/// `source.component` of this controller's events.
const COMPONENT: &str = "attachdetach-controller";
/// Kubernetes' back-off of attaching and detaching, capped at `--retry-interval-max`.
const BACKOFF: ExponentialBackoff =
    ExponentialBackoff { initial: Duration::from_millis(500), max: Duration::from_secs(122) };
/// Delay of the event of a pod whose claim has no attachable volume: the cache may receive the claim and the
/// volume later than the pod.
const CLAIM_EVENT_DELAY: Duration = Duration::from_secs(1);
/// Maximum keys that are reconciled concurrently. Most of them are volumes, which usually need one small
/// write.
const WORKERS: usize = 64;
/// Maximum concurrent updates of Nodes.
const NODE_WORKERS: usize = 32;

/// Dependencies of the attach-detach controller.
pub(crate) struct AttachDetachContext {
    pub(super) cache: Arc<Cache>,
    pub(super) writer: Writer,
    pub(super) events: EventRecorder,
    pub(super) recorders: StepRecorders,
    pub(super) settings: AttachDetachSettings,
    /// Maximum delay of the back-off (`--retry-interval-max`), if it is shorter than that of [`BACKOFF`].
    pub(super) retry_interval_max: Duration,
    pub(super) conflicts: Arc<ConflictDetector>,
    pub(super) metrics: AttachDetachMetrics,
    pub(super) queue_metrics: Metrics,
}

/// The attach-detach controller.
pub(crate) struct AttachDetach {
    context: AttachDetachContext,
    volumes: Queue<Key>,
    nodes: Queue<NodeName>,
    state: AttachState,
    throttle: NodeStatusThrottle,
    /// Live reads of Nodes: volumes that are detached from one Node share a read.
    node_reads: SingleFlightReads,
    backoff: ExponentialBackoff,
}

impl Controller for AttachDetach {
    type Context = AttachDetachContext;

    fn new(context: AttachDetachContext) -> Arc<Self> {
        context.metrics.set_cache(&context.cache);
        let backoff = BACKOFF.capped_at(context.retry_interval_max);
        Arc::new(Self {
            volumes: Queue::new("attachdetach_volumes", backoff, &context.queue_metrics),
            nodes: Queue::new("attachdetach_nodes", backoff, &context.queue_metrics),
            state: AttachState::new(context.settings.request_may_apply),
            throttle: NodeStatusThrottle::default(),
            node_reads: SingleFlightReads::default(),
            backoff,
            context,
        })
    }

    fn subscribe(self: &Arc<Self>) {
        self.subscribe_to_cache();
        let (cache, conflicts) = (&self.context.cache, &self.context.conflicts);
        conflicts.subscribe(&cache.attachments, conflict::attachment_field);
        conflicts.subscribe(&cache.nodes, conflict::node_field);
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let (volumes, nodes) = (Arc::clone(&self), Arc::clone(&self));
        self.context.conflicts.activate();
        tokio::join!(
            self.volumes.run(WORKERS, stop.clone(), move |key| {
                let controller = Arc::clone(&volumes);
                async move { controller.reconcile(&key).await }
            }),
            self.nodes.run(NODE_WORKERS, stop, move |name| {
                let controller = Arc::clone(&nodes);
                async move { controller.reconcile_node(&name).await }
            }),
        );
    }
}

impl AttachDetach {
    fn sources(&self) -> InputSources<'_> {
        InputSources {
            cache: &self.context.cache,
            state: &self.state,
            force_after: self.context.settings.force_detach_after,
        }
    }

    /// Reconciles one key. Performs the steps of [`ReconcileInput::next_step`] until the next one is
    /// `UpdateNodes`, a step ends the reconcile, the key has no input any more, or the limit of steps is
    /// reached. A step whose request the API server refuses does not end the reconcile. The key of a claim
    /// only leads to events.
    async fn reconcile(&self, key: &Key) -> Action {
        if let Key::Claim(claim) = key {
            return self.reconcile_claim(claim, key);
        }
        if let Some((name, left)) = self.state.uncertain_attachment(key) {
            // The result of a create request is unknown. Another VolumeAttachment could be one too many until
            // this one is found, or until the request can no longer take effect.
            if let Err(error) = self.context.writer.refresh::<VolumeAttachment>(&name).await {
                tracing::debug!(%error, "reading an attachment failed");
                return Action::Backoff;
            }
            let is_found = self.has_attachment(&name);
            if is_found {
                // It may already be attached. Without a start, the attach would have neither event nor
                // duration.
                self.state.track_attach(&name, || true);
            }
            if left.is_zero() || is_found {
                self.state.clear_uncertain(key);
            }
        }
        let (mut reconcile_state, mut refused) = (ReconcileState::default(), Vec::new());
        let mut done = 0;
        while let Some(input) = self.sources().reconcile_input(key, &reconcile_state) {
            self.emit_attach_events(&input);
            let step = input.next_step();
            if let AttachDetachStep::UpdateNodes(nodes) = step {
                nodes.into_iter().for_each(|node| self.nodes.add(node));
                refused.extend(input.failures());
                self.emit_failures(key, &refused);
                let recheck = self.recheck_after(&input, !refused.is_empty());
                return if reconcile_state.refused_nodes.is_empty() {
                    recheck.map_or(Action::Done, Action::RequeueAfter)
                } else {
                    self.backoff_within(key, recheck)
                };
            }
            // The limit grows with the number of nodes, because each node needs its own effects.
            if done >= MAX_EFFECTS + 4 * (input.desired.len() + input.actual.len()) {
                return Action::Requeue;
            }
            done += 1;
            if let Err(action) = self.perform(key, step, &mut reconcile_state, &mut refused).await {
                refused.extend(input.failures());
                self.emit_failures(key, &refused);
                return action;
            }
        }
        self.emit_failures(key, &[]);
        Action::Done
    }

    /// Returns the time until a key whose next step is `UpdateNodes` is reconciled again: for a timer of the
    /// input, to repeat the events of failures, or at the end of the grace period of a deleted CSIDriver.
    /// `None`: the key is reconciled again only after a change of an object.
    fn recheck_after(&self, input: &ReconcileInput, has_failures: bool) -> Option<Duration> {
        let repeat = has_failures.then_some(EVENT_REPEAT_INTERVAL);
        let grace = self.state.csi_driver_grace_left(&input.driver);
        input.recheck_after().into_iter().chain(repeat).chain(grace).min()
    }

    /// Returns the action after the API server has refused an effect for a node: a back-off, or an earlier
    /// reconcile after `recheck`. A refused effect for one node does not delay the timers of the other nodes.
    fn backoff_within(&self, key: &Key, recheck: Option<Duration>) -> Action {
        let Some(recheck) = recheck else { return Action::Backoff };
        let failures = self.volumes.failures(key).saturating_add(1);
        Action::BackoffFor(recheck.min(self.backoff.delay(failures)))
    }

    /// Performs one step. `Err` is the action that ends the reconcile.
    async fn perform(
        &self,
        key: &Key,
        step: AttachDetachStep,
        reconcile_state: &mut ReconcileState,
        refused: &mut Vec<(Arc<Pod>, EventSpec)>,
    ) -> Result<(), Action> {
        match step {
            AttachDetachStep::UpdateNodes(_) => Ok(()),
            AttachDetachStep::StartDetach(actual_attachment) => {
                // A read of the Node before this start is outdated.
                reconcile_state.refreshed.remove(&actual_attachment.name);
                if !self.state.start_detach(&actual_attachment.node, &actual_attachment.name, || {
                    self.volumes_attached_entry(&actual_attachment)
                }) {
                    // The Node lists the volume, or an update that lists it is in flight.
                    self.nodes.add(actual_attachment.node);
                    return Err(Action::Requeue);
                }
                Ok(())
            }
            AttachDetachStep::CancelDetach(actual_attachment) => {
                self.state.clear_detach_state(&actual_attachment.name);
                self.nodes.add(actual_attachment.node);
                Ok(())
            }
            AttachDetachStep::RefreshBeforeDetach(actual_attachment) => {
                self.refresh_volume(&actual_attachment).await?;
                let writer = &self.context.writer;
                let read = |_| async { writer.refresh::<Node>(&actual_attachment.node).await };
                if let Err(error) = self.node_reads.read_live(actual_attachment.node.as_str(), read).await {
                    tracing::warn!(%error, "cannot read a node; no volume is detached from it before");
                    return Err(Action::Backoff);
                }
                reconcile_state.refreshed.insert(actual_attachment.name);
                Ok(())
            }
            AttachDetachStep::Detach(actual_attachment, force) => {
                self.detach(key, &actual_attachment, force, reconcile_state).await
            }
            AttachDetachStep::Attach(desired_attachments) => {
                for desired_attachment in desired_attachments
                    .iter()
                    .filter(|desired_attachment| self.is_still_desired(desired_attachment))
                {
                    self.attach(key, desired_attachment, reconcile_state, refused).await?;
                }
                Ok(())
            }
        }
    }

    /// Checks that a pod that uses the volume still exists and is not terminated: attaching to many nodes
    /// takes time.
    fn is_still_desired(&self, desired_attachment: &DesiredAttachment) -> bool {
        let there = |pod: &Arc<Pod>| {
            let now = self.context.cache.pods.get(&pod.key).into_object();
            now.is_some_and(|now| now.meta.uid == pod.meta.uid && !now.terminated)
        };
        desired_attachment.pods.iter().any(there)
    }

    /// Reads the PersistentVolume of an attachment from the API server, if the cache has none: the caches of
    /// VolumeAttachments and PersistentVolumes may show different times.
    async fn refresh_volume(&self, actual_attachment: &ActualAttachment) -> Result<(), Action> {
        let cache = &self.context.cache;
        let attachment = cache.attachments.get(&actual_attachment.name).into_object();
        let Some(name) = attachment.as_ref().and_then(|attachment| attachment.volume()) else {
            return Ok(());
        };
        if actual_attachment.purpose != AttachmentPurpose::PodOfDeletedVolume
            || !cache.volumes.get(name).is_missing()
        {
            return Ok(());
        }
        if let Err(error) = self.context.writer.refresh::<Volume>(name).await {
            tracing::warn!(%error, "cannot read a volume; it is not detached before");
            return Err(Action::Backoff);
        }
        Ok(())
    }

    /// Returns the resourceVersion of the cached Node, and whether its `volumesAttached` has the volume.
    /// Returns zero and false if the cache lacks the Node or the VolumeAttachment, or cannot decode it.
    fn volumes_attached_entry(&self, actual_attachment: &ActualAttachment) -> (ResourceVersion, bool) {
        let cache = &self.context.cache;
        let (Some(node), Some(attachment)) = (
            cache.nodes.get(&actual_attachment.node).into_object(),
            cache.attachments.get(&actual_attachment.name).into_object(),
        ) else {
            return Default::default();
        };
        let volume = desired_state::unique_volume_of_attachment(cache, &attachment);
        let entry = node_volume_entry(&node, &attachment, volume.as_ref());
        (node.meta.resource_version, entry.is_some_and(|entry| entry.attached))
    }

    fn recorder(&self, name: &VolumeAttachmentName) -> StepRecorder {
        let cache = &self.context.cache;
        let attachment = cache.attachments.get(name).into_object();
        let volume = attachment.and_then(|attachment| cache.volumes.get(attachment.volume()?).into_object());
        match volume {
            Some(volume) => self.context.recorders.of_volume(&volume),
            None => self.context.recorders.of_role(),
        }
    }

    async fn detach(
        &self,
        key: &Key,
        actual_attachment: &ActualAttachment,
        force: Option<ForceDetachReason>,
        reconcile_state: &mut ReconcileState,
    ) -> Result<(), Action> {
        let ActualAttachment { name, uid, node, .. } = actual_attachment;
        let driver = match self.context.cache.attachments.get(name) {
            Lookup::Found(attachment) => attachment.attacher.clone(),
            Lookup::Undecodable(_) | Lookup::Missing => return Err(Action::Requeue),
        };
        if let Some(force) = force {
            self.context.metrics.inc_forced_detaches(force);
            tracing::warn!(%name, %node, reason = force.as_str(), "force-detaching a volume");
        }
        self.state.request_detach(name, &driver);
        let precondition = Precondition { uid: Some(uid.clone()), resource_version: None };
        let write = self.context.writer.delete::<VolumeAttachment>(name, &precondition);
        let done =
            self.recorder(name).record_effect(&format!("detaches the volume from {node}"), write).await;
        match done {
            Ok(()) => {
                self.state.clear_detach_state(name);
                Ok(())
            }
            Err(error) => {
                if !error.is_result_unknown() {
                    self.state.clear_detach_state(name);
                }
                tracing::debug!(?key, %error, "a detach failed");
                self.handle_write_error(name, node, &error, reconcile_state).await
            }
        }
    }

    async fn attach(
        &self,
        key: &Key,
        desired_attachment: &DesiredAttachment,
        reconcile_state: &mut ReconcileState,
        refused: &mut Vec<(Arc<Pod>, EventSpec)>,
    ) -> Result<(), Action> {
        let DesiredAttachment { node, volume, pods, .. } = desired_attachment;
        let Some(csi) = &volume.csi else { return Err(Action::Requeue) };
        let name = names::volume_attachment_name(&csi.driver, &csi.handle, node);
        let body = json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttachment",
            "metadata": {"name": name},
            "spec": {
                "attacher": csi.driver,
                "nodeName": node,
                "source": {"persistentVolumeName": volume.name},
            },
        });
        let recorder = self.context.recorders.of_volume(volume);
        let write = self.context.writer.create::<VolumeAttachment>(None, &body);
        let error = match recorder.record_effect(&format!("attaches the volume to {node}"), write).await {
            Ok(_) => {
                self.state.clear_uncertain(key);
                self.state.track_attach(&name, || self.has_attachment(&name));
                return Ok(());
            }
            Err(error) => error,
        };
        if error.is_result_unknown() {
            self.state.set_uncertain(key, &name, node);
        } else if let ApiError::Refused { .. } = &error {
            let text = format!("AttachVolume.Attach failed for volume \"{}\" : {error}", volume.name);
            let event = EventSpec::warning("FailedAttachVolume", text);
            refused.extend(pods.iter().map(|pod| (Arc::clone(pod), event.clone())));
        }
        self.handle_write_error(&name, node, &error, reconcile_state).await
    }

    /// Handles a failed request to create or delete the VolumeAttachment `name` of a node. A request that the
    /// API server refused has no effect and does not delay the volume's other nodes; after every other error
    /// the reconcile ends.
    async fn handle_write_error(
        &self,
        name: &VolumeAttachmentName,
        node: &NodeName,
        error: &ApiError,
        reconcile_state: &mut ReconcileState,
    ) -> Result<(), Action> {
        let action = action_for_write_error::<VolumeAttachment>(&self.context.writer, name, error).await;
        if let ApiError::Refused { .. } = error {
            reconcile_state.refused_nodes.insert(node.clone());
            return Ok(());
        }
        Err(action)
    }

    /// For each attach that this process has observed and that has completed: records its duration, and emits
    /// an event on each pod that uses the volume on the node.
    fn emit_attach_events(&self, input: &ReconcileInput) {
        for actual_attachment in input
            .actual
            .iter()
            .filter(|actual_attachment| actual_attachment.purpose.is_for_pod() && actual_attachment.attached)
        {
            let Some(took) = self.state.finish_attach(&actual_attachment.name) else { continue };
            self.context.metrics.observe_operation(VolumeOperation::Attach, &input.driver, took, true);
            let desired_attachments = input
                .desired
                .iter()
                .filter(|desired_attachment| desired_attachment.node == actual_attachment.node);
            for (desired_attachment, pod) in desired_attachments.flat_map(|desired_attachment| {
                desired_attachment.pods.iter().map(move |pod| (desired_attachment, pod))
            }) {
                self.context.events.emit(
                    &**pod,
                    COMPONENT,
                    rules::attach_succeeded_event(&desired_attachment.volume),
                );
            }
        }
    }

    /// Emits each failure as an event on its pod, at most once per [`EVENT_REPEAT_INTERVAL`] while the
    /// failure lasts.
    fn emit_failures(&self, key: &Key, failures: &[(Arc<Pod>, EventSpec)]) {
        let of: Vec<_> =
            failures.iter().map(|(pod, event)| (pod.meta.uid.clone(), event.text.as_str())).collect();
        let new = self.state.filter_new_failures(key, &of);
        for ((pod, event), _) in failures.iter().zip(new).filter(|(_, new)| *new) {
            self.context.events.emit(&**pod, COMPONENT, event.clone());
        }
    }

    /// Reconciles a claim: emits an event on each pod on a managed node that cannot use the claim's volume,
    /// once this has lasted for [`CLAIM_EVENT_DELAY`].
    fn reconcile_claim(&self, claim: &ClaimKey, key: &Key) -> Action {
        let cache = &self.context.cache;
        let pods = cache.pods_using_claim(claim).into_iter().filter(|pod| {
            let managed =
                |node| cache.nodes.get(node).into_object().is_some_and(|node| node.controller_managed);
            !pod.terminated && pod.node.as_ref().is_some_and(managed)
        });
        let bound = desired_state::bound_claim_and_volume(cache, claim);
        let problem = |pod: &Pod| match &bound {
            Ok((claim, _)) => desired_state::is_using_claim(pod, claim).err().map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        let failures: Vec<_> = pods
            .filter_map(|pod| problem(&pod).map(|problem| (pod, rules::unusable_claim_event(&problem))))
            .collect();
        let since = self.state.track_unusable_claim(claim, failures.is_empty());
        if !failures.is_empty() && since < CLAIM_EVENT_DELAY {
            return Action::RequeueAfter(CLAIM_EVENT_DELAY.saturating_sub(since));
        }
        self.emit_failures(key, &failures);
        if failures.is_empty() { Action::Done } else { Action::RequeueAfter(EVENT_REPEAT_INTERVAL) }
    }

    /// Returns true if the cache has a VolumeAttachment of this name, even if it cannot be decoded.
    fn has_attachment(&self, name: &VolumeAttachmentName) -> bool {
        !self.context.cache.attachments.get(name).is_missing()
    }
}
