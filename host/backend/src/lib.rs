//! Storage backends behind one trait: the WebAssembly engine, its limits and its capabilities.
#![forbid(unsafe_code)]

pub mod backend;

pub use backend::{Backend, Call};
