//! Where a new volume must be reachable: external-provisioner's rules (its README, "Topology support").

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cofferdam_domain::{
    CsiNode, DriverName, Node,
    storage::{Segments, TopologyRequirement},
};

/// One node of the cluster, as far as one driver can use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Topology keys of the driver in its CSINode; absent while there is no CSINode, or it does not name the driver.
    pub keys: Registered<'a>,
    /// Labels of the Node object, where there is one.
    pub labels: Option<&'a BTreeMap<String, String>>,
}

/// What a node's CSINode says of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered<'a> {
    /// There is no CSINode.
    NoObject,
    /// It does not name the driver.
    No,
    /// It does, with these topology keys.
    Yes(&'a [String]),
}

/// The nodes of the cluster as one driver can use them, by name.
pub fn places<'a>(
    driver: &DriverName,
    csi_nodes: &'a [Arc<CsiNode>],
    nodes: &'a [Arc<Node>],
) -> Vec<Place<'a>> {
    let mut places: BTreeMap<&str, Place<'a>> = BTreeMap::new();
    for node in nodes {
        let name = node.name.as_str();
        let place = Place { node: name, keys: Registered::NoObject, labels: Some(&node.labels) };
        places.insert(name, place);
    }
    for node in csi_nodes {
        let name = node.name.as_str();
        let keys = node.topology_keys.get(driver).map_or(Registered::No, |keys| Registered::Yes(keys));
        places.entry(name).or_insert(Place { node: name, keys, labels: None }).keys = keys;
    }
    places.into_values().collect()
}

/// What a claim and its class ask for.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// `metadata.name` of the claim: spreads the replicas of a StatefulSet.
    pub claim: &'a str,
    /// `allowedTopologies` of the class: terms, each a list of keys with their values.
    pub allowed: &'a [Vec<(String, Vec<String>)>],
    /// The node that the scheduler has chosen.
    pub selected: Option<&'a str>,
    /// `--strict-topology`: a chosen node is the only place.
    pub strict: bool,
    /// `--immediate-topology`: where no node is chosen and the class allows everything, all places are named.
    pub immediate: bool,
}

/// Why no requirement can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Something that may come; for the event.
    NotYet(String),
    /// The chosen node is gone: the scheduler has to choose again; for the event.
    Node(String),
}

/// The requirement of one request; absent where the volume may be anywhere.
///
/// # Errors
/// [`Missing`] where the cluster does not know enough yet.
pub fn requirement(ask: Ask<'_>, places: &[Place<'_>]) -> Result<Option<TopologyRequirement>, Missing> {
    let allowed = flatten(ask.allowed);
    let Some(selected) = ask.selected else { return immediate(ask, allowed, places) };
    let own = topology_of_node(selected, places)?;
    let leads = |terms: &[Segments]| terms.iter().position(|term| is_part_of(term, &own));
    let nowhere = || {
        Missing::NotYet(format!(
            "topology {} of node {selected} is not in allowed topologies: {}",
            shown(&own),
            allowed.iter().map(shown).collect::<Vec<_>>().join(", "),
        ))
    };
    if ask.strict {
        if !allowed.is_empty() && leads(&allowed).is_none() {
            return Err(nowhere());
        }
        return Ok(Some(TopologyRequirement { requisite: vec![own.clone()], preferred: vec![own] }));
    }
    let requisite = if allowed.is_empty() {
        let keys: BTreeSet<&String> = own.keys().collect();
        aggregated(&keys, places)
    } else {
        allowed.clone()
    };
    let first = leads(&requisite).ok_or_else(nowhere)?;
    Ok(Some(rotated(requisite, first)))
}

