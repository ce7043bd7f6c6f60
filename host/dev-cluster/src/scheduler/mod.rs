//! The scheduler: [`rules`] decides the next step of a pod, and the scheduler performs it, one effect at a
//! time. A pod's assumed node is the node that the scheduler has selected and that the pod is not bound to
//! yet: the scheduler first has the pod's claims bound for that node.

pub mod input;
mod reason;
pub mod rules;
mod selectors;
mod volume_binding;
mod volume_limits;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use cofferdam_cluster::{
    ApiError, EventType,
    observer::StepResult,
    queue::{Action, ExponentialBackoff, Queue},
};
use cofferdam_domain::{Claim, NodeName, PodKey, Uid, VolumeName, names};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use self::volume_binding::is_reachable_from;

use self::{
    input::{AssumedNode, SchedulerInput},
    rules::{SCHEDULER_NAME, SchedulingDecision},
};
use crate::{
    client::{ClusterClient, PatchType, pod_reference},
    kinds::{FullPod, FullVolume},
};

/// kube-scheduler's back-off of pods. It applies to a pod whose assumed node was forgotten because a claim or
/// the node no longer fits, and after a failed write. The first eight consecutive conflicts or missing
/// objects are retried at once. Any other unschedulable pod waits for a change of an object.
const BACKOFF: ExponentialBackoff =
    ExponentialBackoff { initial: Duration::from_secs(1), max: Duration::from_secs(10) };
/// Timeout of volume binding: kube-scheduler's `bindTimeoutSeconds`.
const BIND_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum number of effects in one reconcile of a pod. A reconcile that reaches the maximum is requeued.
const MAX_EFFECTS: usize = 64;
const STEP_COMPONENT: &str = "scheduler";

/// The scheduler.
pub(crate) struct Scheduler {
    client: Arc<ClusterClient>,
    queue: Queue<PodKey>,
    /// Assumed nodes by the pod's UID, with the time of the assumption.
    assumed: Mutex<HashMap<Uid, (PodKey, AssumedNode, Instant)>>,
}

impl Scheduler {
    /// Creates the scheduler and subscribes it to changes.
    pub(crate) fn new(client: Arc<ClusterClient>) -> Arc<Self> {
        let queue = Queue::new("dev_scheduler", BACKOFF, &client.metrics);
        let scheduler = Arc::new(Self { client, queue, assumed: Mutex::default() });
        scheduler.subscribe();
        scheduler
    }

