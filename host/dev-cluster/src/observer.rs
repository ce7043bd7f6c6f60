//! Observer of the simulated components: the source of dev mode's timeline.

use std::time::Duration;

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterStepResult {
    /// The component waits for the condition in the text.
    Waiting,
    /// An effect was performed.
    Applied,
    /// The object is in its desired state.
    UpToDate,
    /// An effect failed and will be retried.
    Failed,
}

/// One action or finding of a simulated component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStep {
    /// The component: `scheduler`, `kubelet` or `ephemeral`.
    pub component: &'static str,
    /// The object, such as `pod/default/web`.
    pub object: String,
    /// The result.
    pub result: ClusterStepResult,
    /// A short clause in the present tense, for display; never contains secret values.
    pub text: String,
    /// Duration of the effect.
    pub duration: Option<Duration>,
}

/// Receives steps. Called synchronously, so it must return quickly.
pub trait ClusterStepObserver: Send + Sync + 'static {
    /// Handles a step.
    fn on_step(&self, step: ClusterStep);
}

/// Ignores all steps.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoopClusterStepObserver;

impl ClusterStepObserver for NoopClusterStepObserver {
    fn on_step(&self, _: ClusterStep) {}
}
