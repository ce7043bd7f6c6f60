//! `pv-controller`: binds claims and volumes, maintains their phases, and releases volumes of deleted claims.
//! Replaces kube-controller-manager's PersistentVolumeController.

mod conflict;
mod declaration;
mod metrics;
pub mod reconcile;
pub mod rules;

pub use declaration::ROLE;
pub(crate) use declaration::is_enabled;
