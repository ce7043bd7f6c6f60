//! The [`Mounter`] of a fake host. Each method changes the fake host as Linux would change a machine, and
//! records a violation if a driver's Node service must not call it in this state.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use cofferdam_node::{
    BindSource, CephUser, Device, DeviceContent, DeviceInfo, FileId, Filesystem, FilesystemUsage,
    KubeletPath, LoopDevice, MountAttributes, MountOptions, MountPoint, Mounter, MounterError, NfsExport,
    NfsServer, Nqn, NvmeController, NvmeDisk, NvmeNamespace, PathInfo, PathKind, RbdDevice, RbdImage,
    RootedPath, VolumeRecord, VolumeRecords,
};
use parking_lot::Mutex;

use crate::{
    disk::FakeDisk,
    host::FakeHost,
    state::{
        AttachedLoop, DEVICE_SIZE, DEVTMPFS_DEVICE, Entry, FakeNamespace, FakeRbdImage, LOOP_MAJOR,
        NO_DEVICE_MAJOR, OperatorStorage, ROOT_DEVICE, RecordedMount, Result, failed, is_staging_path,
        missing, plain_mount,
    },
};

/// The mounter of one driver on a fake host. Clones share the driver's volume records.
#[derive(Clone, Debug)]
pub struct FakeMounter {
    host: FakeHost,
    records: Arc<Mutex<BTreeMap<String, VolumeRecord>>>,
}

impl FakeMounter {
    /// Creates a mounter for one driver. Mounters share the host, and each has its own volume records.
    pub fn new(host: &FakeHost) -> Self {
        Self { host: host.clone(), records: Arc::default() }
    }
}

impl Mounter for FakeMounter {
    fn inspect(&self, path: &KubeletPath) -> Result<Option<PathInfo>> {
        Ok(self.host.lock().lookup(&path.to_string()))
    }

    fn mount_refs(&self, path: &KubeletPath) -> Result<Vec<String>> {
        let mut state = self.host.lock();
        let top = state.top_mount(&path.to_string())?.clone();
        let is_other_mount = |other: &&RecordedMount| other.path != top.path && other.id == top.id;
        Ok(state.mounts.iter().filter(is_other_mount).map(|other| other.path.clone()).collect())
    }

    fn directory_id(&self, path: &RootedPath) -> Result<FileId> {
        self.host.lock().directory_id(path)
    }

    fn image_file(&self, path: &RootedPath) -> Result<(FileId, u64)> {
        let (file, size) = self.host.lock().image_file(path)?;
        Ok((file.id, size))
    }

    fn loop_devices(&self, file: FileId) -> Result<Vec<LoopDevice>> {
        let state = self.host.lock();
        Ok(state.loops.iter().map(|one| &one.device).filter(|one| one.file_id == file).cloned().collect())
    }

    fn block_device(&self, stable_id: &str) -> Result<DeviceInfo> {
        let mut state = self.host.lock();
        let disk = state.attached_disk(stable_id)?;
        let mut users = disk.users;
        if state.is_mounted(disk.number) {
            users.push("a mount".to_owned());
        }
        let device = Device { name: format!("sd{}", disk.number.1), number: disk.number };
        let is_partition = stable_id.contains("-part");
        Ok(DeviceInfo { device, size: disk.size, is_partition, users })
    }

    fn resolve(&self, name: &str) -> Result<Vec<IpAddr>> {
        match self.host.lock().names.get(name) {
            Some(addresses) => Ok(addresses.clone()),
            None => failed(format!("the name {name} is unknown")),
        }
    }

    fn device_users(&self, device: &Device, _: bool) -> Result<Vec<String>> {
        let state = self.host.lock();
        let disks = state.attached_disks.values().filter(|disk| disk.number == device.number);
        let mut users: Vec<String> = disks.flat_map(|disk| disk.users.clone()).collect();
        if state.is_mounted(device.number) {
            users.push("a mount".to_owned());
        }
        Ok(users)
    }

    fn hold_device(&self, device: &Device) -> Result<Box<dyn Send>> {
        self.host.lock().read_device(device)?;
        Ok(Box::new(()))
    }

    fn nvme_controllers(&self) -> Result<Vec<NvmeController>> {
        Ok(self.host.lock().controllers.clone())
    }

    fn nvme_disks(&self, _: Option<&NvmeNamespace>) -> Result<Vec<NvmeDisk>> {
        let state = self.host.lock();
        let disk = |namespace: &FakeNamespace| {
            let disk = state.attached_disks.get(&namespace.disk)?;
            Some(NvmeDisk {
                device: Device { name: format!("nvme0n{}", disk.number.1), number: disk.number },
                size: disk.size,
                nqn: namespace.nqn.clone(),
                nguid: namespace.nguid,
                uuid: namespace.uuid,
            })
        };
        Ok(state.namespaces.iter().filter_map(disk).collect())
    }

