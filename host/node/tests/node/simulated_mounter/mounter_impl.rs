//! [`Mounter`] for the simulated mounter.

use cofferdam_node::{
    BindSource, Device, DeviceContent, DeviceInfo, FileId, Filesystem, FilesystemUsage, KubeletPath,
    LoopDevice, MountAttributes, MountOptions, MountPoint, Mounter, MounterError, PathInfo, PathKind,
    RootedPath, VolumeRecord, VolumeRecords,
};

use super::{
    DEVTMPFS_DEVICE, ROOT_DEVICE, Result, SimulatedEntry, SimulatedMount, SimulatedMounter, failed, missing,
};

impl Mounter for SimulatedMounter {
    fn inspect(&self, path: &KubeletPath) -> Result<Option<PathInfo>> {
        self.read_state(|state| Ok(state.path_info(&path.to_string())))
    }

    fn mount_refs(&self, path: &KubeletPath) -> Result<Vec<String>> {
        self.read_state(|state| {
            let top = state.top_mount(path)?.clone();
            let same = |other: &&SimulatedMount| other.path != top.path && other.id == top.id;
            Ok(state.mounts.iter().filter(same).map(|other| other.path.clone()).collect())
        })
    }

    fn directory_id(&self, path: &RootedPath) -> Result<FileId> {
        self.read_state(|state| match state.path_info(&path.to_string()) {
            Some(PathInfo { kind: PathKind::Directory, id, .. }) => Ok(id),
            Some(_) => Err(MounterError::FailedPrecondition("not a directory".to_owned())),
            None => missing(path),
        })
    }

    fn image_file(&self, path: &RootedPath) -> Result<(FileId, u64)> {
        self.read_state(|state| match state.path_info(&path.to_string()) {
            Some(PathInfo { kind: PathKind::File(size), id, .. }) => Ok((id, size)),
            Some(_) => Err(MounterError::FailedPrecondition("not a file".to_owned())),
            None => missing(path),
        })
    }

    fn loop_devices(&self, file: FileId) -> Result<Vec<LoopDevice>> {
        self.read_state(|state| {
            Ok(state.loops.iter().filter(|found| found.file_id == file).cloned().collect())
        })
    }

    fn block_device(&self, stable_id: &str) -> Result<DeviceInfo> {
        self.read_state(|state| {
            let Some((number, disk)) = state.devices.get(stable_id).cloned() else {
                return missing(stable_id);
            };
            let mut users = disk.users;
            if state.is_mounted(number) {
                users.push("a mount".to_owned());
            }
            let device = Device { name: format!("sd{}", number.1), number };
            Ok(DeviceInfo { device, size: disk.size, users })
        })
    }

    fn device_content(&self, device: &Device) -> Result<DeviceContent> {
        self.read_state(|state| Ok(state.disk(device).content.clone()))
    }

    fn device_size(&self, number: (u32, u32)) -> Result<u64> {
        self.read_state(|state| {
            let loops =
                state.loops.iter().find(|found| found.device.number == number).map(|found| found.size);
            let own = || state.devices.values().find(|(own, _)| *own == number).map(|(_, disk)| disk.size);
            match loops.or_else(own) {
                Some(size) => Ok(size),
                None => missing(number),
            }
        })
    }

    fn usage(&self, path: &KubeletPath) -> Result<FilesystemUsage> {
        self.pause_if_requested("usage");
        self.read_state(|state| {
            let total = state.top_mount(path)?.size;
            Ok(FilesystemUsage {
                total,
                used: 1,
                available: total - 1,
                inodes: 10,
                inodes_used: 1,
                inodes_free: 9,
            })
        })
    }

    fn mount_group(&self, path: &KubeletPath) -> Result<Option<u32>> {
        self.read_state(|state| Ok(state.top_mount(path)?.group))
    }

    fn records(&self) -> Result<VolumeRecords> {
        self.pause_if_requested("records");
        self.read_state(|state| {
            let readable = state.records.values().cloned().collect();
            Ok(VolumeRecords { readable, unreadable: state.unreadable.clone() })
        })
    }

    fn record(&self, volume: &str) -> Result<Option<VolumeRecord>> {
        self.read_state(|state| Ok(state.records.get(volume).cloned()))
    }

    fn save_record(&self, record: &VolumeRecord) -> Result<()> {
        self.apply_effect(format!("save {}", record.volume), |state, _| {
            state.records.insert(record.volume.clone(), record.clone());
            Ok(())
        })
    }

