//! How an attachment travels from the controller to the node: as one document under one key of the volume context or of the
//! publish context.
//!
//! CSI carries maps of texts, and whoever stands between the two sides may write them: PersistentVolumes and VolumeAttachments can
//! be edited. So reading is strict: one version, known members only, each once, sizes as a driver's own. What a document means,
//! and whether this node does it, is the node's to decide.

use std::{collections::BTreeMap, fmt};

use cofferdam_backend::checks::{Bounds, printable};
use cofferdam_domain::storage::{AttachmentRecord, Parameters};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor},
};

/// First part of the keys that are ours in a context. Drivers cannot write them.
pub const HOST_PREFIX: &str = "cofferdam.dev/";
/// The key of the document.
pub const KEY: &str = "cofferdam.dev/attachment";
/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 1;
/// Kind of the attachments that an existing CSI driver's publish context becomes: its own node service reads them, as they are.
pub const CSI_KIND: &str = "csi";
/// Longest document that is read, in bytes: 4 KiB of fields, each byte escaped as `\u0000`, in as many pairs as there can be.
pub const MAX_DOCUMENT: usize = 48 << 10;

/// Why a document is not an attachment. One line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachmentError {
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
/// [`AttachmentError`]
pub fn decode(document: &str) -> Result<AttachmentRecord, AttachmentError> {
    if document.len() > MAX_DOCUMENT {
        return Err(AttachmentError::TooLarge { found: document.len() });
    }
    let malformed = |error: serde_json::Error| AttachmentError::Malformed(printable(&error.to_string()));
    let Versioned { version } = serde_json::from_str(document).map_err(malformed)?;
    match version {
        1 => {}
        0 => {
            return Err(AttachmentError::Malformed(format!("its version is 0; expected {VERSION}")));
        }
        found => return Err(AttachmentError::Newer { found }),
    }
    let Document { version: _, kind, kind_version, fields } =
        serde_json::from_str(document).map_err(malformed)?;
    let attachment = AttachmentRecord { kind, version: kind_version, fields };
    Bounds::SPECIFIED.attachment(&attachment).map_err(AttachmentError::Untrue)?;
    Ok(attachment)
}

/// The volume context of a volume that is handed out: the driver's attributes, and the attachment of one without a publish step.
pub fn into_volume_context(attributes: Parameters, attachment: Option<&AttachmentRecord>) -> Parameters {
    let mut context = attributes;
    context.extend(attachment.map(|attachment| (KEY.to_owned(), encode(attachment))));
    context
}

/// The driver's own attributes out of a volume context: what it gets back with every call.
pub fn attributes(context: Parameters) -> Parameters {
    context.into_iter().filter(|(key, _)| !key.starts_with(HOST_PREFIX)).collect()
}

/// The publish context of a published volume. That of an existing CSI driver is the driver's own, for its own node service.
pub fn into_publish_context(attachment: AttachmentRecord) -> Parameters {
    if attachment.kind == CSI_KIND {
        return attachment.fields;
    }
    [(KEY.to_owned(), encode(&attachment))].into()
}

/// The attachment that a node's call brings: that of the publish context, or else that of the volume context. `None` when neither
/// has one.
///
/// # Errors
/// [`AttachmentError`]: a document that cannot be read is never passed over for another one.
pub fn of_contexts(
    publish_context: &Parameters,
    volume_context: &Parameters,
) -> Result<Option<AttachmentRecord>, AttachmentError> {
    let document = publish_context.get(KEY).or_else(|| volume_context.get(KEY));
    document.map(|document| decode(document)).transpose()
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
