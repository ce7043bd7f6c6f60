//! What the simulated parts do, told as it happens.

use std::time::Duration;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterStepResult {
    /// Nothing to do now; the text says what is waited for.
    Waiting,
    /// Something was done.
    Applied,
    /// The object is where it shall be.
    UpToDate,
    /// Something failed; it is tried again.
    Failed,
}

/// One thing that a simulated part did or found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStep {
    /// `scheduler`, `kubelet` or `ephemeral`.
    pub component: &'static str,
    /// What it is about, such as `pod/default/web`.
    pub object: String,
    /// How it ended.
    pub result: ClusterStepResult,
    /// For people: a short clause in the present tense; never holds secret values.
    pub text: String,
    /// How long it took.
    pub duration: Option<Duration>,
}

/// Hears of steps; called where they happen, so it must be quick.
pub trait ClusterStepObserver: Send + Sync + 'static {
    /// A step.
    fn on_step(&self, step: ClusterStep);
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoopClusterStepObserver;

impl ClusterStepObserver for NoopClusterStepObserver {
    fn on_step(&self, _: ClusterStep) {}
}