    fn delete_record(&self, volume: &str) -> Result<()> {
        self.apply_effect(format!("delete {volume}"), |state, _| {
            state.records.remove(volume);
            Ok(())
        })
    }

    fn make_directory(&self, path: &KubeletPath) -> Result<()> {
        self.apply_effect(format!("mkdir {path}"), |state, _| {
            state.create_entry(&path.to_string(), |inode| SimulatedEntry::Directory { inode, group: None })
        })
    }

    fn make_file(&self, path: &KubeletPath) -> Result<()> {
        self.apply_effect(format!("touch {path}"), |state, _| {
            state.create_entry(&path.to_string(), |inode| SimulatedEntry::File { inode, size: 0 })
        })
    }

    fn remove_if_empty(&self, kubelet_path: &KubeletPath) -> Result<()> {
        self.apply_effect(format!("remove {kubelet_path}"), |state, _| {
            let path = kubelet_path.to_string();
            let child_prefix = format!("{path}/");
            let is_not_empty = match state.entries.get(&path) {
                None => return missing(path),
                Some(SimulatedEntry::File { size, .. }) => *size > 0,
                Some(SimulatedEntry::Directory { .. }) => {
                    state.entries.keys().any(|other| other.starts_with(&child_prefix))
                }
            };
            if is_not_empty || state.mounts.iter().any(|mounted| mounted.path == path) {
                return Err(MounterError::FailedPrecondition(format!("{path} is not empty")));
            }
            state.entries.remove(&path);
            Ok(())
        })
    }

    fn attach_loop(&self, path: &RootedPath, file: FileId, read_only: bool) -> Result<Device> {
        self.apply_effect(format!("attach {path}"), |state, _| {
            let Some(PathInfo { kind: PathKind::File(size), id, .. }) = state.path_info(&path.to_string())
            else {
                return missing(path);
            };
            assert_eq!(id, file);
            assert!(!state.loops.iter().any(|found| found.file_id == file), "two loop devices of {path}");
            let number = (7, state.next_number());
            let device = Device { name: format!("loop{}", number.1), number };
            state.loops.push(LoopDevice { device: device.clone(), size, file_id: file, read_only });
            Ok(device)
        })
    }

    fn refresh_loop_size(&self, device: &Device) -> Result<()> {
        self.apply_effect(format!("refresh {device}"), |state, _| {
            let size = state.disk(device).size;
            state.loops.iter_mut().find(|found| found.device == *device).unwrap().size = size;
            Ok(())
        })
    }

    fn detach_loop(&self, device: &Device) -> Result<()> {
        self.apply_effect(format!("detach {device}"), |state, _| {
            assert!(!state.is_mounted(device.number), "{device} is detached while it is mounted");
            state.loops.retain(|found| found.device != *device);
            Ok(())
        })
    }

    fn make_filesystem(&self, device: &Device, filesystem: Filesystem, is_retry: bool) -> Result<()> {
        self.apply_effect(format!("mkfs {device}"), |state, is_partial| {
            assert!(!state.is_mounted(device.number), "{device} is formatted while it is mounted");
            let size = state.disk(device).size;
            let disk = state.disk(device);
            match &disk.content {
                DeviceContent::Blank => {}
                DeviceContent::Unknown if is_retry => {}
                content @ (DeviceContent::Unknown
                | DeviceContent::Other(_)
                | DeviceContent::Filesystem(_)) => {
                    panic!("{device} is formatted although it has {content:?}")
                }
            }
            disk.content = if is_partial {
                DeviceContent::Unknown
            } else {
                DeviceContent::Filesystem(filesystem.as_str().to_owned())
            };
            disk.filesystem_size = size;
            disk.format_count += 1;
            Ok(())
        })
    }

    fn check_filesystem(&self, device: &Device, _: Filesystem) -> Result<()> {
        self.apply_effect(format!("fsck {device}"), |state, _| {
            assert!(!state.is_mounted(device.number), "{device} is checked while it is mounted");
            Ok(())
        })
    }

    fn grow_filesystem(&self, device: &Device, _: Filesystem, path: &KubeletPath) -> Result<()> {
        self.apply_effect(format!("grow {device}"), |state, _| {
            let size = state.loops.iter().find(|found| found.device == *device).map(|found| found.size);
            let disk = state.disk(device);
            let size = size.unwrap_or(disk.size);
            disk.filesystem_size = size;
            state.top_mount(path)?.size = size;
            let number = device.number;
            for mounted in state.mounts.iter_mut().filter(|mounted| mounted.mount.device == number) {
                mounted.size = size;
            }
            Ok(())
        })
    }

