//! The scheduler: [`rules`] decides where a pod goes, this carries it out, one effect at a time.

mod binding;
mod limits;
pub mod rules;
mod terms;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_cluster::{
    EventType, WriteError,
    queue::{Backoff, Outcome, Queue},
};
use cofferdam_domain::{Claim, NodeName, PodKey, Uid, VolumeName, names};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use self::binding::reaches;

use self::rules::{Chosen, Decision, Facts, SCHEDULER};
use crate::{
    kinds::{PodObject, VolumeObject},
    observer::StepKind,
    world::{Patch, World, pod_name},
};

/// kube-scheduler's back-off of pods that found no place.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(10) };
/// How long a pod waits for its volumes to be bound, as kube-scheduler's `bindTimeoutSeconds`.
const BINDING: Duration = Duration::from_secs(600);
/// More effects than a pod has volumes, in a world that does not change as fast as it is written.
const MAX_EFFECTS: usize = 64;
const WHO: &str = "scheduler";

/// The scheduler.
pub(crate) struct Scheduler {
    world: Arc<World>,
    queue: Queue<PodKey>,
    /// Pods that a node was chosen for.
    chosen: Mutex<HashMap<Uid, (PodKey, Chosen, Instant)>>,
}

impl Scheduler {
    /// A scheduler that hears of every change from now on.
    pub(crate) fn new(world: Arc<World>) -> Arc<Self> {
        let queue = Queue::new("dev_scheduler", BACKOFF, &world.metrics);
        let scheduler = Arc::new(Self { world, queue, chosen: Mutex::default() });
        scheduler.subscribe();
        scheduler
    }

