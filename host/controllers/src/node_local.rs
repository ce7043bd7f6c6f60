//! Node-local drivers: external-provisioner's "node deployment". Each node runs its own process, which
//! creates and deletes only the volumes of its node. There is no leader: each process that competes for a
//! claim writes its own node to the claim's annotation `selected-node`, and only the first write succeeds.

use std::{collections::BTreeMap, time::Duration};

use cofferdam_backend::Backend;
use cofferdam_cluster::{ApiError, Cache, Writer, objects::DecodeResult, reflector::Scope};
use cofferdam_domain::{
    DriverName, Node, NodeName, Volume, VolumeName, VolumeSnapshotContent, names,
    storage::{Placement, Segments},
};

/// Options of node-local drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDeployment {
    /// The node of this process (`--node-name`).
    pub node: NodeName,
    /// All drivers of the process are node-local, whether they declare it or not (`--node-deployment`).
    pub every_driver: bool,
    /// True if this process competes with those of other nodes for claims of binding mode Immediate without a
    /// selected node (`--node-deployment-immediate-binding`).
    pub immediate_binding: bool,
    /// Maximum delay before this process's first attempt to select its node for a claim
    /// (`--node-deployment-base-delay`).
    pub base_delay: Duration,
    /// Maximum delay before a later attempt to select the node for the same claim. The delay doubles with
    /// each attempt, up to this limit (`--node-deployment-max-delay`).
    pub max_delay: Duration,
}

impl NodeDeployment {
    /// Returns the defaults of external-provisioner.
    pub const fn new(node: NodeName) -> Self {
        Self {
            node,
            every_driver: false,
            immediate_binding: true,
            base_delay: Duration::from_secs(20),
            max_delay: Duration::from_secs(60),
        }
    }

    /// Returns true if the driver is node-local.
    pub fn is_node_local(&self, backend: &dyn Backend) -> bool {
        self.every_driver || backend.description().placement == Placement::Node
    }
}

/// Missing topology information of this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentsError {
    /// The driver declares no topology keys, and the CSINode has none for it, is missing from the cache, or
    /// cannot be decoded.
    #[error("no topology key found on CSINode {0}")]
    NoKeys(NodeName),
    /// The Node lacks the label of a topology key, is missing from the cache, or cannot be decoded.
    #[error("node {node} has no label {key}")]
    NoLabel {
        /// The node.
        node: NodeName,
        /// The topology key.
        key: String,
    },
}

/// The reason why this process does not change a volume whose node affinity matches its node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OnlyNodeError {
    /// Another node may have the volume. A driver that does not have a volume reports it as deleted.
    #[error(
        "the node affinity of PersistentVolume {volume} matches node {other} as well as node {node}; expected a \
         topology key of the driver whose value is unique to each node"
    )]
    Other {
        /// The PersistentVolume.
        volume: VolumeName,
        /// The node of this process.
        node: NodeName,
        /// The other node.
        other: NodeName,
    },
    /// The topology segments of this node are not known.
    #[error(transparent)]
    Segments(#[from] SegmentsError),
    /// The Nodes cannot be read.
    #[error(transparent)]
    Read(#[from] ApiError),
}

/// The node of this process, and its node-local drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalNode {
    /// The node.
    pub node: NodeName,
    /// The node-local drivers, with the topology keys that each declares. The keys of a driver that declares
    /// none are read from the CSINode.
    pub drivers: BTreeMap<DriverName, Vec<String>>,
    /// True if this process competes for claims without a selected node (see
    /// [`NodeDeployment::immediate_binding`]).
    pub immediate_binding: bool,
}

impl LocalNode {
    /// Returns true if the driver is node-local.
    pub fn has_driver(&self, driver: &DriverName) -> bool {
        self.drivers.contains_key(driver)
    }

    /// Returns true if topology keys have to be read from the CSINode.
    pub fn needs_keys(&self) -> bool {
        self.drivers.values().any(Vec::is_empty)
    }

    /// Returns true if topology values may have to be read from the Node's labels: a driver declares another
    /// key than `topology.cofferdam.dev/node`, or its keys are read from the CSINode.
    pub fn needs_labels(&self) -> bool {
        let is_by_name =
            |keys: &Vec<String>| !keys.is_empty() && keys.iter().all(|key| *key == names::NODE_TOPOLOGY_KEY);
        !self.drivers.values().all(is_by_name)
    }

