//! Namespaces of Cofferdam's service accounts.

/// Namespace of the accounts and of Cofferdam's own objects.
pub const COFFERDAM: &str = "cofferdam-system";
/// Namespace of the accounts and of Cofferdam's own objects in the scenarios, which use one namespace for
/// everything.
pub const SCENARIOS: &str = "default";
