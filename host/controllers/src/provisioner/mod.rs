//! `provisioner`: provisions volumes for claims and deletes released volumes. Replaces external-provisioner.

mod declaration;
mod immediate_binding;
pub mod metrics;
pub mod object;
pub mod parameters;
pub mod placement;
mod reclaim;
pub mod reconcile;
mod release_hints;
pub mod rules;
pub mod topology;

pub use declaration::ROLE;
