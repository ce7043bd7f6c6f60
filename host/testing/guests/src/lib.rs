//! Components for tests, compiled to WebAssembly by this crate's build script.
#![forbid(unsafe_code)]

/// A guest that misbehaves, such as by a trap, an endless loop or an invalid response. The settings
/// `on-describe` and `on-probe`, and names, handles, parameters and page tokens in requests select the
/// misbehavior. Other settings are parts of its description and a text that it puts into responses and logs.
pub const HOSTILE: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_HOSTILE"));

/// A guest that uses the imports `http`, `session`, `secrets`, `reveal`, `sign` and `deadline`. The parameter
/// `script` of CreateVolume lists the steps.
pub const NET: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_NET"));

/// A guest whose CreateVolume performs one operation on its pool, which the request's parameters select.
pub const POOL_TRICKS: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_POOL_TRICKS"));

/// A driver with every ability. It breaks the rule of the contract that its setting `broken-rule` names, and
/// none without the setting.
pub const BROKEN: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_BROKEN"));

/// The driver that `cofferdam backend new` creates.
pub const STARTER: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_STARTER"));

/// The example driver for an array with an HTTP API.
pub const ARRAY: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_ARRAY"));

/// The example driver for AWS EBS.
pub const AWS_EBS: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_AWS_EBS"));

/// The driver for Ceph.
pub const CEPH: &[u8] = include_bytes!(env!("COFFERDAM_GUEST_CEPH"));
