//! The storage driver port: the [`Backend`] trait, and the parts that every implementation shares.
//!
//! Controllers see [`Backend`] only. Implementations are WebAssembly components (crate `cofferdam-wasm`) and
//! existing CSI drivers (crate `cofferdam-csi`). Both use [`guard`] for operations in flight, [`checks`] for
//! answers, [`Redactor`] for texts and [`CallMetrics`].
#![forbid(unsafe_code)]

pub mod backend;
pub mod checks;
pub mod in_flight;
mod metrics;
mod redactor;

pub use backend::{Backend, BackendFuture, Call};
pub use metrics::{BackendMetrics, CallMetrics, InFlightGuard};
pub use redactor::Redactor;