    fn wait_for_nvme_size(&self, _: &Device, _: u64) -> Result<()> {
        Ok(())
    }

    fn rbd_devices(&self) -> Result<Vec<RbdDevice>> {
        let state = self.host.lock();
        let device = |FakeRbdImage { image, disk, key_name, .. }: &FakeRbdImage| {
            let disk = state.attached_disks.get(disk)?;
            Some(RbdDevice {
                id: disk.number.1.to_string(),
                device: Device { name: format!("rbd{}", disk.number.1), number: disk.number },
                size: disk.size,
                monitors: image.monitors.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
                key_name: key_name.clone(),
                cluster_fsid: image.cluster_fsid.clone(),
                pool: image.pool.clone(),
                namespace: image.namespace.clone(),
                image: image.image.clone(),
                image_id: image.image_id.clone(),
                snapshot: "-".to_owned(),
            })
        };
        Ok(state.rbd_images.iter().filter_map(device).collect())
    }

    fn device_content(&self, device: &Device) -> Result<DeviceContent> {
        Ok(self.host.lock().read_device(device)?.0.content)
    }

    fn device_size(&self, number: (u32, u32)) -> Result<u64> {
        let state = self.host.lock();
        let loops = state.loops.iter().map(|one| &one.device).find(|one| one.device.number == number);
        let loops = loops.map(|found| found.size);
        let disk = || state.attached_disks.values().find(|disk| disk.number == number).map(|disk| disk.size);
        match loops.or_else(disk) {
            Some(size) => Ok(size),
            None => missing(number),
        }
    }

    fn usage(&self, path: &KubeletPath) -> Result<FilesystemUsage> {
        let mut state = self.host.lock();
        let total = state.top_mount(&path.to_string())?.size;
        let used = total.min(1);
        Ok(FilesystemUsage {
            total,
            used,
            available: total - used,
            inodes: 10,
            inodes_used: 1,
            inodes_free: 9,
        })
    }

    fn mount_group(&self, path: &KubeletPath) -> Result<Option<u32>> {
        Ok(self.host.lock().top_mount(&path.to_string())?.group)
    }

    fn records(&self) -> Result<VolumeRecords> {
        Ok(VolumeRecords {
            readable: self.records.lock().values().cloned().collect(),
            unreadable: Vec::new(),
        })
    }

    fn record(&self, volume: &str) -> Result<Option<VolumeRecord>> {
        Ok(self.records.lock().get(volume).cloned())
    }

    fn save_record(&self, record: &VolumeRecord) -> Result<()> {
        self.records.lock().insert(record.volume.clone(), record.clone());
        Ok(())
    }

    fn delete_record(&self, volume: &str) -> Result<()> {
        self.records.lock().remove(volume);
        Ok(())
    }

    fn make_directory(&self, path: &KubeletPath) -> Result<()> {
        self.host.lock().create_entry(&path.to_string(), |inode| Entry::Directory { inode })
    }

    fn make_file(&self, path: &KubeletPath) -> Result<()> {
        self.host.lock().create_entry(&path.to_string(), |inode| Entry::File { inode, size: 0 })
    }

    fn remove_if_empty(&self, path: &KubeletPath) -> Result<()> {
        let path = path.to_string();
        let mut state = self.host.lock();
        match state.entries.get(&path) {
            Some(Entry::File { size: 1.., .. }) => {
                Err(MounterError::FailedPrecondition(format!("{path} is not empty")))
            }
            Some(Entry::File { .. } | Entry::Directory { .. }) | None => state.remove(&path),
        }
    }

    fn attach_loop(&self, path: &RootedPath, file: FileId, read_only: bool) -> Result<Device> {
        let mut state = self.host.lock();
        let (found, size) = state.image_file(path)?;
        if found.id != file {
            return Err(MounterError::FailedPrecondition(format!("{path} was replaced during the call")));
        }
        let has_loop = state.loops.iter().any(|one| one.device.file_id == file);
        state.check_rule(!has_loop, || format!("{path} has two loop devices"));
        let number = (LOOP_MAJOR, state.next_number());
        let device = Device { name: format!("loop{}", number.1), number };
        state.disks.remove_stale(file, found.created_at);
        state.loops.push(AttachedLoop {
            device: LoopDevice { device: device.clone(), size, file_id: file, read_only },
            path: path.clone(),
            created_at: found.created_at,
        });
        Ok(device)
    }

