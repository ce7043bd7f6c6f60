//! The node's policy: the operations that a driver's connection info and the inline volumes of pods may cause
//! on this node. Everything that is not allowed is denied.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, de};

use crate::{
    connection::{ConnectionKind, NodeConnection},
    connector::{
        Connector, DirectoryConnector, ImageConnector, LocalDeviceConnector, NfsConnector, NoneConnector,
        NvmeConnector, RbdConnector, TmpfsConnector,
    },
    error::NodeError,
    filesystem::Filesystem,
    mount_point::MountAttributes,
    nfs::NfsRule,
    nvme::{DEFAULT_HOST_NQN, InvalidNamespace, NvmeHost, NvmeRule},
    path::RootedPath,
    rbd::RbdRule,
};

/// An invalid [`StableIdPattern`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The pattern has only `*`, which would match every device, or is empty.
    #[error("the pattern {pattern:?} matches every device: expected a part of a stable id")]
    MatchesEverything {
        /// The pattern.
        pattern: String,
    },
    /// The pattern contains a slash.
    #[error("the pattern {pattern:?} contains /: expected names in /dev/disk/by-id")]
    Slash {
        /// The pattern.
        pattern: String,
    },
}

/// Settings of a [`NodePolicy`] that are invalid or inconsistent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A kind is allowed, but a setting that it needs is missing.
    #[error("connection-kinds has {kind}: expected {setting} to be set")]
    MissingSetting {
        /// The kind.
        kind: ConnectionKind,
        /// The configuration key of the setting.
        setting: &'static str,
    },
    /// A setting is given for a kind that is not allowed.
    #[error("{setting} is set: expected {kind} in connection-kinds")]
    UnusedSetting {
        /// The configuration key of the setting.
        setting: &'static str,
        /// The kind.
        kind: ConnectionKind,
    },
    /// Kind `image`, `local-device`, `nvme-tcp` or `rbd` is allowed, but no filesystem is.
    #[error("filesystems is empty: expected ext4, xfs, or both")]
    NoFilesystems,
    /// A root is not an absolute path, is `/`, or has an empty name, `.` or `..` or a name that is too long.
    #[error("the root {root:?} is invalid: expected an absolute path other than /")]
    Root {
        /// The root.
        root: String,
    },
}

/// A glob for stable ids. `*` matches any text, including the empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StableIdPattern(String);

impl StableIdPattern {
    /// Validates a pattern.
    ///
    /// # Errors
    /// [`PatternError`] if the pattern is empty, has only `*`, or contains `/`.
    pub fn new(pattern: impl Into<String>) -> Result<Self, PatternError> {
        let pattern = pattern.into();
        if pattern.trim_matches('*').is_empty() {
            return Err(PatternError::MatchesEverything { pattern });
        }
        if pattern.contains('/') {
            return Err(PatternError::Slash { pattern });
        }
        Ok(Self(pattern))
    }

    /// Returns true if the pattern names partitions: other patterns stand for whole devices only.
    fn names_partitions(&self) -> bool {
        self.0.contains("part")
    }

