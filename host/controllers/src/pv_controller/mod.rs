//! `pv-controller`: binds claims and volumes, keeps their phases, releases what lost its claim. Takes the
//! place of kube-controller-manager's PersistentVolumeController.

pub mod reconcile;
pub mod rules;
