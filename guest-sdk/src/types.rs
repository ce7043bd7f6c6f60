//! Constructors and accessors of the contract's types.

use std::collections::BTreeMap;

use crate::{
    AccessMode, AccessType, CapacityRange, ConnectionInfo, CreateRequest, Description, KeyValues, Placement,
    Volume, VolumeCapability,
};

impl AccessMode {
    /// The mode as spelled in the contract, such as `single-node-writer`. The spelling never changes, so a
    /// backend can store it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SingleNodeWriter => "single-node-writer",
            Self::SingleNodeReaderOnly => "single-node-reader-only",
            Self::MultiNodeReaderOnly => "multi-node-reader-only",
            Self::MultiNodeSingleWriter => "multi-node-single-writer",
            Self::MultiNodeMultiWriter => "multi-node-multi-writer",
            Self::SingleNodeSingleWriter => "single-node-single-writer",
            Self::SingleNodeMultiWriter => "single-node-multi-writer",
        }
    }

    /// Returns true for modes that allow use on several nodes at the same time.
    pub const fn is_multi_node(self) -> bool {
        match self {
            Self::SingleNodeWriter
            | Self::SingleNodeReaderOnly
            | Self::SingleNodeSingleWriter
            | Self::SingleNodeMultiWriter => false,
            Self::MultiNodeReaderOnly | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter => true,
        }
    }
}

impl AccessType {
    /// The access type as spelled in the contract, without options: `block` or `filesystem`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Filesystem(_) => "filesystem",
        }
    }
}

impl VolumeCapability {
    /// The complete capability on one line: mode, access type and filesystem options, quoted as in JSON.
    ///
    /// Two capabilities are equal exactly if their lines are equal. The format is the same in every version
    /// of the SDK, so a backend can store the line and compare it later.
    ///
    /// ```
    /// use cofferdam_guest::{AccessMode, AccessType, FilesystemAccess, VolumeCapability};
    ///
    /// let block = VolumeCapability { mode: AccessMode::SingleNodeWriter, access: AccessType::Block };
    /// assert_eq!(block.canonical_string(), "single-node-writer block");
    /// let access = FilesystemAccess {
    ///     fs_type: Some("ext4".to_owned()),
    ///     mount_flags: vec!["noatime".to_owned(), "context=\"a\"".to_owned()],
    ///     mount_group: None,
    /// };
    /// let mounted = VolumeCapability { access: AccessType::Filesystem(access), ..block };
    /// assert_eq!(
    ///     mounted.canonical_string(),
    ///     r#"single-node-writer filesystem fs-type="ext4" mount-flag="noatime" mount-flag="context=\"a\"""#
    /// );
    /// ```
    pub fn canonical_string(&self) -> String {
        let mut text = format!("{} {}", self.mode.as_str(), self.access.as_str());
        if let AccessType::Filesystem(access) = &self.access {
            let flags = access.mount_flags.iter().map(|flag| ("mount-flag", flag));
            let options = access.fs_type.iter().map(|kind| ("fs-type", kind)).chain(flags);
            for (key, value) in options.chain(access.mount_group.iter().map(|group| ("mount-group", group))) {
                text.push_str(&format!(" {key}={}", serde_json::Value::from(value.as_str())));
            }
        }
        text
    }
}

impl Description {
    /// A backend with placement [`Central`](Placement::Central), and without topology keys, a limit of
    /// volumes per node and features.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            topology_keys: Vec::new(),
            placement: Placement::Central,
            volumes_per_node: None,
            features: Vec::new(),
        }
    }
}

impl CreateRequest {
    /// A minimal request for tests: a block volume of at least `required_bytes`, used on one node.
    pub fn new(name: impl Into<String>, required_bytes: u64) -> Self {
        Self {
            name: name.into(),
            capacity: CapacityRange { required_bytes: Some(required_bytes), limit_bytes: None },
            capabilities: vec![VolumeCapability {
                mode: AccessMode::SingleNodeWriter,
                access: AccessType::Block,
            }],
            parameters: Vec::new(),
            mutable_parameters: Vec::new(),
            topology: None,
            owner: None,
        }
    }
}

impl Volume {
    /// A volume that is reachable from every node and has neither attributes nor connection info.
    pub fn new(handle: impl Into<String>, capacity_bytes: u64) -> Self {
        Self {
            handle: handle.into(),
            capacity_bytes: Some(capacity_bytes),
            context: Vec::new(),
            topology: Vec::new(),
            connection_info: None,
        }
    }
}

/// A version of the NFS protocol, for [`ConnectionInfo::nfs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfsVersion {
    /// NFS 3. File locks are local to each node.
    V3,
    /// NFS 4.1
    V4_1,
    /// NFS 4.2
    V4_2,
}

/// The identifier of an NVMe namespace, for [`ConnectionInfo::nvme_tcp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceId<'a> {
    /// Namespace Globally Unique Identifier: 32 hexadecimal digits.
    Nguid(&'a str),
    /// Namespace UUID.
    Uuid(&'a str),
}

/// An image of a Ceph cluster, for [`ConnectionInfo::rbd`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RbdImage<'a> {
    /// Addresses of monitors, such as `10.0.0.5:6789` or `[fd00::5]:3300`. Port 3300 is version 2 of the
    /// messenger protocol, and must be that of all or of none.
    pub monitors: &'a [&'a str],
    /// The cluster's fsid.
    pub cluster_fsid: &'a str,
    /// The pool.
    pub pool: &'a str,
    /// The namespace in the pool; absent for the default one.
    pub namespace: Option<&'a str>,
    /// The image's name.
    pub image: &'a str,
    /// The image's id, which no later image of the same name has.
    pub image_id: &'a str,
}