    fn matches(&self, id: &str) -> bool {
        let mut parts = self.0.split('*');
        let Some(mut rest) = parts.next().and_then(|first| id.strip_prefix(first)) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        for part in parts {
            match rest.find(part).and_then(|at| rest.get(at + part.len()..)) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

impl<'de> Deserialize<'de> for StableIdPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// Inline (ephemeral) volumes. The pod's author chooses their attributes, so the policy bounds them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct InlinePolicy {
    /// Maximum size in bytes of one inline volume, which is a tmpfs; also its size if the pod requests none.
    /// If absent, inline volumes are denied.
    pub tmpfs_max_bytes: Option<u64>,
}

/// The policy for one driver on this node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NodePolicy {
    /// Allowed kinds of connection info.
    #[serde(default)]
    pub connection_kinds: BTreeSet<ConnectionKind>,
    /// Root of the paths of kind `directory`: an absolute path. `None` unless the kind is allowed.
    pub directory_root: Option<String>,
    /// True if volumes may have the same directory or NFS export, or one below that of the other. Otherwise a
    /// driver, or the editor of a volume, could give the volume the directory of another one that is in use.
    #[serde(default)]
    pub shared_directories: bool,
    /// Root of the paths of kind `image`: an absolute path. `None` unless the kind is allowed.
    pub image_root: Option<String>,
    /// Allowed stable ids of kind `local-device`.
    #[serde(default)]
    pub stable_ids: Vec<StableIdPattern>,
    /// Servers and exports of kind `nfs`.
    #[serde(default)]
    pub nfs: Vec<NfsRule>,
    /// Portals and subsystems of kind `nvme-tcp`.
    #[serde(default)]
    pub nvme_tcp: Vec<NvmeRule>,
    /// The host NQN of the node, in which `{node}` stands for the name of the Node. If absent,
    /// `nqn.2026-11.dev.cofferdam:{node}`.
    pub nvme_host_nqn: Option<String>,
    /// Clusters, monitors and pools of kind `rbd`.
    #[serde(default)]
    pub rbd: Vec<RbdRule>,
    /// Maximum size in bytes of one volume of kind `tmpfs`. `None` unless the kind is allowed.
    pub tmpfs_max_bytes: Option<u64>,
    /// Maximum size in bytes of all tmpfs of this driver on this node together, inline volumes included. If
    /// absent, only their number limits it.
    pub tmpfs_total_bytes: Option<u64>,
    /// Filesystems that may be mounted from devices and created on blank ones. If a volume requests none, the
    /// node creates ext4, or xfs if ext4 is not allowed.
    #[serde(default = "default_filesystems")]
    pub filesystems: BTreeSet<Filesystem>,
    /// True if setuid and setgid bits in a volume may take effect: the node does not add `nosuid` to mounts.
    #[serde(default)]
    pub allow_suid: bool,
    /// True if device nodes in a volume may be opened: the node does not add `nodev` to mounts.
    #[serde(default)]
    pub allow_devices: bool,
    /// Inline volumes of pods.
    #[serde(default)]
    pub inline: InlinePolicy,
}

fn default_filesystems() -> BTreeSet<Filesystem> {
    [Filesystem::Ext4].into()
}

impl Default for NodePolicy {
    /// Denies everything.
    fn default() -> Self {
        Self {
            connection_kinds: BTreeSet::new(),
            directory_root: None,
            shared_directories: false,
            image_root: None,
            stable_ids: Vec::new(),
            nfs: Vec::new(),
            nvme_tcp: Vec::new(),
            nvme_host_nqn: None,
            rbd: Vec::new(),
            tmpfs_max_bytes: None,
            tmpfs_total_bytes: None,
            filesystems: default_filesystems(),
            allow_suid: false,
            allow_devices: false,
            inline: InlinePolicy::default(),
        }
    }
}

impl NodePolicy {
    /// Checks that the roots are valid and that the settings are consistent with each other.
    ///
    /// # Errors
    /// [`PolicyError`]
    pub fn validate(&self) -> Result<(), PolicyError> {
        let has_kind = |kind| self.has_kind(kind);
        let requirements = [
            (ConnectionKind::Directory, "directory-root", self.directory_root.is_some()),
            (ConnectionKind::Image, "image-root", self.image_root.is_some()),
            (ConnectionKind::LocalDevice, "stable-ids", !self.stable_ids.is_empty()),
            (ConnectionKind::Nfs, "nfs", !self.nfs.is_empty()),
            (ConnectionKind::NvmeTcp, "nvme-tcp", !self.nvme_tcp.is_empty()),
            (ConnectionKind::Rbd, "rbd", !self.rbd.is_empty()),
            (ConnectionKind::Tmpfs, "tmpfs-max-bytes", self.tmpfs_max_bytes.is_some()),
        ];
        for (kind, setting, is_set) in requirements {
            if has_kind(kind) && !is_set {
                return Err(PolicyError::MissingSetting { kind, setting });
            }
            if is_set && !has_kind(kind) {
                return Err(PolicyError::UnusedSetting { setting, kind });
            }
        }
        let uses_memory = has_kind(ConnectionKind::Tmpfs) || self.inline.tmpfs_max_bytes.is_some();
        if self.tmpfs_total_bytes.is_some() && !uses_memory {
            let setting = "tmpfs-total-bytes";
            return Err(PolicyError::UnusedSetting { setting, kind: ConnectionKind::Tmpfs });
        }
        if self.uses_devices() && self.filesystems.is_empty() {
            return Err(PolicyError::NoFilesystems);
        }
        for root in self.directory_root.iter().chain(&self.image_root) {
            let names = root.strip_prefix('/').map(|path| path.trim_end_matches('/'));
            if names.is_none_or(|names| crate::path::RelativePath::parse(names).is_err()) {
                return Err(PolicyError::Root { root: root.clone() });
            }
        }
        Ok(())
    }

