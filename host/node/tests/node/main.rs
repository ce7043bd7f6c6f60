//! Tests of the node plugin on a fake host: results, rejections, and recovery after crashes.
#![expect(clippy::unwrap_used, reason = "tests: a failed step fails the test")]
#![expect(clippy::indexing_slicing, reason = "tests: a missing item fails the test")]

mod calls;
mod concurrency;
mod crashes;
mod fault_injection;
mod fuzz;
mod policy;
mod registrar;
mod requests;
mod sequences;
mod support;
