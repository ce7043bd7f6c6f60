//! What the simulated parts do, told as it happens.

use std::time::Duration;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Nothing to do now; the text says what is waited for.
    Waits,
    /// Something was done.
    Acts,
    /// The object is where it shall be.
    Settled,
    /// Something failed; it is tried again.
    Fails,
}

/// One thing that a simulated part did or found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// `scheduler`, `kubelet` or `ephemeral`.
    pub who: &'static str,
    /// What it is about, such as `pod/default/web`.
    pub object: String,
    /// How it ended.
    pub kind: StepKind,
    /// For people: a short clause in the present tense; never holds secret values.
    pub text: String,
    /// How long it took.
    pub took: Option<Duration>,
}

/// Hears of steps; called where they happen, so it must be quick.
pub trait Observer: Send + Sync + 'static {
    /// A step.
    fn step(&self, step: Step);
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn step(&self, _: Step) {}
}
