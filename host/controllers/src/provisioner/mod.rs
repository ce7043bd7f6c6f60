//! `provisioner`: provisions volumes for claims and deletes released volumes. Replaces external-provisioner.

mod call_backoff;
mod contests;
mod create;
mod create_secret;
mod declaration;
mod immediate_binding;
mod infeasible;
mod journal_waits;
pub mod mending;
pub mod metrics;
pub mod object;
pub mod parameters;
pub mod placement;
mod reclaim;
pub mod reconcile;
mod release_hints;
pub mod rules;
mod save;
pub mod secret_references;
mod secrets;
pub(crate) mod settings;
mod source;
mod source_protection;
mod source_waits;
mod stuck;
pub mod topology;
mod undo;

pub use declaration::ROLE;
