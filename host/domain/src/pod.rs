//! Pod, as far as the storage roles look at it.

use std::sync::Arc;

use crate::ids::{NodeName, ObjectMeta, PodKey};

/// A Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: PodKey,
    /// Metadata without annotations and labels: a cluster has more pods than anything else.
    pub meta: ObjectMeta,
    /// `spec.nodeName`, when not empty.
    pub node: Option<NodeName>,
    /// Phase Failed or Succeeded, or deleting with no container running.
    pub terminated: bool,
    /// Deleting with a grace period of zero: shut down for good.
    pub zero_grace_period: bool,
    /// Names of the claims that it uses directly.
    pub claims: Box<[Arc<str>]>,
    /// Names of the claims of its generic ephemeral volumes (`<pod>-<volume>`).
    pub ephemeral_claims: Box<[Arc<str>]>,
}
