//! What Linux would do, one effect a call.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use cofferdam_node::{
    Attributes, Beneath, Content, Device, DeviceFacts, FileId, Filesystem, Found, FoundKind, LoopDevice,
    Machine, MachineError, Mount, MountOptions, Place, Source, Usage, VolumeRecord, VolumeRecords,
};

use super::{
    DEVICE, DISK, Disk, DryNode, Entry, LOOP, Looped, Mounted, NODES, NONE, Result, SCSI, failed, identity,
    is_staging, look_at, missing, plain,
};

/// One driver's view of a node.
#[derive(Debug)]
pub struct DryMachine {
    node: DryNode,
    records: Mutex<BTreeMap<String, VolumeRecord>>,
}

impl DryMachine {
    pub(super) fn new(node: DryNode) -> Self {
        Self { node, records: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, VolumeRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Machine for DryMachine {
    fn look(&self, place: &Place) -> Result<Option<Found>> {
        Ok(self.node.lock().found(&place.to_string()))
    }

    fn mounted_elsewhere(&self, place: &Place) -> Result<Vec<String>> {
        let mut state = self.node.lock();
        let top = state.top(&place.to_string())?.clone();
        let same = |other: &&Mounted| other.at != top.at && other.id == top.id;
        Ok(state.mounts.iter().filter(same).map(|other| other.at.clone()).collect())
    }

    fn directory(&self, path: &Beneath) -> Result<FileId> {
        let found = look_at(path)?;
        if found.is_dir() {
            Ok(identity(&found))
        } else {
            Err(MachineError::Refused(format!("{path} is no directory")))
        }
    }

    fn image(&self, path: &Beneath) -> Result<(FileId, u64)> {
        let found = look_at(path)?;
        if found.is_file() {
            Ok((identity(&found), found.len()))
        } else {
            Err(MachineError::Refused(format!("{path} is no plain file")))
        }
    }

    fn loops(&self, file: FileId) -> Result<Vec<LoopDevice>> {
        let state = self.node.lock();
        Ok(state.loops.iter().map(|one| &one.device).filter(|one| one.file == file).cloned().collect())
    }

    /// Every device is there that a driver names: what an array would have mapped to the node.
    fn device(&self, stable_id: &str) -> Result<DeviceFacts> {
        let mut state = self.node.lock();
        let number = match state.devices.get(stable_id) {
            Some(number) => *number,
            None => {
                let number = (SCSI, state.number());
                state.devices.insert(stable_id.to_owned(), number);
                number
            }
        };
        let held = state.is_mounted(number).then(|| "a mount".to_owned());
        let device = Device { name: format!("dry{}", number.1), number };
        Ok(DeviceFacts { device, size: DEVICE, held: held.into_iter().collect() })
    }

    fn probe(&self, device: &Device) -> Result<Content> {
        Ok(self.node.lock().disk(device)?.0.content)
    }

    fn device_size(&self, number: (u32, u32)) -> Result<u64> {
        let state = self.node.lock();
        let loops = state.loops.iter().map(|one| &one.device).find(|one| one.device.number == number);
        let loops = loops.map(|found| found.size);
        let own = || state.devices.values().any(|own| *own == number).then_some(DEVICE);
        match loops.or_else(own) {
            Some(size) => Ok(size),
            None => missing(number),
        }
    }

    fn usage(&self, place: &Place) -> Result<Usage> {
        let mut state = self.node.lock();
        let size = state.top(&place.to_string())?.size;
        Ok(Usage { total: size, available: size, ..Usage::default() })
    }

    fn group(&self, place: &Place) -> Result<Option<u32>> {
        Ok(self.node.lock().top(&place.to_string())?.group)
    }

    fn records(&self) -> Result<VolumeRecords> {
        Ok(VolumeRecords { readable: self.all().values().cloned().collect(), unreadable: Vec::new() })
    }

    fn record(&self, volume: &str) -> Result<Option<VolumeRecord>> {
        Ok(self.all().get(volume).cloned())
    }

    fn keep(&self, record: &VolumeRecord) -> Result<()> {
        self.all().insert(record.volume.clone(), record.clone());
        Ok(())
    }

    fn forget(&self, volume: &str) -> Result<()> {
        self.all().remove(volume);
        Ok(())
    }

    fn make_directory(&self, place: &Place) -> Result<()> {
        self.node.lock().make(&place.to_string(), |inode| Entry::Directory { inode })
    }

    fn make_file(&self, place: &Place) -> Result<()> {
        self.node.lock().make(&place.to_string(), |inode| Entry::File { inode, text: String::new() })
    }

    fn remove_empty(&self, place: &Place) -> Result<()> {
        self.node.lock().remove(&place.to_string())
    }

    fn attach_loop(&self, path: &Beneath, file: FileId, read_only: bool) -> Result<Device> {
        let (found, size) = self.image(path)?;
        if found != file {
            return Err(MachineError::Refused(format!("{path} is another file now")));
        }
        let mut state = self.node.lock();
        let twice = state.loops.iter().any(|one| one.device.file == file);
        state.rule(!twice, || format!("{path} has two loop devices"));
        let number = (LOOP, state.number());
        let device = Device { name: format!("loop{}", number.1), number };
        let found = LoopDevice { device: device.clone(), size, file, read_only };
        // Not every filesystem knows.
        let created = look_at(path)?.created().ok();
        state.disks.renew(file, created);
        state.loops.push(Looped { device: found, path: path.clone(), created });
        Ok(device)
    }

    fn refresh_loop(&self, device: &Device) -> Result<()> {
        let mut state = self.node.lock();
        match state.loops.iter_mut().find(|one| one.device.device == *device) {
            Some(one) => {
                one.device.size = look_at(&one.path)?.len();
                Ok(())
            }
            None => missing(&device.name),
        }
    }

    fn detach_loop(&self, device: &Device) -> Result<()> {
        let mut state = self.node.lock();
        let mounted = state.is_mounted(device.number);
        state.rule(!mounted, || format!("{device} is detached while it is mounted"));
        state.loops.retain(|one| one.device.device != *device);
        Ok(())
    }

    fn make_filesystem(&self, device: &Device, filesystem: Filesystem, unfinished: bool) -> Result<()> {
        let mut state = self.node.lock();
        let mounted = state.is_mounted(device.number);
        state.rule(!mounted, || format!("{device} is formatted while it is mounted"));
        let (disk, size) = state.disk(device)?;
        let blank = match &disk.content {
            Content::Blank => true,
            Content::Unknown => unfinished,
            Content::Filesystem(_) | Content::Other(_) => false,
        };
        if !blank {
            let held = format!("{:?}", disk.content);
            state.rule(false, || format!("{device} is formatted although it holds {held}"));
            return Err(MachineError::Refused(format!("{device} is not blank")));
        }
        let content = Content::Filesystem(filesystem.as_str().to_owned());
        state.write(device, Disk { content, covers: size })
    }

    fn check_filesystem(&self, device: &Device, _: Filesystem) -> Result<()> {
        let mut state = self.node.lock();
        let mounted = state.is_mounted(device.number);
        state.rule(!mounted, || format!("{device} is checked while it is mounted"));
        Ok(())
    }

    fn grow_filesystem(&self, device: &Device, _: Filesystem, _: &Place) -> Result<()> {
        let mut state = self.node.lock();
        let (disk, size) = state.disk(device)?;
        state.write(device, Disk { covers: size, ..disk })?;
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
        place: &Place,
    ) -> Result<()> {
        let mut state = self.node.lock();
        let twice = state.is_mounted(device.number);
        state.rule(!twice, || format!("{device} is mounted twice"));
        let (disk, _) = state.disk(device)?;
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
        })
    }

    fn mount_memory(&self, name: &str, size: u64, options: &MountOptions, place: &Place) -> Result<()> {
        let mut state = self.node.lock();
        let device = (NONE, 100 + state.number());
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
        })
    }

    fn resize_memory(&self, size: u64, place: &Place) -> Result<()> {
        self.node.lock().top(&place.to_string())?.size = size;
        Ok(())
    }

    fn bind(&self, source: &Source, place: &Place) -> Result<()> {
        let mut state = self.node.lock();
        let at = place.to_string();
        let mounted = match source {
            Source::Place(source) => {
                let from = source.to_string();
                let staged = state.mounts.iter().any(|mounted| mounted.at == from);
                state.rule(staged, || format!("{at} is published, and nothing is staged at {from}"));
                Mounted { at, ..state.top(&from)?.clone() }
            }
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
                let id = self.directory(path)?;
                let (mount, kind) = (plain(DISK, "/dev/sda1"), FoundKind::Directory);
                Mounted { at, mount, id, kind, size: DEVICE, group: None }
            }
        };
        state.mount(mounted)
    }

    fn restrict(&self, place: &Place, attributes: Attributes) -> Result<()> {
        let mut state = self.node.lock();
        let has = &mut state.top(&place.to_string())?.mount.attributes;
        has.read_only |= attributes.read_only;
        has.no_suid |= attributes.no_suid;
        has.no_devices |= attributes.no_devices;
        has.no_exec |= attributes.no_exec;
        Ok(())
    }

    fn unmount(&self, place: &Place) -> Result<()> {
        let mut state = self.node.lock();
        let top = state.top(&place.to_string())?.clone();
        let published = state.mounts.iter().any(|other| other.at != top.at && other.id == top.id);
        state.rule(!(published && is_staging(place)), || {
            format!("{} is unstaged while it is published", top.at)
        });
        let at = state.mounts.iter().rposition(|mounted| mounted.at == top.at);
        at.map(|at| state.mounts.remove(at));
        Ok(())
    }

    fn set_group(&self, place: &Place, group: u32) -> Result<()> {
        let mut state = self.node.lock();
        let top = state.top(&place.to_string())?;
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
