//! Pod status: a pod is Running once its volumes are mounted and none of them is due for node expansion. The
//! object of a deleted pod is removed once its volumes are unpublished. No container is run.

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{EventType, observer::StepResult, queue::Action};
use cofferdam_domain::PodKey;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    expand::is_expansion_due,
    rules::MountState,
    state::{COMPONENT, Kubelet},
};
use crate::{
    client::{PatchType, pod_reference},
    kinds::FullPod,
};

/// Kubelet emits FailedMount each time that a pod has waited this long for its volumes.
const POD_MOUNT_TIMEOUT: Duration = Duration::from_secs(123);

impl Kubelet {
    pub(super) async fn reconcile_pod(&self, key: &PodKey) -> Action {
        let Some(pod) = self.client.pods.get(key).into_object() else {
            self.waiting_since.lock().remove(key);
            return Action::Done;
        };
        if pod.slim.node.as_ref() != Some(&self.node_name) {
            return Action::Done;
        }
        if pod.slim.meta.deleting {
            return self.terminate_pod(&pod).await;
        }
        if pod.slim.terminated || pod.is_running() {
            self.waiting_since.lock().remove(key);
            return Action::Done;
        }
        let missing = self.unmounted_volumes(&pod);
        if !missing.is_empty() {
            return self.wait_for_volumes(&pod, &missing);
        }
        self.waiting_since.lock().remove(key);
        let patch = json!({"status": self.running_status(&pod)});
        let write = self.client.patch::<FullPod>(&pod, "/status", PatchType::Strategic, patch);
        match write.await {
            Ok(_) => {
                self.record_pod_step(&pod, StepResult::UpToDate, "the pod is Running");
                Action::Done
            }
            Err(error) => self.outcome_for_write_error::<FullPod>(key, &error).await,
        }
    }

    /// Names of the pod's volumes that are not mounted yet, cannot be resolved or are due for node expansion.
    /// Volumes without a CSI driver are omitted.
    fn unmounted_volumes(&self, pod: &Arc<FullPod>) -> Vec<String> {
        let mounted_volumes = self.mounted_volumes.lock();
        let uid = &pod.slim.meta.uid;
        let is_missing = |volume: &&k8s_openapi::api::core::v1::Volume| match self.resolve_volume(pod, volume)
        {
            Ok(None) => false,
            Ok(Some(to_mount)) => {
                let pod_mount = mounted_volumes
                    .get(&to_mount.id)
                    .and_then(|mounted_volumes| mounted_volumes.pod_mounts.get(uid));
                is_expansion_due(&to_mount, mounted_volumes.get(&to_mount.id))
                    || pod_mount.is_none_or(|pod_mount| pod_mount.state != MountState::Mounted)
            }
            Err(_) => true,
        };
        pod.volumes().iter().filter(is_missing).map(|volume| volume.name.clone()).collect()
    }

    fn wait_for_volumes(&self, pod: &FullPod, missing: &[String]) -> Action {
        let (key, uid) = (&pod.slim.key, &pod.slim.meta.uid);
        let mut waiting = self.waiting_since.lock();
        // A former pod may have had the same name.
        let earlier_since = waiting.get(key).filter(|(of, _)| of == uid).map(|(_, since)| *since);
        let since = earlier_since.unwrap_or_else(Instant::now);
        waiting.insert(key.clone(), (uid.clone(), since));
        drop(waiting);
        if since.elapsed() < POD_MOUNT_TIMEOUT {
            return Action::RequeueAfter(POD_MOUNT_TIMEOUT - since.elapsed());
        }
        self.waiting_since.lock().remove(key);
        let note = format!(
            "Unable to attach or mount volumes: unmounted volumes=[{}]: timed out waiting for the condition",
            missing.join(" ")
        );
        self.client.emit_event(pod, COMPONENT, EventType::Warning, "FailedMount", note);
        Action::Requeue
    }

    /// The status of a running pod.
    fn running_status(&self, pod: &FullPod) -> Value {
        let now = self.client.now();
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
            "hostIP": host_address(self.node_index),
            "conditions": kinds.map(condition),
            "containerStatuses": containers,
        })
    }

    /// Terminates a deleted pod, one step per reconcile: sets its phase to Succeeded if it has a running
    /// container, waits until its volumes are unpublished, then deletes the object.
    async fn terminate_pod(&self, pod: &Arc<FullPod>) -> Action {
        self.waiting_since.lock().remove(&pod.slim.key);
        if pod.is_running() {
            let patch = json!({"status": self.terminated_status(pod)});
            let write = self.client.patch::<FullPod>(pod, "/status", PatchType::Strategic, patch);
            let written =
                self.client.perform(COMPONENT, pod_reference(&pod.slim.key), "stops the pod", write).await;
            return match written {
                // The change of the pod enqueues it again.
                Ok(_) => Action::Done,
                Err(error) => self.outcome_for_write_error::<FullPod>(&pod.slim.key, &error).await,
            };
        }
        let uid = &pod.slim.meta.uid;
        if self.mounted_volumes.lock().values().any(|mounted| mounted.pod_mounts.contains_key(uid)) {
            // The last unmount enqueues the pod again.
            return Action::Done;
        }
        let removal = self.client.delete_pod(&pod.slim.key, uid);
        match self.client.perform(COMPONENT, pod_reference(&pod.slim.key), "deletes the pod", removal).await {
            Ok(()) => Action::Done,
            Err(error) => self.outcome_for_write_error::<FullPod>(&pod.slim.key, &error).await,
        }
    }

    fn terminated_status(&self, pod: &FullPod) -> Value {
        let now = self.client.now();
        let statuses = pod.full.status.as_ref().and_then(|status| status.container_statuses.clone());
        let terminated_container = |status: k8s_openapi::api::core::v1::ContainerStatus| {
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
        let statuses: Vec<Value> =
            statuses.unwrap_or_default().into_iter().map(terminated_container).collect();
        let condition = |kind: &str| {
            json!({
                "type": kind,
                "status": "False",
                "reason": "PodCompleted",
                "lastTransitionTime": now,
            })
        };
        let conditions = ["Ready", "ContainersReady"].map(condition);
        json!({
            "phase": "Succeeded",
            "conditions": conditions,
            "containerStatuses": statuses,
        })
    }
}

/// IP address of the node with this index, from a range reserved for documentation (RFC 5737). Nodes share
/// addresses if there are more than 254.
pub(crate) fn host_address(number: usize) -> String {
    format!("192.0.2.{}", number % 254 + 1)
}
