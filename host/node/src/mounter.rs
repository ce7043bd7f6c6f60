//! The interface to the operating system: queries, and effects of one step each.

use std::fmt;

use crate::{
    error::MounterError,
    mount_options::MountOptions,
    path::{KubeletPath, RootedPath},
    record::{VolumeRecord, VolumeRecords},
};

type Result<T> = std::result::Result<T, MounterError>;

/// Identity of a file: device number of its filesystem, and inode. It survives a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct FileId {
    /// Major and minor number of the filesystem.
    pub device: (u32, u32),
    /// Inode number.
    pub inode: u64,
}

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    /// Kernel name, such as `loop3`.
    pub name: String,
    /// Major and minor number.
    pub number: (u32, u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/dev/{}", self.name)
    }
}

/// A loop device and the file behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopDevice {
    /// The device.
    pub device: Device,
    /// Size in bytes.
    pub size: u64,
    /// The backing file.
    pub file_id: FileId,
    /// True if it is read-only.
    pub read_only: bool,
}

/// A block device and its current users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The device.
    pub device: Device,
    /// Size in bytes.
    pub size: u64,
    /// Messages about its users: mounts, partitions, holders, swap, or an exclusive opener. Empty if the
    /// device is free.
    pub users: Vec<String>,
}

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
    /// Mount source as shown in mountinfo.
    pub source: String,
    /// Major and minor number of the filesystem.
    pub device: (u32, u32),
    /// Attributes of this mount.
    pub attributes: MountAttributes,
    /// True if the filesystem itself is read-only, for example remounted after an I/O error.
    pub filesystem_read_only: bool,
}

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A directory.
    Directory,
    /// A regular file, with its size in bytes.
    File(u64),
    /// A block device, with its major and minor number.
    Device((u32, u32)),
    /// Any other type, such as a symbolic link or a pipe.
    Other,
}

/// The file at a path, and the mounts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathInfo {
    /// The file type; for a mount point, of the mounted root.
    pub kind: PathKind,
    /// The file's identity.
    pub id: FileId,
    /// The mounts at this path. The last one is on top.
    pub mounts: Vec<MountPoint>,
}

/// The content of a device, from `blkid` and its first and last bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceContent {
    /// No signature, and zeros at both ends.
    Blank,
    /// A filesystem, with its type.
    Filesystem(String),
    /// Data without a known signature, such as an interrupted format or user data.
    Unknown,
    /// Another known signature, with a description.
    Other(String),
}

/// A filesystem that the node can create, check and expand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Deserialize)]
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

/// The source of a bind mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindSource {
    /// A directory below a root that the operator configured.
    Directory(RootedPath),
    /// A block device's node.
    Device(Device),
    /// The file or mount at another kubelet path.
    KubeletPath(KubeletPath),
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

/// Mount, device and record operations of one node. A query has no effect. A method marked *Effect* makes one
/// change, and none if it fails.
///
/// Implementations open every path below its root and follow no symbolic links.
pub trait Mounter: Send + Sync {
    /// Returns the file at a path and the mounts on it; absent if the path does not exist.
    ///
    /// # Errors
    /// [`MounterError::FailedPrecondition`] if the path contains a symbolic link or crosses a mount.
    fn inspect(&self, path: &KubeletPath) -> Result<Option<PathInfo>>;

    /// Returns other paths at which the top mount of this path is mounted, for error messages.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn mount_refs(&self, path: &KubeletPath) -> Result<Vec<String>>;

    /// Returns the identity of a directory.
    ///
    /// # Errors
    /// [`MounterError::NotFound`], or [`MounterError::FailedPrecondition`] if it is not a directory.
    fn directory_id(&self, path: &RootedPath) -> Result<FileId>;

    /// Returns the identity of a regular file, and its size in bytes.
    ///
    /// # Errors
    /// [`MounterError::NotFound`], or [`MounterError::FailedPrecondition`] if it is not a regular file.
    fn image_file(&self, path: &RootedPath) -> Result<(FileId, u64)>;

    /// Returns the loop devices that are backed by a file.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn loop_devices(&self, file: FileId) -> Result<Vec<LoopDevice>>;

    /// Looks up a device by its name in `/dev/disk/by-id`.
    ///
    /// # Errors
    /// [`MounterError::NotFound`], or [`MounterError::FailedPrecondition`] if it is not a block device.
    fn block_device(&self, stable_id: &str) -> Result<DeviceInfo>;

    /// Probes the content of a device.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn device_content(&self, device: &Device) -> Result<DeviceContent>;