    /// Works until `stop`. One pod at a time: two of them could both take the last place.
    pub(crate) async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let me = Arc::clone(self);
        let work = move |key: PodKey| {
            let me = Arc::clone(&me);
            async move { me.pod(&key).await }
        };
        self.queue.run(1, stop, work).await;
    }

    fn subscribe(self: &Arc<Self>) {
        let me = Arc::downgrade(self);
        self.world.pods.subscribe(move |change| {
            let Some(me) = me.upgrade() else { return };
            me.queue.add(change.key.clone());
            if leaves(change.old.as_deref(), change.new.as_deref()) {
                me.wake();
            }
        });
        // Any other change may make place for a pod that has none.
        macro_rules! wake {
            ($($table:ident),*) => {$(
                let me = Arc::downgrade(self);
                self.world.$table.subscribe(move |_| {
                    if let Some(me) = me.upgrade() {
                        me.wake();
                    }
                });
            )*};
        }
        wake!(nodes, claims, volumes, classes, attachments, csi_nodes, csi_drivers, capacities);
    }

    /// Looks again at the pods that wait.
    fn wake(&self) {
        let waits = |pod: &Arc<PodObject>| pod.slim.node.is_none() && !pod.slim.terminated;
        self.world
            .pods
            .list()
            .iter()
            .filter(|pod| waits(pod))
            .for_each(|pod| self.queue.add(pod.slim.key.clone()));
    }

    async fn pod(&self, key: &PodKey) -> Outcome {
        for _ in 0..MAX_EFFECTS {
            let Some(pod) = self.world.pods.get(key).known() else {
                self.forget(key);
                return Outcome::Done;
            };
            if !rules::is_ours(&pod) {
                self.forget(key);
                return Outcome::Done;
            }
            let facts = self.facts(&pod);
            let done = match rules::decide(&pod, &facts) {
                Decision::Leave => {
                    self.forget(key);
                    return Outcome::Done;
                }
                Decision::Unschedulable(reason) => return self.refuse(&pod, &reason).await,
                Decision::GiveUp(reason) => {
                    self.forget(key);
                    self.refuse(&pod, &reason).await;
                    // What was said before is not written again: no change comes of it.
                    return Outcome::Retry;
                }
                Decision::Choose(node) => {
                    let chosen = Chosen { node, told: BTreeSet::new() };
                    self.lock().insert(pod.slim.meta.uid.clone(), (key.clone(), chosen, Instant::now()));
                    Ok(())
                }
                Decision::Reserve(volume, claim) => self.reserve(&facts, &volume, &claim).await,
                Decision::Tell(claim) => self.tell(&pod, &facts, &claim).await,
                Decision::Wait(text) => return self.wait(&pod, text),
                Decision::Bind(node) => return self.bind(&pod, &node).await,
            };
            if let Err(error) = done {
                return self.failed(&error);
            }
        }
        Outcome::Again
    }

    fn facts(&self, pod: &PodObject) -> Facts {
        let world = &self.world;
        let (chosen, mut placed) = {
            let all = self.lock();
            let chosen = all.get(&pod.slim.meta.uid).map(|(_, chosen, _)| chosen.clone());
            let others = all.iter().filter(|(uid, _)| **uid != pod.slim.meta.uid);
            let others = others.filter_map(|(uid, (key, chosen, _))| {
                let is = |pod: &Arc<PodObject>| pod.slim.node.is_none() && pod.slim.meta.uid == *uid;
                let pod = world.pods.get(key).known().filter(is)?;
                Some((chosen.node.clone(), pod))
            });
            (chosen, others.collect::<Vec<_>>())
        };
        let bound = world.pods.list().into_iter().filter(|pod| !pod.slim.terminated);
        placed.extend(bound.filter_map(|pod| Some((pod.slim.node.clone()?, pod))));
        Facts {
            nodes: world.nodes.list().into_iter().map(|node| (node.slim.name.clone(), node)).collect(),
            claims: world.claims.list().into_iter().map(|claim| (claim.key.clone(), claim)).collect(),
            volumes: world.volumes.list().into_iter().map(|one| (one.slim.name.clone(), one)).collect(),
            classes: world.classes.list().into_iter().map(|one| (one.name.to_string(), one)).collect(),
            attachments: world.attachments.list(),
            csi_nodes: world.csi_nodes.list().into_iter().map(|one| (one.slim.name.clone(), one)).collect(),
            csi_drivers: world
                .csi_drivers
                .list()
                .into_iter()
                .map(|one| (one.slim.name.to_string(), one))
                .collect(),
            capacities: world.capacities.list(),
            placed,
            chosen,
        }
    }

    /// Reserves a volume that is there, as the binder's first write does.
    async fn reserve(
        &self,
        facts: &Facts,
        name: &VolumeName,
        claim: &cofferdam_domain::ClaimKey,
    ) -> Result<(), WriteError> {
        let (Some(volume), Some(claim)) = (facts.volumes.get(name), facts.claims.get(claim)) else {
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
                "resourceVersion": claim.meta.version.to_string(),
            }},
        });
        let text = format!("reserves volume {name}");
        let write = self.world.patch::<VolumeObject>(volume, "", Patch::Merge, patch);
        self.world.act(WHO, claim.key.to_string(), &text, write).await.map(drop)
    }

    /// Tells the provisioner of a claim the node.
    async fn tell(
        &self,
        pod: &PodObject,
        facts: &Facts,
        claim: &cofferdam_domain::ClaimKey,
    ) -> Result<(), WriteError> {
        let (Some(chosen), Some(claim)) = (&facts.chosen, facts.claims.get(claim)) else { return Ok(()) };
        let patch = json!({"metadata": {"annotations": {names::SELECTED_NODE: chosen.node}}});
        let text = format!("selects {} for the claim", chosen.node);
        let write = self.world.patch::<Claim>(claim, "", Patch::Merge, patch);
        self.world.act(WHO, claim.key.to_string(), &text, write).await?;
        if let Some((_, chosen, _)) = self.lock().get_mut(&pod.slim.meta.uid) {
            chosen.told.insert(claim.meta.uid.clone());
        }
        Ok(())
    }

    fn wait(&self, pod: &PodObject, text: String) -> Outcome {
        let since =
            self.lock().get(&pod.slim.meta.uid).map_or(Duration::ZERO, |(_, _, since)| since.elapsed());
        if since >= BINDING {
            self.forget(&pod.slim.key);
            return Outcome::Again;
        }
        self.world.tell(WHO, pod_name(&pod.slim.key), StepKind::Waits, text);
        Outcome::After(BINDING - since)
    }

    async fn bind(&self, pod: &PodObject, node: &NodeName) -> Outcome {
        let text = format!("binds the pod to {node}");
        let write = self.world.bind(pod, node.as_str());
        match self.world.act(WHO, pod_name(&pod.slim.key), &text, write).await {
            Ok(()) => {
                let note = format!("Successfully assigned {} to {node}", pod.slim.key);
                self.world.note(pod, SCHEDULER, EventType::Normal, "Scheduled", note);
                Outcome::Done
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Says why the pod has no place.
    async fn refuse(&self, pod: &PodObject, reason: &str) -> Outcome {
        self.world.tell(WHO, pod_name(&pod.slim.key), StepKind::Waits, reason);
        let conditions = pod.full.status.as_ref().and_then(|status| status.conditions.as_ref());
        let told = conditions.into_iter().flatten().any(|condition| {
            condition.type_ == "PodScheduled"
                && condition.status == "False"
                && condition.message.as_deref() == Some(reason)
        });
        if told {
            return Outcome::Done;
        }
        self.world.note(pod, SCHEDULER, EventType::Warning, "FailedScheduling", reason);
        let condition = json!({
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": reason,
            "lastTransitionTime": self.world.now(),
        });
        let patch = json!({"status": {"conditions": [condition]}});
        match self.world.patch::<PodObject>(pod, "/status", Patch::Strategic, patch).await {
            Ok(_) => Outcome::Done,
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&self, error: &WriteError) -> Outcome {
        match error {
            // The watch brings what has changed.
            WriteError::Conflict(_) | WriteError::NotFound(_) => Outcome::Again,
            WriteError::AlreadyExists(_)
            | WriteError::Refused { .. }
            | WriteError::Unavailable { .. }
            | WriteError::Answer { .. } => {
                tracing::warn!(%error, "the scheduler tries again");
                Outcome::Retry
            }
        }
    }

    fn forget(&self, key: &PodKey) {
        self.lock().retain(|_, (of, _, _)| of != key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uid, (PodKey, Chosen, Instant)>> {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a pod gives back what it had: its place, and the claims that are for one pod alone.
fn leaves(old: Option<&PodObject>, new: Option<&PodObject>) -> bool {
    let there = |pod: &&PodObject| !pod.slim.terminated;
    let old = old.filter(there);
    let same = |pod: &&PodObject| old.is_some_and(|old| old.slim.meta.uid == pod.slim.meta.uid);
    old.is_some() && new.filter(there).filter(same).is_none()
}
