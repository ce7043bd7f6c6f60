//! Mounts and their attributes.

/// Attributes of one mount. Each restricts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an attribute of its own, as in mount(8)")]
pub struct MountAttributes {
    /// `ro`
    pub read_only: bool,
    /// `nosuid`
    pub no_suid: bool,
    /// `nodev`
    pub no_devices: bool,
    /// `noexec`
    pub no_exec: bool,
}

impl MountAttributes {
    /// Returns true if every attribute of `other` is also set in `self`.
    pub const fn includes(self, other: Self) -> bool {
        (self.read_only || !other.read_only)
            && (self.no_suid || !other.no_suid)
            && (self.no_devices || !other.no_devices)
            && (self.no_exec || !other.no_exec)
    }
}

/// One mount at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Filesystem type.
    pub fs_type: String,
    /// Mount source as shown in mountinfo, with its escapes decoded.
    pub source: String,
    /// Major and minor number of the filesystem.
    pub device: (u32, u32),
    /// Attributes of this mount.
    pub attributes: MountAttributes,
    /// True if the filesystem itself is read-only, for example remounted after an I/O error.
    pub filesystem_read_only: bool,
}

impl MountPoint {
    /// Returns true for the mount of an NFS export.
    pub(crate) fn is_nfs(&self) -> bool {
        matches!(self.fs_type.as_str(), "nfs" | "nfs4")
    }
}
