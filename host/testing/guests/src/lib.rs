//! Components for tests, compiled to WebAssembly by this crate's build script.
#![forbid(unsafe_code)]

/// A guest that traps, loops, or exhausts memory or output. Its setting `on-describe`, `on-probe` or the
/// volume's name selects which.
pub const HOSTILE: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_HOSTILE"));

/// A guest that uses the imports `http`, `session` and `secrets` as the parameter `script` of CreateVolume
/// says.
pub const NET: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_NET"));

/// A guest that uses its pool as the parameters of a volume say.
pub const POOL_TRICKS: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_POOL_TRICKS"));

/// A driver with every ability that breaks one rule of the contract. Its setting `break` names the rule.
pub const BROKEN: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_BROKEN"));

/// The driver that `cofferdam backend new` creates.
pub const STARTER: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_STARTER"));

/// The example driver for an array with an HTTP API.
pub const ARRAY: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_ARRAY"));
