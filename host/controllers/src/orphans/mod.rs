//! Orphaned volumes: volumes that a driver lists and that no object refers to. The process with the driver's
//! provisioner reports them. It deletes one at a time, and only on request.
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
