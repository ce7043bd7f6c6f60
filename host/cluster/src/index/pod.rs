//! Index of Pods.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use cofferdam_domain::{ClaimKey, NodeName, Pod};

use super::{
    Index, Indexed,
    key_set::{KeySet as _, remove_member},
    object_table::ByKey,
    secondary_index::{SecondaryIndex, SecondaryKey},
};

impl Indexed for Pod {
    type Index = PodIndex;
}

/// Namespace and name of the claims of a pod, including those of generic ephemeral volumes.
pub(crate) struct PodClaims;

impl PodClaims {
    fn names(pod: &Pod) -> impl Iterator<Item = &Arc<str>> {
        pod.claims.iter().chain(&pod.ephemeral_claims)
    }
}

impl SecondaryKey for PodClaims {
    type Object = Pod;
    type Key<'a> = (&'a str, &'a str);
    /// Position of the claim in [`PodClaims::names`].
    type Position = u32;

    fn positions(pod: &Pod) -> impl Iterator<Item = u32> {
        let is_first =
            |(position, name): (u32, &Arc<str>)| !Self::names(pod).take(position as usize).any(|n| n == name);
        (0..).zip(Self::names(pod)).filter(move |claim| is_first(*claim)).map(|(position, _)| position)
    }

    fn key(pod: &Pod, position: u32) -> Option<(&str, &str)> {
        Some((&pod.key.namespace, Self::names(pod).nth(position as usize)?))
    }
}

/// Pods by claim, and pods with claims by node.
#[derive(Debug, Default)]
pub struct PodIndex {
    pub(crate) by_claim: SecondaryIndex<PodClaims>,
    pub(crate) by_node: HashMap<NodeName, BTreeSet<ByKey<Pod>>>,
}

impl PodIndex {
    /// Claims of a pod, including those of generic ephemeral volumes.
    pub fn claims_of(pod: &Pod) -> impl Iterator<Item = ClaimKey> + '_ {
        PodClaims::names(pod).map(|name| ClaimKey::new(pod.key.namespace.clone(), name.clone()))
    }

    fn node_index_key(pod: &Pod) -> Option<&NodeName> {
        pod.node.as_ref().filter(|_| !pod.claims.is_empty() || !pod.ephemeral_claims.is_empty())
    }
}

impl Index<Pod> for PodIndex {
    fn insert(&mut self, pod: &Arc<Pod>) {
        self.by_claim.insert(pod);
        if let Some(node) = Self::node_index_key(pod) {
            self.by_node.entry(node.clone()).or_default().insert_member(ByKey(Arc::clone(pod)));
        }
    }

    fn remove(&mut self, pod: &Arc<Pod>) {
        self.by_claim.remove(pod);
        if let Some(node) = Self::node_index_key(pod) {
            remove_member(&mut self.by_node, node, &ByKey(Arc::clone(pod)));
        }
    }
}
