//! Drivers whose storage is in one node: external-provisioner's "node deployment". Each node has a process of
//! its own, which makes and deletes what is on its node and leaves everything else to the others. Nobody
//! leads; what two of them could both do, they settle by one write to the claim.

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

/// What an operator chose for the drivers of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDeployment {
    /// The node that this process is on (`--node-name`).
    pub node: NodeName,
    /// Whether every driver of the process is of this node, also one that does not say so
    /// (`--node-deployment`).
    pub every_driver: bool,
    /// Whether claims that no node was chosen for are taken in a race
    /// (`--node-deployment-immediate-binding`).
    pub immediate_binding: bool,
    /// Longest pause before the first try to take a claim (`--node-deployment-base-delay`).
    pub base_delay: Duration,
    /// Longest pause before a later one; it doubles up to here (`--node-deployment-max-delay`).
    pub max_delay: Duration,
}

impl NodeDeployment {
    /// The sidecar's defaults.
    pub const fn new(node: NodeName) -> Self {
        Self {
            node,
            every_driver: false,
            immediate_binding: true,
            base_delay: Duration::from_secs(20),
            max_delay: Duration::from_secs(60),
        }
    }

    /// Whether a driver's storage is in this node.
    pub fn is_node_local(&self, backend: &dyn Backend) -> bool {
        self.every_driver || backend.description().placement == Placement::Node
    }
}

/// The drivers of this process whose storage is in its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalNode {
    /// The node.
    pub node: NodeName,
    /// Topology keys of each driver, as it tells them; none for one that does not: they stand in the CSINode.
    pub drivers: BTreeMap<DriverName, Vec<String>>,
    /// Whether claims that no node was chosen for are taken in a race.
    pub immediate_binding: bool,
}

impl LocalNode {
    /// Whether a driver's storage is in this node.
    pub fn has_driver(&self, driver: &DriverName) -> bool {
        self.drivers.contains_key(driver)
    }

    /// Whether the node's CSINode has to be asked for keys.
    pub fn needs_keys(&self) -> bool {
        self.drivers.values().any(Vec::is_empty)
    }

    /// Whether the Node's labels have to be asked where it is, beside its name.
    pub fn needs_labels(&self) -> bool {
        let is_by_name =
            |keys: &Vec<String>| !keys.is_empty() && keys.iter().all(|key| *key == names::NODE_TOPOLOGY_KEY);
        !self.drivers.values().all(is_by_name)
    }

    /// Where this node is for a driver: its name, and the Node's labels for all other keys.
    ///
    /// # Errors
    /// What is missing, for an event.
    pub fn segments(&self, driver: &DriverName, cache: &Cache) -> Result<Segments, String> {
        let node = &self.node;
        let declared = self.drivers.get(driver).filter(|keys| !keys.is_empty()).cloned();
        let registered = || cache.csi_nodes.get(node).into_object()?.topology_keys.get(driver).cloned();
        let keys = declared.or_else(registered).filter(|keys| !keys.is_empty());
        let keys = keys.ok_or_else(|| format!("no topology key found on CSINode {node}"))?;
        let labels = cache.nodes.get(node).into_object().map(|node| node.labels.clone()).unwrap_or_default();
        let value = |key: String| match key == names::NODE_TOPOLOGY_KEY {
            true => Ok((key, node.to_string())),
            false => match labels.get(&key) {
                Some(value) => Ok((key, value.clone())),
                None => Err(format!("node {node} has no label {key}")),
            },
        };
        keys.into_iter().map(value).collect()
    }

    /// Whether a volume is on this node, and nowhere else: then it is this process that adds and takes
    /// finalizers and deletes. Without an affinity, or with a wider one, it is nobody's: the process of a
    /// node that does not have it would find nothing to delete, and say that it is gone.
    pub fn has_volume(&self, volume: &Volume, cache: &Cache) -> bool {
        let Some(csi) = &volume.csi else { return false };
        self.segments(&csi.driver, cache).is_ok_and(|segments| volume.is_only_accessible_from(&segments))
    }
}

/// Where the volume of an intent is, where the driver's storage is in one node.
pub fn segments_of(intent: &Intent) -> Option<&Segments> {
    intent.request.topology.as_ref().and_then(|topology| topology.requisite.first())
}

/// Whether a volume's object stands for something on another node than the intent.
pub fn is_on_other_node(local_node: Option<&LocalNode>, intent: &Intent, volume: &Volume) -> bool {
    local_node.is_some_and(|local_node| local_node.has_driver(&intent.driver))
        && segments_of(intent).is_some_and(|segments| volume.is_inaccessible_from(segments))
}

/// The requirement of a request that this node shall serve: this node and nothing else.
///
/// # Errors
/// [`Missing`] where the class does not allow it.
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

/// Pauses before tries to take a claim: a random part of the base is taken off, so that the nodes do not all
/// come at once, and what follows on a claim that came back is twice as long. The chance is a digest of
/// claim, node and try: the same in every run of a test, and no two nodes have the same.
pub fn attempt_delay(deployment: &NodeDeployment, claim: &Uid, attempt: u32) -> Duration {
    let longest = deployment
        .base_delay
        .saturating_mul(2_u32.saturating_pow(attempt))
        .min(deployment.max_delay.max(deployment.base_delay));
    let text = format!("{claim}/{}/{attempt}", deployment.node);
    let digest = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // The low bits of FNV-1a hardly differ between names that differ in their last letters.
    let parts = u32::try_from((digest ^ (digest >> 32)) % 1000).unwrap_or_default();
    longest.saturating_sub(deployment.base_delay.saturating_mul(parts) / 1000)
}

/// The race for one claim, as one process runs it.
#[derive(Clone, Debug)]
struct ImmediateBindingContest {
    attempt: u32,
    due: Instant,
    warned: bool,
}

/// The claims that this process would take.
#[derive(Debug, Default)]
pub(super) struct ImmediateBindingContests(HashMap<Uid, ImmediateBindingContest>);

impl ImmediateBindingContests {
    /// How long the claim has to wait still; nothing when it is its turn, and then the next turn is a longer
    /// pause away.
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

    /// Somebody has written the claim meanwhile: if nobody has taken it, it is still its turn.
    pub(super) fn retry_now(&mut self, claim: &Uid) {
        if let Some(contest) = self.0.get_mut(claim) {
            contest.due = Instant::now();
        }
    }

    /// How long until the next turn.
    pub(super) fn time_left(&self, claim: &Uid) -> Duration {
        self.0
            .get(claim)
            .map(|contest| contest.due.saturating_duration_since(Instant::now()))
            .unwrap_or_default()
    }

    /// Whether this is the first time that the claim is told why it is not taken.
    pub(super) fn warn_once(&mut self, claim: &Uid) -> bool {
        self.0.get_mut(claim).is_some_and(|contest| !std::mem::replace(&mut contest.warned, true))
    }

    /// The claim has a volume or is gone.
    pub(super) fn remove(&mut self, claim: &Uid) {
        self.0.remove(claim);
    }
}

#[cfg(test)]
mod tests;
