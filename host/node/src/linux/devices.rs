//! Block devices: what the kernel shows of them, and what they hold.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
};
use serde_json::Value;

use super::{
    paths::{self, Result, failure},
    table,
    tools::{Tool, Tools},
};
use crate::{
    error::MachineError,
    machine::{Content, Device, DeviceFacts, FileId, FoundKind, LoopDevice},
};

const BY_ID: &str = "/dev/disk/by-id";
const SECTOR: u64 = 512;
/// How much has to be zero at both ends of a device that is blank: more than any filesystem's first words.
const ENDS: u64 = 4 << 20;
/// How long a loop device may take to go: whoever still looks at it, such as udev, does so for moments.
const GOING: (u32, Duration) = (100, Duration::from_millis(20));

fn failed(what: impl std::fmt::Display) -> MachineError {
    MachineError::Failed(what.to_string())
}

fn read(path: &Path) -> Result<String> {
    let text =
        fs::read_to_string(path).map_err(|error| failed(format_args!("{}: {error}", path.display())))?;
    Ok(text.trim().to_owned())
}

fn shown((major, minor): (u32, u32)) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

/// A device by its number.
fn by_number(number: (u32, u32)) -> Result<Device> {
    let link =
        fs::read_link(shown(number)).map_err(|error| failed(format_args!("device {number:?}: {error}")))?;
    let name = link.file_name().and_then(|name| name.to_str());
    // The kernel writes a device's name with ! where /dev has a directory.
    let name = name.ok_or_else(|| failed(format_args!("device {number:?} has no name")))?.replace('!', "/");
    Ok(Device { name, number })
}

/// Size of a device in bytes.
pub(super) fn size(number: (u32, u32)) -> Result<u64> {
    let sectors = read(&shown(number).join("size"))?;
    let sectors: u64 = sectors.parse().map_err(|_| failed(format_args!("device {number:?} has no size")))?;
    Ok(sectors.saturating_mul(SECTOR))
}

/// Opens a device's node, and sees to it that it is that device's.
pub(super) fn node(device: &Device, flags: OFlags) -> Result<rustix::fd::OwnedFd> {
    let path = device.to_string();
    let opened =
        open(&path, flags | OFlags::CLOEXEC, Mode::empty()).map_err(|error| failure(&path, error))?;
    if paths::kind(&paths::stat(&path, &opened)?) != FoundKind::Device(device.number) {
        return Err(MachineError::Refused(format!("{path} is not the device that the kernel calls so")));
    }
    Ok(opened)
}

/// A device by its name in `/dev/disk/by-id`.
pub(super) fn by_stable_id(stable_id: &str) -> Result<DeviceFacts> {
    let path = format!("{BY_ID}/{stable_id}");
    let opened =
        open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(|error| failure(&path, error))?;
    let FoundKind::Device(number) = paths::kind(&paths::stat(&path, &opened)?) else {
        return Err(MachineError::Refused(format!("{path} is no block device")));
    };
    let device = by_number(number)?;
    Ok(DeviceFacts { size: size(number)?, held: held(&device)?, device })
}

/// Everything that speaks against using a device.
fn held(device: &Device) -> Result<Vec<String>> {
    let mut held = Vec::new();
    for line in table::read()?.into_iter().filter(|line| line.mount.device == device.number) {
        held.push(format!("mounted at {}", line.at));
    }
    let shown = shown(device.number);
    let entries = |path: &Path| -> Result<Vec<PathBuf>> {
        let read = match fs::read_dir(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.map_err(failed)?,
        };
        read.map(|entry| entry.map(|entry| entry.path()).map_err(failed)).collect()
    };
    if entries(&shown)?.iter().any(|entry| entry.join("partition").exists()) {
        held.push("it has partitions".to_owned());
    }
    for holder in entries(&shown.join("holders"))? {
        held.push(format!("held by {}", holder.file_name().unwrap_or_default().to_string_lossy()));
    }
    let swaps = read(Path::new("/proc/swaps")).unwrap_or_default();
    let is_it = |path: &str| {
        let opened = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        let stat = opened.and_then(|opened| rustix::fs::fstat(opened).ok());
        stat.is_some_and(|stat| paths::kind(&stat) == FoundKind::Device(device.number))
    };
    if swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).any(is_it) {
        held.push("swap".to_owned());
    }
    if held.is_empty() {
        // The kernel's own word covers what no table shows: other mount namespaces, RAID, device mapper.
        match open(device.to_string(), OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
            Ok(_) => {}
            Err(Errno::BUSY) => held.push("an exclusive opener".to_owned()),
            Err(error) => return Err(failure(device, error)),
        }
    }
    Ok(held)
}

