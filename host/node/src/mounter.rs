//! The interface to the operating system: queries, and effects of one step each.

use std::net::{IpAddr, SocketAddr};

use crate::{
    block_device::{Device, DeviceContent, DeviceInfo, LoopDevice},
    error::MounterError,
    file::{FileId, PathKind},
    filesystem::{Filesystem, FilesystemUsage},
    mount_options::MountOptions,
    mount_point::{MountAttributes, MountPoint},
    nfs::NfsExport,
    nvme::{Nqn, NvmeController, NvmeDisk, NvmeNamespace},
    path::{KubeletPath, RootedPath},
    rbd::{CephUser, RbdDevice, RbdImage},
    record::{VolumeRecord, VolumeRecords},
};

type Result<T> = std::result::Result<T, MounterError>;

/// The file at a path, and the mounts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathInfo {
    /// The file type; for a mount point, of the mounted root.
    pub kind: PathKind,
    /// The file's identity; for a mount point, that of the mounted root.
    pub id: FileId,
    /// The mounts at this path. The last one is on top.
    pub mounts: Vec<MountPoint>,
}

/// The source of a bind mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindSource {
    /// A directory below a root that the operator configured.
    Directory(RootedPath),
    /// The device node of a block device, such as `/dev/loop3`.
    Device(Device),
    /// The file or mount at another kubelet path.
    KubeletPath(KubeletPath),
}

/// Mount, device and record operations of one node. A query has no effect. A method marked *Effect* makes one
/// change. If it fails, the change may be incomplete, and the caller repeats or undoes it.
///
/// Implementations open every path below its root and follow no symbolic links below the root.
pub trait Mounter: Send + Sync {
    /// Returns the file at a path and the mounts on it; absent if the path does not exist. Sends no request to
    /// an NFS server.
    ///
    /// # Errors
    /// [`MounterError::FailedPrecondition`] if a parent is a symbolic link, no directory, or a mount that is
    /// not directly below the kubelet root. A symbolic link as last name is [`PathKind::Other`].
    fn inspect(&self, path: &KubeletPath) -> Result<Option<PathInfo>>;

    /// Returns the other paths below the same kubelet root at which the same file or directory of the same
    /// filesystem is mounted as at this path, on top. If nothing is mounted at this path, the result is empty
    /// or an error.
    ///
    /// # Errors
    /// [`MounterError`]
    fn mount_refs(&self, path: &KubeletPath) -> Result<Vec<String>>;

    /// Returns the identity of a directory.
    ///
    /// # Errors
    /// [`MounterError::NotFound`], or [`MounterError::FailedPrecondition`] if it is not a directory, or if
    /// the path contains a symbolic link or crosses a mount below the root.
    fn directory_id(&self, path: &RootedPath) -> Result<FileId>;

    /// Returns the identity of a regular file, and its size in bytes.
    ///
    /// # Errors
    /// [`MounterError::NotFound`], or [`MounterError::FailedPrecondition`] if it is not a regular file, if the
    /// path contains a symbolic link or crosses a mount below the root, if the file has several links, or if
    /// another user than that of this process can write to it, to the root or to a directory between them.
    fn image_file(&self, path: &RootedPath) -> Result<(FileId, u64)>;

    /// Returns the loop devices that are backed by a file.
    ///
    /// # Errors
    /// [`MounterError`]
    fn loop_devices(&self, file: FileId) -> Result<Vec<LoopDevice>>;

    /// Looks up a device by its name in `/dev/disk/by-id`.
    ///
    /// # Errors
    /// [`MounterError::NotFound`], or [`MounterError::FailedPrecondition`] if it is not a block device.
    fn block_device(&self, stable_id: &str) -> Result<DeviceInfo>;

    /// Returns the addresses of a host name.
    ///
    /// # Errors
    /// [`MounterError::Failed`] if it cannot be resolved, or has no address.
    fn resolve(&self, name: &str) -> Result<Vec<IpAddr>>;

    /// Returns messages about the users of a device and its partitions: mounts of a filesystem or a node,
    /// holders, swap. Partitions are no users: a raw volume can have some. If the device has none of them and
    /// `may_open` is true, opens it to find an exclusive opener; a device that does not respond can delay
    /// that for a long time.
    ///
    /// # Errors
    /// [`MounterError`]
    fn device_users(&self, device: &Device, may_open: bool) -> Result<Vec<String>>;

