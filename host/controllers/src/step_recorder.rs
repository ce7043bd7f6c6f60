//! Recording of steps, for the observer of the process and for the log. A step is one effect of a controller,
//! or its decision that no effect is possible or needed.

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{
    ApiError,
    observer::{Step, StepObject, StepObserver, StepResult},
};
use cofferdam_domain::{ClaimKey, Volume, VolumeName};
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
        self.recorder(Some(claim.clone()), None)
    }

    pub(crate) fn of_volume(&self, volume: &Volume) -> StepRecorder {
        let claim = volume.claim_ref.as_ref().map(|r| r.key.clone());
        self.recorder(claim, Some(volume.name.clone()))
    }

    /// A recorder for a VolumeAttachment. `name` is its PersistentVolume; `None` for an inline volume.
    /// `volume` is that PersistentVolume in the cache; `None` if the cache lacks it. The log of the steps
    /// names the PersistentVolume, and the claim in its `claimRef`.
    pub(crate) fn of_attachment(&self, name: Option<&VolumeName>, volume: Option<&Volume>) -> StepRecorder {
        let claim = volume.and_then(|volume| volume.claim_ref.as_ref()).map(|r| r.key.clone());
        self.recorder(claim, name.cloned())
    }

    /// A recorder for an object without a claim and without a volume.
    pub(crate) fn of_role(&self) -> StepRecorder {
        self.recorder(None, None)
    }

    fn recorder(&self, claim: Option<ClaimKey>, volume: Option<VolumeName>) -> StepRecorder {
        StepRecorder { observer: Arc::clone(&self.observer), role: self.role, claim, volume }
    }
}

/// Reports the steps of one object to the observer and to the log. The observer gets the claim as the object,
/// the PersistentVolume if there is no claim, or no object if there is neither.
#[derive(Clone)]
pub(crate) struct StepRecorder {
    observer: Arc<dyn StepObserver>,
    role: Role,
    claim: Option<ClaimKey>,
    volume: Option<VolumeName>,
}

impl StepRecorder {
    pub(crate) fn record(&self, result: StepResult, text: impl Into<String>, took: Option<Duration>) {
        let text = text.into();
        let claim = self.claim.as_ref().map(tracing::field::display);
        let volume = self.volume.as_ref().map(tracing::field::display);
        match result {
            StepResult::Failed => tracing::info!(role = %self.role, claim, volume, "{text}"),
            StepResult::Applied | StepResult::Waiting | StepResult::UpToDate => {
                tracing::debug!(role = %self.role, claim, volume, "{text}");
            }
        }
        let object = match (&self.claim, &self.volume) {
            (Some(claim), _) => StepObject::Claim(claim.clone()),
            (None, Some(volume)) => StepObject::Volume(volume.clone()),
            (None, None) => StepObject::None,
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