/// What a device holds.
pub(super) fn probe(tools: &Tools, device: &Device) -> Result<Content> {
    let said = tools.run(Tool::Blkid, &["-p", "-o", "export", &device.to_string()])?;
    let value = |key: &str| {
        let lines = said.output.lines().filter_map(|line| line.split_once('='));
        lines.filter(|(name, _)| *name == key).map(|(_, value)| value.to_owned()).next()
    };
    match said.code {
        Some(0) => Ok(match (value("USAGE").as_deref(), value("TYPE"), value("PTTYPE")) {
            (Some("filesystem"), Some(name), None) => Content::Filesystem(name),
            (_, Some(name), _) => Content::Other(format!("{name:?}")),
            (_, None, Some(table)) => Content::Other(format!("a partition table of type {table:?}")),
            (_, None, None) => Content::Other("something that blkid knows".to_owned()),
        }),
        Some(2) if is_zero(device)? => Ok(Content::Blank),
        Some(2) => Ok(Content::Unknown),
        Some(8) => Ok(Content::Other("several signatures at once".to_owned())),
        code => Err(failed(format_args!("blkid ended with {code:?}: {}", said.words))),
    }
}

/// Whether both ends of a device are zeros.
fn is_zero(device: &Device) -> Result<bool> {
    let size = size(device.number)?;
    let mut file = File::from(node(device, OFlags::RDONLY)?);
    let mut zero = |from: u64| -> std::io::Result<bool> {
        file.seek(SeekFrom::Start(from))?;
        let mut part = Vec::new();
        std::io::Read::by_ref(&mut file).take(ENDS).read_to_end(&mut part)?;
        Ok(part.iter().all(|byte| *byte == 0))
    };
    let both = zero(0).and_then(|first| Ok(first && zero(size.saturating_sub(ENDS))?));
    both.map_err(|error| failed(format_args!("{device}: {error}")))
}

/// The loop devices of a file, by its identity: names change.
pub(super) fn loops(tools: &Tools, file: FileId) -> Result<Vec<LoopDevice>> {
    let columns = "NAME,BACK-INO,BACK-MAJ:MIN,RO";
    let output = tools.succeed(Tool::Losetup, &["--list", "--json", "--output", columns], &[0])?;
    if output.trim().is_empty() {
        return Ok(Vec::new());
    }
    let list: Value =
        serde_json::from_str(&output).map_err(|error| failed(format_args!("losetup: {error}")))?;
    let all = list.get("loopdevices").and_then(Value::as_array).cloned().unwrap_or_default();
    let (major, minor) = file.device;
    let mut found = Vec::new();
    for one in all {
        // Numbers are texts in some releases of it, and padded.
        let text = |key: &str| match one.get(key) {
            Some(Value::String(text)) => text.trim().to_owned(),
            Some(value) => value.to_string(),
            None => String::new(),
        };
        if text("back-ino") != file.inode.to_string() || text("back-maj:min") != format!("{major}:{minor}") {
            continue;
        }
        let path = text("name");
        let opened = open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| failure(&path, error))?;
        let FoundKind::Device(number) = paths::kind(&paths::stat(&path, opened)?) else {
            return Err(MachineError::Refused(format!("{path} is no block device")));
        };
        let read_only = matches!(text("ro").as_str(), "true" | "1");
        found.push(LoopDevice { device: by_number(number)?, size: size(number)?, file, read_only });
    }
    Ok(found)
}

/// Takes a loop device away, and waits until it is.
pub(super) fn detach(tools: &Tools, device: &Device) -> Result<()> {
    tools.succeed(Tool::Losetup, &["--detach", &device.to_string()], &[0])?;
    let (times, pause) = GOING;
    for _ in 0..times {
        if !shown(device.number).join("loop/backing_file").exists() {
            return Ok(());
        }
        thread::sleep(pause);
    }
    Err(failed(format_args!("{device} is still in use; it goes when its last user does")))
}
