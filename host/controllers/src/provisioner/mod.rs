//! `provisioner`: claims to volumes, and released volumes to nothing. Takes the place of external-provisioner.

pub mod metrics;
pub mod object;
pub mod parameters;
pub mod placement;
mod race;
mod reclaim;
pub mod reconcile;
pub mod rules;
pub mod topology;
