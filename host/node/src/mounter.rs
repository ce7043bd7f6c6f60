//! The port to the machine: what the node looks at, and what it does, one effect a call.

use std::fmt;

use crate::{
    error::MounterError,
    mount_options::MountOptions,
    path::{KubeletPath, RootedPath},
    record::{VolumeRecord, VolumeRecords},
};

type Result<T> = std::result::Result<T, MounterError>;

/// Identity of a file: the number of its filesystem and its inode. It stays when the file is renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct FileId {
    /// Major and minor number of the filesystem.
    pub device: (u32, u32),
    /// Inode.
    pub inode: u64,
}

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    /// The kernel's name, such as `loop3`.
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
    /// The file.
    pub file_id: FileId,
    /// Whether it refuses writes.
    pub read_only: bool,
}

/// What is known of a device that somebody else may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The device.
    pub device: Device,
    /// Size in bytes.
    pub size: u64,
    /// Why it is not free, for people: mounts, partitions, holders, swap, or an exclusive opener. Empty when
    /// it is.
    pub users: Vec<String>,
}

/// Attributes of one mount; each takes something away.
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
    /// Whether everything that `other` takes away is taken away here.
    pub const fn includes(self, other: Self) -> bool {
        (self.read_only || !other.read_only)
            && (self.no_suid || !other.no_suid)
            && (self.no_devices || !other.no_devices)
            && (self.no_exec || !other.no_exec)
    }
}

/// One mount at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Filesystem type.
    pub fs_type: String,
    /// What the kernel's table calls its source.
    pub source: String,
    /// Major and minor number of the filesystem.
    pub device: (u32, u32),
    /// Attributes of this mount.
    pub attributes: MountAttributes,
    /// Whether the whole filesystem is read-only, as after an error.
    pub filesystem_read_only: bool,
}

/// What a place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A directory.
    Directory,
    /// A file of this many bytes.
    File(u64),
    /// A block device of this number.
    Device((u32, u32)),
    /// A link, a pipe, or anything else.
    Other,
}

/// What is at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathInfo {
    /// What it is; of a mount, what is mounted.
    pub kind: PathKind,
    /// Its identity.
    pub id: FileId,
    /// The mounts there, the last one on top.
    pub mounts: Vec<MountPoint>,
}

/// What a device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceContent {
    /// Nothing: no signature, and zeros where they would be.
    Blank,
    /// A filesystem of this type.
    Filesystem(String),
    /// Bytes that no program knows: what a format that was broken off leaves, or somebody's data.
    Unknown,
    /// Something else that is known, for people.
    Other(String),
}

/// A filesystem that the node can make, check and grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filesystem {
    /// ext4
    Ext4,
    /// xfs
    Xfs,
}

impl Filesystem {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::Ext4, Self::Xfs];

    /// The name, as `mount -t` takes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// The filesystem of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|filesystem| filesystem.as_str() == name)
    }
}

/// What is bound to a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindSource {
    /// A directory of the operator's.
    Directory(RootedPath),
    /// A device's node.
    Device(Device),
    /// What is at another place.
    KubeletPath(KubeletPath),
}

/// How full a filesystem is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesystemUsage {
    /// Bytes.
    pub total: u64,
    /// Bytes that are in use.
    pub used: u64,
    /// Bytes that a user can still write.
    pub available: u64,
    /// Inodes; 0 where the filesystem does not count them.
    pub inodes: u64,
    /// Inodes in use.
    pub inodes_used: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
}

/// A Linux machine. What looks has no effect; what acts is one effect, and does nothing when it fails.
///
/// Implementations open every path from its root, beneath it, and follow no link.
pub trait Mounter: Send + Sync {
    /// What is at a place; absent when nothing is.
    ///
    /// # Errors
    /// [`MachineError::Refused`] when a link or a mount is on the way.
    fn inspect(&self, path: &KubeletPath) -> Result<Option<PathInfo>>;

    /// Other places where the top mount of this one is mounted too, for people.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn mount_refs(&self, path: &KubeletPath) -> Result<Vec<String>>;

    /// Identity of a directory.
    ///
    /// # Errors
    /// [`MachineError::Missing`], or [`MachineError::Refused`] for what is no directory.
    fn directory_id(&self, path: &RootedPath) -> Result<FileId>;

    /// Identity of a plain file, and its size in bytes.
    ///
    /// # Errors
    /// [`MachineError::Missing`], or [`MachineError::Refused`] for what is no plain file.
    fn image_file(&self, path: &RootedPath) -> Result<(FileId, u64)>;

    /// The loop devices of a file.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn loop_devices(&self, file: FileId) -> Result<Vec<LoopDevice>>;

