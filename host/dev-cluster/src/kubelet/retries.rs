//! Back-off of a volume's failed step. The back-off doubles with each failure of the same step, even if
//! objects change in between. Another step of the same volume, such as unmounting, is not delayed.

use std::{collections::HashMap, time::Duration};

use cofferdam_cluster::queue::ExponentialBackoff;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{rules::MountStep, volume_id::VolumeId};

/// Kubelet's back-off of volume operations and plugin registrations; here also that of failed API requests
/// for a Node or a pod. The first eight consecutive conflicts, or writes to objects that another client
/// deleted or created, are retried at once.
pub(super) const BACKOFF: ExponentialBackoff =
    ExponentialBackoff { initial: Duration::from_millis(500), max: Duration::from_secs(122) };

struct FailedStep {
    step: MountStep,
    failures: u32,
    retry_at: Instant,
}

/// The last failed step of each volume. A volume has no entry after one of its steps has succeeded.
#[derive(Default)]
pub(super) struct Retries(Mutex<HashMap<VolumeId, FailedStep>>);

impl Retries {
    /// Remaining back-off of a step; None if the step may be performed now.
    pub(super) fn remaining_delay(&self, id: &VolumeId, step: &MountStep) -> Option<Duration> {
        let all = self.0.lock();
        let failed = all.get(id).filter(|failed| failed.step == *step)?;
        Some(failed.retry_at.saturating_duration_since(Instant::now())).filter(|delay| !delay.is_zero())
    }

    /// Records a failure and returns the back-off.
    pub(super) fn record_failure(&self, id: &VolumeId, step: &MountStep) -> Duration {
        let mut all = self.0.lock();
        let before = all.get(id).filter(|failed| failed.step == *step).map_or(0, |failed| failed.failures);
        let failures = before.saturating_add(1);
        let delay = BACKOFF.delay(failures);
        let failed = FailedStep { step: step.clone(), failures, retry_at: Instant::now() + delay };
        all.insert(id.clone(), failed);
        delay
    }

    /// Resets the back-off of a volume.
    pub(super) fn remove(&self, id: &VolumeId) {
        self.0.lock().remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn backoff_applies_only_to_the_step_that_failed() {
        let (retries, id) = (Retries::default(), VolumeId::Persistent("v".into()));
        let half = Duration::from_millis(500);
        assert_eq!(retries.remaining_delay(&id, &MountStep::Stage), None);
        assert_eq!(retries.record_failure(&id, &MountStep::Stage), half);
        assert_eq!(retries.remaining_delay(&id, &MountStep::Stage), Some(half));
        assert_eq!(retries.remaining_delay(&id, &MountStep::Unstage), None);
        tokio::time::advance(half).await;
        assert_eq!(retries.remaining_delay(&id, &MountStep::Stage), None);
        assert_eq!(retries.record_failure(&id, &MountStep::Stage), 2 * half);
        assert_eq!(retries.record_failure(&id, &MountStep::Unstage), half);
        retries.remove(&id);
        assert_eq!(retries.remaining_delay(&id, &MountStep::Unstage), None);
        assert_eq!(retries.record_failure(&id, &MountStep::Stage), half);
        for _ in 0..20 {
            retries.record_failure(&id, &MountStep::Stage);
        }
        assert_eq!(retries.record_failure(&id, &MountStep::Stage), Duration::from_secs(122));
    }
}