    fn refresh_loop_size(&self, device: &Device) -> Result<()> {
        let mut state = self.host.lock();
        let of_device = |one: &AttachedLoop| one.device.device == *device;
        let Some(path) = state.loops.iter().find(|one| of_device(one)).map(|one| one.path.clone()) else {
            return missing(&device.name);
        };
        let (_, size) = state.image_file(&path)?;
        for one in state.loops.iter_mut().filter(|one| of_device(one)) {
            one.device.size = size;
        }
        Ok(())
    }

    fn detach_loop(&self, device: &Device) -> Result<()> {
        let mut state = self.host.lock();
        let mounted = state.is_mounted(device.number);
        state.check_rule(!mounted, || format!("{device} is detached while it is mounted"));
        state.loops.retain(|one| one.device.device != *device);
        Ok(())
    }

    fn make_filesystem(&self, device: &Device, filesystem: Filesystem, is_retry: bool) -> Result<()> {
        let mut state = self.host.lock();
        let mounted = state.is_mounted(device.number);
        state.check_rule(!mounted, || format!("{device} is formatted while it is mounted"));
        let (disk, size) = state.read_device(device)?;
        let may_format = match &disk.content {
            DeviceContent::Blank => true,
            DeviceContent::Unknown => is_retry,
            DeviceContent::Filesystem(_) | DeviceContent::Other(_) => false,
        };
        if !may_format {
            state.check_rule(false, || format!("{device} is formatted although it holds {:?}", disk.content));
            return Err(MounterError::FailedPrecondition(format!("{device} is not blank")));
        }
        let content = DeviceContent::Filesystem(filesystem.as_str().to_owned());
        let format_count = disk.format_count + 1;
        state.write_device(device, FakeDisk { content, filesystem_size: size, format_count })
    }

    fn check_filesystem(&self, device: &Device, _: Filesystem) -> Result<()> {
        let mut state = self.host.lock();
        let mounted = state.is_mounted(device.number);
        state.check_rule(!mounted, || format!("{device} is checked while it is mounted"));
        Ok(())
    }

    fn grow_filesystem(&self, device: &Device, _: Filesystem, path: &KubeletPath) -> Result<()> {
        let mut state = self.host.lock();
        let (disk, size) = state.read_device(device)?;
        // A filesystem grows through its mount.
        state.top_mount(&path.to_string())?.size = size;
        state.write_device(device, FakeDisk { filesystem_size: size, ..disk })?;
        let number = device.number;
        for mounted in state.mounts.iter_mut().filter(|mounted| mounted.mount.device == number) {
            mounted.size = size;
        }
        Ok(())
    }

    fn mount_device(
        &self,
        device: &Device,
        filesystem: Filesystem,
        options: &MountOptions,
        path: &KubeletPath,
    ) -> Result<()> {
        let mut state = self.host.lock();
        let is_mounted_twice = state.is_mounted(device.number);
        state.check_rule(!is_mounted_twice, || format!("{device} is mounted twice"));
        let (disk, _) = state.read_device(device)?;
        if disk.content != DeviceContent::Filesystem(filesystem.as_str().to_owned()) {
            return failed("wrong fs type");
        }
        let size = disk.filesystem_size;
        state.add_mount(RecordedMount {
            path: path.to_string(),
            mount: MountPoint {
                fs_type: filesystem.as_str().to_owned(),
                source: device.to_string(),
                device: device.number,
                attributes: options.attributes,
                filesystem_read_only: options.attributes.read_only,
            },
            id: FileId { device: device.number, inode: 2 },
            kind: PathKind::Directory,
            size,
            group: None,
        })
    }

    fn mount_tmpfs(&self, name: &str, size: u64, options: &MountOptions, path: &KubeletPath) -> Result<()> {
        let mut state = self.host.lock();
        let device = (NO_DEVICE_MAJOR, 100 + state.next_number());
        state.add_mount(RecordedMount {
            path: path.to_string(),
            mount: MountPoint {
                fs_type: "tmpfs".to_owned(),
                source: name.to_owned(),
                device,
                attributes: options.attributes,
                filesystem_read_only: false,
            },
            id: FileId { device, inode: 1 },
            kind: PathKind::Directory,
            size,
            group: None,
        })
    }