    /// Returns the size of a device in bytes.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn device_size(&self, number: (u32, u32)) -> Result<u64>;

    /// Returns the usage of the filesystem at a path.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn usage(&self, path: &KubeletPath) -> Result<FilesystemUsage>;

    /// Returns the group of the directory at a path; absent unless the group may write and new files inherit
    /// it (setgid).
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn mount_group(&self, path: &KubeletPath) -> Result<Option<u32>>;

    /// Reads all records. Unreadable records are part of the result.
    ///
    /// # Errors
    /// [`MounterError::Failed`] if the records cannot be listed.
    fn records(&self) -> Result<VolumeRecords>;

    /// Reads the record of a volume.
    ///
    /// # Errors
    /// [`MounterError::Failed`], also if the record is unreadable.
    fn record(&self, volume: &str) -> Result<Option<VolumeRecord>>;

    /// Effect: saves a record, replacing an earlier one. It is on disk when this returns.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn save_record(&self, record: &VolumeRecord) -> Result<()>;

    /// Effect: deletes a record.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn delete_record(&self, volume: &str) -> Result<()>;

    /// Effect: creates a directory in an existing parent.
    ///
    /// # Errors
    /// [`MounterError`]
    fn make_directory(&self, path: &KubeletPath) -> Result<()>;

    /// Effect: creates an empty file in an existing parent.
    ///
    /// # Errors
    /// [`MounterError`]
    fn make_file(&self, path: &KubeletPath) -> Result<()>;

    /// Effect: removes an empty directory or an empty file that is not a mount point. Nothing that has
    /// content is removed.
    ///
    /// # Errors
    /// [`MounterError::FailedPrecondition`] if it is not empty.
    fn remove_if_empty(&self, path: &KubeletPath) -> Result<()>;

    /// Effect: attaches a loop device to a file.
    ///
    /// # Errors
    /// [`MounterError::FailedPrecondition`] if the file at this path is no longer `file`.
    fn attach_loop(&self, path: &RootedPath, file: FileId, read_only: bool) -> Result<Device>;

    /// Effect: updates the size of a loop device to that of its file.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn refresh_loop_size(&self, device: &Device) -> Result<()>;

    /// Effect: detaches a loop device.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn detach_loop(&self, device: &Device) -> Result<()>;

    /// Effect: creates a filesystem. The device's content is probed again: it must be blank, or, with
    /// `is_retry`, may hold what an interrupted format left. A recognised filesystem is never overwritten.
    ///
    /// # Errors
    /// [`MounterError`]
    fn make_filesystem(&self, device: &Device, filesystem: Filesystem, is_retry: bool) -> Result<()>;

    /// Effect: checks a filesystem and repairs what is safe to repair automatically.
    ///
    /// # Errors
    /// [`MounterError::Failed`] if it needs a manual repair.
    fn check_filesystem(&self, device: &Device, filesystem: Filesystem) -> Result<()>;

    /// Effect: expands the filesystem at a path to the size of its device. A filesystem of that size is
    /// unchanged.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn grow_filesystem(&self, device: &Device, filesystem: Filesystem, path: &KubeletPath) -> Result<()>;

    /// Effect: mounts a device's filesystem.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn mount_device(
        &self,
        device: &Device,
        filesystem: Filesystem,
        options: &MountOptions,
        path: &KubeletPath,
    ) -> Result<()>;

    /// Effect: mounts a tmpfs of a size in bytes. `name` is the mount source shown in mountinfo.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn mount_tmpfs(&self, name: &str, size: u64, options: &MountOptions, path: &KubeletPath) -> Result<()>;

    /// Effect: changes the size of a mounted tmpfs, in bytes.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn resize_tmpfs(&self, size: u64, path: &KubeletPath) -> Result<()>;

    /// Effect: bind-mounts a source at a path.
    ///
    /// # Errors
    /// [`MounterError`]
    fn bind(&self, source: &BindSource, path: &KubeletPath) -> Result<()>;

    /// Effect: adds attributes to the top mount at a path. Attributes that are already set stay set.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn restrict(&self, path: &KubeletPath, attributes: MountAttributes) -> Result<()>;

    /// Effect: unmounts the top mount at a path. A busy mount is not unmounted.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn unmount(&self, path: &KubeletPath) -> Result<()>;

    /// Effect: makes a group the owner of everything below a path, with write access. The directory at the
    /// path is changed last, so that an interrupted run is detectable.
    ///
    /// # Errors
    /// [`MounterError::Failed`]
    fn set_mount_group(&self, path: &KubeletPath, group: u32) -> Result<()>;
}
