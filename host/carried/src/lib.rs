//! The components that the program carries, compiled to WebAssembly by this crate's build script.
//!
//! A `cargo build` of the host also builds them, and a change of one rebuilds what embeds it.
#![forbid(unsafe_code)]

/// The memory backend, the default of dev mode.
pub const MEMORY: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_MEMORY"));

/// The pool backend: directories and images of one node.
pub const POOL: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_POOL"));
