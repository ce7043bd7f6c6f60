//! Simulation of roles: the real roles over a scripted driver, and over the embedded API on paused time or any other [`Ground`].
//!
//! A [`Simulation`] outlives the processes that work in it: a process is killed after any of its effects (a write that the API
//! took, a call that the driver carried out), with the answer lost, and the next one starts on what is there. Time is tokio's
//! paused clock, so that an hour of back-off passes at once and every run of the same scenario takes the same course.
#![forbid(unsafe_code)]

pub mod driver;
pub mod effects;
pub mod ground;
mod judge;
pub mod objects;
pub mod scenarios;
pub mod simulation;
mod world;

pub use driver::{ArrayVolume, Fault, Listing, Places, Publishing, Resizing, ScriptedDriver};
pub use effects::{ApiFault, Effect, Effects, Mishap};
pub use ground::{Api, Ground, InProcess, OverHttp, Place, Who};
pub use scenarios::{Scenario, scenarios, unplayed};
pub use simulation::{Outcome, Sign, Simulation, UsedRules, UserAction};
