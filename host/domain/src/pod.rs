//! Pod, as far as the storage roles look at it.

use crate::ids::{ObjectMeta, PodKey};

/// A Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: PodKey,
    /// Metadata.
    pub meta: ObjectMeta,
    /// Whether `spec.nodeName` is set.
    pub scheduled: bool,
    /// Phase Failed or Succeeded, or deleting with no container running.
    pub terminated: bool,
    /// Deleting with a grace period of zero: shut down for good.
    pub shut_down: bool,
    /// Names of the claims that it uses directly.
    pub claims: Vec<Box<str>>,
    /// Names of the claims of its generic ephemeral volumes (`<pod>-<volume>`).
    pub ephemeral_claims: Vec<Box<str>>,
}
