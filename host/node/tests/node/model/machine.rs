//! What Linux would do, one effect a call.

use cofferdam_node::{
    Attributes, Beneath, Content, Device, DeviceFacts, FileId, Filesystem, Found, FoundKind, LoopDevice,
    Machine, MachineError, Mount, MountOptions, Place, Source, Usage, VolumeRecord, VolumeRecords,
};

use super::{DISK, Entry, Model, Mounted, NODES, Result, failed, missing};

impl Machine for Model {
    fn look(&self, place: &Place) -> Result<Option<Found>> {
        self.look_at(|state| Ok(state.found(&place.to_string())))
    }

    fn mounted_elsewhere(&self, place: &Place) -> Result<Vec<String>> {
        self.look_at(|state| {
            let top = state.top(place)?.clone();
            let same = |other: &&Mounted| other.at != top.at && other.id == top.id;
            Ok(state.mounts.iter().filter(same).map(|other| other.at.clone()).collect())
        })
    }

    fn directory(&self, path: &Beneath) -> Result<FileId> {
        self.look_at(|state| match state.found(&path.to_string()) {
            Some(Found { kind: FoundKind::Directory, id, .. }) => Ok(id),
            Some(_) => Err(MachineError::Refused("no directory".to_owned())),
            None => missing(path),
        })
    }

    fn image(&self, path: &Beneath) -> Result<(FileId, u64)> {
        self.look_at(|state| match state.found(&path.to_string()) {
            Some(Found { kind: FoundKind::File(size), id, .. }) => Ok((id, size)),
            Some(_) => Err(MachineError::Refused("no file".to_owned())),
            None => missing(path),
        })
    }

    fn loops(&self, file: FileId) -> Result<Vec<LoopDevice>> {
        self.look_at(|state| Ok(state.loops.iter().filter(|found| found.file == file).cloned().collect()))
    }

    fn device(&self, stable_id: &str) -> Result<DeviceFacts> {
        self.look_at(|state| {
            let Some((number, disk)) = state.devices.get(stable_id).cloned() else {
                return missing(stable_id);
            };
            let mut held = disk.held;
            if state.is_mounted(number) {
                held.push("a mount".to_owned());
            }
            let device = Device { name: format!("sd{}", number.1), number };
            Ok(DeviceFacts { device, size: disk.size, held })
        })
    }

    fn probe(&self, device: &Device) -> Result<Content> {
        self.look_at(|state| Ok(state.disk(device).content.clone()))
    }

    fn device_size(&self, number: (u32, u32)) -> Result<u64> {
        self.look_at(|state| {
            let loops =
                state.loops.iter().find(|found| found.device.number == number).map(|found| found.size);
            let own = || state.devices.values().find(|(own, _)| *own == number).map(|(_, disk)| disk.size);
            match loops.or_else(own) {
                Some(size) => Ok(size),
                None => missing(number),
            }
        })
    }

    fn usage(&self, place: &Place) -> Result<Usage> {
        self.pass("usage");
        self.look_at(|state| {
            let total = state.top(place)?.size;
            Ok(Usage { total, used: 1, available: total - 1, inodes: 10, inodes_used: 1, inodes_free: 9 })
        })
    }

    fn group(&self, place: &Place) -> Result<Option<u32>> {
        self.look_at(|state| Ok(state.top(place)?.group))
    }

    fn records(&self) -> Result<VolumeRecords> {
        self.pass("records");
        self.look_at(|state| {
            let readable = state.records.values().cloned().collect();
            Ok(VolumeRecords { readable, unreadable: state.unreadable.clone() })
        })
    }

    fn record(&self, volume: &str) -> Result<Option<VolumeRecord>> {
        self.look_at(|state| Ok(state.records.get(volume).cloned()))
    }

    fn keep(&self, record: &VolumeRecord) -> Result<()> {
        self.act(format!("keep {}", record.volume), |state, _| {
            state.records.insert(record.volume.clone(), record.clone());
            Ok(())
        })
    }

