//! The node over a machine in memory: what it does, what it refuses, and what is left when it dies.
#![expect(clippy::unwrap_used, reason = "tests: a failed step is the failure of the test")]
#![expect(clippy::indexing_slicing, reason = "tests: what is not there is the failure of the test")]
#![expect(clippy::panic, reason = "the model: a broken rule is the failure of the test")]

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
