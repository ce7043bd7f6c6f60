//! The controllers. Each has a folder: `declaration.rs` declares it, `rules.rs` decides over plain data,
//! `reconcile.rs` performs one effect at a time.
//!
//! A rule returns the *next* effect. After the effect the rule decides again, from the cache as it is then.
//! So a process that was killed after any effect, or that raced with another writer, continues from the state
//! in the cluster; there is no other recovery.
//!
//! A new role is a new folder and one line in [`table::CONTROLLERS`].
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
pub mod settings;
pub mod table;
pub mod watches;

mod channels;
mod context;
mod controller;
mod live_reads;
mod restore;
mod volume_locks;

pub use controller::Declaration;
pub use manager::{ControllerManager, ControllerManagerError, Dependencies};
pub use observer::{NoopStepObserver, ReconcileStep, StepObserver, StepResult};
pub use provisioner::placement::NodeDeployment;
pub use role::{Role, UnknownRole};
pub use settings::Settings;
