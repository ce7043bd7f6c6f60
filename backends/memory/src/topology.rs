//! Topology: the setting, the requirements of a request, and the choice of a segment.

use std::collections::BTreeMap;

use cofferdam_guest::{KeyValues, Result, Segments, StorageError, TopologyRequirement};
use serde::{Deserialize, Serialize};

use crate::values::{self, InvalidValue, Parsed};

/// Maximum number of segments. The usage entry stores the used bytes of each segment with volumes.
const MAX_SEGMENTS: usize = 64;
const TOPOLOGY_FORMAT: &str =
    "expected a label's key with values such as topology.example/zone=a,b, separated by `;`";

/// A topology segment in which volumes can be created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TopologySegment {
    /// Values of the segment in the order of the keys in the setting, such as `a` or `a/1`.
    pub(crate) label: String,
    /// Keys and values of the segment.
    pub(crate) entries: BTreeMap<String, String>,
}

impl TopologySegment {
    /// Converts to the contract's segments.
    pub(crate) fn to_segments(&self) -> Segments {
        self.entries.clone().into_iter().collect()
    }

    /// Returns true if the segment has all the requested values.
    fn matches(&self, requested: &BTreeMap<String, String>) -> bool {
        requested.iter().all(|(key, value)| self.entries.get(key) == Some(value))
    }
}

/// The topology keys and segments of the driver. Both are empty without topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Topology {
    /// The keys in the order of the setting.
    pub(crate) keys: Vec<String>,
    /// All combinations of the keys' values.
    pub(crate) segments: Vec<TopologySegment>,
}

/// A validated topology requirement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestedTopology {
    requisite: Vec<BTreeMap<String, String>>,
    preferred: Vec<BTreeMap<String, String>>,
}

impl RequestedTopology {
    /// Returns true if a volume in the segment satisfies the requirement.
    pub(crate) fn is_satisfied_by(&self, segment: Option<&TopologySegment>) -> bool {
        self.requisite.is_empty()
            || segment
                .is_some_and(|segment| self.requisite.iter().any(|requested| segment.matches(requested)))
    }
}

impl Topology {
    /// Parses the setting: `key=value,value;key=value`.
    pub(crate) fn parse(text: &str) -> Parsed<Self> {
        let invalid = || InvalidValue(TOPOLOGY_FORMAT.to_owned());
        let mut keys: Vec<String> = Vec::new();
        let mut segments = vec![TopologySegment { label: String::new(), entries: BTreeMap::new() }];
        for part in text.split(';') {
            let (key, values) = part.trim().split_once('=').ok_or_else(invalid)?;
            let values: Vec<_> = values.split(',').map(str::trim).collect();
            let repeated = values
                .iter()
                .enumerate()
                .any(|(index, value)| values.iter().skip(index + 1).any(|other| other == value));
            if !is_qualified_name(key)
                || !values.iter().all(|value| is_name(value))
                || repeated
                || keys.iter().any(|known| known == key)
            {
                return Err(invalid());
            }
            keys.push(key.to_owned());
            if segments.len().saturating_mul(values.len()) > MAX_SEGMENTS {
                return Err(InvalidValue(format!("expected at most {MAX_SEGMENTS} segments")));
            }
            segments = segments
                .iter()
                .flat_map(|segment| values.iter().map(|value| segment.with_segment(key, value)))
                .collect();
        }
        Ok(Self { keys, segments })
    }

    /// The segment with a label, if the driver has it.
    pub(crate) fn find_segment(&self, label: &str) -> Option<&TopologySegment> {
        self.segments.iter().find(|segment| segment.label == label)
    }

    /// Parses the topology requirement of a request.
    pub(crate) fn parse_requirement(
        &self,
        requirement: Option<&TopologyRequirement>,
    ) -> Result<RequestedTopology> {
        let Some(requirement) = requirement else { return Ok(RequestedTopology::default()) };
        if self.keys.is_empty() {
            return Err(StorageError::invalid_argument("a topology was asked for; this driver has none"));
        }
        let read = |requirement_segments: &[Segments]| {
            requirement_segments.iter().map(|segments| self.parse_segments(segments)).collect::<Result<_>>()
        };
        Ok(RequestedTopology {
            requisite: read(&requirement.requisite)?,
            preferred: read(&requirement.preferred)?,
        })
    }

    /// Parses one segment of a request.
    fn parse_segments(&self, segments: &KeyValues) -> Result<BTreeMap<String, String>> {
        let map = values::parse_pairs("the topology segments", segments)?;
        if map.is_empty() {
            return Err(StorageError::invalid_argument("a topology has no segment; expected at least one"));
        }
        match map.keys().find(|key| !self.keys.contains(key)) {
            Some(key) => Err(StorageError::invalid_argument(format!(
                "unknown topology key {key:?}; known: {}",
                self.keys.join(", ")
            ))),
            None => Ok(map),
        }
    }

    /// The driver's segments that have all the requested values.
    pub(crate) fn matching_segments(&self, segments: &KeyValues) -> Result<Vec<&TopologySegment>> {
        if self.keys.is_empty() {
            return Err(StorageError::invalid_argument("a topology was asked for; this driver has none"));
        }
        let requested = self.parse_segments(segments)?;
        Ok(self.segments.iter().filter(|segment| segment.matches(&requested)).collect())
    }

    /// The candidate segments for a volume, in order of preference.
    pub(crate) fn candidates(&self, requested: &RequestedTopology) -> Vec<&TopologySegment> {
        let requested_segments = requested.preferred.iter().chain(&requested.requisite);
        let requested_segments = requested_segments
            .flat_map(|segments| self.segments.iter().filter(move |segment| segment.matches(segments)));
        let mut candidates: Vec<&TopologySegment> = Vec::new();
        // Without requisite segments every segment is allowed, and the preferred ones are first.
        for segment in requested_segments
            .chain(&self.segments)
            .filter(|segment| requested.is_satisfied_by(Some(segment)))
        {
            if !candidates.contains(&segment) {
                candidates.push(segment);
            }
        }
        candidates
    }
}

impl TopologySegment {
    fn with_segment(&self, key: &str, value: &str) -> Self {
        let label = if self.label.is_empty() { value.to_owned() } else { format!("{}/{value}", self.label) };
        let mut segments = self.entries.clone();
        segments.insert(key.to_owned(), value.to_owned());
        Self { label, entries: segments }
    }
}

/// Checks for a Kubernetes qualified name: `[DNS subdomain/]name`.
fn is_qualified_name(key: &str) -> bool {
    let subdomain = |prefix: &str| {
        prefix.len() <= 253
            && prefix.split('.').all(|part| {
                is_name(part)
                    && part
                        .bytes()
                        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            })
    };
    match key.split_once('/') {
        Some((prefix, name)) => subdomain(prefix) && is_name(name),
        None => is_name(key),
    }
}

/// Checks for at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
fn is_name(name: &str) -> bool {
    let is_alphanumeric = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    name.len() <= 63
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        && is_alphanumeric(name.bytes().next())
        && is_alphanumeric(name.bytes().next_back())
}
