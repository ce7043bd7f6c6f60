//! The fake host: what kubelet, an operator and a test can do with it.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use cofferdam_node::{
    ControllerState, Device, DeviceContent, FileId, MountPoint, NamespaceId, NvmeController, NvmeNamespace,
    RbdImage,
};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    disk::{BackingStorage, FakeDisk, SharedDisks},
    state::{Entry, FakeNamespace, FakeRbdImage, OperatorStorage, ROOT_DEVICE, Result, State, missing},
};

/// Files, mounts and devices of a node. All clones are the same host.
#[derive(Clone, Debug)]
pub struct FakeHost(Arc<Mutex<State>>);

impl FakeHost {
    /// Creates a host in memory. Only the directories and images that the node's operator provides are those
    /// of the real machine, and they are only read. The host has a disk for every stable ID. `disks` is the
    /// content of images and disks, which several hosts can share.
    pub fn new(disks: SharedDisks) -> Self {
        Self(Arc::new(Mutex::new(State::new(OperatorStorage::ThisMachine, disks))))
    }

    /// Creates a host that has only the directories, images and disks that are added to it.
    pub fn isolated() -> Self {
        Self(Arc::new(Mutex::new(State::new(OperatorStorage::Added, SharedDisks::default()))))
    }

    /// Violated rules, for display.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Mounts, loop devices, NVMe controllers of the node role and mapped RBD images that remain, for
    /// display.
    pub fn leftover_mounts(&self) -> Vec<String> {
        let state = self.lock();
        let mounts = state.mounts.iter().map(|mounted| format!("{} is mounted", mounted.path));
        let loops = state.loops.iter().map(|one| format!("{} is attached", one.device.device));
        let controllers = state.controllers.iter().filter(|controller| controller.is_own);
        let controllers = controllers.map(|controller| format!("{} is connected", controller.name));
        let is_mapped = |image: &&FakeRbdImage| state.attached_disks.contains_key(&image.disk);
        let mapped =
            state.rbd_images.iter().filter(is_mapped).map(|image| format!("{} is mapped", image.disk));
        mounts.chain(loops).chain(controllers).chain(mapped).collect()
    }

    /// Mounts, loop devices, and files and directories of pods and volumes that remain, for display.
    /// Kubelet's own directories are omitted.
    pub fn leftovers(&self) -> Vec<String> {
        let mut leftovers = self.leftover_mounts();
        // Kubelet's own directories may remain; directories of pods and volumes and their data files may not.
        let of_volumes = |path: &&String| {
            let of_block = path.split_once("/volumeDevices/").map(|(_, rest)| rest);
            path.contains("/pods/")
                || path.ends_with("/vol_data.json")
                || path.ends_with("/globalmount")
                || of_block.is_some_and(|rest| !matches!(rest, "staging" | "publish"))
        };
        let state = self.lock();
        leftovers.extend(state.entries.keys().filter(of_volumes).map(|path| format!("{path} exists")));
        leftovers
    }

    /// Returns the mounts at a path, the top one last.
    pub fn mounts_at(&self, path: &str) -> Vec<MountPoint> {
        let state = self.lock();
        let mounts = state.mounts.iter().filter(|mounted| mounted.path == path);
        mounts.map(|mounted| mounted.mount.clone()).collect()
    }

    /// Returns true if a file or directory exists, also beneath a mount.
    pub fn exists(&self, path: &str) -> bool {
        self.lock().entries.contains_key(path)
    }

    /// Creates a directory and its parents.
    ///
    /// # Errors
    /// [`FailedPrecondition`](cofferdam_node::MounterError::FailedPrecondition) if a file is at one of the
    /// paths.
    pub fn create_directories(&self, path: &str) -> Result<()> {
        self.lock().create_directories(path)
    }

    /// Creates or replaces a file of `size` bytes.
    ///
    /// # Errors
    /// [`NotFound`](cofferdam_node::MounterError::NotFound) if its directory does not exist.
    pub fn write_file(&self, path: &str, size: u64) -> Result<()> {
        self.lock().insert_entry(path, |inode| Entry::File { inode, size })
    }

    /// Removes a file or an empty directory.
    ///
    /// # Errors
    /// [`NotFound`](cofferdam_node::MounterError::NotFound) if nothing is at the path, or
    /// [`FailedPrecondition`](cofferdam_node::MounterError::FailedPrecondition) if the directory is not empty
    /// or something is mounted at the path.
    pub fn remove(&self, path: &str) -> Result<()> {
        self.lock().remove(path)
    }

    /// Adds an export of an NFS server: the source of its mount, with an address, such as `10.0.0.5:/srv/a`.
    pub fn add_export(&self, source: &str) {
        self.add_export_link(source, source);
    }

