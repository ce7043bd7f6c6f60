//! State of a fake host: files, mounts and devices.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    net::{IpAddr, SocketAddr},
    time::SystemTime,
};

use cofferdam_node::{
    ControllerState, Device, FileId, LoopDevice, MountAttributes, MountPoint, MounterError, NvmeController,
    PathInfo, PathKind, RbdImage, RootedPath,
};

use crate::{
    disk::{BackingStorage, FakeDisk, SharedDisks},
    operator_files::OperatorFile,
};

pub(crate) type Result<T> = std::result::Result<T, MounterError>;

/// Device number of the filesystem with the fake host's own files, such as kubelet's directories. Also that
/// of the mount if a directory of the operator is bind-mounted.
pub(crate) const ROOT_DEVICE: (u32, u32) = (8, 1);
/// Device number of the filesystem with the device nodes.
pub(crate) const DEVTMPFS_DEVICE: (u32, u32) = (0, 6);
/// Major device number of loop devices.
pub(crate) const LOOP_MAJOR: u32 = 7;
/// Major device number of disks.
const SCSI_MAJOR: u32 = 65;
/// Major device number of filesystems without a device, such as tmpfs.
pub(crate) const NO_DEVICE_MAJOR: u32 = 0;
/// Size in bytes of a disk that was not added, and of the filesystem of a directory that is bind-mounted:
/// larger than any claim.
pub(crate) const DEVICE_SIZE: u64 = 1 << 50;

/// A directory entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Entry {
    Directory { inode: u64 },
    File { inode: u64, size: u64 },
}

/// A recorded mount.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecordedMount {
    pub(crate) path: String,
    pub(crate) mount: MountPoint,
    /// Identity of the mounted root; bind mounts of the same volume share it.
    pub(crate) id: FileId,
    pub(crate) kind: PathKind,
    /// Size of the filesystem in bytes; 0 for a device node.
    pub(crate) size: u64,
    /// Group that owns the volume; None if it was not set.
    pub(crate) group: Option<u32>,
}

/// A loop device and its backing file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttachedLoop {
    pub(crate) device: LoopDevice,
    pub(crate) path: RootedPath,
    pub(crate) created_at: Option<SystemTime>,
}

/// A disk of the node, with its device number and its size in bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttachedDisk {
    pub(crate) number: (u32, u32),
    pub(crate) size: u64,
    /// Messages about users of the disk other than the recorded mounts.
    pub(crate) users: Vec<String>,
}

/// A namespace of an NVMe subsystem. The node has its disk while one of the portals is connected.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FakeNamespace {
    pub(crate) nqn: String,
    pub(crate) portals: Vec<SocketAddr>,
    pub(crate) nguid: Option<[u8; 16]>,
    pub(crate) uuid: Option<[u8; 16]>,
    /// Size in bytes at the subsystem. The disk keeps its size until the controller reads it again.
    pub(crate) size: u64,
    /// The key of the disk in [`State::attached_disks`].
    pub(crate) disk: String,
}

/// An image of a Ceph cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FakeRbdImage {
    pub(crate) image: RbdImage,
    /// Size in bytes in the cluster. The device keeps its size until it is refreshed.
    pub(crate) size: u64,
    /// The name of the key in the command that has mapped the image.
    pub(crate) key_name: Option<String>,
    /// The key of the device in [`State::attached_disks`].
    pub(crate) disk: String,
}

/// The directories, images, disks and exports that the node's operator provides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum OperatorStorage {
    /// Directories and images of this machine, a disk for every stable ID, as if the storage system had mapped
    /// it to the node, and every export.
    #[default]
    ThisMachine,
    /// The storage that was added to the fake host.
    Added,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) operator_storage: OperatorStorage,
    pub(crate) entries: BTreeMap<String, Entry>,
    pub(crate) mounts: Vec<RecordedMount>,
    pub(crate) loops: Vec<AttachedLoop>,
    /// Disks by stable ID.
    pub(crate) attached_disks: BTreeMap<String, AttachedDisk>,
    /// Sources of the exports, such as `10.0.0.5:/srv/a`, each with the source that its mount has. They differ if
    /// the path has a symbolic link.
    pub(crate) exports: BTreeMap<String, String>,
    /// Connected NVMe controllers.
    pub(crate) controllers: Vec<NvmeController>,
    /// The NVMe namespaces that subsystems allow to this node.
    pub(crate) namespaces: Vec<FakeNamespace>,
    /// Images of Ceph clusters, which the kernel maps by their names.
    pub(crate) rbd_images: Vec<FakeRbdImage>,
    /// Addresses of host names.
    pub(crate) names: BTreeMap<String, Vec<IpAddr>>,
    pub(crate) disks: SharedDisks,
    last_number: u32,
    pub(crate) violations: Vec<String>,
}

pub(crate) fn failed<T>(message: impl Into<String>) -> Result<T> {
    Err(MounterError::Failed(message.into()))
}

