//! `provisioner`: provisions volumes for claims and deletes released volumes. Replaces external-provisioner.

mod contests;
mod create;
mod declaration;
mod immediate_binding;
mod infeasible;
pub mod metrics;
pub mod object;
pub mod parameters;
pub mod placement;
mod reclaim;
pub mod reconcile;
mod release_hints;
pub mod rules;
mod save;
pub(crate) mod settings;
pub mod topology;
mod undo;

pub use declaration::ROLE;
