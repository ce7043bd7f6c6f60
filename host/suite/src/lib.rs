//! The driver conformance suite.
//!
//! [`run()`] loads a component, calls it as a cluster does, also with timeouts, crashes and lost responses,
//! and returns a report. Each case tests one rule of the driver contract or of CSI, such as: create is
//! idempotent, a listing is complete, a killed call is completed by repeating it. [`cases()`] lists them.
//! A case is skipped, with a reason, if the driver or the run does not meet its requirements, such as an
//! exported interface, if its rule cannot be tested on this driver, if the component cannot be loaded, or if
//! the storage did not respond to several earlier calls.
//!
//! The driver may use real storage. Nearly all names have the run's prefix, volumes are small and few, and
//! everything created is deleted; the report lists objects that could not be deleted.
#![forbid(unsafe_code)]

mod case;
mod cases;
mod check;
mod context;
mod options;
mod process;
mod progress;
mod report;
mod run;

pub use case::{CaseRequirement, ConformanceCase};
pub use cases::cases;
pub use options::{SuiteOptions, TestNode};
pub use progress::{Progress, RunControl};
pub use report::{CaseOutcome, CaseReport, DriverIdentity, SuiteReport, TextReport};
pub use run::{run, run_with_control};
