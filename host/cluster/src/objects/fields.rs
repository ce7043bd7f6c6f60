//! Fields that several kinds share.

use cofferdam_domain::{AccessMode, AccessModes, Quantity, QuantityError, VolumeMode};
use serde::Deserialize;

use super::DecodeError;

/// A list of access modes.
pub(super) struct AccessModeList {
    pub(super) set: AccessModes,
    /// The list itself, if it has duplicates or another order than [`AccessModes::iter`]; else `None`.
    pub(super) notation: Option<Box<[AccessMode]>>,
}

/// Parses a list of access modes, and keeps its notation.
pub(super) fn access_mode_list(
    path: &'static str,
    modes: Option<Vec<Box<str>>>,
) -> Result<AccessModeList, DecodeError> {
    let list = parse_access_modes(path, modes)?;
    let set: AccessModes = list.iter().copied().collect();
    let is_usual = set.iter().eq(list.iter().copied());
    Ok(AccessModeList { set, notation: (!is_usual).then_some(list) })
}

/// Parses a list of access modes as a set.
pub(super) fn access_modes(
    path: &'static str,
    modes: Option<Vec<Box<str>>>,
) -> Result<AccessModes, DecodeError> {
    Ok(parse_access_modes(path, modes)?.iter().copied().collect())
}

fn parse_access_modes(
    path: &'static str,
    modes: Option<Vec<Box<str>>>,
) -> Result<Box<[AccessMode]>, DecodeError> {
    let parse = |mode: Box<str>| {
        AccessMode::parse(&mode).ok_or_else(|| DecodeError::Value {
            path,
            value: mode.to_string(),
            expected: "ReadWriteOnce, ReadOnlyMany, ReadWriteMany or ReadWriteOncePod",
        })
    };
    modes.unwrap_or_default().into_iter().map(parse).collect()
}

/// Parses `spec.volumeMode`.
pub(super) fn volume_mode(mode: Option<&str>) -> Result<VolumeMode, DecodeError> {
    match mode {
        None | Some("Filesystem") => Ok(VolumeMode::Filesystem),
        Some("Block") => Ok(VolumeMode::Block),
        Some(other) => Err(DecodeError::Value {
            path: "spec.volumeMode",
            value: other.to_owned(),
            expected: "Filesystem or Block",
        }),
    }
}

/// A quantity on the wire: a string, or a number that a client wrote.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum WireQuantity {
    Text(Box<str>),
    Number(serde_json::Number),
}

impl WireQuantity {
    pub(super) fn parse(&self) -> Result<Quantity, QuantityError> {
        match self {
            Self::Text(text) => Quantity::parse(text),
            Self::Number(number) => Quantity::parse(&number.to_string()),
        }
    }

    /// The text of a quantity, if it is not the one that `quantity` has.
    pub(super) fn other_notation(&self, quantity: Quantity) -> Option<Box<str>> {
        let text = match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string().into(),
        };
        (*text != *quantity.to_string()).then_some(text)
    }
}

/// A ResourceList's `storage`.
#[derive(Deserialize, Default)]
pub(super) struct ResourceList {
    pub(super) storage: Option<WireQuantity>,
}
