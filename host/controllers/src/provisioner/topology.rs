//! Topology requirements of new volumes. Source: external-provisioner's `GenerateAccessibilityRequirements`
//! and its README, "Topology support".

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cofferdam_domain::{
    CsiNode, DriverName, Node,
    storage::{Segments, TopologyRequirement},
};

/// Topology information of a node for one driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTopology<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Registration of the driver in the CSINode.
    pub registration: DriverRegistration<'a>,
    /// Labels of the Node. `None` if the cache has no decodable Node of this name.
    pub labels: Option<&'a BTreeMap<String, String>>,
}

/// Registration of the driver in the CSINode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverRegistration<'a> {
    /// The cache has no decodable CSINode of this name.
    NoCsiNode,
    /// The driver is not registered.
    NotRegistered,
    /// The driver is registered with these topology keys.
    Registered(&'a [String]),
}

/// Returns the topology information of all nodes for one driver, sorted by the nodes' names.
pub fn node_topologies<'a>(
    driver: &DriverName,
    csi_nodes: &'a [Arc<CsiNode>],
    nodes: &'a [Arc<Node>],
) -> Vec<NodeTopology<'a>> {
    let mut node_topologies: BTreeMap<&str, NodeTopology<'a>> = BTreeMap::new();
    for node in nodes {
        let name = node.name.as_str();
        let node_topology = NodeTopology {
            node: name,
            registration: DriverRegistration::NoCsiNode,
            labels: Some(&node.labels),
        };
        node_topologies.insert(name, node_topology);
    }
    for node in csi_nodes {
        let name = node.name.as_str();
        let registration =
            node.topology_keys.get(driver).map_or(DriverRegistration::NotRegistered, |registration| {
                DriverRegistration::Registered(registration)
            });
        node_topologies
            .entry(name)
            .or_insert(NodeTopology { node: name, registration, labels: None })
            .registration = registration;
    }
    node_topologies.into_values().collect()
}

/// Input of [`requirement`].
#[derive(Clone, Copy, Debug)]
pub struct TopologyInput<'a> {
    /// `metadata.name` of the claim. Without a selected node, the preferred segments depend on this name, so
    /// that the volumes of a StatefulSet's replicas are spread. Not used if a node is selected.
    pub claim: &'a str,
    /// `allowedTopologies` of the class.
    pub allowed: &'a [Vec<(String, Vec<String>)>],
    /// The selected node of the claim, or, for a node-local driver, the node of this process. `None` if the
    /// claim has no selected node.
    pub selected: Option<&'a str>,
    /// `--strict-topology`: request only the segments of the selected node.
    pub strict: bool,
    /// `--immediate-topology`: request the segments of all nodes if no node is selected and the class has no
    /// `allowedTopologies`.
    pub immediate: bool,
}

/// The reason why a requirement cannot be generated. The text is the last part of the event message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopologyError {
    /// Information is missing that may become available, or the class does not allow the selected node.
    NotReady(String),
    /// The cache has no decodable CSINode of the selected node. If a live read finds none either, the
    /// scheduler has to select another node.
    NodeNotFound(String),
}

