//! Index of Pods.

use std::collections::{BTreeSet, HashMap};

use cofferdam_domain::{ClaimKey, NodeName, Pod, PodKey};

use super::{
    Index, Indexed,
    key_set::{KeySet as _, remove_member},
    small_set::SmallSet,
};

impl Indexed for Pod {
    type Index = PodIndex;
}

/// Pods by claim, and pods with claims by node.
#[derive(Debug, Default)]
pub struct PodIndex {
    pub(crate) by_claim: HashMap<ClaimKey, SmallSet<PodKey>>,
    pub(crate) by_node: HashMap<NodeName, BTreeSet<PodKey>>,
}

impl PodIndex {
    /// Claims of a pod, including those of generic ephemeral volumes.
    pub fn claims_of(pod: &Pod) -> impl Iterator<Item = ClaimKey> + '_ {
        let all = pod.claims.iter().chain(&pod.ephemeral_claims);
        all.map(|name| ClaimKey::new(pod.key.namespace.clone(), name.clone()))
    }

    fn node_index_key(pod: &Pod) -> Option<&NodeName> {
        pod.node.as_ref().filter(|_| !pod.claims.is_empty() || !pod.ephemeral_claims.is_empty())
    }
}

impl Index<Pod> for PodIndex {
    fn insert(&mut self, pod: &Pod) {
        for claim in Self::claims_of(pod) {
            self.by_claim.entry(claim).or_default().insert_member(pod.key.clone());
        }
        if let Some(node) = Self::node_index_key(pod) {
            self.by_node.entry(node.clone()).or_default().insert(pod.key.clone());
        }
    }

    fn remove(&mut self, pod: &Pod) {
        for claim in Self::claims_of(pod) {
            remove_member(&mut self.by_claim, &claim, &pod.key);
        }
        if let Some(node) = Self::node_index_key(pod) {
            remove_member(&mut self.by_node, node, &pod.key);
        }
    }
}
