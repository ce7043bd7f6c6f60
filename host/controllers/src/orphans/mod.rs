//! Orphaned volumes: volumes that a driver lists and that were created for this cluster with the reclaim
//! policy Delete, that no object and no intent in the journal refers to, and that have not changed for 24
//! hours. An intent is the provisioner's durable record of a `CreateVolume` request that may not have led to
//! a PersistentVolume yet. The process with the driver's provisioner reports the orphaned volumes. It deletes
//! one volume of a driver at a time, and only on request. Node-local drivers are not scanned.
//!
//! The report of a driver, the request to delete and its response are values of one ConfigMap: a client needs
//! no connection to that process.

pub mod metrics;
pub mod report;
pub mod rules;

mod delete;
mod history;
mod scan;
mod summary;

pub(crate) use scan::{OrphanContext, OrphanScanner};
