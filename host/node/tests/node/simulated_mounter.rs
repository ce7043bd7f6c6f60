//! A simulated [`Mounter`](cofferdam_node::Mounter). It behaves like Linux, crashes on request, and panics if
//! the node violates an invariant that no result would show.

mod mounter_impl;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Mutex, MutexGuard, mpsc},
};

use cofferdam_node::{
    Device, DeviceContent, FileId, KubeletPath, LoopDevice, MountPoint, MounterError, PathInfo, PathKind,
    VolumeRecord,
};

type Result<T> = std::result::Result<T, MounterError>;

/// Device number of the root filesystem.
const ROOT_DEVICE: (u32, u32) = (8, 1);
/// Device number of devtmpfs.
const DEVTMPFS_DEVICE: (u32, u32) = (0, 6);

/// A file or directory of the root filesystem.
#[derive(Clone, Debug, PartialEq)]
enum SimulatedEntry {
    Directory { inode: u64, group: Option<u32> },
    File { inode: u64, size: u64 },
}

#[derive(Clone, Debug, PartialEq)]
struct SimulatedMount {
    path: String,
    mount: MountPoint,
    id: FileId,
    kind: PathKind,
    size: u64,
    group: Option<u32>,
}

/// A device or an image.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SimulatedDisk {
    pub(crate) content: DeviceContent,
    /// Size of the filesystem in bytes.
    pub(crate) filesystem_size: u64,
    /// Size of the device in bytes.
    pub(crate) size: u64,
    /// Other users.
    pub(crate) users: Vec<String>,
    /// Number of times it was formatted.
    pub(crate) format_count: u32,
}

