//! The connection info that this node understands, and the strict parser of its fields.

use std::fmt;

use cofferdam_domain::storage::ConnectionInfo;
use serde::Deserialize;

use crate::{
    nfs::{InvalidExport, NfsExport},
    nvme::{InvalidNamespace, NvmeNamespace},
    path::{PathError, RelativePath},
    rbd::{InvalidImage, RbdFields, RbdImage},
};

/// Volume context key whose value is the kind of the volume's content source: `volume` or `snapshot`. A
/// volume with this key is never formatted.
pub const CONTENT_SOURCE: &str = cofferdam_domain::names::CONTENT_SOURCE;

/// Maximum length of a stable id in bytes: the limit of a file name.
const MAX_STABLE_ID_BYTES: usize = 255;

/// A kind of connection info that the node supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionKind {
    /// An existing directory of the node.
    Directory,
    /// An existing file of the node, attached as a loop device.
    Image,
    /// A tmpfs.
    Tmpfs,
    /// An existing block device of the node.
    LocalDevice,
    /// An exported directory of an NFS server.
    Nfs,
    /// A namespace of an NVMe subsystem, over TCP.
    NvmeTcp,
    /// An image of a Ceph cluster.
    Rbd,
    /// No storage: the node mounts an empty read-only directory.
    None,
}

