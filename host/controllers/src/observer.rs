//! Observation of reconcile steps: the source of the timeline of `cofferdam dev`.

use std::time::Duration;

use cofferdam_domain::{ClaimKey, VolumeName};

use crate::role::Role;

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepResult {
    /// The object waits for the condition in the text.
    Waiting,
    /// An effect was performed.
    Applied,
    /// The object is in its desired state.
    UpToDate,
    /// An effect failed and is retried.
    Failed,
}

/// One step of a reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileStep {
    /// The role of the controller.
    pub role: Role,
    /// The claim of the object, if it has one.
    pub claim: Option<ClaimKey>,
    /// The PersistentVolume of the object, if it has one.
    pub volume: Option<VolumeName>,
    /// The result.
    pub result: StepResult,
    /// A short clause in the present tense, without the object's name. It never contains secret values.
    pub text: String,
    /// Duration of the effect.
    pub duration: Option<Duration>,
}

/// Receives reconcile steps. It runs in the reconciling task and must not block.
pub trait StepObserver: Send + Sync + 'static {
    /// Receives a step.
    fn on_step(&self, step: ReconcileStep);
}

/// Ignores every step.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoopStepObserver;

impl StepObserver for NoopStepObserver {
    fn on_step(&self, _: ReconcileStep) {}
}