    fn mount_nfs(
        &self,
        export: &NfsExport,
        address: IpAddr,
        options: &MountOptions,
        path: &KubeletPath,
    ) -> Result<()> {
        let mut state = self.host.lock();
        let mut by_address = export.clone();
        by_address.server = NfsServer::Address(address);
        let at_address = by_address.source();
        let source = match (state.exports.get(&at_address), state.operator_storage) {
            (Some(target), _) if *target != at_address => target.clone(),
            (Some(_), _) | (None, OperatorStorage::ThisMachine) => export.source(),
            (None, OperatorStorage::Added) => {
                return failed(format!("the server has no export {at_address}"));
            }
        };
        let device = (NO_DEVICE_MAJOR, 100 + state.next_number());
        state.add_mount(RecordedMount {
            path: path.to_string(),
            mount: MountPoint {
                fs_type: "nfs4".to_owned(),
                source,
                device,
                attributes: options.attributes,
                filesystem_read_only: options.attributes.read_only,
            },
            id: FileId { device, inode: 1 },
            kind: PathKind::Directory,
            size: DEVICE_SIZE,
            group: None,
        })
    }

    fn nvme_connect(&self, nqn: &Nqn, portal: SocketAddr) -> Result<()> {
        let mut state = self.host.lock();
        let is_connected = state.controllers.iter().any(|controller| {
            controller.is_own && controller.nqn == nqn.as_str() && controller.portal == portal
        });
        state.check_rule(!is_connected, || format!("{nqn} at {portal} is connected twice"));
        let responds = state
            .namespaces
            .iter()
            .any(|namespace| namespace.nqn == nqn.as_str() && namespace.portals.contains(&portal));
        if !responds {
            return failed(format!("the NVMe portal {portal} does not respond"));
        }
        state.connect_controller(nqn.as_str(), portal, true);
        Ok(())
    }

    fn nvme_disconnect(&self, controller: &NvmeController) -> Result<()> {
        let mut state = self.host.lock();
        state.check_rule(controller.is_own, || {
            format!("{} of an administrator is disconnected", controller.name)
        });
        state.controllers.retain(|other| other.name != controller.name);
        state.update_nvme_disks();
        Ok(())
    }

    fn nvme_rescan(&self, controller: &NvmeController) -> Result<()> {
        let mut state = self.host.lock();
        state.update_nvme_disks();
        for namespace in state.namespaces.clone() {
            if let Some(disk) = state.attached_disks.get_mut(&namespace.disk)
                && namespace.nqn == controller.nqn
            {
                disk.size = namespace.size;
            }
        }
        Ok(())
    }

    fn rbd_map(&self, image: &RbdImage, user: &CephUser, key_name: &str) -> Result<()> {
        let mut state = self.host.lock();
        if user.decoded_key().is_ok_and(|key| key.as_slice() != [1, 0, 0]) {
            return failed("the key is wrong");
        }
        let found = state.rbd_images.iter_mut().find(|FakeRbdImage { image: other, .. }| {
            (&other.monitors, &other.pool, &other.namespace, &other.image)
                == (&image.monitors, &image.pool, &image.namespace, &image.image)
        });
        let Some(found) = found else {
            return failed(format!("no monitor has {image}"));
        };
        found.key_name = Some(key_name.to_owned());
        let found = found.clone();
        let is_mapped = state.attached_disks.contains_key(&found.disk);
        state.check_rule(!is_mapped, || format!("{} is mapped twice", found.disk));
        state.add_disk(&found.disk, found.size, Vec::new());
        Ok(())
    }

    fn rbd_unmap(&self, device: &RbdDevice) -> Result<()> {
        let mut state = self.host.lock();
        if state.is_mounted(device.device.number) {
            return failed(format!("{} is in use", device.device));
        }
        state.attached_disks.retain(|_, disk| disk.number != device.device.number);
        Ok(())
    }

    fn rbd_refresh(&self, device: &RbdDevice, _: u64) -> Result<()> {
        let mut state = self.host.lock();
        for image in state.rbd_images.clone() {
            if let Some(disk) = state.attached_disks.get_mut(&image.disk)
                && disk.number == device.device.number
            {
                disk.size = image.size;
            }
        }
        Ok(())
    }

    fn resize_tmpfs(&self, size: u64, path: &KubeletPath) -> Result<()> {
        self.host.lock().top_mount(&path.to_string())?.size = size;
        Ok(())
    }

