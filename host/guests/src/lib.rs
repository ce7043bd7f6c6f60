//! The guests of this repository, compiled to WebAssembly by this crate's build script, as bytes.
//!
//! One `cargo build` of the host therefore builds the guests too, and a change of a guest rebuilds what embeds it.
#![forbid(unsafe_code)]

/// The memory backend, the default of dev mode.
pub const MEMORY: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_MEMORY"));

/// The pool backend: storage of one node.
pub const POOL: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_POOL"));

/// A backend that does with its pool what the parameters of a volume say.
#[cfg(feature = "hostile")]
pub const POOL_TRICKS: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_POOL_TRICKS"));

/// A backend that traps, loops, hoards and floods on demand: which, its setting `on-describe`, `on-probe` or the name of
/// the volume says.
#[cfg(feature = "hostile")]
pub const HOSTILE: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_HOSTILE"));

/// A backend that uses the imports `http`, `session` and `secrets` as the parameter `script` of a creation tells it.
#[cfg(feature = "net")]
pub const NET: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_NET"));

/// A driver that can do everything and breaks one rule of the contract: which, its setting `break` says.
#[cfg(feature = "broken")]
pub const BROKEN: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_BROKEN"));

/// The driver that `cofferdam backend new` begins with.
#[cfg(feature = "examples")]
pub const STARTER: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_STARTER"));

/// The driver of the fake array.
#[cfg(feature = "examples")]
pub const ARRAY: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_ARRAY"));
