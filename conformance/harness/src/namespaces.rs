//! Namespaces of Cofferdam's service accounts.

/// Namespace of the service accounts and of Cofferdam's own objects, such as leases.
pub const COFFERDAM: &str = "cofferdam-system";
/// Namespace of the accounts and of Cofferdam's own objects in the scenarios, which use one namespace for
/// everything.
pub const SCENARIOS: &str = "default";
