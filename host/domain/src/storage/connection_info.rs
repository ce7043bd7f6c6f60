//! How an attachment travels from the controller to the node: as one document under one key of the volume
//! context or of the publish context.
//!
//! CSI carries maps of texts, and whoever stands between the two sides may write them: PersistentVolumes and
//! VolumeAttachments can be edited. So reading is strict: one version, known members only, each once, sizes
//! as a driver's own. What a document means, and whether this node does it, is the node's to decide.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor},
};

use super::{ConnectionInfo, ContentSource, Parameters, total_bytes};
use crate::{names, text::printable};

/// The version that is written, and the only one that is read.
pub const FORMAT_VERSION: u32 = 1;
/// Kind of the attachments that an existing CSI driver's publish context becomes: its own node service reads
/// them, as they are.
pub const CSI_KIND: &str = "csi";
/// Longest key of a field in a document, in bytes: CSI's limit for keys.
const MAX_KEY_BYTES: usize = 128;
/// Heaviest fields of a document, in bytes of all keys and values: CSI's limit for maps.
const MAX_FIELDS_BYTES: usize = 4 << 10;
/// Longest kind, in bytes.
const MAX_KIND_BYTES: usize = 63;
/// Longest document that is read, in bytes: 4 KiB of fields, each byte escaped as `\u0000`, in as many pairs
/// as there can be.
pub const MAX_ENCODED_BYTES: usize = 48 << 10;

/// Why a document is not an attachment. One line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionInfoError {
    /// A later release wrote it.
    #[error(
        "the attachment is a document of version {found}; this program reads version {FORMAT_VERSION}: update it"
    )]
    UnsupportedVersion {
        /// Its version.
        found: u64,
    },
    /// It is too large.
    #[error("the attachment is a document of {found} bytes; expected at most {MAX_ENCODED_BYTES}")]
    TooLarge {
        /// Its size.
        found: usize,
    },
    /// It is no document of ours.
    #[error("the attachment is not a document that this program wrote: {0}")]
    Malformed(String),
    /// It is in a context where no attachment of this driver is.
    #[error("this driver's attachments are in {expected_context} and nowhere else")]
    WrongContext {
        /// The right one.
        expected_context: &'static str,
    },
    /// There is none.
    #[error("{context} has no {}: there is no way to the volume", names::CONNECTION_INFO)]
    Missing {
        /// Where it was expected.
        context: &'static str,
    },
    /// What it says can be no attachment.
    #[error("{0}")]
    Invalid(String),
}

/// A document, as it is written.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EncodedConnectionInfo {
    version: u64,
    kind: String,
    kind_version: u32,
    #[serde(deserialize_with = "deserialize_unique_keys")]
    fields: BTreeMap<String, String>,
}

/// As much of a document as every version has.
#[derive(Deserialize)]
struct VersionHeader {
    version: u64,
}

impl ConnectionInfo {
    /// Checks what every attachment has to be: its kind a word, its keys at most `key` bytes, keys and values
    /// together at most `fields` bytes.
    ///
    /// # Errors
    /// The rule that is broken, in words.
    pub fn validate(&self, max_key_bytes: usize, max_fields_bytes: usize) -> Result<(), String> {
        if !is_valid_kind(&self.kind) {
            return Err(format!(
                "the attachment's kind is {:?}; expected up to {MAX_KIND_BYTES} of a-z, 0-9 and -",
                printable(&self.kind)
            ));
        }
        let bytes = total_bytes(&self.fields);
        if bytes > max_fields_bytes {
            return Err(format!("the attachment has {bytes} bytes; at most {max_fields_bytes} are allowed"));
        }
        match self
            .fields
            .keys()
            .find(|invalid_key| invalid_key.is_empty() || invalid_key.len() > max_key_bytes)
        {
            Some(invalid_key) => Err(format!(
                "the attachment has a key of {} bytes; expected 1 to {max_key_bytes}",
                invalid_key.len()
            )),
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

/// An attachment's document.
pub fn encode(connection_info: &ConnectionInfo) -> String {
    let document = EncodedConnectionInfo {
        version: FORMAT_VERSION.into(),
        kind: connection_info.kind.clone(),
        kind_version: connection_info.version,
        fields: connection_info.fields.clone(),
    };
    // Texts and numbers under texts: there is nothing in it that JSON could not hold.
    serde_json::to_string(&document).unwrap_or_default()
}

/// An attachment out of its document.
///
/// # Errors
/// [`DocumentError`]
pub fn decode(document: &str) -> Result<ConnectionInfo, ConnectionInfoError> {
    if document.len() > MAX_ENCODED_BYTES {
        return Err(ConnectionInfoError::TooLarge { found: document.len() });
    }
    let malformed = |error: serde_json::Error| ConnectionInfoError::Malformed(printable(&error.to_string()));
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
    connection_info.validate(MAX_KEY_BYTES, MAX_FIELDS_BYTES).map_err(ConnectionInfoError::Invalid)?;
    Ok(connection_info)
}

/// The volume context of a volume that is handed out: the driver's attributes, the attachment of one without
/// a publish step, and the source of one that was not empty from the start, which the node has to know before
/// it formats anything.
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

/// The driver's own attributes out of a volume context: what it gets back with every call.
pub fn driver_attributes(context: Parameters) -> Parameters {
    context.into_iter().filter(|(key, _)| !key.starts_with(names::RESERVED_ATTRIBUTE_PREFIX)).collect()
}

/// The publish context of a published volume. That of an existing CSI driver is the driver's own, for its own
/// node service.
pub fn into_publish_context(connection_info: ConnectionInfo) -> Parameters {
    if connection_info.kind == CSI_KIND {
        return connection_info.fields;
    }
    [(names::CONNECTION_INFO.to_owned(), encode(&connection_info))].into()
}

/// The attachment that a node's call brings. A driver that `publishes` says it with each publication, every
/// other one with the volume; where it must not be, somebody else has written it.
///
/// # Errors
/// [`DocumentError`]; a document that cannot be read is never passed over for another one.
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

/// A map whose keys each occur once: of two values under one key, nobody knows which was meant.
fn deserialize_unique_keys<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    struct EachOnce;

    impl<'de> Visitor<'de> for EachOnce {
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

    deserializer.deserialize_map(EachOnce)
}

#[cfg(test)]
#[path = "connection_info_tests.rs"]
mod tests;
