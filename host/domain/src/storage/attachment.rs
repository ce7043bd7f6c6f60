//! How an attachment travels from the controller to the node: as one document under one key of the volume context or of the
//! publish context.
//!
//! CSI carries maps of texts, and whoever stands between the two sides may write them: PersistentVolumes and VolumeAttachments can
//! be edited. So reading is strict: one version, known members only, each once, sizes as a driver's own. What a document means,
//! and whether this node does it, is the node's to decide.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor},
};

use super::{AttachmentRecord, Parameters, weight};
use crate::{names, text::printable};

/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 1;
/// Kind of the attachments that an existing CSI driver's publish context becomes: its own node service reads them, as they are.
pub const CSI_KIND: &str = "csi";
/// Longest key of a field in a document, in bytes: CSI's limit for keys.
const MAX_KEY: usize = 128;
/// Heaviest fields of a document, in bytes of all keys and values: CSI's limit for maps.
const MAX_FIELDS: usize = 4 << 10;
/// Longest kind, in bytes.
const MAX_KIND: usize = 63;
/// Longest document that is read, in bytes: 4 KiB of fields, each byte escaped as `\u0000`, in as many pairs as there can be.
pub const MAX_DOCUMENT: usize = 48 << 10;

/// Why a document is not an attachment. One line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// A later release wrote it.
    #[error(
        "the attachment is a document of version {found}; this program reads version {VERSION}: update it"
    )]
    Newer {
        /// Its version.
        found: u64,
    },
    /// It is too large.
    #[error("the attachment is a document of {found} bytes; expected at most {MAX_DOCUMENT}")]
    TooLarge {
        /// Its size.
        found: usize,
    },
    /// It is no document of ours.
    #[error("the attachment is not a document that this program wrote: {0}")]
    Malformed(String),
    /// It is in a context where no attachment of this driver is.
    #[error("this driver's attachments are in {name} and nowhere else")]
    Elsewhere {
        /// The right one.
        name: &'static str,
    },
    /// There is none.
    #[error("{name} has no {}: there is no way to the volume", names::ATTACHMENT)]
    Missing {
        /// Where it was expected.
        name: &'static str,
    },
    /// What it says can be no attachment.
    #[error("{0}")]
    Untrue(String),
}

/// A document, as it is written.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    version: u64,
    kind: String,
    kind_version: u32,
    #[serde(deserialize_with = "each_once")]
    fields: BTreeMap<String, String>,
}

/// As much of a document as every version has.
#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

impl AttachmentRecord {
    /// Checks what every attachment has to be: its kind a word, its keys at most `key` bytes, keys and values together at most
    /// `fields` bytes.
    ///
    /// # Errors
    /// The rule that is broken, in words.
    pub fn check(&self, key: usize, fields: usize) -> Result<(), String> {
        if !is_word(&self.kind) {
            return Err(format!(
                "the attachment's kind is {:?}; expected up to {MAX_KIND} of a-z, 0-9 and -",
                printable(&self.kind)
            ));
        }
        let bytes = weight(&self.fields);
        if bytes > fields {
            return Err(format!("the attachment has {bytes} bytes; at most {fields} are allowed"));
        }
        match self.fields.keys().find(|found| found.is_empty() || found.len() > key) {
            Some(found) => {
                Err(format!("the attachment has a key of {} bytes; expected 1 to {key}", found.len()))
            }
            None => Ok(()),
        }
    }
}

fn is_word(word: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let firm = |byte: Option<u8>| byte.is_some_and(|byte| byte != b'-');
    let ends = firm(word.bytes().next()) && firm(word.bytes().next_back());
    word.len() <= MAX_KIND && word.bytes().all(inner) && ends
}

/// An attachment's document.
pub fn encode(attachment: &AttachmentRecord) -> String {
    let document = Document {
        version: VERSION.into(),
        kind: attachment.kind.clone(),
        kind_version: attachment.version,
        fields: attachment.fields.clone(),
    };
    // Texts and numbers under texts: there is nothing in it that JSON could not hold.
    serde_json::to_string(&document).unwrap_or_default()
}

/// An attachment out of its document.
///
/// # Errors
/// [`DocumentError`]
pub fn decode(document: &str) -> Result<AttachmentRecord, DocumentError> {
    if document.len() > MAX_DOCUMENT {
        return Err(DocumentError::TooLarge { found: document.len() });
    }
    let malformed = |error: serde_json::Error| DocumentError::Malformed(printable(&error.to_string()));
    let Versioned { version } = serde_json::from_str(document).map_err(malformed)?;
    match version {
        1 => {}
        0 => {
            return Err(DocumentError::Malformed(format!("its version is 0; expected {VERSION}")));
        }
        found => return Err(DocumentError::Newer { found }),
    }
    let Document { version: _, kind, kind_version, fields } =
        serde_json::from_str(document).map_err(malformed)?;
    let attachment = AttachmentRecord { kind, version: kind_version, fields };
    attachment.check(MAX_KEY, MAX_FIELDS).map_err(DocumentError::Untrue)?;
    Ok(attachment)
}

/// What a volume's content was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentSource {
    /// Another volume.
    Volume,
    /// A snapshot.
    Snapshot,
}

impl ContentSource {
    /// The word for it under [`names::CONTENT_SOURCE`].
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
        }
    }
}

/// The volume context of a volume that is handed out: the driver's attributes, the attachment of one without a publish step, and the
/// source of one that was not empty from the start, which the node has to know before it formats anything.
pub fn into_volume_context(
    attributes: Parameters,
    attachment: Option<&AttachmentRecord>,
    source: Option<ContentSource>,
) -> Parameters {
    let mut context = attributes;
    context.extend(source.map(|source| (names::CONTENT_SOURCE.to_owned(), source.as_str().to_owned())));
    context.extend(attachment.map(|attachment| (names::ATTACHMENT.to_owned(), encode(attachment))));
    context
}

/// The driver's own attributes out of a volume context: what it gets back with every call.
pub fn attributes(context: Parameters) -> Parameters {
    context.into_iter().filter(|(key, _)| !key.starts_with(names::OWN_ATTRIBUTE_PREFIX)).collect()
}

/// The publish context of a published volume. That of an existing CSI driver is the driver's own, for its own node service.
pub fn into_publish_context(attachment: AttachmentRecord) -> Parameters {
    if attachment.kind == CSI_KIND {
        return attachment.fields;
    }
    [(names::ATTACHMENT.to_owned(), encode(&attachment))].into()
}

/// The attachment that a node's call brings. A driver that `publishes` says it with each publication, every other one with the
/// volume; where it must not be, somebody else has written it.
///
/// # Errors
/// [`DocumentError`]; a document that cannot be read is never passed over for another one.
pub fn of_contexts(
    publish_context: &Parameters,
    volume_context: &Parameters,
    publishes: bool,
) -> Result<AttachmentRecord, DocumentError> {
    let (own, other, name) = if publishes {
        (publish_context, volume_context, "publish_context")
    } else {
        (volume_context, publish_context, "volume_context")
    };
    if other.contains_key(names::ATTACHMENT) {
        return Err(DocumentError::Elsewhere { name });
    }
    let document = own.get(names::ATTACHMENT).ok_or(DocumentError::Missing { name })?;
    decode(document)
}

/// A map whose keys each occur once: of two values under one key, nobody knows which was meant.
fn each_once<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
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
#[path = "attachment_tests.rs"]
mod tests;