    /// Opens a device. Until the result is dropped, the kernel gives its name and its number to no other
    /// device.
    ///
    /// # Errors
    /// [`MounterError`], also if another device has the name.
    fn hold_device(&self, device: &Device) -> Result<Box<dyn Send>>;

    /// Returns the controllers with the transport TCP.
    ///
    /// # Errors
    /// [`MounterError`]
    fn nvme_controllers(&self) -> Result<Vec<NvmeController>>;

    /// Returns the disks of all NVMe namespaces. If none has the identifier of `awaited`, waits for it for at
    /// most 10 seconds: the kernel finds the namespaces of a new controller in the background.
    ///
    /// # Errors
    /// [`MounterError`]
    fn nvme_disks(&self, awaited: Option<&NvmeNamespace>) -> Result<Vec<NvmeDisk>>;

    /// Waits for at most 5 seconds until the disk of a namespace has at least `size` bytes.
    ///
    /// # Errors
    /// [`MounterError`]
    fn wait_for_nvme_size(&self, device: &Device, size: u64) -> Result<()>;

    /// Returns the mapped RBD images.
    ///
    /// # Errors
    /// [`MounterError`]
    fn rbd_devices(&self) -> Result<Vec<RbdDevice>>;

    /// Probes the content of a device.
    ///
    /// # Errors
    /// [`MounterError`]
    fn device_content(&self, device: &Device) -> Result<DeviceContent>;

    /// Returns the size of a device in bytes.
    ///
    /// # Errors
    /// [`MounterError`]
    fn device_size(&self, number: (u32, u32)) -> Result<u64>;

    /// Returns the usage of the filesystem at a path.
    ///
    /// # Errors
    /// [`MounterError`]
    fn usage(&self, path: &KubeletPath) -> Result<FilesystemUsage>;

    /// Returns the group of the directory at a path; absent unless the group may read, write and enter the
    /// directory and new files inherit the group (setgid).
    ///
    /// # Errors
    /// [`MounterError`]
    fn mount_group(&self, path: &KubeletPath) -> Result<Option<u32>>;

    /// Reads all records. Unreadable records are part of the result.
    ///
    /// # Errors
    /// [`MounterError::Failed`] if the records cannot be listed.
    fn records(&self) -> Result<VolumeRecords>;

    /// Reads the record of a volume; `None` if it has no record.
    ///
    /// # Errors
    /// [`MounterError::Failed`], also if the record is unreadable.
    fn record(&self, volume: &str) -> Result<Option<VolumeRecord>>;

    /// Effect: saves a record, replacing an earlier one. It survives a crash or reboot once this returns.
    ///
    /// # Errors
    /// [`MounterError`]
    fn save_record(&self, record: &VolumeRecord) -> Result<()>;

    /// Effect: deletes the record of a volume. Succeeds if it has no record.
    ///
    /// # Errors
    /// [`MounterError`]
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
    /// [`MounterError::FailedPrecondition`] if it is not empty, or neither a file nor a directory.
    fn remove_if_empty(&self, path: &KubeletPath) -> Result<()>;

    /// Effect: attaches a loop device to a file.
    ///
    /// # Errors
    /// [`MounterError::FailedPrecondition`] if the file at this path is no longer `file`.
    fn attach_loop(&self, path: &RootedPath, file: FileId, read_only: bool) -> Result<Device>;

    /// Effect: updates the size of a loop device to that of its file.
    ///
    /// # Errors
    /// [`MounterError`]
    fn refresh_loop_size(&self, device: &Device) -> Result<()>;

    /// Effect: detaches a loop device. The kernel has released it when this returns.
    ///
    /// # Errors
    /// [`MounterError::Failed`], also if another user keeps the device open.
    fn detach_loop(&self, device: &Device) -> Result<()>;

    /// Effect: creates a filesystem. The device's content is probed again: it must be
    /// [`DeviceContent::Blank`], or, with `is_retry`, may be [`DeviceContent::Unknown`], as an interrupted
    /// format leaves it. A known signature is never overwritten.
    ///
    /// # Errors
    /// [`MounterError::FailedPrecondition`] if the content must not be overwritten.
    fn make_filesystem(&self, device: &Device, filesystem: Filesystem, is_retry: bool) -> Result<()>;

