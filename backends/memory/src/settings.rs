//! What the operator configures.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_guest::{Result, StorageError};

use crate::{
    faults::{self, FaultRule, Latency},
    request,
    topology::{Topology, TopologySegment},
};

/// Key of the driver's name.
pub(crate) const DRIVER_NAME: &str = "driver-name";
/// The driver's name when the operator chooses none.
pub(crate) const DEFAULT_DRIVER_NAME: &str = "memory.cofferdam.dev";
const CAPACITY: &str = "capacity";
const CONDITION: &str = "condition";
const ERRORS: &str = "errors";
const FEATURES: &str = "features";
const LATENCY: &str = "latency-ms";
const MAX_SNAPSHOTS: &str = "max-snapshots";
const NODES: &str = "nodes";
const SNAPSHOT_READY_AFTER: &str = "snapshot-ready-after";
const TOPOLOGY: &str = "topology";
const VOLUMES_PER_NODE: &str = "volumes-per-node";
/// Every key.
const KEYS: [&str; 11] = [
    CAPACITY,
    CONDITION,
    DRIVER_NAME,
    ERRORS,
    FEATURES,
    LATENCY,
    MAX_SNAPSHOTS,
    NODES,
    SNAPSHOT_READY_AFTER,
    TOPOLOGY,
    VOLUMES_PER_NODE,
];
/// What all volumes have together at most, 4 EiB, whatever the operator allows: every sum of sizes is below
/// what the contract can carry.
pub(crate) const MAX_TOTAL: u64 = 1 << 62;
/// Most times that a snapshot has to be asked for.
const MAX_POLLS: u32 = 1_000;

/// How many bytes volumes may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum CapacitySetting {
    /// Any number up to [`MAX_TOTAL`].
    #[default]
    Unlimited,
    /// So many, all volumes together.
    Total(u64),
    /// So many in each place, by its label.
    PerSegment(BTreeMap<String, u64>),
}

/// What the driver can do that no export can express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    pub(crate) publish_readonly: bool,
    pub(crate) published_nodes: bool,
    pub(crate) volume_condition: bool,
    pub(crate) online_expansion: bool,
    pub(crate) single_node_multi_writer: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            publish_readonly: true,
            published_nodes: true,
            volume_condition: true,
            online_expansion: true,
            single_node_multi_writer: true,
        }
    }
}

impl Features {
    fn entries(self) -> [(&'static str, bool); 5] {
        [
            ("publish-readonly", self.publish_readonly),
            ("published-nodes", self.published_nodes),
            ("volume-condition", self.volume_condition),
            ("online-expansion", self.online_expansion),
            ("single-node-multi-writer", self.single_node_multi_writer),
        ]
    }

    /// The names of those that are on.
    pub(crate) fn names(self) -> Vec<String> {
        self.entries().into_iter().filter(|(_, on)| *on).map(|(name, _)| name.to_owned()).collect()
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let names = split_list(text);
        let known = Self::default().entries();
        if names.iter().any(|name| !known.iter().any(|(known, _)| known == name)) {
            let known = known.map(|(known, _)| known).join(", ");
            return Err(format!("expected a list of {known}"));
        }
        let on = |name: &str| names.contains(&name);
        Ok(Self {
            publish_readonly: on("publish-readonly"),
            published_nodes: on("published-nodes"),
            volume_condition: on("volume-condition"),
            online_expansion: on("online-expansion"),
            single_node_multi_writer: on("single-node-multi-writer"),
        })
    }
}

/// A condition that volumes pretend to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConditionSetting {
    pub(crate) abnormal: bool,
    pub(crate) message: String,
}

impl ConditionSetting {
    /// Reads `normal:message` or `abnormal:message`; the error says what was expected.
    pub(crate) fn parse(text: &str) -> std::result::Result<Self, &'static str> {
        match text.split_once(':') {
            Some((kind @ ("normal" | "abnormal"), message))
                if !message.is_empty() && message.len() <= 200 =>
            {
                Ok(Self { abnormal: kind == "abnormal", message: message.to_owned() })
            }
            _ => Err("expected normal:message or abnormal:message with a message of 1 to 200 bytes"),
        }
    }
}

/// The operator's choices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemorySettings {
    pub(crate) capacity: CapacitySetting,
    pub(crate) condition: Option<ConditionSetting>,
    pub(crate) errors: Vec<FaultRule>,
    pub(crate) features: Features,
    pub(crate) latency: Latency,
    /// How many snapshots there may be.
    pub(crate) max_snapshots: Option<u64>,
    /// The nodes that exist; absent when every node does.
    pub(crate) nodes: Option<BTreeSet<String>>,
    /// How often a new snapshot has to be asked for before it is ready.
    pub(crate) snapshot_ready_after: u32,
    pub(crate) topology: Topology,
    /// How many volumes may be published to one node.
    pub(crate) volumes_per_node: Option<u32>,
}