/// Where nobody has chosen a node.
fn immediate(
    ask: Ask<'_>,
    allowed: Vec<Segments>,
    places: &[Place<'_>],
) -> Result<Option<TopologyRequirement>, Missing> {
    let requisite = if !allowed.is_empty() {
        allowed
    } else if ask.immediate {
        // The first by name: a request that is made again is the same one.
        let keys = places.iter().find_map(|place| match place.keys {
            Registered::Yes(keys) if !keys.is_empty() => Some(keys),
            Registered::Yes(_) | Registered::No | Registered::NoObject => None,
        });
        let keys: BTreeSet<&String> = keys.unwrap_or_default().iter().collect();
        aggregated(&keys, places)
    } else {
        return Ok(None);
    };
    if requisite.is_empty() {
        return Err(Missing::NotYet("no available topology found".to_owned()));
    }
    let first = spread(ask.claim, requisite.len());
    Ok(Some(rotated(requisite, first)))
}

fn topology_of_node(selected: &str, places: &[Place<'_>]) -> Result<Segments, Missing> {
    let gone =
        || Missing::Node(format!("error getting CSINode for selected node {selected:?}: it does not exist"));
    let place = places.iter().find(|place| place.node == selected).ok_or_else(gone)?;
    let keys = match place.keys {
        Registered::NoObject => return Err(gone()),
        Registered::Yes(keys) if !keys.is_empty() => keys,
        Registered::Yes(_) | Registered::No => {
            return Err(Missing::NotYet(format!("no topology key found on CSINode {selected}")));
        }
    };
    let labels = place.labels.ok_or_else(|| {
        Missing::NotYet(format!("error getting selected node {selected:?}: it does not exist"))
    })?;
    segments(keys, labels).ok_or_else(|| {
        Missing::NotYet(format!("topology labels from selected node {selected} are missing: {keys:?}"))
    })
}

/// A node's values of these keys, where it has all of them.
fn segments<'a>(
    keys: impl IntoIterator<Item = &'a String>,
    labels: &BTreeMap<String, String>,
) -> Option<Segments> {
    keys.into_iter().map(|key| Some((key.clone(), labels.get(key)?.clone()))).collect()
}

/// The places of all nodes that have these keys.
fn aggregated(keys: &BTreeSet<&String>, places: &[Place<'_>]) -> Vec<Segments> {
    if keys.is_empty() {
        return Vec::new();
    }
    sorted(places.iter().filter_map(|place| segments(keys.iter().copied(), place.labels?)).collect())
}

/// Each term of `allowedTopologies` is a cross product of its keys' values; terms are alternatives.
fn flatten(allowed: &[Vec<(String, Vec<String>)>]) -> Vec<Segments> {
    let terms = allowed.iter().flat_map(|term| {
        let start = vec![Segments::new()];
        term.iter().fold(start, |products, (key, values)| {
            let with = |segments: &Segments, value: &String| {
                let mut segments = segments.clone();
                segments.insert(key.clone(), value.clone());
                segments
            };
            products.iter().flat_map(|one| values.iter().map(|value| with(one, value))).collect()
        })
    });
    sorted(terms.filter(|segments| !segments.is_empty()).collect())
}

/// By the number of segments, then by keys and values; each once.
fn sorted(mut terms: Vec<Segments>) -> Vec<Segments> {
    terms.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    terms.dedup();
    terms
}

fn is_part_of(term: &Segments, of: &Segments) -> bool {
    term.iter().all(|(key, value)| of.get(key) == Some(value))
}

fn rotated(requisite: Vec<Segments>, first: usize) -> TopologyRequirement {
    let mut preferred = requisite.clone();
    preferred.rotate_left(first);
    TopologyRequirement { requisite, preferred }
}

/// Which of `places` leads for a claim: replicas of a StatefulSet spread, several claims of one pod meet.
fn spread(claim: &str, places: usize) -> usize {
    let (base, ordinal) = match claim.rsplit_once('-') {
        Some((rest, number)) if !number.is_empty() => match number.parse::<u32>() {
            // The name of the StatefulSet stands behind the last dash of the rest.
            Ok(ordinal) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                (rest.rsplit_once('-').map_or(rest, |(_, set)| set), ordinal)
            }
            Ok(_) | Err(_) => (claim, 0),
        },
        Some(_) | None => (claim, 0),
    };
    let hash = u64::from(fnv1(base)).wrapping_add(u64::from(ordinal));
    let places = u64::try_from(places).unwrap_or(u64::MAX).max(1);
    usize::try_from(hash % places).unwrap_or_default()
}

/// FNV-1 with 32 bits. The crate `fnv` has FNV-1a with 64.
fn fnv1(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

fn shown(segments: &Segments) -> String {
    let pairs: Vec<String> = segments.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{{{}}}", pairs.join(", "))
}

#[cfg(test)]
mod tests;
