//! A machine in memory. It does what Linux does, dies when it is told to, and panics where a rule of the node
//! is broken that no answer would show.

mod machine;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Mutex, MutexGuard, mpsc},
};

use cofferdam_node::{
    Content, Device, FileId, Found, FoundKind, LoopDevice, MachineError, Mount, Place, VolumeRecord,
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
    /// Why records of other volumes cannot be read.
    pub(crate) unreadable: Vec<String>,
    next: u32,
    /// Effects before death; absent for a long life.
    left: Option<usize>,
    dead: bool,
    /// Effects before one that fails, and does nothing; absent where none does.
    fails: Option<usize>,
    /// Whether no volume can be given to a group.
    refuses_groups: bool,
    /// Whether the last effect is cut short, where it can be.
    half: bool,
    /// What was done, in order.
    pub(crate) effects: Vec<String>,
}

/// A call that stands still at one point of its way.
#[derive(Debug)]
pub(crate) struct Halt {
    /// What it is about to do begins so.
    before: &'static str,
    reached: mpsc::Sender<()>,
    go: mpsc::Receiver<()>,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    state: Mutex<State>,
    halt: Mutex<Option<Halt>>,
}

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
        self.state.lock().unwrap()
    }

    /// The first call that is about to do this says so to the receiver, and waits for the sender.
    pub(crate) fn halt_before(&self, before: &'static str) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
        let ((reached, is_there), (may_go, go)) = (mpsc::channel(), mpsc::channel());
        *self.halt.lock().unwrap() = Some(Halt { before, reached, go });
        (is_there, may_go)
    }

    fn pass(&self, what: &str) {
        let halt = self.halt.lock().unwrap().take_if(|halt| what.starts_with(halt.before));
        if let Some(halt) = halt {
            halt.reached.send(()).unwrap();
            // A test that has failed has dropped its end: then there is nothing to wait for.
            let _ = halt.go.recv();
        }
    }

    /// A new life; it ends after so many effects.
    pub(crate) fn live(&self, left: Option<usize>, half: bool) {
        let mut state = self.state();
        (state.left, state.dead, state.half) = (left, false, half);
    }

    /// One effect fails, after so many others: a disk is full for a moment.
    pub(crate) fn fail_after(&self, effects: usize) {
        self.state().fails = Some(effects);
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

    /// From now on no volume can be given to a group.
    pub(crate) fn refuse_groups(&self) {
        self.state().refuses_groups = true;
    }

    /// Mounts of a path, the last one on top.
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
        self.pass(&what);
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
        match &mut state.fails {
            Some(0) => {
                state.fails = None;
                return failed("no space left on device");
            }
            Some(left) => *left -= 1,
            None => {}
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
