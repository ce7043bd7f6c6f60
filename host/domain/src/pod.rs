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
    /// True if the phase is Failed or Succeeded, or if the pod has a deletionTimestamp and no running
    /// container. Init and ephemeral containers count; a container without a state counts as running.
    pub terminated: bool,
    /// True if the pod has a deletionTimestamp and `deletionGracePeriodSeconds` is 0.
    pub zero_grace_period: bool,
    /// Names of the claims of `persistentVolumeClaim` volumes.
    pub claims: Box<[Arc<str>]>,
    /// Names of the claims of generic ephemeral volumes (`<pod>-<volume>`).
    pub ephemeral_claims: Box<[Arc<str>]>,
}