impl MemorySettings {
    /// Reads the settings; the error names the key, its value and what was expected.
    pub(crate) fn parse(settings: &BTreeMap<String, String>) -> std::result::Result<Self, String> {
        let mut parsed = Self::default();
        // Whether a capacity names every place depends on the topology.
        let mut capacity = None;
        for (key, value) in settings {
            let invalid = |expected: String| format!("the setting {key:?} is {value:?}; {expected}");
            match key.as_str() {
                DRIVER_NAME => {}
                CAPACITY => capacity = Some(value),
                CONDITION => {
                    parsed.condition =
                        Some(ConditionSetting::parse(value).map_err(|e| invalid(e.to_owned()))?)
                }
                ERRORS => parsed.errors = faults::parse_rules(value).map_err(invalid)?,
                FEATURES => parsed.features = Features::parse(value).map_err(invalid)?,
                LATENCY => parsed.latency = Latency::parse(value).map_err(invalid)?,
                MAX_SNAPSHOTS => {
                    parsed.max_snapshots = Some(parse_number(value, 0..=u64::MAX).map_err(invalid)?)
                }
                NODES => parsed.nodes = Some(parse_nodes(value).map_err(invalid)?),
                SNAPSHOT_READY_AFTER => {
                    parsed.snapshot_ready_after = parse_number(value, 0..=MAX_POLLS).map_err(invalid)?;
                }
                TOPOLOGY => parsed.topology = Topology::parse(value).map_err(invalid)?,
                VOLUMES_PER_NODE => {
                    parsed.volumes_per_node = Some(parse_number(value, 1..=u32::MAX).map_err(invalid)?);
                }
                _ => return Err(format!("unknown setting {key:?}; known are {}", KEYS.join(", "))),
            }
        }
        if let Some(value) = capacity {
            let invalid = |expected: String| format!("the setting {CAPACITY:?} is {value:?}; {expected}");
            parsed.capacity = CapacitySetting::parse(value, &parsed.topology).map_err(invalid)?;
        }
        Ok(parsed)
    }

    /// How many bytes fit a place, or all of the storage.
    pub(crate) fn capacity_limit(&self, segment: Option<&TopologySegment>) -> u64 {
        let bytes = match (&self.capacity, segment) {
            (CapacitySetting::Unlimited, _) | (CapacitySetting::PerSegment(_), None) => MAX_TOTAL,
            (CapacitySetting::Total(bytes), _) => *bytes,
            (CapacitySetting::PerSegment(bytes), Some(segment)) => {
                bytes.get(&segment.label).copied().unwrap_or_default()
            }
        };
        bytes.min(MAX_TOTAL)
    }

    /// Whether one limit is for all places together.
    pub(crate) fn is_total_capacity(&self) -> bool {
        matches!(self.capacity, CapacitySetting::Total(_))
    }
}

impl CapacitySetting {
    fn parse(text: &str, topology: &Topology) -> std::result::Result<Self, String> {
        if let Some(total) = parse_bytes(text) {
            return Ok(Self::Total(total));
        }
        let expected = || {
            if topology.segments.is_empty() {
                "expected bytes such as 1073741824 or 500Gi".to_owned()
            } else {
                "expected bytes such as 1073741824 or 500Gi, for all places together or for each such as a=500Gi,b=1Ti".to_owned()
            }
        };
        let mut sizes = BTreeMap::new();
        for part in split_list(text) {
            let (label, size) = part.split_once('=').ok_or_else(expected)?;
            let known = topology.find_segment(label.trim()).ok_or_else(expected)?;
            let size = parse_bytes(size.trim()).ok_or_else(expected)?;
            if sizes.insert(known.label.clone(), size).is_some() {
                return Err(expected());
            }
        }
        match topology.segments.iter().find(|segment| !sizes.contains_key(&segment.label)) {
            Some(segment) => Err(format!("the place {:?} is missing; {}", segment.label, expected())),
            None if sizes.is_empty() => Err(expected()),
            None => Ok(Self::PerSegment(sizes)),
        }
    }
}

/// The settings of this call.
pub(crate) fn current() -> Result<MemorySettings> {
    MemorySettings::parse(&cofferdam_guest::settings::all()).map_err(|message| {
        StorageError::failed_precondition(format!("the backend is misconfigured: {message}"))
    })
}

/// Reads a size: a whole number of bytes, or one with a binary suffix.
fn parse_bytes(text: &str) -> Option<u64> {
    const SUFFIXES: [(&str, u32); 5] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50)];
    let (digits, shift) = SUFFIXES
        .iter()
        .find_map(|(suffix, shift)| Some((text.strip_suffix(suffix)?, *shift)))
        .unwrap_or((text, 0));
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift))
}

/// The parts of a list, without the spaces around them; none of an empty text.
pub(crate) fn split_list(text: &str) -> Vec<&str> {
    if text.trim().is_empty() { Vec::new() } else { text.split(',').map(str::trim).collect() }
}

/// Reads a number within bounds.
pub(crate) fn parse_number<N: std::str::FromStr + PartialOrd + std::fmt::Display>(
    text: &str,
    allowed: std::ops::RangeInclusive<N>,
) -> std::result::Result<N, String> {
    text.parse()
        .ok()
        .filter(|number| allowed.contains(number))
        .ok_or_else(|| format!("expected a number from {} to {}", allowed.start(), allowed.end()))
}

fn parse_nodes(text: &str) -> std::result::Result<BTreeSet<String>, String> {
    let nodes: BTreeSet<_> = split_list(text).into_iter().map(str::to_owned).collect();
    if nodes.iter().any(|node| node.is_empty() || node.len() > request::MAX_NODE_ID) {
        return Err(format!("expected a list of names of 1 to {} bytes", request::MAX_NODE_ID));
    }
    Ok(nodes)
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
