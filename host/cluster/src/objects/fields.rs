//! Fields that several kinds share.

use cofferdam_domain::{AccessMode, AccessModes, Quantity, QuantityError, VolumeMode};
use serde::Deserialize;

use super::DecodeError;

/// Parses a list of access modes.
pub(super) fn access_modes(
    path: &'static str,
    modes: Option<Vec<Box<str>>>,
) -> Result<AccessModes, DecodeError> {
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
}

/// A ResourceList's `storage`.
#[derive(Deserialize, Default)]
pub(super) struct ResourceList {
    pub(super) storage: Option<WireQuantity>,
}