    fn forget(&self, volume: &str) -> Result<()> {
        self.act(format!("forget {volume}"), |state, _| {
            state.records.remove(volume);
            Ok(())
        })
    }

    fn make_directory(&self, place: &Place) -> Result<()> {
        self.act(format!("mkdir {place}"), |state, _| {
            state.make(&place.to_string(), |inode| Entry::Directory { inode, group: None })
        })
    }

    fn make_file(&self, place: &Place) -> Result<()> {
        self.act(format!("touch {place}"), |state, _| {
            state.make(&place.to_string(), |inode| Entry::File { inode, size: 0 })
        })
    }

    fn remove_empty(&self, place: &Place) -> Result<()> {
        self.act(format!("remove {place}"), |state, _| {
            let path = place.to_string();
            let holds = format!("{path}/");
            let full = match state.entries.get(&path) {
                None => return missing(path),
                Some(Entry::File { size, .. }) => *size > 0,
                Some(Entry::Directory { .. }) => state.entries.keys().any(|other| other.starts_with(&holds)),
            };
            if full || state.mounts.iter().any(|mounted| mounted.at == path) {
                return Err(MachineError::Refused(format!("{path} is not empty")));
            }
            state.entries.remove(&path);
            Ok(())
        })
    }

    fn attach_loop(&self, path: &Beneath, file: FileId, read_only: bool) -> Result<Device> {
        self.act(format!("attach {path}"), |state, _| {
            let Some(Found { kind: FoundKind::File(size), id, .. }) = state.found(&path.to_string()) else {
                return missing(path);
            };
            assert_eq!(id, file);
            assert!(!state.loops.iter().any(|found| found.file == file), "two loop devices of {path}");
            let number = (7, state.number());
            let device = Device { name: format!("loop{}", number.1), number };
            state.loops.push(LoopDevice { device: device.clone(), size, file, read_only });
            Ok(device)
        })
    }

    fn refresh_loop(&self, device: &Device) -> Result<()> {
        self.act(format!("refresh {device}"), |state, _| {
            let size = state.disk(device).size;
            state.loops.iter_mut().find(|found| found.device == *device).unwrap().size = size;
            Ok(())
        })
    }

    fn detach_loop(&self, device: &Device) -> Result<()> {
        self.act(format!("detach {device}"), |state, _| {
            assert!(!state.is_mounted(device.number), "{device} is detached while it is mounted");
            state.loops.retain(|found| found.device != *device);
            Ok(())
        })
    }

    fn make_filesystem(&self, device: &Device, filesystem: Filesystem, unfinished: bool) -> Result<()> {
        self.act(format!("mkfs {device}"), |state, half| {
            assert!(!state.is_mounted(device.number), "{device} is formatted while it is mounted");
            let size = state.disk(device).size;
            let disk = state.disk(device);
            match &disk.content {
                Content::Blank => {}
                Content::Unknown if unfinished => {}
                content @ (Content::Unknown | Content::Other(_) | Content::Filesystem(_)) => {
                    panic!("{device} is formatted although it holds {content:?}")
                }
            }
            disk.content =
                if half { Content::Unknown } else { Content::Filesystem(filesystem.as_str().to_owned()) };
            disk.covers = size;
            disk.made += 1;
            Ok(())
        })
    }

    fn check_filesystem(&self, device: &Device, _: Filesystem) -> Result<()> {
        self.act(format!("fsck {device}"), |state, _| {
            assert!(!state.is_mounted(device.number), "{device} is checked while it is mounted");
            Ok(())
        })
    }

