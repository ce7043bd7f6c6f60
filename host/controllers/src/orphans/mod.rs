//! Orphaned volumes: volumes that a driver lists and that no object refers to. The process that owns the
//! driver reports them. It deletes one at a time, and only on request.
//!
//! The report is a ConfigMap, and so is the request to delete: a client needs no connection to the process
//! that owns the driver.

pub mod metrics;
pub mod report;
pub mod rules;

mod delete;
mod history;
mod scan;
mod summary;

pub(crate) use scan::{OrphanContext, OrphanScanner};
