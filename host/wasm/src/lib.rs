//! Runs storage drivers that are WebAssembly components, with wasmtime. This crate limits each call and
//! implements the imports of the components.
//!
//! [`Engine::load`] reads a component, rejects imports that are not granted, and calls its `describe` and
//! `probe`. The resulting [`WasmBackend`] implements [`Backend`](cofferdam_backend::Backend): it runs every
//! call in a fresh instance under the limits of [`Limits`]. If a guest misbehaves (trap, loop, exhausted
//! memory, invalid response), the result is a [`StorageError`](cofferdam_domain::storage::StorageError) of
//! that one call. After several traps, exits, time-outs, exceeded limits or panics of the host in a row, a
//! circuit breaker rejects the backend's calls for a while.
//!
//! Each layer of modules uses only the layers named before it: bindings and data types (`contract`,
//! `limits`, `failure`, …), `capabilities` (one module for each import), `instance`, `exports` and `call`
//! (one call of a component), `engine` (threads, linker, compiled components), and `backend` with `loader`,
//! which assembles backends.
#![forbid(unsafe_code)]

mod backend;
mod bindings;
mod breaker;
mod call;
mod capabilities;
mod component;
mod contract;
mod convert;
mod cpu_scheduler;
mod cpu_time;
mod digest;
mod engine;
mod error;
mod exports;
mod failure;
pub mod fault_injection;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inspect;
mod instance;
mod instance_pool;
mod limits;
mod loader;
mod metrics;
mod reload;
mod usage;
mod wasi;

pub use backend::WasmBackend;
pub use capabilities::{
    http::config::{HttpConfig, OriginConfig},
    pool::config::PoolConfig,
    state::StateConfig,
};
pub use contract::Grant;
pub use digest::{Digest, ParseDigestError};
pub use engine::{CompiledCache, Engine, EngineOptions};
pub use error::LoadError;
pub use inspect::ComponentInterfaces;
pub use limits::Limits;
pub use loader::{BackendConfig, ComponentInfo, ComponentSource};
pub use metrics::WasmMetrics;
pub use reload::ReloadError;
pub use usage::CallUsage;