    /// As [`add_export`](Self::add_export), for a path with a symbolic link to `target`.
    pub fn add_export_link(&self, source: &str, target: &str) {
        self.lock().exports.insert(source.to_owned(), target.to_owned());
    }

    /// Adds a host name with its addresses.
    pub fn add_name(&self, name: &str, addresses: &[IpAddr]) {
        self.lock().names.insert(name.to_owned(), addresses.to_vec());
    }

    /// Adds a disk of a size in bytes. `users` are messages about users other than mounts, such as a
    /// partition; empty for a free disk.
    pub fn add_disk(&self, stable_id: &str, size: u64, content: DeviceContent, users: Vec<String>) {
        let mut state = self.lock();
        state.add_disk(stable_id, size, users);
        state.disks.set(BackingStorage::Device(stable_id.to_owned()), FakeDisk::new(content, size));
    }

    /// Adds a namespace that an NVMe subsystem allows to this node: the node has its disk while a portal is
    /// connected. Another call with the same `name` adds another identifier or portal of the same storage.
    pub fn add_namespace(&self, name: &str, namespace: &NvmeNamespace, size: u64, content: DeviceContent) {
        self.add_unannounced_namespace(name, namespace, size, content);
        self.lock().update_nvme_disks();
    }

    /// As [`add_namespace`](Self::add_namespace), without the event that tells connected controllers: they have the
    /// disk after they have read their namespaces again.
    pub fn add_unannounced_namespace(
        &self,
        name: &str,
        namespace: &NvmeNamespace,
        size: u64,
        content: DeviceContent,
    ) {
        let mut state = self.lock();
        state.disks.set(BackingStorage::Device(name.to_owned()), FakeDisk::new(content, size));
        let (nguid, uuid) = match namespace.id {
            NamespaceId::Nguid(nguid) => (Some(nguid), None),
            NamespaceId::Uuid(uuid) => (None, Some(uuid)),
        };
        state.namespaces.push(FakeNamespace {
            nqn: namespace.nqn.to_string(),
            portals: namespace.portals.clone(),
            nguid,
            uuid,
            size,
            disk: name.to_owned(),
        });
    }

    /// Sets the UUID of a namespace that was added with an NGUID.
    pub fn set_namespace_uuid(&self, name: &str, uuid: [u8; 16]) {
        for namespace in self.lock().namespaces.iter_mut().filter(|namespace| namespace.disk == name) {
            namespace.uuid = Some(uuid);
        }
    }

    /// Adds an image of a Ceph cluster, which has one user with the key `AQAA`.
    pub fn add_rbd_image(&self, name: &str, image: &RbdImage, size: u64, content: DeviceContent) {
        let mut state = self.lock();
        state.disks.set(BackingStorage::Device(name.to_owned()), FakeDisk::new(content, size));
        let (image, disk) = (image.clone(), name.to_owned());
        state.rbd_images.push(FakeRbdImage { image, size, key_name: None, disk });
    }

    /// Maps an image as another program does, with a key of this name.
    pub fn map_rbd_image(&self, name: &str, key_name: Option<&str>) {
        let mut state = self.lock();
        let mut size = 0;
        for image in state.rbd_images.iter_mut().filter(|image| image.disk == name) {
            image.key_name = key_name.map(str::to_owned);
            size = image.size;
        }
        state.add_disk(name, size, Vec::new());
    }

    /// Removes an image of a Ceph cluster that is not mapped.
    pub fn remove_rbd_image(&self, name: &str) {
        self.lock().rbd_images.retain(|image| image.disk != name);
    }

    /// Changes the size of an image of a Ceph cluster, in bytes. A smaller size reaches the device
    /// immediately, a larger one when it is refreshed.
    pub fn resize_rbd_image(&self, name: &str, size: u64) {
        let mut state = self.lock();
        for image in state.rbd_images.iter_mut().filter(|image| image.disk == name) {
            image.size = size;
        }
        if let Some(disk) = state.attached_disks.get_mut(name) {
            disk.size = disk.size.min(size);
        }
    }

    /// Changes the size of a namespace in bytes. A smaller size reaches the disk immediately, a larger one
    /// when a controller reads it again.
    pub fn resize_namespace(&self, name: &str, size: u64) {
        let mut state = self.lock();
        for namespace in state.namespaces.iter_mut().filter(|namespace| namespace.disk == name) {
            namespace.size = size;
        }
        if let Some(disk) = state.attached_disks.get_mut(name) {
            disk.size = disk.size.min(size);
        }
    }

    /// Connects an NVMe controller, as an administrator does.
    pub fn connect_controller(&self, nqn: &str, portal: SocketAddr) {
        self.lock().connect_controller(nqn, portal, false);
    }

