//! Encoding of connection info, which a node needs to connect to a volume, in the volume context or the
//! publish context of CSI.
//!
//! The controller stores connection info as JSON under one key of a string map in a PersistentVolume or
//! VolumeAttachment, from which the node receives it. Both objects can be edited, so decoding is strict: one
//! version, known fields without duplicates, the syntax of the kind, and CSI's size limits for keys and maps.
//! The node decides which kinds it accepts. Published connection info of the kind [`CSI_KIND`] is not
//! encoded: its fields are the publish context. The volume context also has the kind of the volume's content
//! source.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor},
};

use super::{ConnectionInfo, ContentSource, Parameters, total_bytes};
use crate::{names, text::one_line};

/// The only supported version of the encoding.
pub const FORMAT_VERSION: u32 = 1;
/// Kind of connection info whose fields are an existing CSI driver's publish context. The driver's own node
/// service receives the publish context unchanged.
pub const CSI_KIND: &str = "csi";
/// Maximum length of a field's key in bytes: CSI's limit for keys.
const MAX_KEY_BYTES: usize = 128;
/// Maximum size of all fields in bytes of keys and values: CSI's limit for maps.
const MAX_FIELDS_BYTES: usize = 4 << 10;
/// Maximum length of a kind in bytes.
const MAX_KIND_BYTES: usize = 63;
/// Maximum size of the encoding in bytes: 4 KiB of fields, with each byte escaped as `\u0000`, in the maximum
/// number of fields.
pub const MAX_ENCODED_BYTES: usize = 48 << 10;

/// Invalid connection info. The message has one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionInfoError {
    /// The version is newer than [`FORMAT_VERSION`].
    #[error("connection info has version {found}; this program supports version {FORMAT_VERSION}: update it")]
    UnsupportedVersion {
        /// The version.
        found: u64,
    },
    /// The encoding is too large.
    #[error("connection info has {found} bytes; expected at most {MAX_ENCODED_BYTES}")]
    TooLarge {
        /// The size in bytes.
        found: usize,
    },
    /// The text is not JSON of this encoding, or its version is 0.
    #[error("malformed connection info: {0}")]
    Malformed(String),
    /// The key of connection info is in the volume context of a driver with ControllerPublishVolume, or in
    /// the publish context of a driver without ControllerPublishVolume.
    #[error("connection info must be in {expected_context}")]
    WrongContext {
        /// Name of the expected context: `volume_context` or `publish_context`.
        expected_context: &'static str,
    },
    /// The expected context has no connection info.
    #[error("{context} has no {}", names::CONNECTION_INFO)]
    Missing {
        /// Name of the expected context: `volume_context` or `publish_context`.
        context: &'static str,
    },
    /// The kind, a key or the size is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidConnectionInfo),
}

/// A violated limit of connection info.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConnectionInfo {
    /// The kind is empty, too long, or has the wrong syntax.
    #[error("the connection info's kind is {kind:?}; expected up to {MAX_KIND_BYTES} of a-z, 0-9 and -")]
    Kind {
        /// The kind, on one line.
        kind: String,
    },
    /// The keys and values of the fields together are too large.
    #[error("the connection info has {bytes} bytes; at most {max} are allowed")]
    Size {
        /// The size in bytes.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The key of a field is empty or too long.
    #[error("the connection info has a key of {bytes} bytes; expected 1 to {max}")]
    Key {
        /// The length in bytes.
        bytes: usize,
        /// The limit.
        max: usize,
    },
}

/// The JSON encoding.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EncodedConnectionInfo {
    version: u64,
    kind: String,
    kind_version: u32,
    #[serde(deserialize_with = "deserialize_unique_keys")]
    fields: BTreeMap<String, String>,
}

/// The fields that all versions share.
#[derive(Deserialize)]
struct VersionHeader {
    version: u64,
}

impl ConnectionInfo {
    /// Checks the syntax of the kind, the length of each key, and the total size of keys and values.
    ///
    /// # Errors
    /// The violated limit.
    pub fn validate(
        &self,
        max_key_bytes: usize,
        max_fields_bytes: usize,
    ) -> Result<(), InvalidConnectionInfo> {
        if !is_valid_kind(&self.kind) {
            return Err(InvalidConnectionInfo::Kind { kind: one_line(&self.kind) });
        }
        let bytes = total_bytes(&self.fields);
        if bytes > max_fields_bytes {
            return Err(InvalidConnectionInfo::Size { bytes, max: max_fields_bytes });
        }
        let is_invalid = |key: &&String| key.is_empty() || key.len() > max_key_bytes;
        match self.fields.keys().find(is_invalid) {
            Some(key) => Err(InvalidConnectionInfo::Key { bytes: key.len(), max: max_key_bytes }),
            None => Ok(()),
        }
    }
}