    fn bind(&self, source: &BindSource, path: &KubeletPath) -> Result<()> {
        let mut state = self.host.lock();
        let at = path.to_string();
        let mounted = match source {
            BindSource::KubeletPath(source) => {
                let from = source.to_string();
                let is_staged = state.mounts.iter().any(|mounted| mounted.path == from);
                state.check_rule(is_staged, || format!("{at} is published, and nothing is staged at {from}"));
                RecordedMount { path: at, ..state.top_mount(&from)?.clone() }
            }
            BindSource::Device(device) => RecordedMount {
                path: at,
                mount: plain_mount(DEVTMPFS_DEVICE, "udev"),
                id: FileId {
                    device: DEVTMPFS_DEVICE,
                    inode: (u64::from(device.number.0) << 32) + u64::from(device.number.1),
                },
                kind: PathKind::Device(device.number),
                size: 0,
                group: None,
            },
            BindSource::Directory(path) => {
                let id = state.directory_id(path)?;
                let (mount, kind) = (plain_mount(ROOT_DEVICE, "/dev/sda1"), PathKind::Directory);
                RecordedMount { path: at, mount, id, kind, size: DEVICE_SIZE, group: None }
            }
        };
        state.add_mount(mounted)
    }

    fn restrict(&self, path: &KubeletPath, attributes: MountAttributes) -> Result<()> {
        let mut state = self.host.lock();
        let current = &mut state.top_mount(&path.to_string())?.mount.attributes;
        current.read_only |= attributes.read_only;
        current.no_suid |= attributes.no_suid;
        current.no_devices |= attributes.no_devices;
        current.no_exec |= attributes.no_exec;
        Ok(())
    }

    fn unmount(&self, path: &KubeletPath) -> Result<()> {
        let mut state = self.host.lock();
        let top = state.top_mount(&path.to_string())?.clone();
        // Volumes may share a directory: its mount at another staging path is no publication.
        let is_published = state
            .mounts
            .iter()
            .any(|other| other.path != top.path && other.id == top.id && !is_staging_path(&other.path));
        state.check_rule(!(is_published && is_staging_path(&top.path)), || {
            format!("{} is unstaged while it is published", top.path)
        });
        let index = state.mounts.iter().rposition(|mounted| mounted.path == top.path);
        index.map(|index| state.mounts.remove(index));
        Ok(())
    }

    fn set_mount_group(&self, path: &KubeletPath, group: u32) -> Result<()> {
        let mut state = self.host.lock();
        let top = state.top_mount(&path.to_string())?;
        if top.mount.attributes.read_only {
            return failed("a read-only filesystem");
        }
        let id = top.id;
        for mounted in state.mounts.iter_mut().filter(|mounted| mounted.id == id) {
            mounted.group = Some(group);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_node::KubeletRoots;

    use super::*;
    use crate::disk::SharedDisks;

    fn kubelet_path(path: &str) -> KubeletPath {
        KubeletRoots::new(["/k".to_owned()]).unwrap().resolve("path", &format!("/k/{path}")).unwrap()
    }

    #[test]
    fn device_formatted_by_one_node_is_not_blank_on_the_next() {
        let disks = SharedDisks::default();
        for expected in [DeviceContent::Blank, DeviceContent::Filesystem("ext4".to_owned())] {
            let mounter = FakeMounter::new(&FakeHost::new(disks.clone()));
            let device = mounter.block_device("wwn-1").unwrap().device;
            assert_eq!(mounter.device_content(&device).unwrap(), expected);
            if expected == DeviceContent::Blank {
                mounter.make_filesystem(&device, Filesystem::Ext4, false).unwrap();
            }
        }
    }

    #[test]
    fn violated_mount_rules_are_reported() {
        let node = FakeHost::new(SharedDisks::default());
        let mounter = FakeMounter::new(&node);
        let (globalmount, target) = (kubelet_path("v/globalmount"), kubelet_path("pods/t"));
        for directory in ["/k/v/globalmount", "/k/pods/t"] {
            node.create_directories(directory).unwrap();
        }
        let staged = BindSource::KubeletPath(globalmount.clone());
        assert!(mounter.bind(&staged, &target).is_err());
        assert_eq!(node.violations(), ["/k/pods/t is published, and nothing is staged at /k/v/globalmount"]);
        mounter.mount_tmpfs("m", 1, &MountOptions::default(), &globalmount).unwrap();
        mounter.bind(&staged, &target).unwrap();
        let left = [
            "/k/v/globalmount is mounted",
            "/k/pods/t is mounted",
            "/k/pods/t exists",
            "/k/v/globalmount exists",
        ];
        assert_eq!(node.leftovers(), left);
        mounter.unmount(&globalmount).unwrap();
        assert_eq!(node.violations().last().unwrap(), "/k/v/globalmount is unstaged while it is published");
        mounter.unmount(&target).unwrap();
        let device = mounter.block_device("wwn-1").unwrap().device;
        mounter.make_filesystem(&device, Filesystem::Xfs, false).unwrap();
        assert!(mounter.make_filesystem(&device, Filesystem::Ext4, false).is_err());
        assert!(
            node.violations().last().unwrap().contains("is formatted although it holds"),
            "{:?}",
            node.violations()
        );
    }
}
