//! `provisioner`: claims to volumes, and released volumes to nothing. Takes the place of
//! external-provisioner.

mod immediate_binding;
pub mod metrics;
pub mod object;
pub mod parameters;
pub mod placement;
mod reclaim;
pub mod reconcile;
pub mod rules;
pub mod topology;
