//! What a driver may have done on this node. It denies by default: what the operator does not name is
//! refused.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Deserializer, de};

use crate::{
    connection::NodeConnection,
    connector::{
        Connector, DirectoryConnector, ImageConnector, LocalDeviceConnector, NoneConnector, TmpfsConnector,
    },
    error::NodeError,
    mounter::{Filesystem, MountAttributes},
    path::RootedPath,
};

/// A kind of attachment that the node can execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionKind {
    /// A directory that the node has already.
    Directory,
    /// A file that the node has already, used as a block device.
    Image,
    /// Memory.
    Tmpfs,
    /// A block device that the node has already.
    LocalDevice,
    /// Nothing.
    None,
}

impl ConnectionKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Directory, Self::Image, Self::Tmpfs, Self::LocalDevice, Self::None];

    /// The name in an attachment.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Image => "image",
            Self::Tmpfs => "tmpfs",
            Self::LocalDevice => "local-device",
            Self::None => "none",
        }
    }

    /// The kind of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl fmt::Display for ConnectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A pattern of stable ids: a text in which `*` stands for anything, also nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StableIdPattern(String);

impl StableIdPattern {
    /// A pattern.
    ///
    /// # Errors
    /// When it would match every device, which nobody means who writes a pattern.
    pub fn new(text: impl Into<String>) -> Result<Self, String> {
        let text = text.into();
        if text.trim_matches('*').is_empty() {
            return Err(format!("the pattern {text:?} matches every device: expected more of a stable id"));
        }
        if text.contains('/') {
            return Err(format!("the pattern {text:?} has a /: expected names in /dev/disk/by-id"));
        }
        Ok(Self(text))
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

/// What a pod may have without a PersistentVolume. Its author chooses the attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct InlinePolicy {
    /// Largest memory of one volume in bytes; absent refuses inline volumes.
    pub tmpfs_max_bytes: Option<u64>,
}

/// What one driver may have done on this node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NodePolicy {
    /// Kinds of attachments that are executed.
    #[serde(default)]
    pub connection_kinds: BTreeSet<ConnectionKind>,
    /// Where the paths of `directory` begin: an absolute path.
    pub directory_root: Option<String>,
    /// Where the paths of `image` begin: an absolute path.
    pub image_root: Option<String>,
    /// Stable ids of `local-device`.
    #[serde(default)]
    pub stable_ids: Vec<StableIdPattern>,
    /// Largest `tmpfs` in bytes.
    pub tmpfs_max_bytes: Option<u64>,
    /// Filesystems that are mounted from devices, and made on blank ones; the first one unless a volume names
    /// another.
    #[serde(default = "default_filesystems")]
    pub filesystems: BTreeSet<Filesystem>,
    /// Whether programs in a volume may change their user when they start.
    #[serde(default)]
    pub allow_suid: bool,
    /// Whether device nodes in a volume are devices.
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
            image_root: None,
            stable_ids: Vec::new(),
            tmpfs_max_bytes: None,
            filesystems: default_filesystems(),
            allow_suid: false,
            allow_devices: false,
            inline: InlinePolicy::default(),
        }
    }
}

impl NodePolicy {
    /// Checks what no single value can tell.
    ///
    /// # Errors
    /// A kind that is named without what it needs, or a root that is none.
    pub fn validate(&self) -> Result<(), String> {
        let has_kind = |kind| self.has_kind(kind);
        let requirements = [
            (ConnectionKind::Directory, "directory-root", self.directory_root.is_some()),
            (ConnectionKind::Image, "image-root", self.image_root.is_some()),
            (ConnectionKind::LocalDevice, "stable-ids", !self.stable_ids.is_empty()),
            (ConnectionKind::Tmpfs, "tmpfs-most", self.tmpfs_max_bytes.is_some()),
        ];
        for (kind, key, is_set) in requirements {
            if has_kind(kind) && !is_set {
                return Err(format!("attachments names {kind}: expected {key} beside it"));
            }
            if is_set && !has_kind(kind) {
                return Err(format!("{key} is given: expected {kind} in attachments"));
            }
        }
        if (has_kind(ConnectionKind::Image) || has_kind(ConnectionKind::LocalDevice))
            && self.filesystems.is_empty()
        {
            return Err("filesystems is empty: expected ext4, xfs, or both".to_owned());
        }
        for root in self.directory_root.iter().chain(&self.image_root) {
            let names = root.strip_prefix('/').map(|path| path.trim_end_matches('/'));
            if names.is_none_or(|names| crate::path::RelativePath::parse(names).is_err()) {
                return Err(format!("the root {root:?} is none: expected an absolute path, not /"));
            }
        }
        Ok(())
    }

    /// Whether a kind is executed.
    pub fn has_kind(&self, kind: ConnectionKind) -> bool {
        self.connection_kinds.contains(&kind)
    }

    /// What every mount takes away.
    pub(crate) fn base_attributes(&self) -> MountAttributes {
        MountAttributes {
            no_suid: !self.allow_suid,
            no_devices: !self.allow_devices,
            ..MountAttributes::default()
        }
    }

    /// Who executes an attachment: the registry of kinds, and the place where each of them is denied or not.
    ///
    /// # Errors
    /// [`NodeError::Denied`] for what the operator did not name.
    pub(crate) fn connector(&self, connection: NodeConnection) -> Result<Box<dyn Connector>, NodeError> {
        let kind = connection.kind();
        let denied = |what: String| NodeError::Denied(format!("{what} is not allowed on this node"));
        if !self.connection_kinds.contains(&kind) {
            return Err(denied(format!("the attachment {kind}")));
        }
        let rooted = |root: &Option<String>, path| match root {
            Some(root) => Ok(RootedPath { root: root.trim_end_matches('/').to_owned(), relative_path: path }),
            None => Err(denied(format!("the attachment {kind} without a root"))),
        };
        Ok(match connection {
            NodeConnection::Directory { path } => {
                Box::new(DirectoryConnector(rooted(&self.directory_root, path)?))
            }
            NodeConnection::Image { path } => Box::new(ImageConnector(rooted(&self.image_root, path)?)),
            NodeConnection::Tmpfs { size } => {
                let max_bytes = self.tmpfs_max_bytes.unwrap_or_default();
                if size > max_bytes {
                    return Err(denied(format!("memory of {size} bytes, above {max_bytes},")));
                }
                Box::new(TmpfsConnector { size, max_size: max_bytes })
            }
            NodeConnection::LocalDevice { stable_id } => {
                if !self.stable_ids.iter().any(|pattern| pattern.matches(&stable_id)) {
                    return Err(denied(format!("the device {stable_id:?}")));
                }
                Box::new(LocalDeviceConnector(stable_id))
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
        for bad in ["", "*", "**", "../*"] {
            assert!(StableIdPattern::new(bad).is_err(), "{bad:?}");
        }
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
        for kind in [ConnectionKind::Image, ConnectionKind::Tmpfs, ConnectionKind::LocalDevice] {
            assert!(!ok(NodePolicy { connection_kinds: [kind].into(), ..NodePolicy::default() }), "{kind}");
        }
        assert!(ok(NodePolicy { connection_kinds: [ConnectionKind::None].into(), ..NodePolicy::default() }));
    }
}
