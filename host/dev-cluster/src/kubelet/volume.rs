//! One volume of a node, step by step.

use cofferdam_cluster::{EventType, queue::Outcome};
use cofferdam_domain::{Uid, VolumeMode};

use super::{
    COMPONENT, Key, Kubelet, VolumeId, Wanted,
    rules::{self, Step},
};
use crate::observer::StepKind;

/// More steps than a volume needs in a world that does not change as fast as it is written.
const MAX_STEPS: usize = 64;

impl Kubelet {
    pub(super) async fn volume(&self, id: &VolumeId) -> Outcome {
        for _ in 0..MAX_STEPS {
            let wants = self.wanting(id);
            let step = rules::next(&self.facts(id, &wants));
            match &step {
                Step::Rest => {
                    self.settle(id);
                    return Outcome::Done;
                }
                Step::Wait(text) => {
                    wants.iter().for_each(|wanted| self.tell_pod(&wanted.pod, StepKind::Waits, text));
                    return Outcome::Done;
                }
                Step::Report => {
                    // The change of the node goes on.
                    self.queue.add(Key::Node);
                    return Outcome::Done;
                }
                Step::Stage | Step::Publish(_) | Step::Expand(_) | Step::Unpublish(_) | Step::Unstage => {}
            }
            if let Some(pause) = self.retries.pause(id, &step) {
                return Outcome::After(pause);
            }
            if let Err(problem) = self.perform(id, &step, &wants).await {
                tracing::info!(node = %self.name, volume = %id, "{problem}");
                wants.iter().for_each(|wanted| self.complain(wanted, &step, &problem));
                return Outcome::After(self.retries.failed(id, &step));
            }
            self.retries.forget(id);
            wants.iter().for_each(|wanted| self.queue.add(Key::Pod(wanted.pod.slim.key.clone())));
        }
        Outcome::Again
    }

    /// One step that calls the driver.
    async fn perform(&self, id: &VolumeId, step: &Step, wants: &[Wanted]) -> Result<(), String> {
        let of = |pod: &Uid| wants.iter().find(|wanted| wanted.pod.slim.meta.uid == *pod);
        match step {
            Step::Rest | Step::Wait(_) | Step::Report => Ok(()),
            Step::Stage => match wants.first() {
                Some(wanted) => self.stage(wanted).await,
                None => Ok(()),
            },
            Step::Publish(pod) => match of(pod) {
                Some(wanted) => self.publish(wanted).await,
                None => Ok(()),
            },
            Step::Expand(pod) => match of(pod) {
                Some(wanted) => self.grow(wanted).await,
                None => Ok(()),
            },
            Step::Unpublish(pod) => self.unpublish(id, pod).await,
            Step::Unstage => self.unstage(id).await,
        }
    }

    /// Tells a pod what keeps it waiting. What fails at growing has told so itself.
    fn complain(&self, wanted: &Wanted, step: &Step, problem: &str) {
        self.tell_pod(&wanted.pod, StepKind::Fails, problem);
        if !matches!(step, Step::Stage | Step::Publish(_)) {
            return;
        }
        let name = wanted.volume.as_ref().map_or(wanted.handle.as_str(), |volume| volume.slim.name.as_str());
        let block = wanted.volume.as_ref().is_some_and(|volume| volume.slim.mode == VolumeMode::Block);
        let (reason, what) =
            if block { ("FailedMapVolume", "MapVolume") } else { ("FailedMount", "MountVolume") };
        let note = format!("{what}.SetUp failed for volume {name:?} : {problem}");
        self.world.note(&*wanted.pod, COMPONENT, EventType::Warning, reason, note);
    }
}
