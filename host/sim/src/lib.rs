//! Simulation of roles: the real roles over the embedded API and a scripted driver, on paused time.
//!
//! A [`Simulation`] outlives the processes that work in it: a process is killed after any of its effects (a write that the API
//! took, a call that the driver carried out), with the answer lost, and the next one starts on what is there. Time is tokio's
//! paused clock, so that an hour of back-off passes at once and every run of the same scenario takes the same course.
#![forbid(unsafe_code)]

pub mod driver;
pub mod effects;
pub mod objects;
pub mod simulation;

pub use driver::{ArrayVolume, Fault, Listing, ScriptedDriver};
pub use effects::{Effect, Effects};
pub use simulation::{Outcome, Simulation, UserAction};
