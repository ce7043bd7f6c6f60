//! What the node knows of attachments, and the one strict reader of their fields.

use cofferdam_domain::storage::ConnectionInfo;

use crate::{path::RelativePath, policy::Kind};

/// Key of a volume's context that says what its content was made of, `volume` or `snapshot`. Such a volume is
/// never formatted.
pub const CONTENT_SOURCE: &str = cofferdam_domain::names::CONTENT_SOURCE;

/// Longest stable id in bytes: a file name.
const MAX_STABLE_ID: usize = 255;

/// How a node reaches a volume: what the node knows how to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attachment {
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

impl Attachment {
    /// The kind.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Directory { .. } => Kind::Directory,
            Self::Image { .. } => Kind::Image,
            Self::Tmpfs { .. } => Kind::Tmpfs,
            Self::LocalDevice { .. } => Kind::LocalDevice,
            Self::None => Kind::None,
        }
    }

    /// Reads a record: every field is required, each once, and nothing is guessed.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(record: &ConnectionInfo) -> Result<Self, String> {
        let kind = Kind::of(&record.kind).ok_or_else(|| {
            let known = Kind::ALL.map(Kind::as_str).join(", ");
            format!("the attachment's kind is {:?}: expected one of {known}", record.kind)
        })?;
        if record.version != 1 {
            return Err(format!(
                "the attachment {kind} has version {}: expected 1; a newer one needs a newer node",
                record.version
            ));
        }
        let mut fields = record.fields.clone();
        let mut take = |name: &str| {
            fields.remove(name).ok_or_else(|| format!("the attachment {kind} has no field {name:?}"))
        };
        let attachment = match kind {
            Kind::Directory => Self::Directory { path: RelativePath::parse(&take("path")?)? },
            Kind::Image => Self::Image { path: RelativePath::parse(&take("path")?)? },
            Kind::Tmpfs => Self::Tmpfs { size: decimal(&take("size")?)? },
            Kind::LocalDevice => Self::LocalDevice { stable_id: stable_id(take("stable-id")?)? },
            Kind::None => Self::None,
        };
        match fields.keys().next() {
            Some(unknown) => {
                Err(format!("the attachment {kind} has a field {unknown:?} that it must not have"))
            }
            None => Ok(attachment),
        }
    }
}

/// A decimal number of bytes, in its only spelling.
fn decimal(text: &str) -> Result<u64, String> {
    let number = text.parse::<u64>().ok().filter(|number| *number > 0 && number.to_string() == text);
    number
        .ok_or_else(|| format!("the attachment's size is {text:?}: expected bytes, a decimal number from 1"))
}

fn stable_id(text: String) -> Result<String, String> {
    let name = !text.is_empty()
        && text.len() <= MAX_STABLE_ID
        && !matches!(text.as_str(), "." | "..")
        && !text.contains(['/', '\0']);
    if name { Ok(text) } else { Err(format!("the stable id {text:?} is not a name in /dev/disk/by-id")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: &str, version: u32, fields: &[(&str, &str)]) -> ConnectionInfo {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ConnectionInfo { kind: kind.to_owned(), version, fields }
    }

    #[test]
    fn records_are_read_strictly() {
        let path = |text| RelativePath::parse(text).unwrap();
        #[rustfmt::skip] // one row a case
        let good = [
            (record("directory", 1, &[("path", "a/b")]),                Attachment::Directory { path: path("a/b") }),
            (record("image", 1, &[("path", "a")]),                      Attachment::Image { path: path("a") }),
            (record("tmpfs", 1, &[("size", "4096")]),                   Attachment::Tmpfs { size: 4096 }),
            (record("local-device", 1, &[("stable-id", "wwn-0x5")]),    Attachment::LocalDevice { stable_id: "wwn-0x5".to_owned() }),
            (record("none", 1, &[]),                                    Attachment::None),
        ];
        for (record, expected) in good {
            assert_eq!(Attachment::parse(&record), Ok(expected));
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
                Attachment::parse(&record(kind, version, fields)).is_err(),
                "{kind} {version} {fields:?}"
            );
        }
    }
}
