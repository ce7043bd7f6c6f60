//! Settings of the operator.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use cofferdam_guest::{Result, StorageError};

use crate::{
    fault_rules::{self, FaultRule, Latency},
    topology::{Topology, TopologySegment},
    values::{InvalidValue, MAX_NODE_ID, Parsed, parse_number, split_list},
};

/// Setting for the driver's name.
pub(crate) const DRIVER_NAME: &str = "driver-name";
/// Default name of the driver.
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
/// The names of all settings.
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
/// Limit for all volumes together, 4 EiB, regardless of the settings. Every sum of sizes then fits the
/// contract's types.
pub(crate) const MAX_TOTAL: u64 = 1 << 62;
/// Maximum of the setting `snapshot-ready-after`.
const MAX_POLLS: u32 = 1_000;

/// Capacity of the storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum CapacitySetting {
    /// Unlimited, up to [`MAX_TOTAL`].
    #[default]
    Unlimited,
    /// One limit for all volumes together, in bytes.
    Total(u64),
    /// A limit in bytes for each topology segment, by its label.
    PerSegment(BTreeMap<String, u64>),
}

/// Features of the driver that have no interface of their own.
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

    /// The names of the enabled features.
    pub(crate) fn names(self) -> Vec<String> {
        self.entries().into_iter().filter(|(_, on)| *on).map(|(name, _)| name.to_owned()).collect()
    }

    fn parse(text: &str) -> Parsed<Self> {
        let names = split_list(text);
        let known = Self::default().entries();
        if names.iter().any(|name| !known.iter().any(|(known, _)| known == name)) {
            let known = known.map(|(known, _)| known).join(", ");
            return Err(InvalidValue(format!("expected a list of {known}")));
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

/// The simulated condition of volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConditionSetting {
    pub(crate) abnormal: bool,
    pub(crate) message: String,
}

impl ConditionSetting {
    /// Parses `normal:message` or `abnormal:message`. The error says what was expected.
    pub(crate) fn parse(text: &str) -> Parsed<Self> {
        match text.split_once(':') {
            Some((kind @ ("normal" | "abnormal"), message))
                if !message.is_empty() && message.len() <= 200 =>
            {
                Ok(Self { abnormal: kind == "abnormal", message: message.to_owned() })
            }
            _ => Err(InvalidValue(
                "expected normal:message or abnormal:message with a message of 1 to 200 bytes".to_owned(),
            )),
        }
    }
}

/// A setting of the operator that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingsError {
    /// The driver has no such setting.
    Unknown {
        /// The setting.
        key: String,
    },
    /// The setting has an invalid value.
    Invalid {
        /// The setting.
        key: String,
        /// Its value.
        value: String,
        /// The reason, with the expected value.
        reason: InvalidValue,
    },
}

impl SettingsError {
    fn invalid(key: &str, value: &str, reason: InvalidValue) -> Self {
        Self::Invalid { key: key.to_owned(), value: value.to_owned(), reason }
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { key } => write!(f, "unknown setting {key:?}; known are {}", KEYS.join(", ")),
            Self::Invalid { key, value, reason } => write!(f, "the setting {key:?} is {value:?}; {reason}"),
        }
    }
}

/// The operator's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemorySettings {
    pub(crate) capacity: CapacitySetting,
    pub(crate) condition: Option<ConditionSetting>,
    pub(crate) errors: Vec<FaultRule>,
    pub(crate) features: Features,
    pub(crate) latency: Latency,
    /// Maximum number of snapshots, including members of groups; `None` for no limit.
    pub(crate) max_snapshots: Option<u64>,
    /// The node ids to which volumes can be published; `None` for every id.
    pub(crate) nodes: Option<BTreeSet<String>>,
    /// Number of create and get requests after the first create until a snapshot is ready; 0 if it is ready
    /// at once.
    pub(crate) snapshot_ready_after: u32,
    pub(crate) topology: Topology,
    /// Maximum number of volumes published to one node; `None` for no limit.
    pub(crate) volumes_per_node: Option<u32>,
}

impl MemorySettings {
    /// Parses the settings.
    ///
    /// # Errors
    /// [`SettingsError`] with the first wrong setting.
    pub(crate) fn parse(settings: &BTreeMap<String, String>) -> std::result::Result<Self, SettingsError> {
        let mut parsed = Self::default();
        // The capacity is parsed last: it must name every segment of the topology.
        let mut capacity = None;
        for (key, value) in settings {
            let invalid = |reason| SettingsError::invalid(key, value, reason);
            match key.as_str() {
                DRIVER_NAME => {}
                CAPACITY => capacity = Some(value),
                CONDITION => parsed.condition = Some(ConditionSetting::parse(value).map_err(invalid)?),
                ERRORS => parsed.errors = fault_rules::parse_rules(value).map_err(invalid)?,
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
                _ => return Err(SettingsError::Unknown { key: key.clone() }),
            }
        }
        if let Some(value) = capacity {
            let invalid = |reason| SettingsError::invalid(CAPACITY, value, reason);
            parsed.capacity = CapacitySetting::parse(value, &parsed.topology).map_err(invalid)?;
        }
        Ok(parsed)
    }

    /// The capacity limit that applies to a segment; without a segment, to the whole storage. A total limit
    /// applies to every segment.
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

    /// Returns true if one limit applies to all segments together.
    pub(crate) fn is_total_capacity(&self) -> bool {
        matches!(self.capacity, CapacitySetting::Total(_))
    }
}

impl CapacitySetting {
    fn parse(text: &str, topology: &Topology) -> Parsed<Self> {
        if let Some(total) = parse_bytes(text) {
            return Ok(Self::Total(total));
        }
        let expected = || {
            if topology.segments.is_empty() {
                InvalidValue("expected bytes such as 1073741824 or 500Gi".to_owned())
            } else {
                InvalidValue(
                    "expected bytes such as 1073741824 or 500Gi, for all segments together or for \
                     each such as a=500Gi,b=1Ti"
                        .to_owned(),
                )
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
            Some(segment) => {
                Err(InvalidValue(format!("the segment {:?} is missing; {}", segment.label, expected())))
            }
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

/// Parses a size: a number of bytes, or a number with a binary suffix.
fn parse_bytes(text: &str) -> Option<u64> {
    const SUFFIXES: [(&str, u32); 5] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50)];
    let (digits, shift) = SUFFIXES
        .iter()
        .find_map(|(suffix, shift)| Some((text.strip_suffix(suffix)?, *shift)))
        .unwrap_or((text, 0));
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift))
}

fn parse_nodes(text: &str) -> Parsed<BTreeSet<String>> {
    let nodes: BTreeSet<_> = split_list(text).into_iter().map(str::to_owned).collect();
    if nodes.iter().any(|node| node.is_empty() || node.len() > MAX_NODE_ID) {
        return Err(InvalidValue(format!("expected a list of names of 1 to {MAX_NODE_ID} bytes")));
    }
    Ok(nodes)
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
