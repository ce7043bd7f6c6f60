//! [`Mounter`] of a fake host: the behavior of Linux, one effect per call.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use cofferdam_node::{
    BindSource, Device, DeviceContent, DeviceInfo, FileId, Filesystem, FilesystemUsage, KubeletPath,
    LoopDevice, MountAttributes, MountOptions, MountPoint, Mounter, MounterError, PathInfo, PathKind,
    RootedPath, VolumeRecord, VolumeRecords,
};

use super::{
    AttachedLoop, DEVICE_SIZE, DEVTMPFS_DEVICE, DiskState, Entry, FakeHost, LOOP_MAJOR, NO_DEVICE_MAJOR,
    ROOT_DEVICE, RecordedMount, Result, SCSI_MAJOR, failed, file_id, is_staging_path, missing, path_metadata,
    plain_mount,
};

/// One driver's view of a node.
#[derive(Debug)]
pub struct FakeMounter {
    host: FakeHost,
    records: Mutex<BTreeMap<String, VolumeRecord>>,
}

impl FakeMounter {
    pub(super) fn new(host: FakeHost) -> Self {
        Self { host, records: Mutex::default() }
    }

    fn lock_records(&self) -> MutexGuard<'_, BTreeMap<String, VolumeRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mounter for FakeMounter {
    fn inspect(&self, place: &KubeletPath) -> Result<Option<PathInfo>> {
        Ok(self.host.lock().lookup(&place.to_string()))
    }

    fn mount_refs(&self, place: &KubeletPath) -> Result<Vec<String>> {
        let mut state = self.host.lock();
        let top = state.top_mount(&place.to_string())?.clone();
        let is_other_mount = |other: &&RecordedMount| other.path != top.path && other.id == top.id;
        Ok(state.mounts.iter().filter(is_other_mount).map(|other| other.path.clone()).collect())
    }

    fn directory_id(&self, path: &RootedPath) -> Result<FileId> {
        let found = path_metadata(path)?;
        if found.is_dir() {
            Ok(file_id(&found))
        } else {
            Err(MounterError::FailedPrecondition(format!("{path} is no directory")))
        }
    }

    fn image_file(&self, path: &RootedPath) -> Result<(FileId, u64)> {
        let found = path_metadata(path)?;
        if found.is_file() {
            Ok((file_id(&found), found.len()))
        } else {
            Err(MounterError::FailedPrecondition(format!("{path} is no plain file")))
        }
    }

    fn loop_devices(&self, file: FileId) -> Result<Vec<LoopDevice>> {
        let state = self.host.lock();
        Ok(state.loops.iter().map(|one| &one.device).filter(|one| one.file_id == file).cloned().collect())
    }

    /// Every stable ID resolves to a device, as if the storage system had mapped it to the node.
    fn block_device(&self, stable_id: &str) -> Result<DeviceInfo> {
        let mut state = self.host.lock();
        let number = match state.devices.get(stable_id) {
            Some(number) => *number,
            None => {
                let number = (SCSI_MAJOR, state.next_number());
                state.devices.insert(stable_id.to_owned(), number);
                number
            }
        };
        let used_by = state.is_mounted(number).then(|| "a mount".to_owned());
        let device = Device { name: format!("dry{}", number.1), number };
        Ok(DeviceInfo { device, size: DEVICE_SIZE, users: used_by.into_iter().collect() })
    }

    fn device_content(&self, device: &Device) -> Result<DeviceContent> {
        Ok(self.host.lock().disk_state(device)?.0.content)
    }

    fn device_size(&self, number: (u32, u32)) -> Result<u64> {
        let state = self.host.lock();
        let loops = state.loops.iter().map(|one| &one.device).find(|one| one.device.number == number);
        let loops = loops.map(|found| found.size);
        let attached_device = || {
            state.devices.values().any(|attached_device| *attached_device == number).then_some(DEVICE_SIZE)
        };
        match loops.or_else(attached_device) {
            Some(size) => Ok(size),
            None => missing(number),
        }
    }

    fn usage(&self, place: &KubeletPath) -> Result<FilesystemUsage> {
        let mut state = self.host.lock();
        let size = state.top_mount(&place.to_string())?.size;
        Ok(FilesystemUsage { total: size, available: size, ..FilesystemUsage::default() })
    }

    fn mount_group(&self, place: &KubeletPath) -> Result<Option<u32>> {
        Ok(self.host.lock().top_mount(&place.to_string())?.group)
    }

    fn records(&self) -> Result<VolumeRecords> {
        Ok(VolumeRecords {
            readable: self.lock_records().values().cloned().collect(),
            unreadable: Vec::new(),
        })
    }

    fn record(&self, volume: &str) -> Result<Option<VolumeRecord>> {
        Ok(self.lock_records().get(volume).cloned())
    }

    fn save_record(&self, record: &VolumeRecord) -> Result<()> {
        self.lock_records().insert(record.volume.clone(), record.clone());
        Ok(())
    }

    fn delete_record(&self, volume: &str) -> Result<()> {
        self.lock_records().remove(volume);
        Ok(())
    }

    fn make_directory(&self, place: &KubeletPath) -> Result<()> {
        self.host.lock().create_entry(&place.to_string(), |inode| Entry::Directory { inode })
    }

    fn make_file(&self, place: &KubeletPath) -> Result<()> {
        self.host.lock().create_entry(&place.to_string(), |inode| Entry::File { inode, text: String::new() })
    }

    fn remove_if_empty(&self, place: &KubeletPath) -> Result<()> {
        self.host.lock().remove(&place.to_string())
    }

