//! Errors of decoding.

use cofferdam_domain::{QuantityError, ids::InvalidResourceVersion};
use serde::Deserialize;

/// The reason why an object cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Malformed JSON, or a field that is missing or of another type.
    #[error("{path}: {message}")]
    Json {
        /// Path of the field, such as `spec.drivers[0].nodeID`; `.` for the object itself.
        path: String,
        /// Message of serde, such as the value and the expected type.
        message: String,
    },
    /// A field with an unexpected value.
    #[error("{path} is {value:?}: expected {expected}")]
    Value {
        /// Path of the field.
        path: &'static str,
        /// Value of the field.
        value: String,
        /// The accepted values.
        expected: &'static str,
    },
    /// A quantity that cannot be parsed.
    #[error("{path}: {source}")]
    Quantity {
        /// Path of the field.
        path: &'static str,
        /// The value and the expected syntax.
        source: QuantityError,
    },
    /// `metadata.resourceVersion` is not a number.
    #[error(transparent)]
    ResourceVersion(#[from] InvalidResourceVersion),
    /// `metadata.resourceVersion` is missing, empty or 0.
    #[error("metadata.resourceVersion is absent")]
    NoResourceVersion,
    /// Neither the object nor its metadata alone can be decoded.
    #[error("{kind} without readable metadata: {source}")]
    Metadata {
        /// The expected kind.
        kind: &'static str,
        /// The error of decoding the whole object.
        source: Box<DecodeError>,
    },
}

/// Parses JSON.
///
/// # Errors
/// [`DecodeError::Json`] with the field's path.
pub(crate) fn parse_json<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T, DecodeError> {
    // Paths cost time, so they are determined in a second pass, after a failure.
    serde_json::from_str(json).or_else(|_| {
        let mut deserializer = serde_json::Deserializer::from_str(json);
        serde_path_to_error::deserialize(&mut deserializer).map_err(|error| DecodeError::Json {
            path: error.path().to_string(),
            message: error.inner().to_string(),
        })
    })
}
