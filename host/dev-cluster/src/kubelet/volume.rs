//! Reconciles one volume of the node, step by step.

use cofferdam_cluster::{EventType, observer::StepResult, queue::Action};
use cofferdam_domain::{Uid, VolumeMode};

use super::{
    error::VolumeError,
    rules::{self, MountStep},
    state::{COMPONENT, Key, Kubelet, VolumeToMount},
    volume_id::VolumeId,
};

/// Maximum number of steps in one reconcile of a volume. A reconcile that reaches the maximum is requeued.
const MAX_STEPS: usize = 64;

impl Kubelet {
    pub(super) async fn reconcile_volume(&self, id: &VolumeId) -> Action {
        for _ in 0..MAX_STEPS {
            let desired = self.desired_mounts(id);
            let step = rules::next_step(&self.mount_input(id, &desired));
            match &step {
                MountStep::Done => {
                    self.remove_unmounted(id);
                    return Action::Done;
                }
                MountStep::Wait(text) => {
                    desired
                        .iter()
                        .for_each(|to_mount| self.record_pod_step(&to_mount.pod, StepResult::Waiting, text));
                    return Action::Done;
                }
                MountStep::ReportInUse => {
                    // The change of the Node enqueues the volume again.
                    self.queue.add(Key::Node);
                    return Action::Done;
                }
                MountStep::Stage
                | MountStep::Publish(_)
                | MountStep::Expand(_)
                | MountStep::Unpublish(_)
                | MountStep::Unstage => {}
            }
            if let Some(delay) = self.retries.remaining_delay(id, &step) {
                return Action::RequeueAfter(delay);
            }
            if let Err(error) = self.perform_step(id, &step, &desired).await {
                tracing::info!(node = %self.node_name, volume = %id, "{error}");
                let problem = error.to_string();
                desired.iter().for_each(|to_mount| self.emit_mount_failure(to_mount, &step, &problem));
                return Action::RequeueAfter(self.retries.record_failure(id, &step));
            }
            self.retries.remove(id);
            desired.iter().for_each(|to_mount| self.queue.add(Key::Pod(to_mount.pod.slim.key.clone())));
        }
        Action::Requeue
    }

    /// Performs one step of the volume. Does nothing for the steps that do not call the driver.
    async fn perform_step(
        &self,
        id: &VolumeId,
        step: &MountStep,
        desired: &[VolumeToMount],
    ) -> Result<(), VolumeError> {
        let desired_for = |pod: &Uid| desired.iter().find(|to_mount| to_mount.pod.slim.meta.uid == *pod);
        match step {
            MountStep::Done | MountStep::Wait(_) | MountStep::ReportInUse => Ok(()),
            MountStep::Stage => match desired.first() {
                Some(to_mount) => self.stage(to_mount).await,
                None => Ok(()),
            },
            MountStep::Publish(pod) => match desired_for(pod) {
                Some(to_mount) => self.publish(to_mount).await,
                None => Ok(()),
            },
            MountStep::Expand(pod) => match desired_for(pod) {
                Some(to_mount) => self.expand(to_mount).await,
                None => Ok(()),
            },
            MountStep::Unpublish(pod) => self.unpublish(id, pod).await,
            MountStep::Unstage => self.unstage(id).await,
        }
    }

    /// Records a failed step of the volume for one of the pods that require the volume. Emits an event on the
    /// pod if the step is staging or publishing; expansion emits its own events.
    fn emit_mount_failure(&self, desired: &VolumeToMount, step: &MountStep, problem: &str) {
        self.record_pod_step(&desired.pod, StepResult::Failed, problem);
        if !matches!(step, MountStep::Stage | MountStep::Publish(_)) {
            return;
        }
        let name =
            desired.volume.as_ref().map_or(desired.handle.as_str(), |volume| volume.slim.name.as_str());
        let block = desired.volume.as_ref().is_some_and(|volume| volume.slim.mode == VolumeMode::Block);
        let (reason, operation) =
            if block { ("FailedMapVolume", "MapVolume") } else { ("FailedMount", "MountVolume") };
        let note = format!("{operation}.SetUp failed for volume {name:?} : {problem}");
        self.client.emit_event(&*desired.pod, COMPONENT, EventType::Warning, reason, note);
    }
}
