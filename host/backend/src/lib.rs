//! The storage driver port: the [`Backend`] trait, and the parts that every implementation shares.
//!
//! Controllers see [`Backend`] only. Except in tests, implementations are WebAssembly components (crate
//! `cofferdam-wasm`) and existing CSI drivers (crate `cofferdam-csi`). Both supply an [`Exchange`]; a
//! [`CallRunner`] does the rest of each call: deadlines, operations in flight, concurrency limits, redaction,
//! checks of responses, and metrics.
#![forbid(unsafe_code)]

pub mod backend;
mod call;
pub mod checks;
pub mod in_flight;
mod metrics;
mod redactor;
#[cfg(feature = "testing")]
pub mod testing;
mod violation;

pub use backend::{Backend, BackendFuture, Call, unimplemented};
pub use call::{
    CallContext, CallRunner, CallSpec, CallSubject, ConcurrencyLimit, Convert, CreatedObject, Exchange,
    Overloaded, is_deletion_in_doubt,
};
pub use metrics::{BackendMetrics, CallMetrics, InFlightGuard};
pub use redactor::{MAX_DERIVED_SECRETS, REDACTED, Redactor};
pub use violation::ContractViolation;
