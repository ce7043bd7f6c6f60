//! What the node knows of attachments, and the one strict reader of their fields.

use cofferdam_domain::storage::ConnectionInfo;

use crate::{path::RelativePath, policy::ConnectionKind};

/// Key of a volume's context that says what its content was made of, `volume` or `snapshot`. Such a volume is
/// never formatted.
pub const CONTENT_SOURCE: &str = cofferdam_domain::names::CONTENT_SOURCE;

/// Longest stable id in bytes: a file name.
const MAX_STABLE_ID_BYTES: usize = 255;

/// How a node reaches a volume: what the node knows how to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeConnection {
    /// A directory that the node has already.
    Directory {
        /// Beneath the root that the policy names.
        path: RelativePath,
    },
    /// A file that the node has already, used as a block device.
    Image {
        /// Beneath the root that the policy names.
        path: RelativePath,
    },
    /// Memory of the node.
    Tmpfs {
        /// Bytes.
        size: u64,
    },
    /// A block device that the node has already.
    LocalDevice {
        /// Its name in `/dev/disk/by-id`.
        stable_id: String,
    },
    /// Nothing that a node would do.
    None,
}

impl NodeConnection {
    /// The kind.
    pub const fn kind(&self) -> ConnectionKind {
        match self {
            Self::Directory { .. } => ConnectionKind::Directory,
            Self::Image { .. } => ConnectionKind::Image,
            Self::Tmpfs { .. } => ConnectionKind::Tmpfs,
            Self::LocalDevice { .. } => ConnectionKind::LocalDevice,
            Self::None => ConnectionKind::None,
        }
    }

    /// Reads a record: every field is required, each once, and nothing is guessed.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(connection_info: &ConnectionInfo) -> Result<Self, String> {
        let kind = ConnectionKind::from_name(&connection_info.kind).ok_or_else(|| {
            let known = ConnectionKind::ALL.map(ConnectionKind::as_str).join(", ");
            format!("the attachment's kind is {:?}: expected one of {known}", connection_info.kind)
        })?;
        if connection_info.version != 1 {
            return Err(format!(
                "the attachment {kind} has version {}: expected 1; a newer one needs a newer node",
                connection_info.version
            ));
        }
        let mut fields = connection_info.fields.clone();
        let mut take_field = |name: &str| {
            fields.remove(name).ok_or_else(|| format!("the attachment {kind} has no field {name:?}"))
        };
        let connection = match kind {
            ConnectionKind::Directory => Self::Directory { path: RelativePath::parse(&take_field("path")?)? },
            ConnectionKind::Image => Self::Image { path: RelativePath::parse(&take_field("path")?)? },
            ConnectionKind::Tmpfs => Self::Tmpfs { size: parse_size(&take_field("size")?)? },
            ConnectionKind::LocalDevice => {
                Self::LocalDevice { stable_id: parse_stable_id(take_field("stable-id")?)? }
            }
            ConnectionKind::None => Self::None,
        };
        match fields.keys().next() {
            Some(unknown) => {
                Err(format!("the attachment {kind} has a field {unknown:?} that it must not have"))
            }
            None => Ok(connection),
        }
    }
}

/// A decimal number of bytes, in its only spelling.
fn parse_size(text: &str) -> Result<u64, String> {
    let number = text.parse::<u64>().ok().filter(|number| *number > 0 && number.to_string() == text);
    number
        .ok_or_else(|| format!("the attachment's size is {text:?}: expected bytes, a decimal number from 1"))
}

fn parse_stable_id(text: String) -> Result<String, String> {
    let is_valid = !text.is_empty()
        && text.len() <= MAX_STABLE_ID_BYTES
        && !matches!(text.as_str(), "." | "..")
        && !text.contains(['/', '\0']);
    if is_valid { Ok(text) } else { Err(format!("the stable id {text:?} is not a name in /dev/disk/by-id")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: &str, version: u32, fields: &[(&str, &str)]) -> ConnectionInfo {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ConnectionInfo { kind: kind.to_owned(), version, fields }
    }

    #[test]
    fn connection_info_with_missing_or_extra_fields_is_rejected() {
        let path = |text| RelativePath::parse(text).unwrap();
        #[rustfmt::skip] // one row a case
        let good = [
            (record("directory", 1, &[("path", "a/b")]),                NodeConnection::Directory { path: path("a/b") }),
            (record("image", 1, &[("path", "a")]),                      NodeConnection::Image { path: path("a") }),
            (record("tmpfs", 1, &[("size", "4096")]),                   NodeConnection::Tmpfs { size: 4096 }),
            (record("local-device", 1, &[("stable-id", "wwn-0x5")]),    NodeConnection::LocalDevice { stable_id: "wwn-0x5".to_owned() }),
            (record("none", 1, &[]),                                    NodeConnection::None),
        ];
        for (record, expected) in good {
            assert_eq!(NodeConnection::parse(&record), Ok(expected));
        }
        type Row = (&'static str, u32, &'static [(&'static str, &'static str)]);
        let bad: [Row; 20] = [
            ("", 1, &[]),
            ("csi", 1, &[]),
            ("nfs", 1, &[]),
            ("Directory", 1, &[("path", "a")]),
            ("directory", 0, &[("path", "a")]),
            ("directory", 2, &[("path", "a")]),
            ("directory", 1, &[]),
            ("directory", 1, &[("path", "/etc")]),
            ("directory", 1, &[("path", "../etc")]),
            ("directory", 1, &[("path", "a"), ("options", "suid")]),
            ("image", 1, &[("path", "")]),
            ("tmpfs", 1, &[("size", "0")]),
            ("tmpfs", 1, &[("size", "+1")]),
            ("tmpfs", 1, &[("size", "01")]),
            ("tmpfs", 1, &[("size", "1k,mode=7777")]),
            ("tmpfs", 1, &[("size", "18446744073709551616")]),
            ("local-device", 1, &[("stable-id", "../sda")]),
            ("local-device", 1, &[("stable-id", "..")]),
            ("local-device", 1, &[("stable-id", "")]),
            ("none", 1, &[("path", "a")]),
        ];
        for (kind, version, fields) in bad {
            assert!(
                NodeConnection::parse(&record(kind, version, fields)).is_err(),
                "{kind} {version} {fields:?}"
            );
        }
    }
}