    /// Returns true if a kind is allowed.
    pub fn has_kind(&self, kind: ConnectionKind) -> bool {
        self.connection_kinds.contains(&kind)
    }

    /// Returns true if a kind is allowed whose volumes are block devices.
    pub(crate) fn uses_devices(&self) -> bool {
        [ConnectionKind::Image, ConnectionKind::LocalDevice, ConnectionKind::NvmeTcp, ConnectionKind::Rbd]
            .into_iter()
            .any(|kind| self.has_kind(kind))
    }

    /// Returns the names by which a node identifies itself to NVMe subsystems; absent if they are invalid and
    /// kind `nvme-tcp` is not allowed.
    ///
    /// # Errors
    /// [`InvalidNamespace::Nqn`] if the host NQN is invalid, for example too long.
    pub fn nvme_host(&self, node: &str) -> Result<Option<NvmeHost>, InvalidNamespace> {
        let template = self.nvme_host_nqn.as_deref().unwrap_or(DEFAULT_HOST_NQN);
        match NvmeHost::new(template, node) {
            Err(error) if self.has_kind(ConnectionKind::NvmeTcp) => Err(error),
            host => Ok(host.ok()),
        }
    }

    /// Returns the attributes that mounts must have: `nosuid` and `nodev`, unless the policy allows their
    /// omission.
    pub(crate) fn base_attributes(&self) -> MountAttributes {
        MountAttributes {
            no_suid: !self.allow_suid,
            no_devices: !self.allow_devices,
            ..MountAttributes::default()
        }
    }

    /// Returns the path of a volume's directory or image; `None` for other kinds, and for a kind without a
    /// root.
    pub(crate) fn rooted_path(&self, connection: &NodeConnection) -> Option<RootedPath> {
        let (root, path) = match connection {
            NodeConnection::Directory { path } => (&self.directory_root, path),
            NodeConnection::Image { path } => (&self.image_root, path),
            NodeConnection::Tmpfs { .. }
            | NodeConnection::LocalDevice { .. }
            | NodeConnection::Nfs(_)
            | NodeConnection::NvmeTcp(_)
            | NodeConnection::Rbd(_)
            | NodeConnection::None => return None,
        };
        let root = root.as_ref()?.trim_end_matches('/').to_owned();
        Some(RootedPath { root, relative_path: path.clone() })
    }

    /// Returns true if two volumes have the same directory, image or export, or one lies in that of the other,
    /// although the policy does not allow that. Also if they have the same NVMe namespace or RBD image.
    pub(crate) fn conflicts(&self, one: &NodeConnection, other: &NodeConnection) -> bool {
        let overlaps = match (one, other) {
            (NodeConnection::NvmeTcp(one), NodeConnection::NvmeTcp(other)) => {
                return one.id.bytes() == other.id.bytes();
            }
            (NodeConnection::Rbd(one), NodeConnection::Rbd(other)) => return one.is_same(other),
            (NodeConnection::Nfs(one), NodeConnection::Nfs(other)) => one.overlaps(other),
            (one, other) => {
                let paths = self.rooted_path(one).zip(self.rooted_path(other));
                paths.is_some_and(|(one, other)| one.overlaps(&other))
            }
        };
        overlaps && !self.shared_directories
    }

