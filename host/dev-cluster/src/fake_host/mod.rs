//! A node whose mounts are recorded and not made: its directories, mounts and loop devices are in memory. It
//! does what Linux would do, and writes down where a rule of kubelet or of the node is broken that no answer
//! would show.

mod mounter;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    fs, io,
    os::unix::fs::MetadataExt as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use cofferdam_node::{
    Device, DeviceContent, FileId, KubeletPath, LoopDevice, MountAttributes, MountPoint, MounterError,
    PathInfo, PathKind, RootedPath,
};

pub use mounter::FakeMounter;

use crate::files::Files;

type Result<T> = std::result::Result<T, MounterError>;

/// Number of the filesystem that kubelet's directories are on.
const ROOT_DEVICE: (u32, u32) = (8, 1);
/// Number of the filesystem that devices' nodes are on.
const DEVTMPFS_DEVICE: (u32, u32) = (0, 6);
/// Major numbers of loop devices, of disks, and of what has no device.
const LOOP_MAJOR: u32 = 7;
const SCSI_MAJOR: u32 = 65;
const NO_DEVICE_MAJOR: u32 = 0;
/// How large a device is that nobody has measured: no claim is larger.
const DEVICE_SIZE: u64 = 1 << 50;

/// Something on the disk.
#[derive(Clone, Debug, PartialEq)]
enum Entry {
    Directory { inode: u64 },
    File { inode: u64, text: String },
}

/// A mount.
#[derive(Clone, Debug, PartialEq)]
struct RecordedMount {
    path: String,
    mount: MountPoint,
    id: FileId,
    kind: PathKind,
    size: u64,
    group: Option<u32>,
}

/// What a device or an image holds.
#[derive(Clone, Debug, PartialEq)]
struct DiskState {
    content: DeviceContent,
    /// Bytes that the filesystem covers.
    filesystem_size: u64,
}

impl Default for DiskState {
    fn default() -> Self {
        Self { content: DeviceContent::Blank, filesystem_size: 0 }
    }
}

/// A loop device, and where its file is.
#[derive(Clone, Debug, PartialEq)]
struct AttachedLoop {
    device: LoopDevice,
    path: RootedPath,
    created_at: Option<SystemTime>,
}

/// What is behind a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BackingStorage {
    /// A file, by its identity and when it was made: a filesystem gives the number of one that is gone to the
    /// next one.
    Image(FileId, Option<SystemTime>),
    /// A device, by its stable id.
    Device(String),
}

/// What images and devices hold. Nodes share it: what one of them has formatted holds a filesystem on the
/// next one, too.
#[derive(Clone, Debug, Default)]
pub struct SharedDisks(Arc<Mutex<BTreeMap<BackingStorage, DiskState>>>);

impl SharedDisks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<BackingStorage, DiskState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets earlier files of an identity.
    fn remove_stale(&self, file: FileId, created_at: Option<SystemTime>) {
        self.lock().retain(|storage, _| match storage {
            BackingStorage::Image(other, when) => *other != file || *when == created_at,
            BackingStorage::Device(_) => true,
        });
    }
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<String, Entry>,
    mounts: Vec<RecordedMount>,
    loops: Vec<AttachedLoop>,
    /// Numbers of devices by stable id.
    devices: BTreeMap<String, (u32, u32)>,
    disks: SharedDisks,
    last_number: u32,
    violations: Vec<String>,
}

/// A node's files, mounts and devices. Clones are the same node.
#[derive(Clone, Debug, Default)]
pub struct FakeHost(Arc<Mutex<State>>);

fn failed<T>(what: impl Into<String>) -> Result<T> {
    Err(MounterError::Failed(what.into()))
}

fn missing<T>(what: impl Debug) -> Result<T> {
    Err(MounterError::NotFound(format!("{what:?} is not there")))
}

impl FakeHost {
    /// A node with access to these disks.
    pub fn new(disks: SharedDisks) -> Self {
        Self(Arc::new(Mutex::new(State { disks, ..State::default() })))
    }

    /// A driver's view of the node: the machine is one, records are its own.
    pub fn mounter(&self) -> FakeMounter {
        FakeMounter::new(self.clone())
    }