    /// Sets the state of all NVMe controllers.
    pub fn set_controller_state(&self, new_state: ControllerState) {
        for controller in &mut self.lock().controllers {
            controller.state = new_state;
        }
    }

    /// Returns the connected NVMe controllers.
    pub fn controllers(&self) -> Vec<NvmeController> {
        self.lock().controllers.clone()
    }

    /// Adds a user of a disk, other than a mount.
    pub fn add_disk_user(&self, name: &str, user: &str) {
        if let Some(disk) = self.lock().attached_disks.get_mut(name) {
            disk.users.push(user.to_owned());
        }
    }

    /// Returns the content of a disk.
    pub fn disk(&self, name: &str) -> FakeDisk {
        self.lock().disks.get(&BackingStorage::Device(name.to_owned()))
    }

    /// Adds an image of a size in bytes, and its directory.
    ///
    /// # Errors
    /// See [`Self::create_directories`].
    pub fn add_image(&self, path: &str, size: u64, content: DeviceContent) -> Result<()> {
        let mut state = self.lock();
        state.create_directories(path.rsplit_once('/').map(|(parent, _)| parent).unwrap_or_default())?;
        state.insert_entry(path, |inode| Entry::File { inode, size })?;
        let storage = image_storage(&state, path)?;
        state.disks.set(storage, FakeDisk::new(content, size));
        Ok(())
    }

    /// Returns the content of an image that was added.
    ///
    /// # Errors
    /// [`NotFound`](cofferdam_node::MounterError::NotFound) if no file is at the path.
    pub fn image(&self, path: &str) -> Result<FakeDisk> {
        let state = self.lock();
        Ok(state.disks.get(&image_storage(&state, path)?))
    }

    /// Overwrites the content of an image that was added, without formatting it.
    ///
    /// # Errors
    /// [`NotFound`](cofferdam_node::MounterError::NotFound) if no file is at the path.
    pub fn write_image(&self, path: &str, content: DeviceContent) -> Result<()> {
        let state = self.lock();
        let storage = image_storage(&state, path)?;
        let disk = FakeDisk { content, ..state.disks.get(&storage) };
        state.disks.set(storage, disk);
        Ok(())
    }

    /// Changes the size in bytes of an image that was added. A loop device keeps its size until it is
    /// refreshed.
    ///
    /// # Errors
    /// [`NotFound`](cofferdam_node::MounterError::NotFound) if no file is at the path.
    pub fn resize_image(&self, path: &str, new_size: u64) -> Result<()> {
        match self.lock().entries.get_mut(path) {
            Some(Entry::File { size, .. }) => {
                *size = new_size;
                Ok(())
            }
            Some(Entry::Directory { .. }) | None => missing(path),
        }
    }

    /// Overwrites the content of a device, without formatting it.
    ///
    /// # Errors
    /// [`NotFound`](cofferdam_node::MounterError::NotFound) if the host has no such loop device or disk.
    pub fn write_device(&self, device: &Device, content: DeviceContent) -> Result<()> {
        let state = self.lock();
        let (disk, _) = state.read_device(device)?;
        state.write_device(device, FakeDisk { content, ..disk })
    }

    /// Marks the filesystem of all mounts at a path as read-only, like ext4 after an error. Mounts of the
    /// same filesystem at other paths do not change.
    pub fn break_filesystem(&self, path: &str) {
        for mounted in self.lock().mounts.iter_mut().filter(|mounted| mounted.path == path) {
            mounted.mount.filesystem_read_only = true;
        }
    }

    /// Reboots the host: its mounts, loop devices, NVMe controllers and mapped images are lost, and its
    /// files, disks and images remain.
    pub fn reboot(&self) {
        let mut state = self.lock();
        state.mounts.clear();
        state.loops.clear();
        state.controllers.clear();
        state.update_nvme_disks();
        for image in state.rbd_images.clone() {
            state.attached_disks.remove(&image.disk);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

fn image_storage(state: &State, path: &str) -> Result<BackingStorage> {
    match state.entries.get(path) {
        Some(Entry::File { inode, .. }) => {
            Ok(BackingStorage::Image(FileId { device: ROOT_DEVICE, inode: *inode }, None))
        }
        Some(Entry::Directory { .. }) | None => missing(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_name_block_volume_directories_but_not_their_parents() {
        let node = FakeHost::new(SharedDisks::default());
        for directory in ["/k/volumeDevices/staging", "/k/volumeDevices/publish"] {
            node.create_directories(directory).unwrap();
        }
        assert_eq!(node.leftovers(), Vec::<String>::new());
        node.create_directories("/k/volumeDevices/staging/v").unwrap();
        assert_eq!(node.leftovers(), ["/k/volumeDevices/staging/v exists"]);
    }
}
