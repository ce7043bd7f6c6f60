//! Orphans: volumes and snapshots that a driver lists and that were created for this cluster with the policy
//! Delete, that no object and no intent in the journal refers to, and that have not changed for 24 hours. An
//! intent is the provisioner's durable record of a `CreateVolume` request that may not have led to a
//! PersistentVolume yet. The process with the driver's provisioner reports the orphaned volumes, and the
//! process with its snapshotter the orphaned snapshots. Each deletes one of a driver at a time, and only on
//! request. Node-local drivers are not scanned.
//!
//! A report, the request to delete and its response are values of one ConfigMap for each driver and kind: a
//! client needs no connection to that process.

pub mod metrics;
pub mod report;
pub mod resource;
pub mod rules;

mod context;
mod delete;
mod history;
mod reads;
mod scan;
mod summary;

pub(crate) use context::OrphanContext;
pub(crate) use scan::OrphanScanner;
