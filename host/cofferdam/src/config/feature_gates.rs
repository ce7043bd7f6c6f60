//! Feature gates of the Go sidecars.
//!
//! Sources of names and defaults: `pkg/features` of external-provisioner 6.3, external-attacher 4.12 and
//! external-resizer 2.2.

use std::{collections::BTreeMap, str::FromStr};

use serde::{Deserialize, Deserializer, de};

/// A feature gate of a sidecar. All are on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FeatureGate {
    /// `Topology` of external-provisioner.
    Topology,
    /// `VolumeAttributesClass` of external-provisioner and external-resizer.
    VolumeAttributesClass,
    /// `MutableCSINodeAllocatableCount` of external-attacher.
    MutableCsiNodeAllocatableCount,
    /// `AnnotateFsResize` of external-resizer.
    AnnotateFsResize,
}

/// An invalid value of `feature-gates`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FeatureGateError {
    #[error("{0:?} is not a feature gate with a value: expected NAME=true or NAME=false")]
    Syntax(String),
    #[error("unrecognized feature gate: {name}: expected one of {known}")]
    Unknown { name: String, known: String },
}

impl FeatureGate {
    /// All gates.
    pub(crate) const ALL: [Self; 4] = [
        Self::Topology,
        Self::VolumeAttributesClass,
        Self::MutableCsiNodeAllocatableCount,
        Self::AnnotateFsResize,
    ];

    /// Name of the gate.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Topology => "Topology",
            Self::VolumeAttributesClass => "VolumeAttributesClass",
            Self::MutableCsiNodeAllocatableCount => "MutableCSINodeAllocatableCount",
            Self::AnnotateFsResize => "AnnotateFsResize",
        }
    }
}

impl FromStr for FeatureGate {
    type Err = FeatureGateError;

    fn from_str(name: &str) -> Result<Self, FeatureGateError> {
        let gate = Self::ALL.into_iter().find(|gate| gate.as_str() == name);
        gate.ok_or_else(|| FeatureGateError::Unknown {
            name: name.to_owned(),
            known: Self::ALL.map(Self::as_str).join(", "),
        })
    }
}

/// Splits `NAME=BOOL`. The booleans are those of Go's `strconv.ParseBool`.
///
/// # Errors
/// [`FeatureGateError::Syntax`]
pub(crate) fn parse_gate(text: &str) -> Result<(&str, bool), FeatureGateError> {
    let syntax = || FeatureGateError::Syntax(text.to_owned());
    let (name, value) = text.split_once('=').ok_or_else(syntax)?;
    match value.trim() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok((name.trim(), true)),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok((name.trim(), false)),
        _ => Err(syntax()),
    }
}

/// Values of feature gates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FeatureGateValues(BTreeMap<FeatureGate, bool>);

impl FeatureGateValues {
    /// The configured value of a gate, else its default.
    pub(crate) fn is_enabled(&self, gate: FeatureGate) -> bool {
        self.0.get(&gate).copied().unwrap_or(true)
    }
}

impl<'de> Deserialize<'de> for FeatureGateValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut values = BTreeMap::new();
        for text in Vec::<String>::deserialize(deserializer)? {
            let (name, value) = parse_gate(&text).map_err(de::Error::custom)?;
            values.insert(name.parse().map_err(de::Error::custom)?, value);
        }
        Ok(Self(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(texts: &[&str]) -> Result<FeatureGateValues, String> {
        let json = serde_json::json!(texts);
        serde_json::from_value(json).map_err(|error| error.to_string())
    }

    #[test]
    fn gates_are_on_unless_they_are_turned_off() {
        let values = parse(&["Topology=F", "AnnotateFsResize=true", "AnnotateFsResize=false"]).unwrap();
        assert!(!values.is_enabled(FeatureGate::Topology));
        assert!(!values.is_enabled(FeatureGate::AnnotateFsResize), "the last value applies");
        assert!(values.is_enabled(FeatureGate::VolumeAttributesClass));
    }

    #[test]
    fn an_invalid_gate_is_rejected_by_name() {
        for (text, expected) in [
            ("Topology", "\"Topology\" is not a feature gate with a value: expected NAME=true or NAME=false"),
            ("Topology=yes", "\"Topology=yes\" is not a feature gate with a value"),
            ("Missing=true", "unrecognized feature gate: Missing: expected one of Topology,"),
        ] {
            let error = parse(&[text]).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
