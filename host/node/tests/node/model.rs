//! A machine in memory. It does what Linux does, dies when it is told to, and panics where a rule of the node is broken that
//! no answer would show.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Mutex, MutexGuard},
};

use cofferdam_node::{
    Attributes, Beneath, Content, Device, DeviceFacts, FileId, Filesystem, Found, FoundKind, LoopDevice,
    Machine, MachineError, Mount, MountOptions, Place, Source, Usage, VolumeRecord,
};

type Result<T> = std::result::Result<T, MachineError>;

/// Number of the filesystem that everything is on.
const DISK: (u32, u32) = (8, 1);
/// Number of the filesystem that devices' nodes are on.
const NODES: (u32, u32) = (0, 6);

/// Something on the disk.
#[derive(Clone, Debug, PartialEq)]
enum Entry {
    Directory { inode: u64, group: Option<u32> },
    File { inode: u64, size: u64 },
}

#[derive(Clone, Debug, PartialEq)]
struct Mounted {
    at: String,
    mount: Mount,
    id: FileId,
    kind: FoundKind,
    size: u64,
    group: Option<u32>,
}

/// What a device or an image holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Disk {
    pub(crate) content: Content,
    /// Bytes that the filesystem covers.
    pub(crate) covers: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// What else holds it.
    pub(crate) held: Vec<String>,
    /// How often a filesystem was made on it.
    pub(crate) made: u32,
}