    /// Returns the connector for connection info that the policy allows. Every allow/deny decision about
    /// connection info is made here. Connectors check the capability, the filesystem and the mount options of
    /// a request, and the size to which a tmpfs is expanded.
    ///
    /// # Errors
    /// [`NodeError::Denied`] unless the policy allows it.
    pub(crate) fn connector(&self, connection: &NodeConnection) -> Result<Box<dyn Connector>, NodeError> {
        let kind = connection.kind();
        let denied = |subject: String| NodeError::Denied(format!("{subject} is not allowed on this node"));
        if !self.connection_kinds.contains(&kind) {
            return Err(denied(format!("the connection info {kind}")));
        }
        let rooted = || {
            let path = self.rooted_path(connection);
            path.ok_or_else(|| denied(format!("the connection info {kind} without a root")))
        };
        Ok(match connection {
            NodeConnection::Directory { .. } => Box::new(DirectoryConnector(rooted()?)),
            NodeConnection::Image { .. } => Box::new(ImageConnector(rooted()?)),
            NodeConnection::Tmpfs { size } => {
                let max_bytes = self.tmpfs_max_bytes.unwrap_or_default();
                if *size > max_bytes {
                    return Err(denied(format!("memory of {size} bytes, above {max_bytes},")));
                }
                Box::new(TmpfsConnector { size: *size, max_size: max_bytes })
            }
            NodeConnection::LocalDevice { stable_id } => {
                let matching: Vec<_> =
                    self.stable_ids.iter().filter(|pattern| pattern.matches(stable_id)).collect();
                if matching.is_empty() {
                    return Err(denied(format!("the device {stable_id:?}")));
                }
                let allows_partition = matching.iter().any(|pattern| pattern.names_partitions());
                Box::new(LocalDeviceConnector { stable_id: stable_id.clone(), allows_partition })
            }
            NodeConnection::Nfs(export) => {
                let addresses: Vec<_> =
                    self.nfs.iter().flat_map(|rule| rule.addresses_of(export)).copied().collect();
                if addresses.is_empty() {
                    return Err(denied(format!("the NFS export {}", export.source())));
                }
                Box::new(NfsConnector { export: export.clone(), addresses })
            }
            NodeConnection::NvmeTcp(namespace) => {
                if let Some(portal) = NvmeRule::denied_portal(&self.nvme_tcp, namespace) {
                    return Err(denied(format!("the NVMe subsystem {} at {portal}", namespace.nqn)));
                }
                Box::new(NvmeConnector(namespace.clone()))
            }
            NodeConnection::Rbd(image) => {
                if !self.rbd.iter().any(|rule| rule.allows(image)) {
                    return Err(denied(format!("{image} at {}", image.monitor_list())));
                }
                Box::new(RbdConnector(image.clone()))
            }
            NodeConnection::None => Box::new(NoneConnector),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_id_patterns_match() {
        #[rustfmt::skip] // one row a case
        let table = [
            ("wwn-0x5",      "wwn-0x5",         true),
            ("wwn-0x5",      "wwn-0x55",        false),
            ("wwn-*",        "wwn-0x5",         true),
            ("wwn-*",        "wwn-",            true),
            ("wwn-*",        "awwn-1",          false),
            ("*-data",       "nvme-a-data",     true),
            ("*-data",       "nvme-a-data-1",   false),
            ("a*b*c",        "a1b2c",           true),
            ("a*b*c",        "ac",              false),
            ("a*b*b",        "ab",              false),
            ("a*a",          "a",               false),
            ("a*ab",         "ab",              false),
        ];
        for (pattern, id, expected) in table {
            assert_eq!(StableIdPattern::new(pattern).unwrap().matches(id), expected, "{pattern} {id}");
        }
        for (pattern, expected) in [("wwn-*", false), ("wwn-*-part1", true), ("dm-uuid-part1-*", true)] {
            assert_eq!(StableIdPattern::new(pattern).unwrap().names_partitions(), expected, "{pattern}");
        }
        for bad in ["", "*", "**", "../*"] {
            assert!(StableIdPattern::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn rules_of_networks_have_default_ports_and_no_unknown_settings() {
        let policy = |rules: &str| {
            let kinds = r#""connection-kinds": ["nvme-tcp", "rbd"]"#;
            serde_json::from_str::<NodePolicy>(&format!("{{{kinds}, {rules}}}"))
        };
        let nvme = |more: &str| {
            let subsystems = r#""subsystems": ["nqn.2024-01.com.example:k8s-*"]"#;
            format!(r#""nvme-tcp": [{{"networks": ["10.0.0.0/24"], {subsystems}{more}}}]"#)
        };
        let rbd = |more: &str| {
            let fsids = r#""cluster-fsids": ["0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10"]"#;
            format!(r#""rbd": [{{"networks": ["10.0.0.0/24"], {fsids}, "pools": ["volumes"]{more}}}]"#)
        };
        policy(&format!("{}, {}", nvme(""), rbd(""))).unwrap().validate().unwrap();
        let with_ports =
            policy(&format!("{}, {}", nvme(r#", "ports": [4420]"#), rbd(r#", "ports": [3300, 6789]"#)));
        assert_eq!(with_ports.unwrap(), policy(&format!("{}, {}", nvme(""), rbd(""))).unwrap());
        for bad in [nvme(r#", "port": 1"#), nvme(r#", "ports": [0]"#), rbd(r#", "users": []"#)] {
            assert!(policy(&bad).is_err(), "{bad}");
        }
        let host = |template: Option<&str>, kinds: &[ConnectionKind]| {
            let nvme_host_nqn = template.map(str::to_owned);
            let connection_kinds = kinds.iter().copied().collect();
            NodePolicy { connection_kinds, nvme_host_nqn, ..NodePolicy::default() }.nvme_host("node-1")
        };
        let found = host(None, &[ConnectionKind::NvmeTcp]).unwrap().unwrap();
        assert_eq!(found.nqn.as_str(), "nqn.2026-11.dev.cofferdam:node-1");
        assert!(host(Some("node"), &[ConnectionKind::NvmeTcp]).is_err());
        assert_eq!(host(Some("node"), &[]), Ok(None));
    }

    #[test]
    fn connection_kind_and_its_setting_must_both_be_present() {
        let ok = |policy: NodePolicy| policy.validate().is_ok();
        assert!(ok(NodePolicy::default()));
        let directory = |root: Option<&str>| NodePolicy {
            connection_kinds: [ConnectionKind::Directory].into(),
            directory_root: root.map(str::to_owned),
            ..NodePolicy::default()
        };
        assert!(ok(directory(Some("/srv/pool"))) && ok(directory(Some("/srv/pool/"))));
        for root in [None, Some("/"), Some("srv"), Some("/srv/../etc"), Some("")] {
            assert!(!ok(directory(root)), "{root:?}");
        }
        assert!(!ok(NodePolicy { image_root: Some("/srv".to_owned()), ..NodePolicy::default() }));
        for kind in [
            ConnectionKind::Image,
            ConnectionKind::Tmpfs,
            ConnectionKind::LocalDevice,
            ConnectionKind::Nfs,
            ConnectionKind::NvmeTcp,
            ConnectionKind::Rbd,
        ] {
            assert!(!ok(NodePolicy { connection_kinds: [kind].into(), ..NodePolicy::default() }), "{kind}");
        }
        assert!(ok(NodePolicy { connection_kinds: [ConnectionKind::None].into(), ..NodePolicy::default() }));
    }
}
