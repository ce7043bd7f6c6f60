//! Node-local drivers: external-provisioner's "node deployment". Each node runs its own process, which
//! creates and deletes only the volumes of its node. There is no leader: processes that compete for a claim
//! are serialized by one write of the claim.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use cofferdam_backend::Backend;
use cofferdam_cluster::{Cache, Intent};
use cofferdam_domain::{
    DriverName, NodeName, StorageClass, Uid, Volume, names,
    storage::{Placement, Segments},
};
use tokio::time::Instant;

use super::topology::{self, DriverRegistration, NodeTopology, TopologyError, TopologyInput};

/// Options of node-local drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDeployment {
    /// The node of this process (`--node-name`).
    pub node: NodeName,
    /// All drivers of the process are node-local, whether they declare it or not (`--node-deployment`).
    pub every_driver: bool,
    /// Compete for claims without a selected node (`--node-deployment-immediate-binding`).
    pub immediate_binding: bool,
    /// Maximum delay before the first attempt to select this node (`--node-deployment-base-delay`).
    pub base_delay: Duration,
    /// Maximum delay before a later attempt. The delay doubles up to this limit
    /// (`--node-deployment-max-delay`).
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
    /// Neither the driver nor the CSINode has topology keys.
    #[error("no topology key found on CSINode {0}")]
    NoKeys(NodeName),
    /// The Node lacks the label of a topology key.
    #[error("node {node} has no label {key}")]
    NoLabel {
        /// The node.
        node: NodeName,
        /// The topology key.
        key: String,
    },
}

/// The node-local drivers of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalNode {
    /// The node.
    pub node: NodeName,
    /// Topology keys that each driver declares. They are empty for drivers whose keys are in the CSINode.
    pub drivers: BTreeMap<DriverName, Vec<String>>,
    /// Compete for claims without a selected node.
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

    /// Returns true if topology values have to be read from the Node's labels.
    pub fn needs_labels(&self) -> bool {
        let is_by_name =
            |keys: &Vec<String>| !keys.is_empty() && keys.iter().all(|key| *key == names::NODE_TOPOLOGY_KEY);
        !self.drivers.values().all(is_by_name)
    }

    /// Returns the segments of this node for a driver: the node's name, and the Node's labels for all other
    /// keys.
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

    /// Returns true if the volume is accessible from this node only. Its process then manages the finalizer
    /// and deletes the volume. A volume with a wider or no node affinity belongs to no process: on a node
    /// that does not have the volume, the driver would report it as deleted.
    pub fn has_volume(&self, volume: &Volume, cache: &Cache) -> bool {
        let Some(csi) = &volume.csi else { return false };
        self.segments(&csi.driver, cache).is_ok_and(|segments| volume.is_only_accessible_from(&segments))
    }
}

/// Returns the segments of the node of an intent of a node-local driver.
pub fn segments_of(intent: &Intent) -> Option<&Segments> {
    intent.request.topology.as_ref().and_then(|topology| topology.requisite.first())
}

/// Returns true if the PersistentVolume is on another node than the intent.
pub fn is_on_other_node(local_node: Option<&LocalNode>, intent: &Intent, volume: &Volume) -> bool {
    local_node.is_some_and(|local_node| local_node.has_driver(&intent.driver))
        && segments_of(intent).is_some_and(|segments| volume.is_inaccessible_from(segments))
}

/// Returns the topology requirement of a node-local driver: the segments of its node.
///
/// # Errors
/// The class does not allow the node.
pub fn requirement(
    local_node: &LocalNode,
    class: &StorageClass,
    segments: &Segments,
) -> Result<Option<cofferdam_domain::storage::TopologyRequirement>, TopologyError> {
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

/// Returns the delay before an attempt to select this node for a claim.
///
/// A random part of the base delay is subtracted, so that the nodes do not compete at the same time. The
/// delay doubles with each attempt. The random part is a digest of claim, node and attempt, which makes tests
/// reproducible.
pub fn attempt_delay(deployment: &NodeDeployment, claim: &Uid, attempt: u32) -> Duration {
    let longest = deployment
        .base_delay
        .saturating_mul(2_u32.saturating_pow(attempt))
        .min(deployment.max_delay.max(deployment.base_delay));
    let text = format!("{claim}/{}/{attempt}", deployment.node);
    let digest = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // The low bits of FNV-1a hardly differ between names that differ in their last characters.
    let parts = u32::try_from((digest ^ (digest >> 32)) % 1000).unwrap_or_default();
    longest.saturating_sub(deployment.base_delay.saturating_mul(parts) / 1000)
}

/// The state of this process' competition for one claim.
#[derive(Clone, Debug)]
struct ImmediateBindingContest {
    attempt: u32,
    due: Instant,
    warned: bool,
}

/// Claims without a selected node for which this process competes.
#[derive(Debug, Default)]
pub(super) struct ImmediateBindingContests(HashMap<Uid, ImmediateBindingContest>);

impl ImmediateBindingContests {
    /// Returns the time until the next attempt. `None` starts an attempt and schedules the next one.
    pub(super) fn next_attempt(&mut self, deployment: &NodeDeployment, claim: &Uid) -> Option<Duration> {
        let now = Instant::now();
        let contest = self.0.entry(claim.clone()).or_insert_with(|| ImmediateBindingContest {
            attempt: 0,
            due: now + attempt_delay(deployment, claim, 0),
            warned: false,
        });
        let time_left = contest.due.saturating_duration_since(now);
        if !time_left.is_zero() {
            return Some(time_left);
        }
        contest.attempt = contest.attempt.saturating_add(1);
        contest.due = now + attempt_delay(deployment, claim, contest.attempt);
        None
    }

    /// Makes the next attempt due: another client wrote the claim without selecting a node.
    pub(super) fn retry_now(&mut self, claim: &Uid) {
        if let Some(contest) = self.0.get_mut(claim) {
            contest.due = Instant::now();
        }
    }

    /// Returns the time until the next attempt.
    pub(super) fn time_left(&self, claim: &Uid) -> Duration {
        self.0
            .get(claim)
            .map(|contest| contest.due.saturating_duration_since(Instant::now()))
            .unwrap_or_default()
    }

    /// Returns true once per claim, for its first warning.
    pub(super) fn warn_once(&mut self, claim: &Uid) -> bool {
        self.0.get_mut(claim).is_some_and(|contest| !std::mem::replace(&mut contest.warned, true))
    }

    /// Removes a claim that has a volume or is deleted.
    pub(super) fn remove(&mut self, claim: &Uid) {
        self.0.remove(claim);
    }
}

#[cfg(test)]
mod tests;