impl SimulatedDisk {
    pub(crate) fn new(content: DeviceContent, size: u64) -> Self {
        let covers = if matches!(content, DeviceContent::Filesystem(_)) { size } else { 0 };
        Self { content, filesystem_size: covers, size, users: Vec::new(), format_count: 0 }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SimulatedState {
    entries: BTreeMap<String, SimulatedEntry>,
    mounts: Vec<SimulatedMount>,
    loops: Vec<LoopDevice>,
    /// Images by inode.
    images: BTreeMap<u64, SimulatedDisk>,
    /// Devices by stable id, with their numbers.
    devices: BTreeMap<String, ((u32, u32), SimulatedDisk)>,
    records: BTreeMap<String, VolumeRecord>,
    /// Messages about unreadable records.
    pub(crate) unreadable: Vec<String>,
    last_number: u32,
    /// Effects before the crash; absent for no crash.
    effects_left: Option<usize>,
    has_crashed: bool,
    /// Effects before one that fails without a change; absent for none.
    fails_after: Option<usize>,
    /// True if setting a group fails.
    can_not_set_groups: bool,
    /// True if the last effect before the crash is partial, where possible.
    is_last_effect_partial: bool,
    /// The effects in order.
    pub(crate) effects: Vec<String>,
}

/// A point at which a call pauses.
#[derive(Debug)]
pub(crate) struct PausePoint {
    /// Prefix of the effect before which it pauses.
    effect_prefix: &'static str,
    reached: mpsc::Sender<()>,
    resume: mpsc::Receiver<()>,
}

#[derive(Debug, Default)]
pub(crate) struct SimulatedMounter {
    state: Mutex<SimulatedState>,
    pause_point: Mutex<Option<PausePoint>>,
}

fn failed<T>(message: impl Into<String>) -> Result<T> {
    Err(MounterError::Failed(message.into()))
}

fn missing<T>(object: impl Debug) -> Result<T> {
    Err(MounterError::NotFound(format!("{object:?} does not exist")))
}

impl SimulatedState {
    fn next_number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    /// Returns true if a path is below a mount.
    fn is_under_mount(&self, path: &str) -> bool {
        self.mounts.iter().any(|mounted| path.starts_with(&format!("{}/", mounted.path)))
    }

    fn path_info(&self, path: &str) -> Option<PathInfo> {
        if self.is_under_mount(path) {
            // Volumes have no simulated content.
            return None;
        }
        let mut mounts_here = self.mounts.iter().filter(|mounted| mounted.path == path);
        let mounts: Vec<MountPoint> = mounts_here.clone().map(|mounted| mounted.mount.clone()).collect();
        if let Some(top) = mounts_here.next_back() {
            return Some(PathInfo { kind: top.kind, id: top.id, mounts });
        }
        let entry = self.entries.get(path)?;
        let (kind, inode) = match entry {
            SimulatedEntry::Directory { inode, .. } => (PathKind::Directory, *inode),
            SimulatedEntry::File { inode, size } => (PathKind::File(*size), *inode),
        };
        Some(PathInfo { kind, id: FileId { device: ROOT_DEVICE, inode }, mounts })
    }

    fn create_entry(&mut self, path: &str, entry: fn(u64) -> SimulatedEntry) -> Result<()> {
        let parent = path.rsplit_once('/').map(|(parent, _)| parent.to_owned()).unwrap_or_default();
        if self.is_under_mount(path) || self.entries.contains_key(path) {
            return failed(format!("{path} exists"));
        }
        if !matches!(self.entries.get(&parent), Some(SimulatedEntry::Directory { .. })) {
            return missing(parent);
        }
        let inode = self.next_number().into();
        self.entries.insert(path.to_owned(), entry(inode));
        Ok(())
    }

    fn disk(&mut self, device: &Device) -> &mut SimulatedDisk {
        let loop_device = self.loops.iter().find(|loop_device| loop_device.device == *device);
        match loop_device {
            Some(loop_device) => self.images.get_mut(&loop_device.file_id.inode).unwrap(),
            None => {
                let loop_device = self.devices.values_mut().find(|(number, _)| *number == device.number);
                &mut loop_device.unwrap().1
            }
        }
    }

    fn is_mounted(&self, number: (u32, u32)) -> bool {
        self.mounts
            .iter()
            .any(|mounted| mounted.mount.device == number || mounted.kind == PathKind::Device(number))
    }

    fn mount(&mut self, mounted: SimulatedMount) {
        assert!(
            !self.mounts.iter().any(|other| other.path == mounted.path),
            "{} is mounted twice: {:?}",
            mounted.path,
            self.effects
        );
        assert!(self.path_info(&mounted.path).is_some(), "{} does not exist", mounted.path);
        self.mounts.push(mounted);
    }

    fn top_mount(&mut self, kubelet_path: &KubeletPath) -> Result<&mut SimulatedMount> {
        let path = kubelet_path.to_string();
        match self.mounts.iter_mut().rev().find(|mounted| mounted.path == path) {
            Some(top) => Ok(top),
            None => missing(path),
        }
    }
}

impl SimulatedMounter {
    pub(crate) fn state(&self) -> MutexGuard<'_, SimulatedState> {
        self.state.lock().unwrap()
    }

    /// Pauses the next call before a matching effect. Returns the signal that it is reached, and the one to
    /// resume.
    pub(crate) fn pause_before(&self, effect_prefix: &'static str) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
        let ((reached, pause_reached), (send_resume, resume)) = (mpsc::channel(), mpsc::channel());
        *self.pause_point.lock().unwrap() = Some(PausePoint { effect_prefix, reached, resume });
        (pause_reached, send_resume)
    }

    fn pause_if_requested(&self, effect: &str) {
        let pause_point = self
            .pause_point
            .lock()
            .unwrap()
            .take_if(|pause_point| effect.starts_with(pause_point.effect_prefix));
        if let Some(pause_point) = pause_point {
            pause_point.reached.send(()).unwrap();
            // A failed test has dropped its sender.
            let _ = pause_point.resume.recv();
        }
    }

    /// Restarts the process; it crashes after a number of effects.
    pub(crate) fn set_crash_after(&self, effects_left: Option<usize>, is_last_effect_partial: bool) {
        let mut state = self.state();
        (state.effects_left, state.has_crashed, state.is_last_effect_partial) =
            (effects_left, false, is_last_effect_partial);
    }

    /// Makes one effect fail with ENOSPC after a number of others.
    pub(crate) fn fail_after(&self, effects: usize) {
        self.state().fails_after = Some(effects);
    }

    /// Returns true if the process has crashed since the last restart.
    pub(crate) fn has_crashed(&self) -> bool {
        self.state().has_crashed
    }

    /// Reboots the node: mounts and loop devices are lost.
    pub(crate) fn reboot(&self) {
        let mut state = self.state();
        state.mounts.clear();
        state.loops.clear();
    }

    pub(crate) fn create_directories(&self, path: &str) {
        let mut state = self.state();
        let mut current = String::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            current = format!("{current}/{name}");
            if !state.entries.contains_key(&current) {
                let inode = state.next_number().into();
                state.entries.insert(current.clone(), SimulatedEntry::Directory { inode, group: None });
            }
        }
    }