impl ConnectionKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Directory,
        Self::Image,
        Self::Tmpfs,
        Self::LocalDevice,
        Self::Nfs,
        Self::NvmeTcp,
        Self::Rbd,
        Self::None,
    ];

    /// Returns the name used in connection info.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Image => "image",
            Self::Tmpfs => "tmpfs",
            Self::LocalDevice => "local-device",
            Self::Nfs => "nfs",
            Self::NvmeTcp => "nvme-tcp",
            Self::Rbd => "rbd",
            Self::None => "none",
        }
    }

    /// Looks up a kind by its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl fmt::Display for ConnectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Connection info that this node cannot use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConnection {
    /// The kind is unknown.
    #[error(
        "the connection info's kind is {kind:?}: expected one of {}",
        ConnectionKind::ALL.map(ConnectionKind::as_str).join(", ")
    )]
    Kind {
        /// The kind.
        kind: String,
    },
    /// The version of the kind is not supported.
    #[error("connection info {kind} has version {version}: expected 1; a newer version needs a newer node")]
    Version {
        /// The kind.
        kind: ConnectionKind,
        /// The version.
        version: u32,
    },
    /// A field is missing.
    #[error("connection info {kind} has no field {field:?}")]
    MissingField {
        /// The kind.
        kind: ConnectionKind,
        /// The missing field.
        field: &'static str,
    },
    /// A field is unknown.
    #[error("connection info {kind} has the unknown field {field:?}")]
    UnknownField {
        /// The kind.
        kind: ConnectionKind,
        /// The unknown field.
        field: String,
    },
    /// The path is invalid.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The NFS export is invalid.
    #[error(transparent)]
    Export(#[from] InvalidExport),
    /// The NVMe namespace is invalid.
    #[error(transparent)]
    Namespace(#[from] InvalidNamespace),
    /// The RBD image is invalid.
    #[error(transparent)]
    Image(#[from] InvalidImage),
    /// The size is invalid.
    #[error("the connection info's size is {size:?}: expected a positive decimal number of bytes")]
    Size {
        /// The value.
        size: String,
    },
    /// The stable id is invalid.
    #[error("the stable id {stable_id:?} is not a name in /dev/disk/by-id")]
    StableId {
        /// The value.
        stable_id: String,
    },
}

/// The parsed connection info of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeConnection {
    /// An existing directory of the node.
    Directory {
        /// The path below [`NodePolicy::directory_root`](crate::NodePolicy::directory_root).
        path: RelativePath,
    },
    /// An existing file of the node, attached as a loop device.
    Image {
        /// The path below [`NodePolicy::image_root`](crate::NodePolicy::image_root).
        path: RelativePath,
    },
    /// A tmpfs.
    Tmpfs {
        /// Size in bytes.
        size: u64,
    },
    /// An existing block device of the node.
    LocalDevice {
        /// The name in `/dev/disk/by-id`.
        stable_id: String,
    },
    /// An exported directory of an NFS server.
    Nfs(NfsExport),
    /// A namespace of an NVMe subsystem, over TCP.
    NvmeTcp(NvmeNamespace),
    /// An image of a Ceph cluster.
    Rbd(RbdImage),
    /// No storage: the node mounts an empty read-only directory.
    None,
}

impl NodeConnection {
    /// Returns the kind.
    pub const fn kind(&self) -> ConnectionKind {
        match self {
            Self::Directory { .. } => ConnectionKind::Directory,
            Self::Image { .. } => ConnectionKind::Image,
            Self::Tmpfs { .. } => ConnectionKind::Tmpfs,
            Self::LocalDevice { .. } => ConnectionKind::LocalDevice,
            Self::Nfs(_) => ConnectionKind::Nfs,
            Self::NvmeTcp(_) => ConnectionKind::NvmeTcp,
            Self::Rbd(_) => ConnectionKind::Rbd,
            Self::None => ConnectionKind::None,
        }
    }

    /// Parses connection info. Every field of its kind is required, and any other field is an error.
    ///
    /// # Errors
    /// [`InvalidConnection`]
    pub fn parse(connection_info: &ConnectionInfo) -> Result<Self, InvalidConnection> {
        let kind = ConnectionKind::from_name(&connection_info.kind)
            .ok_or_else(|| InvalidConnection::Kind { kind: connection_info.kind.clone() })?;
        if connection_info.version != 1 {
            return Err(InvalidConnection::Version { kind, version: connection_info.version });
        }
        let mut fields = connection_info.fields.clone();
        let mut take_field =
            |field: &'static str| fields.remove(field).ok_or(InvalidConnection::MissingField { kind, field });
        let connection = match kind {
            ConnectionKind::Directory => Self::Directory { path: RelativePath::parse(&take_field("path")?)? },
            ConnectionKind::Image => Self::Image { path: RelativePath::parse(&take_field("path")?)? },
            ConnectionKind::Tmpfs => Self::Tmpfs { size: parse_size(&take_field("size")?)? },
            ConnectionKind::LocalDevice => {
                Self::LocalDevice { stable_id: parse_stable_id(take_field("stable-id")?)? }
            }
            ConnectionKind::Nfs => {
                let (server, path) = (take_field("server")?, take_field("path")?);
                Self::Nfs(NfsExport::parse(&server, &path, &take_field("version")?)?)
            }
            ConnectionKind::NvmeTcp => {
                let (portals, nqn) = (take_field("portals")?, take_field("nqn")?);
                let (nguid, uuid) = (fields.remove("nguid"), fields.remove("uuid"));
                Self::NvmeTcp(NvmeNamespace::parse(&portals, &nqn, nguid.as_deref(), uuid.as_deref())?)
            }
            ConnectionKind::Rbd => {
                let (monitors, fsid, pool) =
                    (take_field("monitors")?, take_field("cluster-fsid")?, take_field("pool")?);
                let (image, image_id) = (take_field("image")?, take_field("image-id")?);
                let namespace = fields.remove("namespace");
                Self::Rbd(RbdImage::parse(RbdFields {
                    monitors: &monitors,
                    cluster_fsid: &fsid,
                    pool: &pool,
                    namespace: namespace.as_deref(),
                    image: &image,
                    image_id: &image_id,
                })?)
            }
            ConnectionKind::None => Self::None,
        };
        match fields.into_keys().next() {
            Some(field) => Err(InvalidConnection::UnknownField { kind, field }),
            None => Ok(connection),
        }
    }
}

/// Parses a decimal number of bytes in its canonical spelling.
fn parse_size(text: &str) -> Result<u64, InvalidConnection> {
    let number = text.parse::<u64>().ok().filter(|number| *number > 0 && number.to_string() == text);
    number.ok_or_else(|| InvalidConnection::Size { size: text.to_owned() })
}

fn parse_stable_id(stable_id: String) -> Result<String, InvalidConnection> {
    let is_valid = !stable_id.is_empty()
        && stable_id.len() <= MAX_STABLE_ID_BYTES
        && !matches!(stable_id.as_str(), "." | "..")
        && !stable_id.contains(['/', '\0']);
    if is_valid { Ok(stable_id) } else { Err(InvalidConnection::StableId { stable_id }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::{NamespaceId, Nqn};

    const RBD_FIELDS: &[(&str, &str)] = &[
        ("monitors", "10.0.0.5"),
        ("cluster-fsid", "0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10"),
        ("pool", "p"),
        ("image", "a"),
        ("image-id", "11ab"),
    ];
    const NVME_FIELDS: &[(&str, &str)] = &[
        ("portals", "10.0.0.5"),
        ("nqn", "nqn.2024-01.com.example:a"),
        ("nguid", "11111111111111111111111111111111"),
    ];

    fn record(kind: &str, version: u32, fields: &[(&str, &str)]) -> ConnectionInfo {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ConnectionInfo { kind: kind.to_owned(), version, fields }
    }

    #[test]
    fn connection_info_with_missing_or_extra_fields_is_rejected() {
        let path = |text| RelativePath::parse(text).unwrap();
        let stable_id = "wwn-0x5".to_owned();
        let good = [
            (record("directory", 1, &[("path", "a/b")]), NodeConnection::Directory { path: path("a/b") }),
            (record("image", 1, &[("path", "a")]), NodeConnection::Image { path: path("a") }),
            (record("tmpfs", 1, &[("size", "4096")]), NodeConnection::Tmpfs { size: 4096 }),
            (
                record("local-device", 1, &[("stable-id", &stable_id)]),
                NodeConnection::LocalDevice { stable_id },
            ),
            (
                record("nfs", 1, &[("server", "10.0.0.5"), ("path", "/srv/a"), ("version", "4.2")]),
                NodeConnection::Nfs(NfsExport::parse("10.0.0.5", "/srv/a", "4.2").unwrap()),
            ),
            (
                record("nvme-tcp", 1, NVME_FIELDS),
                NodeConnection::NvmeTcp(NvmeNamespace {
                    nqn: Nqn::parse("nqn.2024-01.com.example:a").unwrap(),
                    portals: vec!["10.0.0.5:4420".parse().unwrap()],
                    id: NamespaceId::Nguid([0x11; 16]),
                }),
            ),
            (
                record("rbd", 1, RBD_FIELDS),
                NodeConnection::Rbd(RbdImage {
                    monitors: vec!["10.0.0.5:6789".parse().unwrap()],
                    cluster_fsid: "0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10".to_owned(),
                    pool: "p".to_owned(),
                    namespace: String::new(),
                    image: "a".to_owned(),
                    image_id: "11ab".to_owned(),
                }),
            ),
            (record("none", 1, &[]), NodeConnection::None),
        ];
        for (record, expected) in good {
            assert_eq!(NodeConnection::parse(&record), Ok(expected));
        }
        type Row = (&'static str, u32, &'static [(&'static str, &'static str)]);
        let bad: [Row; 30] = [
            ("rbd", 2, RBD_FIELDS),
            ("rbd", 1, &[("monitors", "10.0.0.5"), ("pool", "p"), ("image", "a"), ("image-id", "1")]),
            (
                "rbd",
                1,
                &[
                    ("monitors", "10.0.0.5"),
                    ("cluster-fsid", "0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10"),
                    ("pool", "p"),
                    ("image", "a"),
                    ("image-id", "11ab"),
                    ("user", "a"),
                ],
            ),
            ("nvme-tcp", 1, &[("portals", "10.0.0.5"), ("nqn", "nqn.2024-01.com.example:a")]),
            ("nvme-tcp", 1, &[("portals", "10.0.0.5"), ("nguid", "11111111111111111111111111111111")]),
            ("nvme-tcp", 2, NVME_FIELDS),
            ("nvme-tcp", 1, &[("portals", "10.0.0.5"), ("nqn", "a"), ("nguid", "1"), ("nsid", "1")]),
            ("", 1, &[]),
            ("csi", 1, &[]),
            ("nfs", 1, &[]),
            ("nfs", 1, &[("server", "10.0.0.5"), ("path", "/srv/a")]),
            ("nfs", 1, &[("server", "10.0.0.5"), ("path", "/srv/a"), ("version", "4.2"), ("options", "a")]),
            ("nfs", 2, &[("server", "10.0.0.5"), ("path", "/srv/a"), ("version", "4.2")]),
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
