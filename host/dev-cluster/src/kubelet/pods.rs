//! What kubelet says of its pods: they run once all their volumes are mounted, and go when these are unmounted. No container is run.

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{EventType, queue::Outcome};
use cofferdam_domain::PodKey;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{COMPONENT, Kubelet, Phase, lock};
use crate::{
    kinds::PodObject,
    observer::StepKind,
    world::{Patch, pod_name},
};

/// How long kubelet waits for a pod's volumes before it says so, and again.
const PATIENCE: Duration = Duration::from_secs(123);

impl Kubelet {
    pub(super) async fn pod(&self, key: &PodKey) -> Outcome {
        let Some(pod) = self.world.pods.get(key).known() else {
            lock(&self.waiting).remove(key);
            return Outcome::Done;
        };
        if pod.slim.node.as_ref() != Some(&self.name) {
            return Outcome::Done;
        }
        if pod.slim.meta.deleting {
            return self.end(&pod).await;
        }
        if pod.slim.terminated || pod.is_running() {
            lock(&self.waiting).remove(key);
            return Outcome::Done;
        }
        let missing = self.missing(&pod);
        if !missing.is_empty() {
            return self.wait(&pod, &missing);
        }
        lock(&self.waiting).remove(key);
        let patch = json!({"status": self.running(&pod)});
        let write = self.world.patch::<PodObject>(&pod, "/status", Patch::Strategic, patch);
        match write.await {
            Ok(_) => {
                self.tell_pod(&pod, StepKind::Settled, "the pod is Running");
                Outcome::Done
            }
            Err(error) => self.failed::<PodObject>(key, &error).await,
        }
    }

    /// The volumes of a pod that are not mounted yet.
    fn missing(&self, pod: &Arc<PodObject>) -> Vec<String> {
        let held = lock(&self.held);
        let uid = &pod.slim.meta.uid;
        let is_missing = |volume: &&k8s_openapi::api::core::v1::Volume| match self.lead(pod, volume) {
            Ok(None) => false,
            Ok(Some(wanted)) => {
                let mounted = held.get(&wanted.id).and_then(|held| held.mounts.get(uid));
                let grows = super::grow::is_due(&wanted, held.get(&wanted.id));
                grows || mounted.is_none_or(|mounted| mounted.phase != Phase::Done)
            }
            Err(_) => true,
        };
        pod.volumes().iter().filter(is_missing).map(|volume| volume.name.clone()).collect()
    }

    fn wait(&self, pod: &PodObject, missing: &[String]) -> Outcome {
        let (key, uid) = (&pod.slim.key, &pod.slim.meta.uid);
        let mut waiting = lock(&self.waiting);
        // An earlier pod of the name is not this one.
        let known = waiting.get(key).filter(|(of, _)| of == uid).map(|(_, since)| *since);
        let since = known.unwrap_or_else(Instant::now);
        waiting.insert(key.clone(), (uid.clone(), since));
        drop(waiting);
        if since.elapsed() < PATIENCE {
            return Outcome::After(PATIENCE - since.elapsed());
        }
        lock(&self.waiting).remove(key);
        let note = format!(
            "Unable to attach or mount volumes: unmounted volumes=[{}]: timed out waiting for the condition",
            missing.join(" ")
        );
        self.world.note(pod, COMPONENT, EventType::Warning, "FailedMount", note);
        Outcome::Again
    }

    /// The status of a pod whose containers run.
    fn running(&self, pod: &PodObject) -> Value {
        let now = self.world.now();
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
        let status = |container: &k8s_openapi::api::core::v1::Container| {
            json!({
                "name": container.name,
                "image": container.image.clone().unwrap_or_default(),
                "imageID": "",
                "ready": true,
                "started": true,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            })
        };
        let containers: Vec<Value> = pod.spec().containers.iter().map(status).collect();
        let kinds = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
        json!({
            "phase": "Running",
            "startTime": now,
            "hostIP": host_address(self.number),
            "conditions": kinds.map(condition),
            "containerStatuses": containers,
        })
    }

    /// Ends a pod that is to be deleted: its containers first, then its volumes, then itself.
    async fn end(&self, pod: &Arc<PodObject>) -> Outcome {
        lock(&self.waiting).remove(&pod.slim.key);
        if pod.is_running() {
            let patch = json!({"status": self.ended(pod)});
            let write = self.world.patch::<PodObject>(pod, "/status", Patch::Strategic, patch);
            let done = self.world.act(COMPONENT, pod_name(&pod.slim.key), "stops the pod", write).await;
            return match done {
                // The change of the pod goes on.
                Ok(_) => Outcome::Done,
                Err(error) => self.failed::<PodObject>(&pod.slim.key, &error).await,
            };
        }
        let uid = &pod.slim.meta.uid;
        if lock(&self.held).values().any(|held| held.mounts.contains_key(uid)) {
            // What is unmounted last comes back here.
            return Outcome::Done;
        }
        let removal = self.world.remove_pod(&pod.slim.key, uid);
        match self.world.act(COMPONENT, pod_name(&pod.slim.key), "removes the pod", removal).await {
            Ok(()) => Outcome::Done,
            Err(error) => self.failed::<PodObject>(&pod.slim.key, &error).await,
        }
    }

    fn ended(&self, pod: &PodObject) -> Value {
        let now = self.world.now();
        let statuses = pod.full.status.as_ref().and_then(|status| status.container_statuses.clone());
        let end = |status: k8s_openapi::api::core::v1::ContainerStatus| {
            json!({
                "name": status.name,
                "image": status.image,
                "imageID": status.image_id,
                "ready": false,
                "started": false,
                "restartCount": status.restart_count,
                "state": {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now}},
            })
        };
        let statuses: Vec<Value> = statuses.unwrap_or_default().into_iter().map(end).collect();
        let condition = |kind: &str| json!({"type": kind, "status": "False", "reason": "PodCompleted", "lastTransitionTime": now});
        let conditions = ["Ready", "ContainersReady"].map(condition);
        json!({
            "phase": "Succeeded",
            "conditions": conditions,
            "containerStatuses": statuses,
        })
    }
}

/// Address of a node, of a range that is for documentation: nobody listens there.
pub(crate) fn host_address(number: usize) -> String {
    format!("192.0.2.{}", number % 254 + 1)
}
