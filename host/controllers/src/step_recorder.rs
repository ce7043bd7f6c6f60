//! Recording of steps, for the observer of the process and for the log. A step is one effect of a controller,
//! or its decision that no effect is possible or needed.

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{
    ApiError,
    observer::{Step, StepObject, StepObserver, StepResult},
};
use cofferdam_domain::{ClaimKey, Volume, VolumeName, VolumeSnapshotKey};
use tokio::time::Instant;

use crate::role::Role;

/// Creates the step recorders of one role.
#[derive(Clone)]
pub(crate) struct StepRecorders {
    observer: Arc<dyn StepObserver>,
    role: Role,
}

impl StepRecorders {
    pub(crate) fn new(observer: Arc<dyn StepObserver>, role: Role) -> Self {
        Self { observer, role }
    }

    pub(crate) fn of_claim(&self, claim: &ClaimKey) -> StepRecorder {
        StepRecorder { claim: Some(claim.clone()), ..self.of_role() }
    }

    pub(crate) fn of_volume(&self, volume: &Volume) -> StepRecorder {
        self.of_attachment(Some(&volume.name), Some(volume))
    }

    /// A recorder for a VolumeAttachment. `name` is its PersistentVolume; `None` for an inline volume.
    /// `volume` is that PersistentVolume in the cache; `None` if the cache lacks it. The log of the steps
    /// names the PersistentVolume, and the claim in its `claimRef`.
    pub(crate) fn of_attachment(&self, name: Option<&VolumeName>, volume: Option<&Volume>) -> StepRecorder {
        let claim = volume.and_then(|volume| volume.claim_ref.as_ref()).map(|r| r.key.clone());
        StepRecorder { claim, volume: name.cloned(), ..self.of_role() }
    }

    /// A recorder for a VolumeSnapshot, or for its content.
    pub(crate) fn of_snapshot(&self, snapshot: &VolumeSnapshotKey) -> StepRecorder {
        StepRecorder { snapshot: Some(snapshot.clone()), ..self.of_role() }
    }

    /// A recorder for another object.
    pub(crate) fn of_role(&self) -> StepRecorder {
        let (observer, role) = (Arc::clone(&self.observer), self.role);
        StepRecorder { observer, role, claim: None, volume: None, snapshot: None }
    }
}

/// Reports the steps of one object to the observer and to the log. The observer gets the claim as the object,
/// the PersistentVolume if there is no claim, the VolumeSnapshot if there is neither, or no object.
#[derive(Clone)]
pub(crate) struct StepRecorder {
    observer: Arc<dyn StepObserver>,
    role: Role,
    claim: Option<ClaimKey>,
    volume: Option<VolumeName>,
    snapshot: Option<VolumeSnapshotKey>,
}

impl StepRecorder {
    pub(crate) fn record(&self, result: StepResult, text: impl Into<String>, took: Option<Duration>) {
        let text = text.into();
        let claim = self.claim.as_ref().map(tracing::field::display);
        let volume = self.volume.as_ref().map(tracing::field::display);
        let snapshot = self.snapshot.as_ref().map(tracing::field::display);
        match result {
            StepResult::Failed => tracing::info!(role = %self.role, claim, volume, snapshot, "{text}"),
            StepResult::Applied | StepResult::Waiting | StepResult::UpToDate => {
                tracing::debug!(role = %self.role, claim, volume, snapshot, "{text}");
            }
        }
        let object = match (&self.claim, &self.volume, &self.snapshot) {
            (Some(claim), ..) => StepObject::Claim(claim.clone()),
            (None, Some(volume), _) => StepObject::Volume(volume.clone()),
            (None, None, Some(snapshot)) => StepObject::Snapshot(snapshot.clone()),
            (None, None, None) => StepObject::None,
        };
        self.observer.on_step(Step { component: self.role.as_str(), object, result, text, duration: took });
    }

    /// Performs one effect and records its result; `text` names the effect in the present tense. A conflict
    /// is not recorded, because the controller decides again.
    pub(crate) async fn record_effect<T>(
        &self,
        text: &str,
        effect: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let started = Instant::now();
        let result = effect.await;
        match &result {
            Ok(_) => self.record(StepResult::Applied, text, Some(started.elapsed())),
            Err(ApiError::Conflict(_)) => {}
            Err(error) => {
                self.record(StepResult::Failed, format!("{text}: {error}"), Some(started.elapsed()))
            }
        }
        result
    }
}