fn is_valid_kind(kind: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_alphanumeric = |byte: Option<u8>| byte.is_some_and(|byte| byte != b'-');
    let has_alphanumeric_ends =
        is_alphanumeric(kind.bytes().next()) && is_alphanumeric(kind.bytes().next_back());
    kind.len() <= MAX_KIND_BYTES && kind.bytes().all(is_allowed) && has_alphanumeric_ends
}

/// Encodes connection info.
pub fn encode(connection_info: &ConnectionInfo) -> String {
    let document = EncodedConnectionInfo {
        version: FORMAT_VERSION.into(),
        kind: connection_info.kind.clone(),
        kind_version: connection_info.version,
        fields: connection_info.fields.clone(),
    };
    // Strings and numbers with string keys always serialize.
    serde_json::to_string(&document).unwrap_or_default()
}

/// Decodes connection info.
///
/// # Errors
/// [`ConnectionInfoError`]: every variant except `WrongContext` and `Missing`.
pub fn decode(document: &str) -> Result<ConnectionInfo, ConnectionInfoError> {
    if document.len() > MAX_ENCODED_BYTES {
        return Err(ConnectionInfoError::TooLarge { found: document.len() });
    }
    let malformed = |error: serde_json::Error| ConnectionInfoError::Malformed(one_line(&error.to_string()));
    let VersionHeader { version } = serde_json::from_str(document).map_err(malformed)?;
    match version {
        1 => {}
        0 => {
            return Err(ConnectionInfoError::Malformed(format!(
                "its version is 0; expected {FORMAT_VERSION}"
            )));
        }
        found => return Err(ConnectionInfoError::UnsupportedVersion { found }),
    }
    let EncodedConnectionInfo { version: _, kind, kind_version, fields } =
        serde_json::from_str(document).map_err(malformed)?;
    let connection_info = ConnectionInfo { kind, version: kind_version, fields };
    connection_info.validate(MAX_KEY_BYTES, MAX_FIELDS_BYTES)?;
    Ok(connection_info)
}

/// The volume context of a created volume: the driver's attributes, connection info for drivers without
/// ControllerPublishVolume, and the content source, because nodes do not format volumes with content.
pub fn into_volume_context(
    attributes: Parameters,
    connection_info: Option<&ConnectionInfo>,
    source: Option<&ContentSource>,
) -> Parameters {
    let mut context = attributes;
    context.extend(source.map(|source| (names::CONTENT_SOURCE.to_owned(), source.kind().to_owned())));
    context.extend(
        connection_info.map(|connection_info| (names::CONNECTION_INFO.to_owned(), encode(connection_info))),
    );
    context
}

/// Returns a volume context without the keys with [`names::RESERVED_ATTRIBUTE_PREFIX`], which Cofferdam
/// added. The attribute [`names::PROVISIONER_IDENTITY`] remains, as in the sidecars' calls.
pub fn driver_attributes(context: Parameters) -> Parameters {
    context.into_iter().filter(|(key, _)| !key.starts_with(names::RESERVED_ATTRIBUTE_PREFIX)).collect()
}

/// The publish context of a published volume. For an existing CSI driver, it is the driver's own publish
/// context.
pub fn into_publish_context(connection_info: ConnectionInfo) -> Parameters {
    if connection_info.kind == CSI_KIND {
        return connection_info.fields;
    }
    [(names::CONNECTION_INFO.to_owned(), encode(&connection_info))].into()
}

/// Connection info of a call to the node: from the publish context for drivers with ControllerPublishVolume,
/// else from the volume context. Connection info in the other context is an error, because the controller did
/// not write it.
///
/// # Errors
/// [`ConnectionInfoError`], also if the other context has the key of connection info, whatever its value.
pub fn from_contexts(
    publish_context: &Parameters,
    volume_context: &Parameters,
    has_publish_step: bool,
) -> Result<ConnectionInfo, ConnectionInfoError> {
    let (expected_context, other_context, name) = if has_publish_step {
        (publish_context, volume_context, "publish_context")
    } else {
        (volume_context, publish_context, "volume_context")
    };
    if other_context.contains_key(names::CONNECTION_INFO) {
        return Err(ConnectionInfoError::WrongContext { expected_context: name });
    }
    let document =
        expected_context.get(names::CONNECTION_INFO).ok_or(ConnectionInfoError::Missing { context: name })?;
    decode(document)
}

/// Deserializes a map and rejects duplicate keys.
fn deserialize_unique_keys<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    struct UniqueKeysVisitor;

    impl<'de> Visitor<'de> for UniqueKeysVisitor {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of texts")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = pairs.next_entry::<String, String>()? {
                if map.contains_key(&key) {
                    return Err(A::Error::custom(format_args!("the field {key:?} occurs twice")));
                }
                map.insert(key, value);
            }
            Ok(map)
        }
    }

    deserializer.deserialize_map(UniqueKeysVisitor)
}

#[cfg(test)]
#[path = "connection_info_tests.rs"]
mod tests;
