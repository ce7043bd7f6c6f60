//! The roles. Each has a folder: `rules.rs` decides over plain data, `reconcile.rs` performs one effect at a
//! time.
//!
//! A rule returns the *next* effect, not a list of them: after it the view is taken anew and the rule asked
//! again. So a process that dies after any effect, or finds the world changed, goes on from what is there;
//! there is no other recovery.
#![forbid(unsafe_code)]

pub mod attach_detach;
pub mod attacher;
pub mod event_spec;
pub mod manager;
pub mod observer;
pub mod orphans;
pub mod protection;
pub mod provisioner;
pub mod pv_controller;
pub mod rbac;
pub mod resizer;
pub mod role;

mod context;
mod live_reads;
mod release_hints;
mod volume_locks;

pub use manager::{ControllerManager, ControllerManagerError, Dependencies, Settings};
pub use observer::{NoopStepObserver, ReconcileStep, StepObserver, StepResult};
pub use provisioner::placement::NodeDeployment;
pub use role::{Role, UnknownRole};
