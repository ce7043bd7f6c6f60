//! What the roles do, told as it happens: the source of dev mode's timeline.

use std::time::Duration;

use cofferdam_domain::{ClaimKey, VolumeName};

use crate::role::Role;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// Nothing to do now; the text says what is waited for.
    Waits,
    /// An effect was performed.
    Acts,
    /// The object is where it shall be.
    Settled,
    /// An effect failed; it is tried again.
    Fails,
}

/// One thing that a role did or found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Who.
    pub role: Role,
    /// For which claim, where there is one.
    pub claim: Option<ClaimKey>,
    /// For which volume, where there is one.
    pub volume: Option<VolumeName>,
    /// How it ended.
    pub kind: StepKind,
    /// For people: a short clause in the present tense, without the object's name; never holds secret values.
    pub text: String,
    /// How long the effect took.
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