/// The kinds of connection info that Cofferdam's node plugin supports, in their first version. The operator
/// configures which of the kinds a node accepts.
///
/// A `path` is relative: names separated by `/`, none of them empty, `.` or `..`. The path starts at the
/// directory that the operator of the node has assigned to this driver for the kind. Symbolic links are not
/// followed.
///
/// ```
/// use cofferdam_guest::ConnectionInfo;
///
/// let info = ConnectionInfo::local_device("wwn-0x5000c500a0b1c2d3");
/// assert_eq!(info.kind, "local-device");
/// assert_eq!(info.fields, [("stable-id".to_owned(), "wwn-0x5000c500a0b1c2d3".to_owned())]);
/// ```
impl ConnectionInfo {
    /// A volume without storage on the node. The node mounts an empty read-only filesystem, and rejects raw
    /// block volumes.
    pub fn none() -> Self {
        Self::with_fields("none", &[])
    }

    /// A directory on the node. The path starts at the directory that the node's operator has assigned.
    pub fn directory(path: &str) -> Self {
        Self::with_fields("directory", &[("path", path)])
    }

    /// A file on the node that is used as a block device. The path starts at the directory that the node's
    /// operator has assigned.
    pub fn image(path: &str) -> Self {
        Self::with_fields("image", &[("path", path)])
    }

    /// A filesystem in the node's memory, with a size in bytes. It is empty after each mount.
    pub fn tmpfs(size_bytes: u64) -> Self {
        Self::with_fields("tmpfs", &[("size", &size_bytes.to_string())])
    }

    /// A block device of the node, named by its stable link in `/dev/disk/by-id`.
    pub fn local_device(stable_id: &str) -> Self {
        Self::with_fields("local-device", &[("stable-id", stable_id)])
    }

    /// An exported directory of an NFS server. `server` is an IP address or a host name, which the node
    /// resolves, and `path` is absolute. The operator of the node configures which servers and paths it
    /// accepts.
    ///
    /// ```
    /// use cofferdam_guest::{ConnectionInfo, NfsVersion};
    ///
    /// let info = ConnectionInfo::nfs("10.0.0.5", "/srv/volumes/a", NfsVersion::V4_2);
    /// assert_eq!(info.kind, "nfs");
    /// ```
    pub fn nfs(server: &str, path: &str, version: NfsVersion) -> Self {
        let version = match version {
            NfsVersion::V3 => "3",
            NfsVersion::V4_1 => "4.1",
            NfsVersion::V4_2 => "4.2",
        };
        Self::with_fields("nfs", &[("server", server), ("path", path), ("version", version)])
    }

    /// A namespace of an NVMe subsystem, over TCP. `portals` are the addresses of the subsystem with their
    /// ports, such as `10.0.0.5:4420` or `[fd00::5]:4420`; the node uses all that it can connect. `nqn` is
    /// the name of the subsystem. The operator of the node configures which portals and subsystems it
    /// accepts.
    ///
    /// `publish` must allow the namespace to the host NQN of the node, by default
    /// `nqn.2026-11.dev.cofferdam:` and the name of the node, and `unpublish` must withdraw it: the node
    /// keeps its access until then.
    ///
    /// ```
    /// use cofferdam_guest::{ConnectionInfo, NamespaceId};
    ///
    /// let id = NamespaceId::Uuid("0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10");
    /// let portals = ["10.0.0.5:4420", "10.0.1.5:4420"];
    /// let info = ConnectionInfo::nvme_tcp(&portals, "nqn.2024-01.com.example:a", id);
    /// assert_eq!(info.kind, "nvme-tcp");
    /// assert_eq!(info.fields[0], ("portals".to_owned(), "10.0.0.5:4420,10.0.1.5:4420".to_owned()));
    /// ```
    pub fn nvme_tcp(portals: &[&str], nqn: &str, id: NamespaceId<'_>) -> Self {
        let id = match id {
            NamespaceId::Nguid(nguid) => ("nguid", nguid),
            NamespaceId::Uuid(uuid) => ("uuid", uuid),
        };
        Self::with_fields("nvme-tcp", &[("portals", &portals.join(",")), ("nqn", nqn), id])
    }

    /// An image of a Ceph cluster, which the node's kernel maps. The user and its key are not part of
    /// connection info: they are the node-stage secrets `userID` and `userKey`. The operator of the node
    /// configures which clusters and pools it accepts.
    ///
    /// ```
    /// use cofferdam_guest::{ConnectionInfo, RbdImage};
    ///
    /// let info = ConnectionInfo::rbd(&RbdImage {
    ///     monitors: &["10.0.0.5:6789", "10.0.0.6:6789"],
    ///     cluster_fsid: "0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10",
    ///     pool: "volumes",
    ///     namespace: None,
    ///     image: "pvc-1",
    ///     image_id: "10226b8b4567",
    /// });
    /// assert_eq!(info.kind, "rbd");
    /// ```
    pub fn rbd(image: &RbdImage<'_>) -> Self {
        let monitors = image.monitors.join(",");
        let mut fields = vec![
            ("monitors", monitors.as_str()),
            ("cluster-fsid", image.cluster_fsid),
            ("pool", image.pool),
            ("image", image.image),
            ("image-id", image.image_id),
        ];
        fields.extend(image.namespace.map(|namespace| ("namespace", namespace)));
        Self::with_fields("rbd", &fields)
    }

    fn with_fields(kind: &str, fields: &[(&str, &str)]) -> Self {
        let fields = fields.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Self { kind: kind.to_owned(), version: 1, fields: fields.collect() }
    }
}

/// Converts pairs to a map. In the contract the keys are unique and their order has no meaning.
pub fn to_map(pairs: KeyValues) -> BTreeMap<String, String> {
    pairs.into_iter().collect()
}
