//! Orphans: what a driver holds and no object stands for. Found and reported by whoever owns the driver,
//! deleted one at a time and only when a person asks.
//!
//! The report is a ConfigMap, and so is the way to ask: whoever can write it needs no way to the process that
//! owns the driver.

pub mod metrics;
pub mod report;
pub mod rules;

mod delete;
pub(crate) mod listing;
mod scan;
mod summary;

pub(crate) use scan::OrphanScanner;
