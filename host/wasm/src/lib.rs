//! The WebAssembly engine behind the storage driver port: wasmtime, limits, and the capabilities of components.
//!
//! [`Engine::load`] reads a component, refuses imports that are not granted, and asks it to describe itself. The resulting
//! [`WasmBackend`] answers every call with a fresh instance under the limits of [`Limits`]. Whatever a guest does (trap, loop,
//! exhaust memory, return an invalid answer), the result is a [`StorageError`](cofferdam_domain::storage::StorageError) of that
//! one call.
#![forbid(unsafe_code)]

mod backend;
mod bindings;
mod breaker;
mod call;
mod capabilities;
mod convert;
mod digest;
mod effort;
mod engine;
mod error;
mod exports;
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

pub use backend::WasmBackend;
pub use capabilities::{
    http::policy::{HttpConfig, OriginConfig},
    pool::PoolConfig,
    state::StateConfig,
};
pub use digest::Digest;
pub use engine::{CompiledCache, Engine, EngineOptions};
pub use error::LoadError;
pub use inspect::{Grant, Manifest};
pub use limits::Limits;
pub use loader::{BackendConfig, Inspection, Source};
pub use metrics::WasmMetrics;
pub use usage::Usage;