    /// Returns the topology segments of this node for a driver. The value of the key
    /// `topology.cofferdam.dev/node` is the node's name; the value of any other key is the Node's label.
    ///
    /// # Errors
    /// The driver has no topology keys, or the Node lacks a label.
    pub fn segments(&self, driver: &DriverName, cache: &Cache) -> Result<Segments, SegmentsError> {
        let node = &self.node;
        let declared = self.drivers.get(driver).filter(|keys| !keys.is_empty()).cloned();
        let registered = || cache.csi_nodes.get(node).into_object()?.topology_keys.get(driver).cloned();
        let keys = declared.or_else(registered).filter(|keys| !keys.is_empty());
        let keys = keys.ok_or_else(|| SegmentsError::NoKeys(node.clone()))?;
        let labels = cache.nodes.get(node).into_object().map(|node| node.labels.clone()).unwrap_or_default();
        let value = |key: String| match key == names::NODE_TOPOLOGY_KEY {
            true => Ok((key, node.to_string())),
            false => match labels.get(&key) {
                Some(value) => Ok((key, value.clone())),
                None => Err(SegmentsError::NoLabel { node: node.clone(), key }),
            },
        };
        keys.into_iter().map(value).collect()
    }

    /// Returns true if the volume is accessible only from nodes with the segments of this node. This process
    /// then manages the volume's finalizer and deletes the volume, if the driver is node-local. A node-local
    /// driver's volume with a wider node affinity or none is managed by no process:
    /// on a node that does not have the volume, the driver would report it as deleted.
    ///
    /// Only this node is considered. `check_only_node` also considers the other nodes,
    /// before a call to the driver.
    pub fn has_volume(&self, volume: &Volume, cache: &Cache) -> bool {
        let Some(csi) = &volume.csi else { return false };
        self.segments(&csi.driver, cache).is_ok_and(|segments| volume.is_only_accessible_from(&segments))
    }

    /// Returns true if this process takes and deletes the snapshot of a content of a node-local driver.
    pub(crate) fn manages(&self, content: &VolumeSnapshotContent) -> bool {
        content.managing_node() == Some(self.node.as_str())
    }

    /// Checks that no other node has the volume, as it may with a topology key that names a zone: the labels
    /// of another node must not match the volume's node affinity. The Nodes are read live, because this
    /// process watches no Node but its own. Nothing is read if the driver has the key
    /// `topology.cofferdam.dev/node`, whose value is unique to the node.
    ///
    /// # Errors
    /// Another node may have the volume, the segments of this node are not known, or the Nodes cannot be
    /// read.
    pub(crate) async fn check_only_node(
        &self,
        volume: &Volume,
        writer: &Writer,
    ) -> Result<(), OnlyNodeError> {
        let Some(csi) = &volume.csi else { return Ok(()) };
        let segments = self.segments(&csi.driver, writer.cache())?;
        if segments.contains_key(names::NODE_TOPOLOGY_KEY) {
            return Ok(());
        }
        let labels = segments.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let candidates = candidate_nodes(volume, label_selector(labels), writer).await?;
        match candidates.into_iter().find(|name| *name != self.node) {
            None => Ok(()),
            Some(other) => {
                Err(OnlyNodeError::Other { volume: volume.name.clone(), node: self.node.clone(), other })
            }
        }
    }
}

/// A selector of the objects with these labels.
pub(crate) fn label_selector<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    labels.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// Reads the selected Nodes from the API server, and returns the names of those that may have the volume. A
/// Node that cannot be decoded may have it.
///
/// # Errors
/// The Nodes cannot be read.
pub(crate) async fn candidate_nodes(
    volume: &Volume,
    selector: String,
    writer: &Writer,
) -> Result<Vec<NodeName>, ApiError> {
    let scope = Scope { label_selector: Some(selector), ..Scope::default() };
    let is_candidate =
        |node: &DecodeResult<Node>| node.as_ref().map_or(true, |node| matches_affinity(volume, node));
    let nodes = writer.read_scope(&scope, is_candidate).await?.into_iter();
    Ok(nodes.map(|node| node.map_or_else(|undecodable| undecodable.key, |node| node.name)).collect())
}

/// Returns true if a node may have the volume, by the terms of the volume's node affinity.
fn matches_affinity(volume: &Volume, node: &Node) -> bool {
    let matches = |key: &str, value: &str| match key {
        names::NODE_TOPOLOGY_KEY => value == node.name.as_str(),
        _ => node.labels.get(key).is_some_and(|label| **label == *value),
    };
    volume.node_affinity_terms.iter().any(|term| term.iter().all(|(key, value)| matches(key, value)))
}

#[cfg(test)]
mod tests;
