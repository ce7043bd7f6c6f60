//! Pod.

use std::sync::Arc;

use crate::ids::{NodeName, ObjectMeta, PodKey};

/// A Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: PodKey,
    /// Metadata without annotations and labels, to save memory: clusters have many pods.
    pub meta: ObjectMeta,
    /// `spec.nodeName`, if not empty.
    pub node: Option<NodeName>,
    /// Phase Failed or Succeeded, or a deletionTimestamp and no running container.
    pub terminated: bool,
    /// A deletionTimestamp and a grace period of zero.
    pub zero_grace_period: bool,
    /// Claims of `persistentVolumeClaim` volumes.
    pub claims: Box<[Arc<str>]>,
    /// Claims of generic ephemeral volumes (`<pod>-<volume>`).
    pub ephemeral_claims: Box<[Arc<str>]>,
}
