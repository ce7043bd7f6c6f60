//! Tests of the node plugin on a simulated mounter: results, rejections, and recovery after crashes.
#![expect(clippy::unwrap_used, reason = "tests: a failed step fails the test")]
#![expect(clippy::indexing_slicing, reason = "tests: a missing item fails the test")]
#![expect(clippy::panic, reason = "simulated mounter: a violated invariant fails the test")]

mod calls;
mod concurrency;
mod crashes;
mod fuzz;
mod policy;
mod registrar;
mod requests;
mod sequences;
mod simulated_mounter;
mod support;
