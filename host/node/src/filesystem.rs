//! Supported filesystems, and their usage.

use serde::Deserialize;

/// A filesystem that the node can create, mount and expand on a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filesystem {
    /// ext4
    Ext4,
    /// xfs
    Xfs,
}

impl Filesystem {
    /// All filesystems.
    pub const ALL: [Self; 2] = [Self::Ext4, Self::Xfs];

    /// Returns the type name for `mount -t`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// Looks up a filesystem by its type name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|filesystem| filesystem.as_str() == name)
    }
}

/// Usage of a filesystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesystemUsage {
    /// Capacity in bytes.
    pub total: u64,
    /// Used bytes.
    pub used: u64,
    /// Bytes available to unprivileged users.
    pub available: u64,
    /// Number of inodes; 0 if the filesystem does not count them.
    pub inodes: u64,
    /// Used inodes.
    pub inodes_used: u64,
    /// Free inodes.
    pub inodes_free: u64,
}
