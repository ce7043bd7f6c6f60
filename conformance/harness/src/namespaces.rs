//! Namespaces of Cofferdam's service accounts.

/// Namespace of the service accounts and of Cofferdam's own objects, such as leases.
pub const COFFERDAM: &str = "cofferdam-system";
/// The same for the suite `scenarios`, which uses one namespace for everything.
pub const SCENARIOS: &str = "default";