pub(crate) fn missing<T>(path: impl Debug) -> Result<T> {
    Err(MounterError::NotFound(format!("{path:?} does not exist")))
}

impl State {
    pub(crate) fn new(operator_storage: OperatorStorage, disks: SharedDisks) -> Self {
        Self { operator_storage, disks, ..Self::default() }
    }

    pub(crate) fn next_number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    /// Records a violation if `holds` is false.
    pub(crate) fn check_rule(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        if !holds {
            let violation = violation();
            tracing::error!("violated rule: {violation}");
            self.violations.push(violation);
        }
    }

    /// Returns true if a path is beneath a mount, which hides it.
    fn is_beneath_mount(&self, path: &str) -> bool {
        self.mounts
            .iter()
            .any(|mounted| path.strip_prefix(mounted.path.as_str()).is_some_and(|rest| rest.starts_with('/')))
    }

    pub(crate) fn lookup(&self, path: &str) -> Option<PathInfo> {
        if self.is_beneath_mount(path) {
            // Recorded volumes are empty.
            return None;
        }
        let mounts_at = || self.mounts.iter().filter(|mounted| mounted.path == path);
        let mounts: Vec<MountPoint> = mounts_at().map(|mounted| mounted.mount.clone()).collect();
        if let Some(top) = mounts_at().next_back() {
            return Some(PathInfo { kind: top.kind, id: top.id, mounts });
        }
        let (kind, inode) = match *self.entries.get(path)? {
            Entry::Directory { inode } => (PathKind::Directory, inode),
            Entry::File { inode, size } => (PathKind::File(size), inode),
        };
        Some(PathInfo { kind, id: FileId { device: ROOT_DEVICE, inode }, mounts })
    }

    pub(crate) fn operator_file(&self, path: &RootedPath) -> Result<OperatorFile> {
        match self.operator_storage {
            OperatorStorage::ThisMachine => OperatorFile::on_this_machine(path),
            OperatorStorage::Added => match self.lookup(&path.to_string()) {
                Some(PathInfo { kind, id, .. }) => Ok(OperatorFile { id, kind, created_at: None }),
                None => missing(path),
            },
        }
    }

    pub(crate) fn directory_id(&self, path: &RootedPath) -> Result<FileId> {
        let found = self.operator_file(path)?;
        match found.kind {
            PathKind::Directory => Ok(found.id),
            PathKind::File(_) | PathKind::Device(_) | PathKind::Other => {
                Err(MounterError::FailedPrecondition(format!("{path} is not a directory")))
            }
        }
    }

    /// The file behind an image, and its size in bytes.
    pub(crate) fn image_file(&self, path: &RootedPath) -> Result<(OperatorFile, u64)> {
        let found = self.operator_file(path)?;
        match found.kind {
            PathKind::File(size) => Ok((found, size)),
            PathKind::Directory | PathKind::Device(_) | PathKind::Other => {
                Err(MounterError::FailedPrecondition(format!("{path} is not a regular file")))
            }
        }
    }

    pub(crate) fn create_entry(&mut self, path: &str, entry: fn(u64) -> Entry) -> Result<()> {
        if self.is_beneath_mount(path) || self.entries.contains_key(path) {
            return failed(format!("{path} exists"));
        }
        self.insert_entry(path, entry)
    }

    /// Creates or replaces an entry of an existing directory.
    pub(crate) fn insert_entry(&mut self, path: &str, entry: impl FnOnce(u64) -> Entry) -> Result<()> {
        let parent = path.rsplit_once('/').map(|(parent, _)| parent).unwrap_or_default();
        if !matches!(self.entries.get(parent), Some(Entry::Directory { .. })) {
            return missing(parent);
        }
        let inode = self.next_number().into();
        self.entries.insert(path.to_owned(), entry(inode));
        Ok(())
    }

