//! A fake host whose mounts are recorded: directories, mounts and loop devices are in memory. It behaves like
//! Linux, and records violations of kubelet's or the node's rules that no response would show.

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

use crate::files::{FileError, Files};

type Result<T> = std::result::Result<T, MounterError>;

/// Device number of the filesystem with kubelet's directories.
const ROOT_DEVICE: (u32, u32) = (8, 1);
/// Device number of the filesystem with the device nodes.
const DEVTMPFS_DEVICE: (u32, u32) = (0, 6);
/// Major device numbers of loop devices, disks and filesystems without a device.
const LOOP_MAJOR: u32 = 7;
const SCSI_MAJOR: u32 = 65;
const NO_DEVICE_MAJOR: u32 = 0;
/// Size of a disk in bytes, larger than any claim.
const DEVICE_SIZE: u64 = 1 << 50;

/// A directory entry.
#[derive(Clone, Debug, PartialEq)]
enum Entry {
    Directory { inode: u64 },
    File { inode: u64, text: String },
}

/// A recorded mount.
#[derive(Clone, Debug, PartialEq)]
struct RecordedMount {
    path: String,
    mount: MountPoint,
    id: FileId,
    kind: PathKind,
    size: u64,
    group: Option<u32>,
}

/// Content of a device or an image.
#[derive(Clone, Debug, PartialEq)]
struct DiskState {
    content: DeviceContent,
    /// Size of the filesystem in bytes.
    filesystem_size: u64,
}

impl Default for DiskState {
    fn default() -> Self {
        Self { content: DeviceContent::Blank, filesystem_size: 0 }
    }
}

/// A loop device and its backing file.
#[derive(Clone, Debug, PartialEq)]
struct AttachedLoop {
    device: LoopDevice,
    path: RootedPath,
    created_at: Option<SystemTime>,
}

/// Storage of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BackingStorage {
    /// A file, by its identity and creation time: inode numbers are reused.
    Image(FileId, Option<SystemTime>),
    /// A disk, by its stable ID.
    Device(String),
}

/// Content of images and disks. All nodes share it: a filesystem that one node created is visible to the next
/// one.
#[derive(Clone, Debug, Default)]
pub struct SharedDisks(Arc<Mutex<BTreeMap<BackingStorage, DiskState>>>);

impl SharedDisks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<BackingStorage, DiskState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes earlier files with the same identity.
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
    /// Device numbers by stable ID.
    devices: BTreeMap<String, (u32, u32)>,
    disks: SharedDisks,
    last_number: u32,
    violations: Vec<String>,
}

/// Files, mounts and devices of a node. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct FakeHost(Arc<Mutex<State>>);

fn failed<T>(message: impl Into<String>) -> Result<T> {
    Err(MounterError::Failed(message.into()))
}

fn missing<T>(path: impl Debug) -> Result<T> {
    Err(MounterError::NotFound(format!("{path:?} does not exist")))
}

impl FakeHost {
    /// Creates a host with access to these disks.
    pub fn new(disks: SharedDisks) -> Self {
        Self(Arc::new(Mutex::new(State { disks, ..State::default() })))
    }

    /// Creates a mounter for one driver. Mounters share the host; volume records are their own.
    pub fn mounter(&self) -> FakeMounter {
        FakeMounter::new(self.clone())
    }

