//! Storage backends behind one trait: the WebAssembly engine, its limits and its capabilities.
//!
//! Roles see [`Backend`] only. A [`WasmBackend`] is a vendor's component: [`Engine::load`] reads it, refuses what it must not
//! import, and asks it who it is; from then on every call is answered by a fresh instance that lives and dies with the call,
//! under the limits of [`Limits`]. Whatever a guest does — trap, loop, hoard, flood, lie — ends as a
//! [`StorageError`](cofferdam_domain::storage::StorageError) of that one call.
//!
//! What another implementation of the trait has to do as this one does stands in [`guard`], [`checks`], [`Redactor`] and
//! [`CallMetrics`].
#![forbid(unsafe_code)]

pub mod backend;
mod bindings;
mod breaker;
mod call;
mod capabilities;
pub mod checks;
mod convert;
mod digest;
mod effort;
mod engine;
mod error;
mod exports;
pub mod guard;
mod inspect;
mod instance;
mod lane;
mod limits;
mod loader;
mod metrics;
mod outcome;
mod slots;
pub mod testing;
mod usage;
mod wasi;
mod wasm;

pub use backend::{Answer, Backend, Call};
pub use capabilities::{
    http::policy::{HttpConfig, OriginConfig},
    pool::PoolConfig,
    secrets::Redactor,
    state::StateConfig,
};
pub use digest::Digest;
pub use engine::{CompiledCache, Engine, EngineOptions};
pub use error::LoadError;
pub use inspect::{Grant, Manifest};
pub use limits::Limits;
pub use loader::{BackendConfig, Inspection, Source};
pub use metrics::{BackendMetrics, CallMetrics, InFlight};
pub use usage::Usage;
pub use wasm::WasmBackend;