    /// Creates a directory and its parents.
    pub(crate) fn create_directories(&mut self, path: &str) -> Result<()> {
        let mut current_path = String::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            current_path = format!("{current_path}/{name}");
            match self.entries.get(&current_path) {
                Some(Entry::Directory { .. }) => {}
                Some(Entry::File { .. }) => {
                    return Err(MounterError::FailedPrecondition(format!(
                        "{current_path} is not a directory"
                    )));
                }
                None => {
                    let inode = self.next_number().into();
                    self.entries.insert(current_path.clone(), Entry::Directory { inode });
                }
            }
        }
        Ok(())
    }

    /// Removes an empty directory or a file.
    pub(crate) fn remove(&mut self, path: &str) -> Result<()> {
        let beneath = format!("{path}/");
        let has_children = match self.entries.get(path) {
            None => return missing(path),
            Some(Entry::File { .. }) => false,
            Some(Entry::Directory { .. }) => {
                let next = self.entries.range(beneath.clone()..).next();
                next.is_some_and(|(other, _)| other.starts_with(&beneath))
            }
        };
        if has_children || self.mounts.iter().any(|mounted| mounted.path == path) {
            return Err(MounterError::FailedPrecondition(format!("{path} is not empty")));
        }
        self.entries.remove(path);
        Ok(())
    }

    /// Adds a disk of `size` bytes under a stable ID. For `users` see [`AttachedDisk::users`].
    pub(crate) fn add_disk(&mut self, stable_id: &str, size: u64, users: Vec<String>) -> AttachedDisk {
        let disk = AttachedDisk { number: (SCSI_MAJOR, self.next_number()), size, users };
        self.attached_disks.insert(stable_id.to_owned(), disk.clone());
        disk
    }

    pub(crate) fn attached_disk(&mut self, stable_id: &str) -> Result<AttachedDisk> {
        match (self.attached_disks.get(stable_id), self.operator_storage) {
            (Some(disk), _) => Ok(disk.clone()),
            (None, OperatorStorage::ThisMachine) => Ok(self.add_disk(stable_id, DEVICE_SIZE, Vec::new())),
            (None, OperatorStorage::Added) => missing(stable_id),
        }
    }

    /// Connects an NVMe controller.
    pub(crate) fn connect_controller(&mut self, nqn: &str, portal: SocketAddr, is_own: bool) {
        let name = format!("nvme{}", self.next_number());
        let (nqn, state) = (nqn.to_owned(), ControllerState::Live);
        self.controllers.push(NvmeController { name, nqn, portal, is_own, state });
        self.update_nvme_disks();
    }

    /// Adds and removes the disks of NVMe namespaces, as the connected controllers reach them.
    pub(crate) fn update_nvme_disks(&mut self) {
        for namespace in self.namespaces.clone() {
            let is_reached = self.controllers.iter().any(|controller| {
                controller.nqn == namespace.nqn && namespace.portals.contains(&controller.portal)
            });
            let is_attached = self.attached_disks.contains_key(&namespace.disk);
            if is_reached && !is_attached {
                self.add_disk(&namespace.disk, namespace.size, Vec::new());
            }
            if !is_reached && let Some(disk) = self.attached_disks.remove(&namespace.disk) {
                let is_mounted = self.is_mounted(disk.number);
                self.check_rule(!is_mounted, || {
                    format!("{} is disconnected while it is in use", namespace.disk)
                });
            }
        }
    }

    /// Backing storage of a device, and the size of the device in bytes. A loop device keeps its size until
    /// it is refreshed.
    fn backing_storage(&self, device: &Device) -> Result<(BackingStorage, u64)> {
        if let Some(found) = self.loops.iter().find(|one| one.device.device == *device) {
            return Ok((BackingStorage::Image(found.device.file_id, found.created_at), found.device.size));
        }
        match self.attached_disks.iter().find(|(_, disk)| disk.number == device.number) {
            Some((id, disk)) => Ok((BackingStorage::Device(id.clone()), disk.size)),
            None => missing(&device.name),
        }
    }

    /// Content of a device, and the size of the device in bytes. A loop device keeps its size until it is
    /// refreshed.
    pub(crate) fn read_device(&self, device: &Device) -> Result<(FakeDisk, u64)> {
        let (storage, size) = self.backing_storage(device)?;
        Ok((self.disks.get(&storage), size))
    }

    /// Replaces the content of a device.
    pub(crate) fn write_device(&self, device: &Device, disk: FakeDisk) -> Result<()> {
        let (storage, _) = self.backing_storage(device)?;
        self.disks.set(storage, disk);
        Ok(())
    }

    pub(crate) fn is_mounted(&self, number: (u32, u32)) -> bool {
        let is_on_device = |mounted: &RecordedMount| {
            mounted.mount.device == number || mounted.kind == PathKind::Device(number)
        };
        self.mounts.iter().any(is_on_device)
    }

    pub(crate) fn add_mount(&mut self, mounted: RecordedMount) -> Result<()> {
        let path = mounted.path.clone();
        let is_mounted_twice = self.mounts.iter().any(|other| other.path == path);
        self.check_rule(!is_mounted_twice, || format!("{path} is mounted twice"));
        let exists = self.lookup(&path).is_some();
        self.check_rule(exists, || format!("{path} is mounted but does not exist"));
        if !exists {
            return missing(path);
        }
        self.mounts.push(mounted);
        Ok(())
    }

    pub(crate) fn top_mount(&mut self, path: &str) -> Result<&mut RecordedMount> {
        match self.mounts.iter_mut().rev().find(|mounted| mounted.path == path) {
            Some(top) => Ok(top),
            None => missing(path),
        }
    }
}

/// A writable mount with default attributes. Its filesystem type is always ext4.
pub(crate) fn plain_mount(device: (u32, u32), source: &str) -> MountPoint {
    MountPoint {
        fs_type: "ext4".to_owned(),
        source: source.to_owned(),
        device,
        attributes: MountAttributes::default(),
        filesystem_read_only: false,
    }
}

/// Returns true if the path is a staging path of kubelet.
pub(crate) fn is_staging_path(path: &str) -> bool {
    path.ends_with("/globalmount") || path.contains("/volumeDevices/staging/")
}