    /// Effect: checks a filesystem and repairs what is safe to repair automatically. xfs needs no check,
    /// because the kernel replays its journal at the mount.
    ///
    /// # Errors
    /// [`MounterError::Failed`] if it needs a manual repair.
    fn check_filesystem(&self, device: &Device, filesystem: Filesystem) -> Result<()>;

    /// Effect: expands the filesystem at a path to the size of its device. A filesystem of that size is
    /// unchanged.
    ///
    /// # Errors
    /// [`MounterError`]
    fn grow_filesystem(&self, device: &Device, filesystem: Filesystem, path: &KubeletPath) -> Result<()>;

    /// Effect: mounts a device's filesystem.
    ///
    /// # Errors
    /// [`MounterError`]
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
    /// [`MounterError`]
    fn mount_tmpfs(&self, name: &str, size: u64, options: &MountOptions, path: &KubeletPath) -> Result<()>;

    /// Effect: mounts an NFS export from the server's address.
    ///
    /// # Errors
    /// [`MounterError`], also if the server accepts no connection in time.
    fn mount_nfs(
        &self,
        export: &NfsExport,
        address: IpAddr,
        options: &MountOptions,
        path: &KubeletPath,
    ) -> Result<()>;

    /// Effect: connects a controller to a subsystem, with the host NQN of this node role. Succeeds if it is
    /// connected.
    ///
    /// # Errors
    /// [`MounterError`], also if the portal accepts no connection in time, or the subsystem rejects this
    /// node.
    fn nvme_connect(&self, nqn: &Nqn, portal: SocketAddr) -> Result<()>;

    /// Effect: disconnects a controller. Its disks disappear, unless another controller has them. The kernel
    /// does not refuse this while a disk is in use. Succeeds if the controller does not exist.
    ///
    /// # Errors
    /// [`MounterError`]
    fn nvme_disconnect(&self, controller: &NvmeController) -> Result<()>;

    /// Effect: makes a controller read its namespaces and their sizes again. The kernel does so later.
    ///
    /// # Errors
    /// [`MounterError`]
    fn nvme_rescan(&self, controller: &NvmeController) -> Result<()>;

    /// Effect: maps the image of these names, with the key of the user under a name that the device shows. The cluster
    /// and the image's id can differ from the expected ones.
    ///
    /// # Errors
    /// [`MounterError`], also if no monitor responds in time.
    fn rbd_map(&self, image: &RbdImage, user: &CephUser, key_name: &str) -> Result<()>;

    /// Effect: unmaps an image. Succeeds if it is not mapped.
    ///
    /// # Errors
    /// [`MounterError::Failed`], also if the device is in use.
    fn rbd_unmap(&self, device: &RbdDevice) -> Result<()>;

    /// Effect: makes the kernel read the size of an image again. Waits for at most 5 seconds until the device
    /// has at least `size` bytes.
    ///
    /// # Errors
    /// [`MounterError`]
    fn rbd_refresh(&self, device: &RbdDevice, size: u64) -> Result<()>;

    /// Effect: changes the size of a mounted tmpfs, in bytes.
    ///
    /// # Errors
    /// [`MounterError`]
    fn resize_tmpfs(&self, size: u64, path: &KubeletPath) -> Result<()>;

    /// Effect: bind-mounts a source at a path.
    ///
    /// # Errors
    /// [`MounterError`]
    fn bind(&self, source: &BindSource, path: &KubeletPath) -> Result<()>;

    /// Effect: adds attributes to the top mount at a path. Attributes that are already set stay set.
    ///
    /// # Errors
    /// [`MounterError`]
    fn restrict(&self, path: &KubeletPath, attributes: MountAttributes) -> Result<()>;

    /// Effect: unmounts the top mount at a path. A busy mount is an error.
    ///
    /// # Errors
    /// [`MounterError`]
    fn unmount(&self, path: &KubeletPath) -> Result<()>;

    /// Effect: makes a group the owner of the directory at a path and of everything below it, with read and
    /// write access to directories and regular files. Entries that are removed or replaced meanwhile are
    /// skipped. The directory at the path is changed last, so that [`Self::mount_group`] detects an
    /// interrupted run.
    ///
    /// # Errors
    /// [`MounterError`]
    fn set_mount_group(&self, path: &KubeletPath, group: u32) -> Result<()>;
}