    fn attach_loop(&self, path: &RootedPath, file: FileId, read_only: bool) -> Result<Device> {
        let (found, size) = self.image_file(path)?;
        if found != file {
            return Err(MounterError::FailedPrecondition(format!("{path} is another file now")));
        }
        let mut state = self.host.lock();
        let has_loop = state.loops.iter().any(|one| one.device.file_id == file);
        state.check_rule(!has_loop, || format!("{path} has two loop devices"));
        let number = (LOOP_MAJOR, state.next_number());
        let device = Device { name: format!("loop{}", number.1), number };
        let found = LoopDevice { device: device.clone(), size, file_id: file, read_only };
        // Not every filesystem stores creation times.
        let created = path_metadata(path)?.created().ok();
        state.disks.remove_stale(file, created);
        state.loops.push(AttachedLoop { device: found, path: path.clone(), created_at: created });
        Ok(device)
    }

    fn refresh_loop_size(&self, device: &Device) -> Result<()> {
        let mut state = self.host.lock();
        match state.loops.iter_mut().find(|one| one.device.device == *device) {
            Some(one) => {
                one.device.size = path_metadata(&one.path)?.len();
                Ok(())
            }
            None => missing(&device.name),
        }
    }

    fn detach_loop(&self, device: &Device) -> Result<()> {
        let mut state = self.host.lock();
        let mounted = state.is_mounted(device.number);
        state.check_rule(!mounted, || format!("{device} is detached while it is mounted"));
        state.loops.retain(|one| one.device.device != *device);
        Ok(())
    }

    fn make_filesystem(&self, device: &Device, filesystem: Filesystem, unfinished: bool) -> Result<()> {
        let mut state = self.host.lock();
        let mounted = state.is_mounted(device.number);
        state.check_rule(!mounted, || format!("{device} is formatted while it is mounted"));
        let (disk, size) = state.disk_state(device)?;
        let is_blank = match &disk.content {
            DeviceContent::Blank => true,
            DeviceContent::Unknown => unfinished,
            DeviceContent::Filesystem(_) | DeviceContent::Other(_) => false,
        };
        if !is_blank {
            let content_text = format!("{:?}", disk.content);
            state.check_rule(false, || format!("{device} is formatted although it holds {content_text}"));
            return Err(MounterError::FailedPrecondition(format!("{device} is not blank")));
        }
        let content = DeviceContent::Filesystem(filesystem.as_str().to_owned());
        state.write_device(device, DiskState { content, filesystem_size: size })
    }

    fn check_filesystem(&self, device: &Device, _: Filesystem) -> Result<()> {
        let mut state = self.host.lock();
        let mounted = state.is_mounted(device.number);
        state.check_rule(!mounted, || format!("{device} is checked while it is mounted"));
        Ok(())
    }

    fn grow_filesystem(&self, device: &Device, _: Filesystem, _: &KubeletPath) -> Result<()> {
        let mut state = self.host.lock();
        let (disk, size) = state.disk_state(device)?;
        state.write_device(device, DiskState { filesystem_size: size, ..disk })?;
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
        place: &KubeletPath,
    ) -> Result<()> {
        let mut state = self.host.lock();
        let is_mounted_twice = state.is_mounted(device.number);
        state.check_rule(!is_mounted_twice, || format!("{device} is mounted twice"));
        let (disk, _) = state.disk_state(device)?;
        if disk.content != DeviceContent::Filesystem(filesystem.as_str().to_owned()) {
            return failed("wrong fs type");
        }
        let size = disk.filesystem_size;
        state.add_mount(RecordedMount {
            path: place.to_string(),
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

    fn mount_tmpfs(&self, name: &str, size: u64, options: &MountOptions, place: &KubeletPath) -> Result<()> {
        let mut state = self.host.lock();
        let device = (NO_DEVICE_MAJOR, 100 + state.next_number());
        state.add_mount(RecordedMount {
            path: place.to_string(),
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

    fn resize_tmpfs(&self, size: u64, place: &KubeletPath) -> Result<()> {
        self.host.lock().top_mount(&place.to_string())?.size = size;
        Ok(())
    }

    fn bind(&self, source: &BindSource, place: &KubeletPath) -> Result<()> {
        let mut state = self.host.lock();
        let at = place.to_string();
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
                let id = self.directory_id(path)?;
                let (mount, kind) = (plain_mount(ROOT_DEVICE, "/dev/sda1"), PathKind::Directory);
                RecordedMount { path: at, mount, id, kind, size: DEVICE_SIZE, group: None }
            }
        };
        state.add_mount(mounted)
    }

    fn restrict(&self, place: &KubeletPath, attributes: MountAttributes) -> Result<()> {
        let mut state = self.host.lock();
        let current = &mut state.top_mount(&place.to_string())?.mount.attributes;
        current.read_only |= attributes.read_only;
        current.no_suid |= attributes.no_suid;
        current.no_devices |= attributes.no_devices;
        current.no_exec |= attributes.no_exec;
        Ok(())
    }

    fn unmount(&self, place: &KubeletPath) -> Result<()> {
        let mut state = self.host.lock();
        let top = state.top_mount(&place.to_string())?.clone();
        let is_published = state.mounts.iter().any(|other| other.path != top.path && other.id == top.id);
        state.check_rule(!(is_published && is_staging_path(place)), || {
            format!("{} is unstaged while it is published", top.path)
        });
        let index = state.mounts.iter().rposition(|mounted| mounted.path == top.path);
        index.map(|index| state.mounts.remove(index));
        Ok(())
    }

    fn set_mount_group(&self, place: &KubeletPath, group: u32) -> Result<()> {
        let mut state = self.host.lock();
        let top = state.top_mount(&place.to_string())?;
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
