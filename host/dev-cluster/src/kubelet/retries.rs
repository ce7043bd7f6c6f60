//! Steps that have failed: each is tried again after a pause that doubles, whatever else happens meanwhile.
//! Another step of the same volume, such as the way back, does not wait.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tokio::time::Instant;

use super::{BACKOFF, VolumeId, lock, rules::MountStep};

struct FailedStep {
    step: MountStep,
    failures: u32,
    retry_at: Instant,
}

/// The last failure of each volume.
#[derive(Default)]
pub(super) struct Retries(Mutex<HashMap<VolumeId, FailedStep>>);

impl Retries {
    /// How long a step has to wait yet.
    pub(super) fn remaining_delay(&self, id: &VolumeId, step: &MountStep) -> Option<Duration> {
        let all = lock(&self.0);
        let failed = all.get(id).filter(|failed| failed.step == *step)?;
        Some(failed.retry_at.saturating_duration_since(Instant::now())).filter(|pause| !pause.is_zero())
    }

    /// A step has failed; how long it has to wait.
    pub(super) fn record_failure(&self, id: &VolumeId, step: &MountStep) -> Duration {
        let mut all = lock(&self.0);
        let before = all.get(id).filter(|failed| failed.step == *step).map_or(0, |failed| failed.failures);
        let failures = before.saturating_add(1);
        let pause = BACKOFF.delay(failures);
        let failed = FailedStep { step: step.clone(), failures, retry_at: Instant::now() + pause };
        all.insert(id.clone(), failed);
        pause
    }

    /// A step has succeeded, or none is left.
    pub(super) fn remove(&self, id: &VolumeId) {
        lock(&self.0).remove(id);
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
