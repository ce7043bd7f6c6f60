//! Places: the setting, what a request asks for, and the choice.

use std::collections::BTreeMap;

use cofferdam_guest::{KeyValues, Result, Segments, StorageError, TopologyRequirement};
use serde::{Deserialize, Serialize};

use crate::request;

/// Most places: each is a row in the ledger.
const MAX_PLACES: usize = 64;
const EXPECTED: &str =
    "expected a label's key with values such as topology.example/zone=a,b, several of them parted by `;`";

/// A place that volumes can be in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Its values in the order of the keys, such as `a` or `a/1`.
    pub(crate) label: String,
    /// Its keys with their values.
    pub(crate) segments: BTreeMap<String, String>,
}

impl Place {
    /// As the contract spells it.
    pub(crate) fn segments(&self) -> Segments {
        self.segments.clone().into_iter().collect()
    }

    /// Whether it is one of those that a request means, each of whose keys is known.
    fn is_in(&self, wanted: &BTreeMap<String, String>) -> bool {
        wanted.iter().all(|(key, value)| self.segments.get(key) == Some(value))
    }
}

/// The keys and places of the driver; none for a driver without topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Topology {
    /// The keys in the order of the setting.
    pub(crate) keys: Vec<String>,
    /// Every combination of the keys' values.
    pub(crate) places: Vec<Place>,
}

/// What a request asks for, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    requisite: Vec<BTreeMap<String, String>>,
    preferred: Vec<BTreeMap<String, String>>,
}

impl Wanted {
    /// Whether a volume that is in a place is what the request asks for.
    pub(crate) fn allows(&self, place: Option<&Place>) -> bool {
        self.requisite.is_empty()
            || place.is_some_and(|place| self.requisite.iter().any(|wanted| place.is_in(wanted)))
    }
}

impl Topology {
    /// Reads the setting: `key=value,value;key=value`.
    pub(crate) fn parse(text: &str) -> std::result::Result<Self, String> {
        let wrong = || EXPECTED.to_owned();
        let mut keys: Vec<String> = Vec::new();
        let mut places = vec![Place { label: String::new(), segments: BTreeMap::new() }];
        for part in text.split(';') {
            let (key, values) = part.trim().split_once('=').ok_or_else(wrong)?;
            let values: Vec<_> = values.split(',').map(str::trim).collect();
            let repeated = values
                .iter()
                .enumerate()
                .any(|(index, value)| values.iter().skip(index + 1).any(|other| other == value));
            if !is_key(key)
                || !values.iter().all(|value| is_name(value))
                || repeated
                || keys.iter().any(|known| known == key)
            {
                return Err(wrong());
            }
            keys.push(key.to_owned());
            if places.len().saturating_mul(values.len()) > MAX_PLACES {
                return Err(format!("expected at most {MAX_PLACES} places"));
            }
            places =
                places.iter().flat_map(|place| values.iter().map(|value| place.with(key, value))).collect();
        }
        Ok(Self { keys, places })
    }

    /// The place of a label.
    pub(crate) fn place(&self, label: &str) -> Option<&Place> {
        self.places.iter().find(|place| place.label == label)
    }

    /// Reads what a request asks for.
    pub(crate) fn wanted(&self, requirement: Option<&TopologyRequirement>) -> Result<Wanted> {
        let Some(requirement) = requirement else { return Ok(Wanted::default()) };
        if self.keys.is_empty() {
            return Err(StorageError::invalid_argument("a topology was asked for; this driver has none"));
        }
        let read =
            |places: &[Segments]| places.iter().map(|segments| self.known(segments)).collect::<Result<_>>();
        Ok(Wanted { requisite: read(&requirement.requisite)?, preferred: read(&requirement.preferred)? })
    }

    /// Reads a place of a request.
    fn known(&self, segments: &KeyValues) -> Result<BTreeMap<String, String>> {
        let map = request::map("the segments of a place", segments)?;
        if map.is_empty() {
            return Err(StorageError::invalid_argument("a place has no segment; expected at least one"));
        }
        match map.keys().find(|key| !self.keys.contains(key)) {
            Some(key) => Err(StorageError::invalid_argument(format!(
                "unknown topology key {key:?}; known: {}",
                self.keys.join(", ")
            ))),
            None => Ok(map),
        }
    }

    /// The places within some segments.
    pub(crate) fn within(&self, segments: &KeyValues) -> Result<Vec<&Place>> {
        if self.keys.is_empty() {
            return Err(StorageError::invalid_argument("a topology was asked for; this driver has none"));
        }
        let wanted = self.known(segments)?;
        Ok(self.places.iter().filter(|place| place.is_in(&wanted)).collect())
    }

    /// The places that a volume may be in, the best first.
    pub(crate) fn candidates(&self, wanted: &Wanted) -> Vec<&Place> {
        let named = wanted.preferred.iter().chain(&wanted.requisite);
        let named = named.flat_map(|segments| self.places.iter().filter(move |place| place.is_in(segments)));
        let mut candidates: Vec<&Place> = Vec::new();
        // Without a requisite every place will do, but those that are preferred come first.
        for place in named.chain(&self.places).filter(|place| wanted.allows(Some(place))) {
            if !candidates.contains(&place) {
                candidates.push(place);
            }
        }
        candidates
    }
}

impl Place {
    fn with(&self, key: &str, value: &str) -> Self {
        let label = if self.label.is_empty() { value.to_owned() } else { format!("{}/{value}", self.label) };
        let mut segments = self.segments.clone();
        segments.insert(key.to_owned(), value.to_owned());
        Self { label, segments }
    }
}

/// Kubernetes' qualified name: `[DNS subdomain/]name`.
fn is_key(key: &str) -> bool {
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

/// Up to 63 of letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
fn is_name(name: &str) -> bool {
    let firm = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    name.len() <= 63
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        && firm(name.bytes().next())
        && firm(name.bytes().next_back())
}
