//! One volume of a node, step by step.

use cofferdam_cluster::{EventType, queue::Action};
use cofferdam_domain::{Uid, VolumeMode};

use super::{
    COMPONENT, Key, Kubelet, VolumeId, VolumeToMount,
    rules::{self, MountStep},
};
use crate::observer::ClusterStepResult;

/// More steps than a volume needs in a world that does not change as fast as it is written.
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
                    desired.iter().for_each(|wanted| {
                        self.record_pod_step(&wanted.pod, ClusterStepResult::Waiting, text)
                    });
                    return Action::Done;
                }
                MountStep::ReportInUse => {
                    // The change of the node goes on.
                    self.queue.add(Key::Node);
                    return Action::Done;
                }
                MountStep::Stage
                | MountStep::Publish(_)
                | MountStep::Expand(_)
                | MountStep::Unpublish(_)
                | MountStep::Unstage => {}
            }
            if let Some(pause) = self.retries.remaining_delay(id, &step) {
                return Action::RequeueAfter(pause);
            }
            if let Err(problem) = self.perform_step(id, &step, &desired).await {
                tracing::info!(node = %self.node_name, volume = %id, "{problem}");
                desired.iter().for_each(|wanted| self.emit_mount_failure(wanted, &step, &problem));
                return Action::RequeueAfter(self.retries.record_failure(id, &step));
            }
            self.retries.remove(id);
            desired.iter().for_each(|wanted| self.queue.add(Key::Pod(wanted.pod.slim.key.clone())));
        }
        Action::Requeue
    }

    /// One step that calls the driver.
    async fn perform_step(
        &self,
        id: &VolumeId,
        step: &MountStep,
        desired: &[VolumeToMount],
    ) -> Result<(), String> {
        let desired_for = |pod: &Uid| desired.iter().find(|wanted| wanted.pod.slim.meta.uid == *pod);
        match step {
            MountStep::Done | MountStep::Wait(_) | MountStep::ReportInUse => Ok(()),
            MountStep::Stage => match desired.first() {
                Some(wanted) => self.stage(wanted).await,
                None => Ok(()),
            },
            MountStep::Publish(pod) => match desired_for(pod) {
                Some(wanted) => self.publish(wanted).await,
                None => Ok(()),
            },
            MountStep::Expand(pod) => match desired_for(pod) {
                Some(wanted) => self.expand(wanted).await,
                None => Ok(()),
            },
            MountStep::Unpublish(pod) => self.unpublish(id, pod).await,
            MountStep::Unstage => self.unstage(id).await,
        }
    }

    /// Tells a pod what keeps it waiting. What fails at growing has told so itself.
    fn emit_mount_failure(&self, desired: &VolumeToMount, step: &MountStep, problem: &str) {
        self.record_pod_step(&desired.pod, ClusterStepResult::Failed, problem);
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