/// Returns the topology requirement of a request. `None` means that the driver chooses freely: no node is
/// selected, the class has no `allowedTopologies`, and `immediate` is false.
///
/// # Errors
/// The cluster lacks topology information, or the class does not allow the selected node.
pub fn requirement(
    input: TopologyInput<'_>,
    node_topologies: &[NodeTopology<'_>],
) -> Result<Option<TopologyRequirement>, TopologyError> {
    let allowed = flatten(input.allowed);
    let Some(selected) = input.selected else { return immediate(input, allowed, node_topologies) };
    let node_segments = topology_of_node(selected, node_topologies)?;
    let matching_index = |terms: &[Segments]| terms.iter().position(|term| is_subset(term, &node_segments));
    let not_allowed = || {
        TopologyError::NotReady(format!(
            "topology {} of node {selected} is not in allowed topologies: {}",
            format_segments(&node_segments),
            allowed.iter().map(format_segments).collect::<Vec<_>>().join(", "),
        ))
    };
    if input.strict {
        if !allowed.is_empty() && matching_index(&allowed).is_none() {
            return Err(not_allowed());
        }
        return Ok(Some(TopologyRequirement {
            requisite: vec![node_segments.clone()],
            preferred: vec![node_segments],
        }));
    }
    let requisite = if allowed.is_empty() {
        let keys: BTreeSet<&String> = node_segments.keys().collect();
        aggregate(&keys, node_topologies)
    } else {
        allowed.clone()
    };
    let first = matching_index(&requisite).ok_or_else(not_allowed)?;
    Ok(Some(rotate(requisite, first)))
}

/// The requirement without a selected node.
fn immediate(
    input: TopologyInput<'_>,
    allowed: Vec<Segments>,
    node_topologies: &[NodeTopology<'_>],
) -> Result<Option<TopologyRequirement>, TopologyError> {
    let requisite = if !allowed.is_empty() {
        allowed
    } else if input.immediate {
        // The first node by name, so that a repeated request is identical.
        let keys = node_topologies.iter().find_map(|node_topology| match node_topology.registration {
            DriverRegistration::Registered(keys) if !keys.is_empty() => Some(keys),
            DriverRegistration::Registered(_)
            | DriverRegistration::NotRegistered
            | DriverRegistration::NoCsiNode => None,
        });
        let keys: BTreeSet<&String> = keys.unwrap_or_default().iter().collect();
        aggregate(&keys, node_topologies)
    } else {
        return Ok(None);
    };
    if requisite.is_empty() {
        return Err(TopologyError::NotReady("no available topology found".to_owned()));
    }
    let first = preferred_index(input.claim, requisite.len());
    Ok(Some(rotate(requisite, first)))
}

fn topology_of_node(selected: &str, node_topologies: &[NodeTopology<'_>]) -> Result<Segments, TopologyError> {
    let not_found = || {
        TopologyError::NodeNotFound(format!(
            "error getting CSINode for selected node {selected:?}: not found"
        ))
    };
    let node_topology =
        node_topologies.iter().find(|node_topology| node_topology.node == selected).ok_or_else(not_found)?;
    let keys = match node_topology.registration {
        DriverRegistration::NoCsiNode => return Err(not_found()),
        DriverRegistration::Registered(keys) if !keys.is_empty() => keys,
        DriverRegistration::Registered(_) | DriverRegistration::NotRegistered => {
            return Err(TopologyError::NotReady(format!("no topology key found on CSINode {selected}")));
        }
    };
    let labels = node_topology.labels.ok_or_else(|| {
        TopologyError::NotReady(format!("error getting selected node {selected:?}: not found"))
    })?;
    segments(keys, labels).ok_or_else(|| {
        TopologyError::NotReady(format!(
            "topology labels from selected node {selected} are missing: {keys:?}"
        ))
    })
}

/// Returns the segments of a node for these keys, or `None` if the node lacks one of them.
fn segments<'a>(
    keys: impl IntoIterator<Item = &'a String>,
    labels: &BTreeMap<String, String>,
) -> Option<Segments> {
    keys.into_iter().map(|key| Some((key.clone(), labels.get(key)?.clone()))).collect()
}

/// Returns the distinct segments of all nodes that have labels with all these keys. Empty if `keys` is empty.
fn aggregate(keys: &BTreeSet<&String>, node_topologies: &[NodeTopology<'_>]) -> Vec<Segments> {
    if keys.is_empty() {
        return Vec::new();
    }
    sort_and_dedup(
        node_topologies
            .iter()
            .filter_map(|node_topology| segments(keys.iter().copied(), node_topology.labels?))
            .collect(),
    )
}

/// Expands `allowedTopologies`: each term is the cross product of its keys' values, and the terms are
/// alternatives.
fn flatten(allowed: &[Vec<(String, Vec<String>)>]) -> Vec<Segments> {
    let terms = allowed.iter().flat_map(|term| {
        let start = vec![Segments::new()];
        term.iter().fold(start, |products, (key, values)| {
            let with = |segments: &Segments, value: &String| {
                let mut segments = segments.clone();
                segments.insert(key.clone(), value.clone());
                segments
            };
            products.iter().flat_map(|product| values.iter().map(|value| with(product, value))).collect()
        })
    });
    sort_and_dedup(terms.filter(|segments| !segments.is_empty()).collect())
}

/// Sorts by number of segments, keys and values, and removes duplicates.
fn sort_and_dedup(mut terms: Vec<Segments>) -> Vec<Segments> {
    terms.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    terms.dedup();
    terms
}

fn is_subset(term: &Segments, of: &Segments) -> bool {
    term.iter().all(|(key, value)| of.get(key) == Some(value))
}

fn rotate(requisite: Vec<Segments>, first: usize) -> TopologyRequirement {
    let mut preferred = requisite.clone();
    preferred.rotate_left(first);
    TopologyRequirement { requisite, preferred }
}

/// Returns the index of the preferred segments for a claim. Replicas of a StatefulSet are spread; several
/// claims of one pod get the same index. Source: external-provisioner's `getPVCNameHashAndIndexOffset`.
fn preferred_index(claim: &str, count: usize) -> usize {
    let (base, ordinal) = match claim.rsplit_once('-') {
        Some((rest, number)) if !number.is_empty() => match number.parse::<u32>() {
            // The name of the StatefulSet follows the last dash of the rest.
            Ok(ordinal) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                (rest.rsplit_once('-').map_or(rest, |(_, set)| set), ordinal)
            }
            Ok(_) | Err(_) => (claim, 0),
        },
        Some(_) | None => (claim, 0),
    };
    let hash = u64::from(fnv1(base)).wrapping_add(u64::from(ordinal));
    let count = u64::try_from(count).unwrap_or(u64::MAX).max(1);
    usize::try_from(hash % count).unwrap_or_default()
}

/// FNV-1 with 32 bits. The crate `fnv` implements FNV-1a with 64 bits.
fn fnv1(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

fn format_segments(segments: &Segments) -> String {
    let pairs: Vec<String> = segments.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{{{}}}", pairs.join(", "))
}

#[cfg(test)]
mod tests;