    fn mount_device(
        &self,
        device: &Device,
        filesystem: Filesystem,
        options: &MountOptions,
        path: &KubeletPath,
    ) -> Result<()> {
        self.apply_effect(format!("mount {device} {} {:?}", filesystem.as_str(), options.data), |state, _| {
            assert!(!state.is_mounted(device.number), "{device} is mounted twice");
            let disk = state.disk(device);
            if disk.content != DeviceContent::Filesystem(filesystem.as_str().to_owned()) {
                return failed("wrong fs type");
            }
            let size = disk.filesystem_size;
            state.mount(SimulatedMount {
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
            });
            Ok(())
        })
    }

    fn mount_tmpfs(&self, name: &str, size: u64, options: &MountOptions, path: &KubeletPath) -> Result<()> {
        self.apply_effect(format!("mount tmpfs {size} {:?}", options.data), |state, _| {
            let device = (0, 100 + state.next_number());
            state.mount(SimulatedMount {
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
            });
            Ok(())
        })
    }

    fn resize_tmpfs(&self, size: u64, path: &KubeletPath) -> Result<()> {
        self.apply_effect(format!("resize tmpfs {size}"), |state, _| {
            state.top_mount(path)?.size = size;
            Ok(())
        })
    }

    fn bind(&self, source: &BindSource, kubelet_path: &KubeletPath) -> Result<()> {
        self.apply_effect(format!("bind {kubelet_path}"), |state, _| {
            let target_path = kubelet_path.to_string();
            let mount_point = |device, source: &str| MountPoint {
                fs_type: "ext4".to_owned(),
                source: source.to_owned(),
                device,
                attributes: MountAttributes::default(),
                filesystem_read_only: false,
            };
            let mounted = match source {
                BindSource::KubeletPath(source) => {
                    SimulatedMount { path: target_path, ..state.top_mount(source)?.clone() }
                }
                BindSource::Device(device) => SimulatedMount {
                    path: target_path,
                    mount: mount_point(DEVTMPFS_DEVICE, "udev"),
                    id: FileId {
                        device: DEVTMPFS_DEVICE,
                        inode: (u64::from(device.number.0) << 32) + u64::from(device.number.1),
                    },
                    kind: PathKind::Device(device.number),
                    size: 0,
                    group: None,
                },
                BindSource::Directory(path) => {
                    let Some(found) = state.path_info(&path.to_string()) else { return missing(path) };
                    let mount = mount_point(ROOT_DEVICE, "/dev/sda1");
                    SimulatedMount {
                        path: target_path,
                        mount,
                        id: found.id,
                        kind: found.kind,
                        size: 1 << 40,
                        group: None,
                    }
                }
            };
            state.mount(mounted);
            Ok(())
        })
    }

    fn restrict(&self, path: &KubeletPath, attributes: MountAttributes) -> Result<()> {
        self.apply_effect(format!("restrict {path}"), |state, _| {
            let current = &mut state.top_mount(path)?.mount.attributes;
            current.read_only |= attributes.read_only;
            current.no_suid |= attributes.no_suid;
            current.no_devices |= attributes.no_devices;
            current.no_exec |= attributes.no_exec;
            Ok(())
        })
    }

    fn unmount(&self, path: &KubeletPath) -> Result<()> {
        self.apply_effect(format!("umount {path}"), |state, _| {
            let top = state.top_mount(path)?.clone();
            let is_published = state.mounts.iter().any(|other| other.path != top.path && other.id == top.id);
            assert!(
                !(is_published && top.path.contains("/staging/")),
                "{} is unstaged while published",
                top.path
            );
            state.mounts.retain(|mounted| mounted.path != top.path);
            Ok(())
        })
    }

    fn set_mount_group(&self, path: &KubeletPath, group: u32) -> Result<()> {
        self.apply_effect(format!("chgrp {path} {group}"), |state, _| {
            if state.top_mount(path)?.mount.attributes.read_only {
                return failed("a read-only filesystem");
            }
            if state.can_not_set_groups {
                return failed("too many levels of directories");
            }
            let id = state.top_mount(path)?.id;
            for mounted in state.mounts.iter_mut().filter(|mounted| mounted.id == id) {
                mounted.group = Some(group);
            }
            Ok(())
        })
    }
}