    /// Violated rules, for display.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Mounts, loop devices and files that remain, for display.
    pub fn leftovers(&self) -> Vec<String> {
        let state = self.lock();
        let mounts = state.mounts.iter().map(|mounted| format!("{} is mounted", mounted.path));
        let loops = state.loops.iter().map(|one| format!("{} is attached", one.device.device));
        // Kubelet's own directories may remain; directories of pods and volumes and their data files may not.
        let of_volumes = |path: &&String| {
            let of_block = path.split_once("/volumeDevices/").map(|(_, rest)| rest);
            path.contains("/pods/")
                || path.ends_with("/vol_data.json")
                || path.ends_with("/globalmount")
                || of_block.is_some_and(|rest| !matches!(rest, "staging" | "publish"))
        };
        let entries = state.entries.keys().filter(of_volumes).map(|path| format!("{path} exists"));
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

    /// Records a violation if `holds` is false.
    fn check_rule(&mut self, holds: bool, violation: impl FnOnce() -> String) {
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

    fn lookup(&self, path: &str) -> Option<PathInfo> {
        if self.is_beneath_mount(path) {
            // Recorded volumes are empty.
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
            return failed(format!("{path} exists"));
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

    /// Storage and current size of a device.
    fn backing_storage(&self, device: &Device) -> Result<(BackingStorage, u64)> {
        if let Some(found) = self.loops.iter().find(|one| one.device.device == *device) {
            return Ok((BackingStorage::Image(found.device.file_id, found.created_at), found.device.size));
        }
        match self.devices.iter().find(|(_, number)| **number == device.number) {
            Some((id, _)) => Ok((BackingStorage::Device(id.clone()), DEVICE_SIZE)),
            None => missing(&device.name),
        }
    }

    /// Content and current size of a device.
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
    fn make_directory(&self, path: &str) -> std::result::Result<(), FileError> {
        let mut state = self.lock();
        let mut current_path = String::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            current_path = format!("{current_path}/{name}");
            match state.entries.get(&current_path) {
                Some(Entry::Directory { .. }) => {}
                Some(Entry::File { .. }) => {
                    return Err(FileError::new(
                        "create directory",
                        path,
                        format!("{current_path} is not a directory"),
                    ));
                }
                None => {
                    let inode = state.next_number().into();
                    state.entries.insert(current_path.clone(), Entry::Directory { inode });
                }
            }
        }
        Ok(())
    }

    fn write(&self, path: &str, text: &str) -> std::result::Result<(), FileError> {
        let mut state = self.lock();
        let parent = path.rsplit_once('/').map(|(parent, _)| parent).unwrap_or_default();
        if !matches!(state.entries.get(parent), Some(Entry::Directory { .. })) {
            return Err(FileError::new("write", path, "its directory does not exist"));
        }
        let inode = state.next_number().into();
        state.entries.insert(path.to_owned(), Entry::File { inode, text: text.to_owned() });
        Ok(())
    }

    fn remove(&self, path: &str) -> std::result::Result<(), FileError> {
        match self.lock().remove(path) {
            Ok(()) | Err(MounterError::NotFound(_)) => Ok(()),
            Err(error) => Err(FileError::new("remove", path, error)),
        }
    }
}

/// Metadata of an operator's directory or file on this machine; it is never modified.
fn path_metadata(path: &RootedPath) -> Result<fs::Metadata> {
    let path = path.to_string();
    fs::symlink_metadata(&path).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            MounterError::NotFound(format!("{path} does not exist"))
        } else {
            MounterError::Failed(format!("cannot read metadata of {path}: {error}"))
        }
    })
}

fn file_id(metadata: &fs::Metadata) -> FileId {
    let number = metadata.dev();
    let low_bits = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default();
    FileId { device: (low_bits(number >> 32), low_bits(number)), inode: metadata.ino() }
}

/// A mount with default attributes.
fn plain_mount(device: (u32, u32), source: &str) -> MountPoint {
    MountPoint {
        fs_type: "ext4".to_owned(),
        source: source.to_owned(),
        device,
        attributes: MountAttributes::default(),
        filesystem_read_only: false,
    }
}

/// Returns true for kubelet's staging paths.
fn is_staging_path(path: &KubeletPath) -> bool {
    let path = path.to_string();
    path.ends_with("/globalmount") || path.contains("/volumeDevices/staging/")
}

#[cfg(test)]
mod tests {
    use cofferdam_node::{BindSource, Filesystem, KubeletRoots, MountOptions, Mounter as _};

    use super::*;

    fn kubelet_path(path: &str) -> KubeletPath {
        KubeletRoots::new(["/k".to_owned()]).unwrap().resolve("path", &format!("/k/{path}")).unwrap()
    }

    #[test]
    fn device_formatted_by_one_node_is_not_blank_on_the_next() {
        let disks = SharedDisks::default();
        for expected in [DeviceContent::Blank, DeviceContent::Filesystem("ext4".to_owned())] {
            let mounter = FakeHost::new(disks.clone()).mounter();
            let device = mounter.block_device("wwn-1").unwrap().device;
            assert_eq!(mounter.device_content(&device).unwrap(), expected);
            if expected == DeviceContent::Blank {
                mounter.make_filesystem(&device, Filesystem::Ext4, false).unwrap();
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
        assert_eq!(node.leftovers(), ["/k/volumeDevices/staging/v exists"]);
    }

    #[test]
    fn new_image_with_a_reused_inode_number_is_blank() {
        let (file, then) = (FileId { device: ROOT_DEVICE, inode: 7 }, SystemTime::UNIX_EPOCH);
        let disks = SharedDisks::default();
        let created = [Some(then), Some(then + std::time::Duration::from_nanos(1))];
        let [first, second] = created.map(|created| BackingStorage::Image(file, created));
        disks.lock().insert(first.clone(), DiskState { content: DeviceContent::Unknown, filesystem_size: 1 });
        disks.remove_stale(file, created[0]);
        assert!(disks.lock().contains_key(&first));
        assert!(!disks.lock().contains_key(&second));
        disks.remove_stale(file, created[1]);
        assert!(disks.lock().is_empty(), "stale files are removed");
    }

    #[test]
    fn violated_mount_rules_are_reported() {
        let node = FakeHost::default();
        let mounter = node.mounter();
        let (globalmount, target) = (kubelet_path("v/globalmount"), kubelet_path("pods/t"));
        for directory in ["/k/v/globalmount", "/k/pods/t"] {
            node.make_directory(directory).unwrap();
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
