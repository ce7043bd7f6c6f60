//! Simulation of Cofferdam's controller roles: their production code with a scripted driver, on the embedded
//! API server in tokio's paused time, or on another [`TestCluster`] in real time.
//!
//! A [`Simulation`] outlives its processes. It can kill a process after any of its effects (a write that the
//! API server accepted, a call that the driver carried out) before the response arrives. It then starts
//! another process on the state that remains. In paused time, an hour of back-off takes no real time, and a
//! scenario always runs in the same order.
#![forbid(unsafe_code)]

mod action;
mod api;
pub mod array_port;
pub mod driver;
pub mod effects;
mod fixture;
mod history;
mod invariants;
pub mod objects;
mod process_api;
mod rbac;
mod remaining_work;
mod scenario;
pub mod scenarios;
mod secret_values;
pub mod simulation;
pub mod test_cluster;

pub use action::{UserAction, WaitFor};
pub use driver::{
    ArraySnapshot, ArrayVolume, DriverFault, ListingBehavior, PublishingBehavior, ResizingBehavior,
    ScriptedDriver, SnapshotBehavior, TopologyBehavior,
};
pub use effects::{ApiFault, Effect, Effects, FaultKind};
pub use process_api::unavailable_response;
pub use remaining_work::{RemainingWork, WorkKind};
pub use scenario::Scenario;
pub use scenarios::{
    always_crashed, deletion_orders, polled_snapshots, polled_snapshots_in_real_time, scenarios,
    skipped_count,
};
pub use secret_values::has_secret_value;
pub use simulation::{FinalState, Simulation, UsedRules};
pub use test_cluster::{ApiTransport, EnvironmentKind, HttpCluster, InProcessCluster, TestCluster, TestUser};
