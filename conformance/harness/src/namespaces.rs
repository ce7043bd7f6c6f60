//! Kubernetes namespaces of Cofferdam's service accounts.

/// Namespace of the service accounts and of Cofferdam's own objects, such as leases.
pub const COFFERDAM: &str = "cofferdam-system";
/// Namespace of the service accounts and of Cofferdam's own objects in the suite `scenarios`, in which claims
/// and pods are in the same namespace as these objects.
pub const SCENARIOS: &str = "default";