    /// A device by its name in `/dev/disk/by-id`.
    ///
    /// # Errors
    /// [`MachineError::Missing`], or [`MachineError::Refused`] for what is no block device.
    fn block_device(&self, stable_id: &str) -> Result<DeviceInfo>;

    /// What a device holds.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn device_content(&self, device: &Device) -> Result<DeviceContent>;

    /// Size of a device in bytes.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn device_size(&self, number: (u32, u32)) -> Result<u64>;

    /// How full the filesystem at a place is.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn usage(&self, path: &KubeletPath) -> Result<FilesystemUsage>;

    /// Group of the directory at a place; absent unless the group may write there and new files inherit it.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn mount_group(&self, path: &KubeletPath) -> Result<Option<u32>>;

    /// Every record.
    ///
    /// # Errors
    /// [`MachineError::Failed`]; one that cannot be read is part of the answer.
    fn records(&self) -> Result<VolumeRecords>;

    /// The record of a volume.
    ///
    /// # Errors
    /// [`MachineError::Failed`], also for one that cannot be read.
    fn record(&self, volume: &str) -> Result<Option<VolumeRecord>>;

    /// Effect: keeps a record, in place of an earlier one. It is on the disk when this returns.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn save_record(&self, record: &VolumeRecord) -> Result<()>;

    /// Effect: forgets a record.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn delete_record(&self, volume: &str) -> Result<()>;

    /// Effect: makes a directory whose parent is there.
    ///
    /// # Errors
    /// [`MachineError`]
    fn make_directory(&self, path: &KubeletPath) -> Result<()>;

    /// Effect: makes an empty file whose parent is there.
    ///
    /// # Errors
    /// [`MachineError`]
    fn make_file(&self, path: &KubeletPath) -> Result<()>;

    /// Effect: removes an empty directory or an empty file on which nothing is mounted. What holds anything
    /// stays.
    ///
    /// # Errors
    /// [`MachineError::Refused`] when it is not empty.
    fn remove_if_empty(&self, path: &KubeletPath) -> Result<()>;

    /// Effect: puts a loop device before a file.
    ///
    /// # Errors
    /// [`MachineError::Refused`] when the file of this path is not `file` any more.
    fn attach_loop(&self, path: &RootedPath, file: FileId, read_only: bool) -> Result<Device>;

    /// Effect: tells a loop device the size that its file has now.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn refresh_loop_size(&self, device: &Device) -> Result<()>;

    /// Effect: takes a loop device from its file.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn detach_loop(&self, device: &Device) -> Result<()>;

    /// Effect: makes a filesystem. A device that is not blank is refused here once more; `unfinished` allows
    /// for what an earlier run of the same tool has left, but never for a filesystem that can be recognised.
    ///
    /// # Errors
    /// [`MachineError`]
    fn make_filesystem(&self, device: &Device, filesystem: Filesystem, is_retry: bool) -> Result<()>;

    /// Effect: repairs what can be repaired without asking.
    ///
    /// # Errors
    /// [`MachineError::Failed`] when more than that is needed.
    fn check_filesystem(&self, device: &Device, filesystem: Filesystem) -> Result<()>;

    /// Effect: grows the filesystem at a place to the size of its device; one that has that size stays as it
    /// is.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn grow_filesystem(&self, device: &Device, filesystem: Filesystem, path: &KubeletPath) -> Result<()>;

    /// Effect: mounts a device's filesystem.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn mount_device(
        &self,
        device: &Device,
        filesystem: Filesystem,
        options: &MountOptions,
        path: &KubeletPath,
    ) -> Result<()>;

    /// Effect: mounts memory of a size in bytes, under a name that the mount table shows.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn mount_tmpfs(&self, name: &str, size: u64, options: &MountOptions, path: &KubeletPath) -> Result<()>;

    /// Effect: gives mounted memory another size in bytes.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn resize_tmpfs(&self, size: u64, path: &KubeletPath) -> Result<()>;

    /// Effect: binds something to a place.
    ///
    /// # Errors
    /// [`MachineError`]
    fn bind(&self, source: &BindSource, path: &KubeletPath) -> Result<()>;

    /// Effect: takes away from the top mount of a place what `attributes` says; what is taken away already
    /// stays so.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn restrict(&self, path: &KubeletPath, attributes: MountAttributes) -> Result<()>;

    /// Effect: unmounts the top mount of a place. One that is in use stays.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn unmount(&self, path: &KubeletPath) -> Result<()>;

    /// Effect: gives everything at a place to a group that may write there. The place itself comes last, so
    /// that a run that was cut short is seen.
    ///
    /// # Errors
    /// [`MachineError::Failed`]
    fn set_mount_group(&self, path: &KubeletPath, group: u32) -> Result<()>;
}
