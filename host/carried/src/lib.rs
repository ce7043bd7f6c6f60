//! The built-in driver components, compiled to WebAssembly by this crate's build script.
//!
//! A `cargo build` of the host builds them too. A change of a driver, of the SDK, of the contract, or of the
//! workspace's `Cargo.toml` or `Cargo.lock` rebuilds this crate and its dependents.
#![forbid(unsafe_code)]

/// The memory driver: the reference implementation of the contract between host and drivers, and the default
/// driver of dev mode. Its volumes are records without data; for a volume with a filesystem, the node mounts
/// an empty tmpfs of the volume's size. Raw block volumes have no device on the node.
pub const MEMORY: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_MEMORY"));

/// The pool driver: directories and images on one node.
pub const POOL: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_POOL"));