    /// Rules that were broken, for people.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// What is mounted or attached, for people.
    pub fn leftovers(&self) -> Vec<String> {
        let state = self.lock();
        let mounts = state.mounts.iter().map(|mounted| format!("{} is mounted", mounted.path));
        let loops = state.loops.iter().map(|one| format!("{} is attached", one.device.device));
        // Kubelet's own directories stay; those of pods and volumes go, and what is written down of them.
        let of_volumes = |path: &&String| {
            let of_block = path.split_once("/volumeDevices/").map(|(_, rest)| rest);
            path.contains("/pods/")
                || path.ends_with("/vol_data.json")
                || path.ends_with("/globalmount")
                || of_block.is_some_and(|rest| !matches!(rest, "staging" | "publish"))
        };
        let entries = state.entries.keys().filter(of_volumes).map(|path| format!("{path} is there"));
        mounts.chain(loops).chain(entries).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next_number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    /// Notes a broken rule where `holds` is false.
    fn check_rule(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        if !holds {
            let violation = violation();
            tracing::error!("a rule is broken: {violation}");
            self.violations.push(violation);
        }
    }

    /// Whether a path is beneath a mount: what was there before cannot be seen.
    fn is_beneath_mount(&self, path: &str) -> bool {
        self.mounts
            .iter()
            .any(|mounted| path.strip_prefix(mounted.path.as_str()).is_some_and(|rest| rest.starts_with('/')))
    }

    fn lookup(&self, path: &str) -> Option<PathInfo> {
        if self.is_beneath_mount(path) {
            // Nobody writes into the volumes here.
            return None;
        }
        let mounts_at = || self.mounts.iter().filter(|mounted| mounted.path == path);
        let mounts: Vec<MountPoint> = mounts_at().map(|mounted| mounted.mount.clone()).collect();
        if let Some(top) = mounts_at().next_back() {
            return Some(PathInfo { kind: top.kind, id: top.id, mounts });
        }
        let (kind, inode) = match self.entries.get(path)? {
            Entry::Directory { inode } => (PathKind::Directory, *inode),
            Entry::File { inode, text } => (PathKind::File(text.len() as u64), *inode),
        };
        Some(PathInfo { kind, id: FileId { device: ROOT_DEVICE, inode }, mounts })
    }

    fn create_entry(&mut self, path: &str, entry: fn(u64) -> Entry) -> Result<()> {
        let parent = path.rsplit_once('/').map(|(parent, _)| parent.to_owned()).unwrap_or_default();
        if self.is_beneath_mount(path) || self.entries.contains_key(path) {
            return failed(format!("{path} is there"));
        }
        if !matches!(self.entries.get(&parent), Some(Entry::Directory { .. })) {
            return missing(parent);
        }
        let inode = self.next_number().into();
        self.entries.insert(path.to_owned(), entry(inode));
        Ok(())
    }

    fn remove(&mut self, path: &str) -> Result<()> {
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

    /// What is behind a device, and its size now.
    fn backing_storage(&self, device: &Device) -> Result<(BackingStorage, u64)> {
        if let Some(found) = self.loops.iter().find(|one| one.device.device == *device) {
            return Ok((BackingStorage::Image(found.device.file_id, found.created_at), found.device.size));
        }
        match self.devices.iter().find(|(_, number)| **number == device.number) {
            Some((id, _)) => Ok((BackingStorage::Device(id.clone()), DEVICE_SIZE)),
            None => missing(&device.name),
        }
    }

    /// What a device holds, and its size now.
    fn disk_state(&self, device: &Device) -> Result<(DiskState, u64)> {
        let (storage, size) = self.backing_storage(device)?;
        Ok((self.disks.lock().get(&storage).cloned().unwrap_or_default(), size))
    }

    /// Writes to a device.
    fn write_device(&self, device: &Device, disk: DiskState) -> Result<()> {
        let (storage, _) = self.backing_storage(device)?;
        self.disks.lock().insert(storage, disk);
        Ok(())
    }

    fn is_mounted(&self, number: (u32, u32)) -> bool {
        let is_on_device = |mounted: &RecordedMount| {
            mounted.mount.device == number || mounted.kind == PathKind::Device(number)
        };
        self.mounts.iter().any(is_on_device)
    }

    fn add_mount(&mut self, mounted: RecordedMount) -> Result<()> {
        let path = mounted.path.clone();
        let is_mounted_twice = self.mounts.iter().any(|other| other.path == path);
        self.check_rule(!is_mounted_twice, || format!("{path} is mounted twice"));
        if self.lookup(&path).is_none() {
            return missing(path);
        }
        self.mounts.push(mounted);
        Ok(())
    }

    fn top_mount(&mut self, path: &str) -> Result<&mut RecordedMount> {
        match self.mounts.iter_mut().rev().find(|mounted| mounted.path == path) {
            Some(top) => Ok(top),
            None => missing(path),
        }
    }
}

impl Files for FakeHost {
    fn make_directory(&self, path: &str) -> std::result::Result<(), String> {
        let mut state = self.lock();
        let mut current_path = String::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            current_path = format!("{current_path}/{name}");
            match state.entries.get(&current_path) {
                Some(Entry::Directory { .. }) => {}
                Some(Entry::File { .. }) => return Err(format!("{current_path} is no directory")),
                None => {
                    let inode = state.next_number().into();
                    state.entries.insert(current_path.clone(), Entry::Directory { inode });
                }
            }
        }
        Ok(())
    }

    fn write(&self, path: &str, text: &str) -> std::result::Result<(), String> {
        let mut state = self.lock();
        let parent = path.rsplit_once('/').map(|(parent, _)| parent).unwrap_or_default();
        if !matches!(state.entries.get(parent), Some(Entry::Directory { .. })) {
            return Err(format!("cannot write {path}: its directory is not there"));
        }
        let inode = state.next_number().into();
        state.entries.insert(path.to_owned(), Entry::File { inode, text: text.to_owned() });
        Ok(())
    }

    fn remove(&self, path: &str) -> std::result::Result<(), String> {
        match self.lock().remove(path) {
            Ok(()) | Err(MounterError::NotFound(_)) => Ok(()),
            Err(error) => Err(format!("cannot remove {path}: {error}")),
        }
    }
}

/// A directory or a file of the operator's, on this machine: it is looked at and never touched.
fn path_metadata(path: &RootedPath) -> Result<fs::Metadata> {
    let path = path.to_string();
    fs::symlink_metadata(&path).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            MounterError::NotFound(format!("{path} is not there"))
        } else {
            MounterError::Failed(format!("cannot look at {path}: {error}"))
        }
    })
}

