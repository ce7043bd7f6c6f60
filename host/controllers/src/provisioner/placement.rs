//! Volumes of node-local drivers in the provisioning rules. The request for such a volume contains the
//! topology segments of the node that is to have the volume. Whether a PersistentVolume is on another node
//! follows from these segments and the PersistentVolume's node affinity.

use cofferdam_cluster::Intent;
use cofferdam_domain::{
    StorageClass, Volume,
    storage::{Segments, TopologyRequirement},
};

use super::topology::{self, DriverRegistration, NodeTopology, TopologyError, TopologyInput};
use crate::node_local::LocalNode;

/// Returns the topology segments of the node of an intent of a node-local driver. `None` if the request has
/// no topology.
pub fn segments_of(intent: &Intent) -> Option<&Segments> {
    intent.request.topology.as_ref().and_then(|topology| topology.requisite.first())
}

/// Returns true if the driver is node-local and the PersistentVolume is on another node than the intent's.
pub fn is_on_other_node(local_node: Option<&LocalNode>, intent: &Intent, volume: &Volume) -> bool {
    local_node.is_some_and(|local_node| local_node.has_driver(&intent.driver))
        && segments_of(intent).is_some_and(|segments| volume.is_inaccessible_from(segments))
}

/// Returns the topology requirement of a node-local driver: `segments`, those of the node of this process.
/// Never `None`.
///
/// # Errors
/// `allowedTopologies` of the class excludes the node, or `segments` is empty.
pub fn requirement(
    local_node: &LocalNode,
    class: &StorageClass,
    segments: &Segments,
) -> Result<Option<TopologyRequirement>, TopologyError> {
    let keys: Vec<String> = segments.keys().cloned().collect();
    let node_topology = NodeTopology {
        node: local_node.node.as_str(),
        registration: DriverRegistration::Registered(&keys),
        labels: Some(segments),
    };
    let input = TopologyInput {
        claim: "",
        allowed: &class.allowed_topologies,
        selected: Some(local_node.node.as_str()),
        strict: true,
        immediate: true,
    };
    topology::requirement(input, &[node_topology])
}
