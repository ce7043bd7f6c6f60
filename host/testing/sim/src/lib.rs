//! Simulation of roles: the real roles over a scripted driver, and over the embedded API on paused time or
//! any other [`Ground`].
//!
//! A [`Simulation`] outlives the processes that work in it: a process is killed after any of its effects (a
//! write that the API took, a call that the driver carried out), with the answer lost, and the next one
//! starts on what is there. Time is tokio's paused clock, so that an hour of back-off passes at once and
//! every run of the same scenario takes the same course.
#![forbid(unsafe_code)]

pub mod driver;
pub mod effects;
mod fixture;
mod invariants;
pub mod objects;
pub mod scenarios;
pub mod simulation;
pub mod test_cluster;

pub use driver::{
    ArrayVolume, DriverFault, ListingBehavior, PublishingBehavior, ResizingBehavior, ScriptedDriver,
    TopologyBehavior,
};
pub use effects::{ApiFault, Effect, Effects, FaultKind};
pub use scenarios::{Scenario, scenarios, skipped_count};
pub use simulation::{FinalState, Simulation, UsedRules, UserAction, WaitFor};
pub use test_cluster::{ApiTransport, EnvironmentKind, HttpCluster, InProcessCluster, TestCluster, TestUser};
