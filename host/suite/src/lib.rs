//! The conformance suite: what a vendor runs before anybody trusts a driver with data.
//!
//! [`run()`] loads a component, calls it as a cluster would, and as a bad day would, and returns a
//! [`Report`]. Each case is one rule of the contract ([`cases()`] lists them): create is idempotent, a
//! listing is complete, a call that died in the middle is healed by the same call. A case asks for nothing
//! that a driver does not export; it is skipped then, and the report says why.
//!
//! The driver may be real storage. Names carry a prefix of the run, sizes are small, few volumes exist at a
//! time, and everything that was made is deleted; what is left all the same is named in the report.
#![forbid(unsafe_code)]

mod case;
mod cases;
mod check;
mod context;
mod options;
mod process;
mod report;
mod run;

pub use case::{CaseRequirement, ConformanceCase};
pub use cases::cases;
pub use options::SuiteOptions;
pub use report::{CaseOutcome, CaseReport, SuiteReport};
pub use run::run;
