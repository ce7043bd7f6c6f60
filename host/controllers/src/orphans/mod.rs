//! Orphaned volumes: volumes of this cluster that a driver lists, that no object and no intent in the journal
//! refers to, and that have not changed for 24 hours. The process with the driver's provisioner reports them.
//! It deletes one at a time, and only on request. Node-local drivers are not scanned.
//!
//! The report and the request to delete are values of one ConfigMap: a client needs no connection to that
//! process.

pub mod metrics;
pub mod report;
pub mod rules;

mod delete;
mod history;
mod scan;
mod summary;

pub(crate) use scan::{OrphanContext, OrphanScanner};