    pub(crate) fn add_image(&self, path: &str, disk: SimulatedDisk) {
        self.create_directories(path.rsplit_once('/').unwrap().0);
        let mut state = self.state();
        let inode = u64::from(state.next_number());
        state.entries.insert(path.to_owned(), SimulatedEntry::File { inode, size: disk.size });
        state.images.insert(inode, disk);
    }

    /// Reads or changes the image at a path.
    pub(crate) fn with_image<T>(&self, path: &str, change: impl FnOnce(&mut SimulatedDisk) -> T) -> T {
        let mut state = self.state();
        let Some(SimulatedEntry::File { inode, .. }) = state.entries.get(path).cloned() else {
            panic!("{path}")
        };
        let disk = state.images.get_mut(&inode).unwrap();
        let result = change(disk);
        let size = disk.size;
        state.entries.insert(path.to_owned(), SimulatedEntry::File { inode, size });
        result
    }

    pub(crate) fn add_device(&self, stable_id: &str, disk: SimulatedDisk) {
        let mut state = self.state();
        let number = (8, 16 + state.next_number());
        state.devices.insert(stable_id.to_owned(), (number, disk));
    }

    /// Adds a file with data.
    pub(crate) fn add_file(&self, path: &str, size: u64) {
        let mut state = self.state();
        let inode = state.next_number().into();
        state.entries.insert(path.to_owned(), SimulatedEntry::File { inode, size });
    }

    /// Makes setting a group fail.
    pub(crate) fn fail_set_mount_group(&self) {
        self.state().can_not_set_groups = true;
    }

    /// Returns the mounts at a path, the top one last.
    pub(crate) fn mounts_at(&self, path: &str) -> Vec<MountPoint> {
        let state = self.state();
        state
            .mounts
            .iter()
            .filter(|mounted| mounted.path == path)
            .map(|mounted| mounted.mount.clone())
            .collect()
    }

    /// Makes the filesystem at a path read-only, like ext4 after an error.
    pub(crate) fn break_filesystem(&self, path: &str) {
        for mounted in self.state().mounts.iter_mut().filter(|mounted| mounted.path == path) {
            mounted.mount.filesystem_read_only = true;
        }
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.state().entries.contains_key(path)
    }

    /// Describes remaining mounts, loop devices and records; empty if there are none.
    pub(crate) fn leftovers(&self) -> String {
        let state = self.state();
        if state.mounts.is_empty() && state.loops.is_empty() && state.records.is_empty() {
            return String::new();
        }
        format!("{:?} {:?} {:?}", state.mounts, state.loops, state.records)
    }

    fn read_state<T>(&self, read: impl FnOnce(&mut SimulatedState) -> Result<T>) -> Result<T> {
        let mut state = self.state();
        if state.has_crashed { failed("the process has crashed") } else { read(&mut state) }
    }

    fn apply_effect<T>(
        &self,
        effect: String,
        change: impl FnOnce(&mut SimulatedState, bool) -> Result<T>,
    ) -> Result<T> {
        self.pause_if_requested(&effect);
        let mut state = self.state();
        if state.has_crashed {
            return failed("the process has crashed");
        }
        let is_last = state.effects_left == Some(1);
        let is_partial = is_last && state.is_last_effect_partial;
        if state.effects_left == Some(0) {
            state.has_crashed = true;
            return failed("the process has crashed");
        }
        match &mut state.fails_after {
            Some(0) => {
                state.fails_after = None;
                return failed("no space left on device");
            }
            Some(remaining) => *remaining -= 1,
            None => {}
        }
        state.effects.push(effect);
        let result = change(&mut state, is_partial);
        state.effects_left = state.effects_left.map(|remaining| remaining - 1);
        if is_last {
            state.has_crashed = true;
            return failed("the process crashed after this effect");
        }
        result
    }
}