impl Disk {
    pub(crate) fn new(content: Content, size: u64) -> Self {
        let covers = if matches!(content, Content::Filesystem(_)) { size } else { 0 };
        Self { content, covers, size, held: Vec::new(), made: 0 }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    entries: BTreeMap<String, Entry>,
    mounts: Vec<Mounted>,
    loops: Vec<LoopDevice>,
    /// By the inode of the image.
    images: BTreeMap<u64, Disk>,
    /// By stable id, with the number of the device.
    devices: BTreeMap<String, ((u32, u32), Disk)>,
    records: BTreeMap<String, VolumeRecord>,
    next: u32,
    /// Effects before death; absent for a long life.
    left: Option<usize>,
    dead: bool,
    /// Whether no volume can be given to a group.
    refuses_groups: bool,
    /// Whether the last effect is cut short, where it can be.
    half: bool,
    /// What was done, in order.
    pub(crate) effects: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Model(Mutex<State>);

fn failed<T>(what: impl Into<String>) -> Result<T> {
    Err(MachineError::Failed(what.into()))
}

fn missing<T>(what: impl Debug) -> Result<T> {
    Err(MachineError::Missing(format!("{what:?} is not there")))
}

impl State {
    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Where a path really is: beneath the last mount on the way.
    fn covered(&self, path: &str) -> bool {
        self.mounts.iter().any(|mounted| path.starts_with(&format!("{}/", mounted.at)))
    }

    fn found(&self, path: &str) -> Option<Found> {
        if self.covered(path) {
            // Nothing here writes into volumes.
            return None;
        }
        let mut here = self.mounts.iter().filter(|mounted| mounted.at == path);
        let mounts: Vec<Mount> = here.clone().map(|mounted| mounted.mount.clone()).collect();
        if let Some(top) = here.next_back() {
            return Some(Found { kind: top.kind, id: top.id, mounts });
        }
        let entry = self.entries.get(path)?;
        let (kind, inode) = match entry {
            Entry::Directory { inode, .. } => (FoundKind::Directory, *inode),
            Entry::File { inode, size } => (FoundKind::File(*size), *inode),
        };
        Some(Found { kind, id: FileId { device: DISK, inode }, mounts })
    }

    fn make(&mut self, path: &str, entry: fn(u64) -> Entry) -> Result<()> {
        let parent = path.rsplit_once('/').map(|(parent, _)| parent.to_owned()).unwrap_or_default();
        if self.covered(path) || self.entries.contains_key(path) {
            return failed(format!("{path} is there"));
        }
        if !matches!(self.entries.get(&parent), Some(Entry::Directory { .. })) {
            return missing(parent);
        }
        let inode = self.number().into();
        self.entries.insert(path.to_owned(), entry(inode));
        Ok(())
    }

    fn disk(&mut self, device: &Device) -> &mut Disk {
        let found = self.loops.iter().find(|found| found.device == *device);
        match found {
            Some(found) => self.images.get_mut(&found.file.inode).unwrap(),
            None => {
                let found = self.devices.values_mut().find(|(number, _)| *number == device.number);
                &mut found.unwrap().1
            }
        }
    }

    fn is_mounted(&self, number: (u32, u32)) -> bool {
        self.mounts
            .iter()
            .any(|mounted| mounted.mount.device == number || mounted.kind == FoundKind::Device(number))
    }

    fn mount(&mut self, mounted: Mounted) {
        assert!(
            !self.mounts.iter().any(|other| other.at == mounted.at),
            "{} is mounted twice: {:?}",
            mounted.at,
            self.effects
        );
        assert!(self.found(&mounted.at).is_some(), "{} is not there", mounted.at);
        self.mounts.push(mounted);
    }

    fn top(&mut self, place: &Place) -> Result<&mut Mounted> {
        let path = place.to_string();
        match self.mounts.iter_mut().rev().find(|mounted| mounted.at == path) {
            Some(top) => Ok(top),
            None => missing(path),
        }
    }
}

impl Model {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A new life; it ends after so many effects.
    pub(crate) fn live(&self, left: Option<usize>, half: bool) {
        let mut state = self.state();
        (state.left, state.dead, state.half) = (left, false, half);
    }

    /// Whether it has died since it was told to.
    pub(crate) fn died(&self) -> bool {
        self.state().dead
    }

    /// As after a reboot: mounts and loop devices are gone, the disk is not.
    pub(crate) fn reboot(&self) {
        let mut state = self.state();
        state.mounts.clear();
        state.loops.clear();
    }

    pub(crate) fn directory_at(&self, path: &str) {
        let mut state = self.state();
        let mut way = String::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            way = format!("{way}/{name}");
            if !state.entries.contains_key(&way) {
                let inode = state.number().into();
                state.entries.insert(way.clone(), Entry::Directory { inode, group: None });
            }
        }
    }

    pub(crate) fn image_at(&self, path: &str, disk: Disk) {
        self.directory_at(path.rsplit_once('/').unwrap().0);
        let mut state = self.state();
        let inode = u64::from(state.number());
        state.entries.insert(path.to_owned(), Entry::File { inode, size: disk.size });
        state.images.insert(inode, disk);
    }

    /// The image of a path, to look at it or to change it.
    pub(crate) fn with_image<T>(&self, path: &str, act: impl FnOnce(&mut Disk) -> T) -> T {
        let mut state = self.state();
        let Some(Entry::File { inode, .. }) = state.entries.get(path).cloned() else { panic!("{path}") };
        let disk = state.images.get_mut(&inode).unwrap();
        let done = act(disk);
        let size = disk.size;
        state.entries.insert(path.to_owned(), Entry::File { inode, size });
        done
    }

    pub(crate) fn device_at(&self, stable_id: &str, disk: Disk) {
        let mut state = self.state();
        let number = (8, 16 + state.number());
        state.devices.insert(stable_id.to_owned(), (number, disk));
    }

    /// Puts a file with data where a target shall be.
    pub(crate) fn file_at(&self, path: &str, size: u64) {
        let mut state = self.state();
        let inode = state.number().into();
        state.entries.insert(path.to_owned(), Entry::File { inode, size });
    }

    /// Mounts of a path, the last one on top.
    /// From now on no volume can be given to a group.
    pub(crate) fn refuse_groups(&self) {
        self.state().refuses_groups = true;
    }

    pub(crate) fn mounts_at(&self, path: &str) -> Vec<Mount> {
        let state = self.state();
        state
            .mounts
            .iter()
            .filter(|mounted| mounted.at == path)
            .map(|mounted| mounted.mount.clone())
            .collect()
    }

    /// The filesystem at a path fails, as ext4 does after an error.
    pub(crate) fn break_filesystem(&self, path: &str) {
        for mounted in self.state().mounts.iter_mut().filter(|mounted| mounted.at == path) {
            mounted.mount.filesystem_read_only = true;
        }
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.state().entries.contains_key(path)
    }

    /// Everything that a volume leaves behind: nothing, when all is undone.
    pub(crate) fn left_behind(&self) -> String {
        let state = self.state();
        if state.mounts.is_empty() && state.loops.is_empty() && state.records.is_empty() {
            return String::new();
        }
        format!("{:?} {:?} {:?}", state.mounts, state.loops, state.records)
    }

    fn look_at<T>(&self, look: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.state();
        if state.dead { failed("the process is dead") } else { look(&mut state) }
    }

    fn act<T>(&self, what: String, act: impl FnOnce(&mut State, bool) -> Result<T>) -> Result<T> {
        let mut state = self.state();
        if state.dead {
            return failed("the process is dead");
        }
        let last = state.left == Some(1);
        let half = last && state.half;
        if state.left == Some(0) {
            state.dead = true;
            return failed("the process is dead");
        }
        state.effects.push(what);
        let done = act(&mut state, half);
        state.left = state.left.map(|left| left - 1);
        if last {
            state.dead = true;
            return failed("the process died after this");
        }
        done
    }
}

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
        self.look_at(|state| {
            let total = state.top(place)?.size;
            Ok(Usage { total, used: 1, available: total - 1, inodes: 10, inodes_used: 1, inodes_free: 9 })
        })
    }

    fn group(&self, place: &Place) -> Result<Option<u32>> {
        self.look_at(|state| Ok(state.top(place)?.group))
    }

    fn records(&self) -> Result<Vec<VolumeRecord>> {
        self.look_at(|state| Ok(state.records.values().cloned().collect()))
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