fn file_id(metadata: &fs::Metadata) -> FileId {
    let number = metadata.dev();
    let low_bits = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default();
    FileId { device: (low_bits(number >> 32), low_bits(number)), inode: metadata.ino() }
}

/// A mount of nothing special.
fn plain_mount(device: (u32, u32), source: &str) -> MountPoint {
    MountPoint {
        fs_type: "ext4".to_owned(),
        source: source.to_owned(),
        device,
        attributes: MountAttributes::default(),
        filesystem_read_only: false,
    }
}

/// Whether a place is one where kubelet has volumes staged.
fn is_staging_path(place: &KubeletPath) -> bool {
    let path = place.to_string();
    path.ends_with("/globalmount") || path.contains("/volumeDevices/staging/")
}

#[cfg(test)]
mod tests {
    use cofferdam_node::{BindSource, Filesystem, KubeletRoots, MountOptions, Mounter as _};

    use super::*;

    fn place(path: &str) -> KubeletPath {
        KubeletRoots::new(["/k".to_owned()]).unwrap().resolve("path", &format!("/k/{path}")).unwrap()
    }

    #[test]
    fn device_formatted_by_one_node_is_not_blank_on_the_next() {
        let disks = SharedDisks::default();
        for expected in [DeviceContent::Blank, DeviceContent::Filesystem("ext4".to_owned())] {
            let machine = FakeHost::new(disks.clone()).mounter();
            let device = machine.block_device("wwn-1").unwrap().device;
            assert_eq!(machine.device_content(&device).unwrap(), expected);
            if expected == DeviceContent::Blank {
                machine.make_filesystem(&device, Filesystem::Ext4, false).unwrap();
            }
        }
    }

    #[test]
    fn leftovers_name_block_volume_directories_but_not_their_parents() {
        let node = FakeHost::default();
        for directory in ["/k/volumeDevices/staging", "/k/volumeDevices/publish"] {
            node.make_directory(directory).unwrap();
        }
        assert_eq!(node.leftovers(), Vec::<String>::new());
        node.make_directory("/k/volumeDevices/staging/v").unwrap();
        assert_eq!(node.leftovers(), ["/k/volumeDevices/staging/v is there"]);
    }

    #[test]
    fn new_image_with_a_reused_inode_number_is_blank() {
        let (file, then) = (FileId { device: ROOT_DEVICE, inode: 7 }, SystemTime::UNIX_EPOCH);
        let disks = SharedDisks::default();
        let made = [Some(then), Some(then + std::time::Duration::from_nanos(1))];
        let [first, second] = made.map(|made| BackingStorage::Image(file, made));
        disks.lock().insert(first.clone(), DiskState { content: DeviceContent::Unknown, filesystem_size: 1 });
        disks.remove_stale(file, made[0]);
        assert!(disks.lock().contains_key(&first));
        assert!(!disks.lock().contains_key(&second));
        disks.remove_stale(file, made[1]);
        assert!(disks.lock().is_empty(), "what is gone is forgotten");
    }

    #[test]
    fn violated_mount_rules_are_reported() {
        let node = FakeHost::default();
        let machine = node.mounter();
        let (globalmount, target) = (place("v/globalmount"), place("pods/t"));
        for directory in ["/k/v/globalmount", "/k/pods/t"] {
            node.make_directory(directory).unwrap();
        }
        let staged = BindSource::KubeletPath(globalmount.clone());
        assert!(machine.bind(&staged, &target).is_err());
        assert_eq!(node.violations(), ["/k/pods/t is published, and nothing is staged at /k/v/globalmount"]);
        machine.mount_tmpfs("m", 1, &MountOptions::default(), &globalmount).unwrap();
        machine.bind(&staged, &target).unwrap();
        let left = [
            "/k/v/globalmount is mounted",
            "/k/pods/t is mounted",
            "/k/pods/t is there",
            "/k/v/globalmount is there",
        ];
        assert_eq!(node.leftovers(), left);
        machine.unmount(&globalmount).unwrap();
        assert_eq!(node.violations().last().unwrap(), "/k/v/globalmount is unstaged while it is published");
        machine.unmount(&target).unwrap();
        let device = machine.block_device("wwn-1").unwrap().device;
        machine.make_filesystem(&device, Filesystem::Xfs, false).unwrap();
        assert!(machine.make_filesystem(&device, Filesystem::Ext4, false).is_err());
        assert!(
            node.violations().last().unwrap().contains("is formatted although it holds"),
            "{:?}",
            node.violations()
        );
    }
}
