//! Steps that have failed: each is tried again after a pause that doubles, whatever else happens meanwhile. Another step of the same
//! volume, such as the way back, does not wait.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tokio::time::Instant;

use super::{BACKOFF, VolumeId, lock, rules::Step};

struct Failed {
    step: Step,
    failures: u32,
    again: Instant,
}

/// The last failure of each volume.
#[derive(Default)]
pub(super) struct Retries(Mutex<HashMap<VolumeId, Failed>>);

impl Retries {
    /// How long a step has to wait yet.
    pub(super) fn pause(&self, id: &VolumeId, step: &Step) -> Option<Duration> {
        let all = lock(&self.0);
        let failed = all.get(id).filter(|failed| failed.step == *step)?;
        Some(failed.again.saturating_duration_since(Instant::now())).filter(|pause| !pause.is_zero())
    }

    /// A step has failed; how long it has to wait.
    pub(super) fn failed(&self, id: &VolumeId, step: &Step) -> Duration {
        let mut all = lock(&self.0);
        let before = all.get(id).filter(|failed| failed.step == *step).map_or(0, |failed| failed.failures);
        let failures = before.saturating_add(1);
        let pause = BACKOFF.pause(failures);
        let failed = Failed { step: step.clone(), failures, again: Instant::now() + pause };
        all.insert(id.clone(), failed);
        pause
    }

    /// A step has succeeded, or none is left.
    pub(super) fn forget(&self, id: &VolumeId) {
        lock(&self.0).remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_same_step_waits_and_another_one_does_not() {
        let (retries, id) = (Retries::default(), VolumeId::Persistent("v".into()));
        let half = Duration::from_millis(500);
        assert_eq!(retries.pause(&id, &Step::Stage), None);
        assert_eq!(retries.failed(&id, &Step::Stage), half);
        assert_eq!(retries.pause(&id, &Step::Stage), Some(half));
        assert_eq!(retries.pause(&id, &Step::Unstage), None);
        tokio::time::advance(half).await;
        assert_eq!(retries.pause(&id, &Step::Stage), None);
        assert_eq!(retries.failed(&id, &Step::Stage), 2 * half);
        assert_eq!(retries.failed(&id, &Step::Unstage), half);
        retries.forget(&id);
        assert_eq!(retries.pause(&id, &Step::Unstage), None);
        assert_eq!(retries.failed(&id, &Step::Stage), half);
        for _ in 0..20 {
            retries.failed(&id, &Step::Stage);
        }
        assert_eq!(retries.failed(&id, &Step::Stage), Duration::from_secs(122));
    }
}