    fn grow_filesystem(&self, device: &Device, _: Filesystem, place: &Place) -> Result<()> {
        self.act(format!("grow {device}"), |state, _| {
            let size = state.loops.iter().find(|found| found.device == *device).map(|found| found.size);
            let disk = state.disk(device);
            let size = size.unwrap_or(disk.size);
            disk.covers = size;
            state.top(place)?.size = size;
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
        place: &Place,
    ) -> Result<()> {
        self.act(format!("mount {device} {} {:?}", filesystem.as_str(), options.data), |state, _| {
            assert!(!state.is_mounted(device.number), "{device} is mounted twice");
            let disk = state.disk(device);
            if disk.content != Content::Filesystem(filesystem.as_str().to_owned()) {
                return failed("wrong fs type");
            }
            let size = disk.covers;
            state.mount(Mounted {
                at: place.to_string(),
                mount: Mount {
                    fs_type: filesystem.as_str().to_owned(),
                    source: device.to_string(),
                    device: device.number,
                    attributes: options.attributes,
                    filesystem_read_only: options.attributes.read_only,
                },
                id: FileId { device: device.number, inode: 2 },
                kind: FoundKind::Directory,
                size,
                group: None,
            });
            Ok(())
        })
    }

    fn mount_memory(&self, name: &str, size: u64, options: &MountOptions, place: &Place) -> Result<()> {
        self.act(format!("mount tmpfs {size} {:?}", options.data), |state, _| {
            let device = (0, 100 + state.number());
            state.mount(Mounted {
                at: place.to_string(),
                mount: Mount {
                    fs_type: "tmpfs".to_owned(),
                    source: name.to_owned(),
                    device,
                    attributes: options.attributes,
                    filesystem_read_only: false,
                },
                id: FileId { device, inode: 1 },
                kind: FoundKind::Directory,
                size,
                group: None,
            });
            Ok(())
        })
    }

    fn resize_memory(&self, size: u64, place: &Place) -> Result<()> {
        self.act(format!("resize tmpfs {size}"), |state, _| {
            state.top(place)?.size = size;
            Ok(())
        })
    }

    fn bind(&self, source: &Source, place: &Place) -> Result<()> {
        self.act(format!("bind {place}"), |state, _| {
            let at = place.to_string();
            let plain = |device, source: &str| Mount {
                fs_type: "ext4".to_owned(),
                source: source.to_owned(),
                device,
                attributes: Attributes::default(),
                filesystem_read_only: false,
            };
            let mounted = match source {
                Source::Place(source) => Mounted { at, ..state.top(source)?.clone() },
                Source::Device(device) => Mounted {
                    at,
                    mount: plain(NODES, "udev"),
                    id: FileId {
                        device: NODES,
                        inode: (u64::from(device.number.0) << 32) + u64::from(device.number.1),
                    },
                    kind: FoundKind::Device(device.number),
                    size: 0,
                    group: None,
                },
                Source::Directory(path) => {
                    let Some(found) = state.found(&path.to_string()) else { return missing(path) };
                    let mount = plain(DISK, "/dev/sda1");
                    Mounted { at, mount, id: found.id, kind: found.kind, size: 1 << 40, group: None }
                }
            };
            state.mount(mounted);
            Ok(())
        })
    }

    fn restrict(&self, place: &Place, attributes: Attributes) -> Result<()> {
        self.act(format!("restrict {place}"), |state, _| {
            let has = &mut state.top(place)?.mount.attributes;
            has.read_only |= attributes.read_only;
            has.no_suid |= attributes.no_suid;
            has.no_devices |= attributes.no_devices;
            has.no_exec |= attributes.no_exec;
            Ok(())
        })
    }

    fn unmount(&self, place: &Place) -> Result<()> {
        self.act(format!("umount {place}"), |state, _| {
            let top = state.top(place)?.clone();
            let published = state.mounts.iter().any(|other| other.at != top.at && other.id == top.id);
            assert!(!(published && top.at.contains("/staging/")), "{} is unstaged while published", top.at);
            state.mounts.retain(|mounted| mounted.at != top.at);
            Ok(())
        })
    }

    fn set_group(&self, place: &Place, group: u32) -> Result<()> {
        self.act(format!("chgrp {place} {group}"), |state, _| {
            if state.top(place)?.mount.attributes.read_only {
                return failed("a read-only filesystem");
            }
            if state.refuses_groups {
                return failed("too many levels of directories");
            }
            let id = state.top(place)?.id;
            for mounted in state.mounts.iter_mut().filter(|mounted| mounted.id == id) {
                mounted.group = Some(group);
            }
            Ok(())
        })
    }
}
