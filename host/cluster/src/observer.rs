//! Observation of steps: the source of the timeline of `cofferdam dev`. A step is one effect of a controller
//! or of a Kubernetes component that `cofferdam dev` simulates, or its decision that no effect is possible or
//! needed.

use std::{fmt, time::Duration};

use cofferdam_domain::{ClaimKey, VolumeName, VolumeSnapshotKey};

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepResult {
    /// The object waits for the condition that [`Step::text`] names.
    Waiting,
    /// An effect was performed.
    Applied,
    /// No effect is needed.
    UpToDate,
    /// An effect failed, or an error makes it impossible. [`Step::text`] has the reason.
    Failed,
}

/// The object of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepObject {
    /// A claim, or an object that belongs to it.
    Claim(ClaimKey),
    /// A PersistentVolume without a claim, or an object that belongs to it.
    Volume(VolumeName),
    /// A VolumeSnapshot, or its content.
    Snapshot(VolumeSnapshotKey),
    /// The object of a step of a simulated Kubernetes component, such as `pod/default/web`.
    Other(String),
    /// No object.
    None,
}

impl fmt::Display for StepObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(claim) => claim.fmt(f),
            Self::Volume(volume) => write!(f, "pv/{volume}"),
            Self::Snapshot(snapshot) => write!(f, "vs/{snapshot}"),
            Self::Other(object) => f.write_str(object),
            Self::None => Ok(()),
        }
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Name of the controller as in `--role`, such as `provisioner`, or of the simulated Kubernetes
    /// component: `scheduler`, `kubelet` or `ephemeral` (the controller of generic ephemeral volumes).
    pub component: &'static str,
    /// The object.
    pub object: StepObject,
    /// The result.
    pub result: StepResult,
    /// A short clause in the present tense, without the object's name. It never contains secret values.
    pub text: String,
    /// Duration of the effect; `None` if the step has no effect or was not measured.
    pub duration: Option<Duration>,
}

/// Receives steps. It is called in the task that performs the step and must not block.
pub trait StepObserver: Send + Sync + 'static {
    /// Receives a step.
    fn on_step(&self, step: Step);
}

/// Ignores every step.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoopStepObserver;

impl StepObserver for NoopStepObserver {
    fn on_step(&self, _: Step) {}
}