    /// Runs until `stop`. Pods are scheduled one at a time, so that each decision takes into account which
    /// nodes were assumed for other pods.
    pub(crate) async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let scheduler = Arc::clone(self);
        let work = move |key: PodKey| {
            let scheduler = Arc::clone(&scheduler);
            async move { scheduler.schedule_pod(&key).await }
        };
        self.queue.run(1, stop, work).await;
    }

    fn subscribe(self: &Arc<Self>) {
        let me = Arc::downgrade(self);
        self.client.pods.subscribe(move |change| {
            let Some(me) = me.upgrade() else { return };
            me.queue.add(change.key.clone());
            if has_freed_resources(change.old.as_deref(), change.new.as_deref()) {
                me.enqueue_unscheduled();
            }
        });
        // Any other change may make an unschedulable pod schedulable.
        macro_rules! enqueue_unscheduled_on_change {
            ($($table:ident),*) => {$(
                let me = Arc::downgrade(self);
                self.client.$table.subscribe(move |_| {
                    if let Some(me) = me.upgrade() {
                        me.enqueue_unscheduled();
                    }
                });
            )*};
        }
        enqueue_unscheduled_on_change!(
            nodes,
            claims,
            volumes,
            classes,
            volume_attachments,
            csi_nodes,
            csi_drivers,
            capacities
        );
    }

    /// Enqueues all pods that have no node and have not terminated.
    fn enqueue_unscheduled(&self) {
        let is_unscheduled = |pod: &Arc<FullPod>| pod.slim.node.is_none() && !pod.slim.terminated;
        self.client
            .pods
            .list()
            .iter()
            .filter(|pod| is_unscheduled(pod))
            .for_each(|pod| self.queue.add(pod.slim.key.clone()));
    }

    async fn schedule_pod(&self, key: &PodKey) -> Action {
        for _ in 0..MAX_EFFECTS {
            let Some(pod) = self.client.pods.get(key).into_object() else {
                self.forget_pod(key);
                return Action::Done;
            };
            if !rules::is_responsible_for(&pod) {
                self.forget_pod(key);
                return Action::Done;
            }
            let input = self.scheduler_input(&pod);
            let result = match rules::decide(&pod, &input) {
                SchedulingDecision::NoAction => {
                    self.forget_pod(key);
                    return Action::Done;
                }
                SchedulingDecision::Unschedulable(reason) => {
                    return self.mark_unschedulable(&pod, &reason).await;
                }
                SchedulingDecision::ForgetNode(reason) => {
                    self.forget_pod(key);
                    self.mark_unschedulable(&pod, &reason).await;
                    // An unchanged condition is not written again, so no watch event would follow.
                    return Action::Backoff;
                }
                SchedulingDecision::AssumeNode(node) => {
                    let assumed = AssumedNode { node, annotated_claims: BTreeSet::new() };
                    self.assumed
                        .lock()
                        .insert(pod.slim.meta.uid.clone(), (key.clone(), assumed, Instant::now()));
                    Ok(())
                }
                SchedulingDecision::ReserveVolume(volume, claim) => {
                    self.reserve_volume(&input, &volume, &claim).await
                }
                SchedulingDecision::SetSelectedNode(claim) => {
                    self.set_selected_node(&pod, &input, &claim).await
                }
                SchedulingDecision::WaitForBinding(text) => return self.wait_for_binding(&pod, text),
                SchedulingDecision::Bind(node) => return self.bind_pod(&pod, &node).await,
            };
            if let Err(error) = result {
                return self.outcome_for_write_error(&error);
            }
        }
        Action::Requeue
    }

    fn scheduler_input(&self, pod: &FullPod) -> SchedulerInput {
        let client = &self.client;
        let (assumed, mut assigned_pods) = {
            let all = self.assumed.lock();
            let assumed = all.get(&pod.slim.meta.uid).map(|(_, assumed, _)| assumed.clone());
            let others = all.iter().filter(|(uid, _)| **uid != pod.slim.meta.uid);
            let others = others.filter_map(|(uid, (key, assumed, _))| {
                let is = |pod: &Arc<FullPod>| pod.slim.node.is_none() && pod.slim.meta.uid == *uid;
                let pod = client.pods.get(key).into_object().filter(is)?;
                Some((assumed.node.clone(), pod))
            });
            (assumed, others.collect::<Vec<_>>())
        };
        let bound_pods = client.pods.list().into_iter().filter(|pod| !pod.slim.terminated);
        assigned_pods.extend(bound_pods.filter_map(|pod| Some((pod.slim.node.clone()?, pod))));
        SchedulerInput {
            nodes: client.nodes.list().into_iter().map(|node| (node.slim.name.clone(), node)).collect(),
            claims: client.claims.list().into_iter().map(|claim| (claim.key.clone(), claim)).collect(),
            volumes: client.volumes.list().into_iter().map(|one| (one.slim.name.clone(), one)).collect(),
            classes: client.classes.list().into_iter().map(|one| (one.name.to_string(), one)).collect(),
            volume_attachments: client.volume_attachments.list(),
            csi_nodes: client.csi_nodes.list().into_iter().map(|one| (one.slim.name.clone(), one)).collect(),
            csi_drivers: client
                .csi_drivers
                .list()
                .into_iter()
                .map(|one| (one.slim.name.to_string(), one))
                .collect(),
            capacities: client.capacities.list(),
            assigned_pods,
            assumed,
        }
    }

    /// Reserves an existing PersistentVolume for a claim: sets its `claimRef`, as kube-scheduler's volume
    /// binder does.
    async fn reserve_volume(
        &self,
        input: &SchedulerInput,
        name: &VolumeName,
        claim: &cofferdam_domain::ClaimKey,
    ) -> Result<(), ApiError> {
        let (Some(volume), Some(claim)) = (input.volumes.get(name), input.claims.get(claim)) else {
            return Ok(());
        };
        let patch = json!({
            "metadata": {"annotations": {names::BOUND_BY_CONTROLLER: "yes"}},
            "spec": {"claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": &*claim.key.namespace,
                "name": &*claim.key.name,
                "uid": claim.meta.uid,
                "resourceVersion": claim.meta.resource_version.to_string(),
            }},
        });
        let text = format!("reserves volume {name}");
        let write = self.client.patch::<FullVolume>(volume, "", PatchType::Merge, patch);
        self.client.perform(STEP_COMPONENT, claim.key.to_string(), &text, write).await.map(drop)
    }

    /// Sets the selected-node annotation of a claim to the pod's assumed node.
    async fn set_selected_node(
        &self,
        pod: &FullPod,
        input: &SchedulerInput,
        claim: &cofferdam_domain::ClaimKey,
    ) -> Result<(), ApiError> {
        let (Some(assumed), Some(claim)) = (&input.assumed, input.claims.get(claim)) else { return Ok(()) };
        let patch = json!({"metadata": {"annotations": {names::SELECTED_NODE: assumed.node}}});
        let text = format!("selects {} for the claim", assumed.node);
        let write = self.client.patch::<Claim>(claim, "", PatchType::Merge, patch);
        self.client.perform(STEP_COMPONENT, claim.key.to_string(), &text, write).await?;
        if let Some((_, assumed, _)) = self.assumed.lock().get_mut(&pod.slim.meta.uid) {
            assumed.annotated_claims.insert(claim.meta.uid.clone());
        }
        Ok(())
    }

    fn wait_for_binding(&self, pod: &FullPod, text: String) -> Action {
        let since = self
            .assumed
            .lock()
            .get(&pod.slim.meta.uid)
            .map_or(Duration::ZERO, |(_, _, since)| since.elapsed());
        if since >= BIND_TIMEOUT {
            self.forget_pod(&pod.slim.key);
            return Action::Requeue;
        }
        self.client.record_step(STEP_COMPONENT, pod_reference(&pod.slim.key), StepResult::Waiting, text);
        Action::RequeueAfter(BIND_TIMEOUT - since)
    }

    async fn bind_pod(&self, pod: &FullPod, node: &NodeName) -> Action {
        let text = format!("binds the pod to {node}");
        let write = self.client.bind(pod, node.as_str());
        match self.client.perform(STEP_COMPONENT, pod_reference(&pod.slim.key), &text, write).await {
            Ok(()) => {
                let note = format!("Successfully assigned {} to {node}", pod.slim.key);
                self.client.emit_event(pod, SCHEDULER_NAME, EventType::Normal, "Scheduled", note);
                Action::Done
            }
            Err(error) => self.outcome_for_write_error(&error),
        }
    }

    /// Reports the reason to the step observer. Sets the PodScheduled condition to False with the reason as
    /// its message, and emits FailedScheduling, unless the condition already has this message.
    async fn mark_unschedulable(&self, pod: &FullPod, reason: &str) -> Action {
        self.client.record_step(STEP_COMPONENT, pod_reference(&pod.slim.key), StepResult::Waiting, reason);
        let conditions = pod.full.status.as_ref().and_then(|status| status.conditions.as_ref());
        let is_reported = conditions.into_iter().flatten().any(|condition| {
            condition.type_ == "PodScheduled"
                && condition.status == "False"
                && condition.message.as_deref() == Some(reason)
        });
        if is_reported {
            return Action::Done;
        }
        self.client.emit_event(pod, SCHEDULER_NAME, EventType::Warning, "FailedScheduling", reason);
        let condition = json!({
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": reason,
            "lastTransitionTime": self.client.now(),
        });
        let patch = json!({"status": {"conditions": [condition]}});
        match self.client.patch::<FullPod>(pod, "/status", PatchType::Strategic, patch).await {
            Ok(_) => Action::Done,
            Err(error) => self.outcome_for_write_error(&error),
        }
    }

    fn outcome_for_write_error(&self, error: &ApiError) -> Action {
        match error {
            // The watch delivers the change.
            ApiError::Conflict(_) | ApiError::NotFound(_) => Action::Requeue,
            ApiError::AlreadyExists(_)
            | ApiError::TermEnded(_)
            | ApiError::NotServed(_)
            | ApiError::Refused { .. }
            | ApiError::Unavailable { .. }
            | ApiError::InvalidResponse { .. } => {
                tracing::warn!(%error, "the scheduler retries");
                Action::Backoff
            }
        }
    }

    fn forget_pod(&self, key: &PodKey) {
        self.assumed.lock().retain(|_, (of, _, _)| of != key);
    }
}

/// Returns true if the old pod was deleted, was replaced or has terminated. Other pods may then use its
/// claims and its share of the volume limits.
fn has_freed_resources(old: Option<&FullPod>, new: Option<&FullPod>) -> bool {
    let is_active = |pod: &&FullPod| !pod.slim.terminated;
    let old = old.filter(is_active);
    let is_same_pod = |pod: &&FullPod| old.is_some_and(|old| old.slim.meta.uid == pod.slim.meta.uid);
    old.is_some() && new.filter(is_active).filter(is_same_pod).is_none()
}
