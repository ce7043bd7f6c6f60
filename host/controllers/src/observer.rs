//! What the roles do, told as it happens: the source of dev mode's timeline.

use std::time::Duration;

use cofferdam_domain::{ClaimKey, VolumeName};

use crate::role::Role;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepResult {
    /// Nothing to do now; the text says what is waited for.
    Waiting,
    /// An effect was performed.
    Applied,
    /// The object is where it shall be.
    UpToDate,
    /// An effect failed; it is tried again.
    Failed,
}

/// One thing that a role did or found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileStep {
    /// Who.
    pub role: Role,
    /// For which claim, where there is one.
    pub claim: Option<ClaimKey>,
    /// For which volume, where there is one.
    pub volume: Option<VolumeName>,
    /// How it ended.
    pub result: StepResult,
    /// For people: a short clause in the present tense, without the object's name; never holds secret values.
    pub text: String,
    /// How long the effect took.
    pub duration: Option<Duration>,
}

/// Hears of steps; called where they happen, so it must be quick.
pub trait StepObserver: Send + Sync + 'static {
    /// A step.
    fn on_step(&self, step: ReconcileStep);
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoopStepObserver;

impl StepObserver for NoopStepObserver {
    fn on_step(&self, _: ReconcileStep) {}
}
