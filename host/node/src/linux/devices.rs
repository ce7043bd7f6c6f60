//! Block devices: sysfs, content probing and loop devices.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{Advice, Mode, OFlags, fadvise, open},
    io::Errno,
};
use serde_json::Value;

use super::{
    mountinfo::{self, MountInfoEntry, MountTable},
    paths::{self, Result, errno_error},
    tools::{Tool, Tools},
    wait::{WaitTimes, wait_for},
};
use crate::{
    block_device::{Device, DeviceContent, DeviceInfo, LoopDevice},
    error::MounterError,
    file::{FileId, PathKind},
};

const BY_ID: &str = "/dev/disk/by-id";
const SECTOR: u64 = 512;
/// Bytes that must be zero at each end of a blank device. Filesystem superblocks are within this range.
const BLANK_CHECK_BYTES: u64 = 4 << 20;
/// Maximum time and interval of the wait for the node of a new device.
const NODE_WAIT: WaitTimes = (Duration::from_secs(2), Duration::from_millis(20));
/// Maximum time and interval of the wait for a detached loop device. udev may keep it open for a moment.
const DETACH_WAIT: WaitTimes = (Duration::from_secs(2), Duration::from_millis(20));

fn failed_error(message: impl std::fmt::Display) -> MounterError {
    MounterError::Failed(message.to_string())
}

fn read_trimmed(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path)
        .map_err(|error| failed_error(format_args!("{}: {error}", path.display())))?;
    Ok(text.trim().to_owned())
}

fn sysfs_path((major, minor): (u32, u32)) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

/// Looks up a device by its number.
fn by_number(number: (u32, u32)) -> Result<Device> {
    let link = fs::read_link(sysfs_path(number))
        .map_err(|error| failed_error(format_args!("device {number:?}: {error}")))?;
    let name = link.file_name().and_then(|name| name.to_str());
    // sysfs replaces `/` in device names with `!`.
    let name =
        name.ok_or_else(|| failed_error(format_args!("device {number:?} has no name")))?.replace('!', "/");
    Ok(Device { name, number })
}

/// Returns the size of a device in bytes.
pub(super) fn size(number: (u32, u32)) -> Result<u64> {
    let sectors = read_trimmed(&sysfs_path(number).join("size"))?;
    let sectors: u64 =
        sectors.parse().map_err(|_| failed_error(format_args!("device {number:?} has no size")))?;
    Ok(sectors.saturating_mul(SECTOR))
}

/// Opens a device's node and checks its device number.
pub(super) fn open_node(device: &Device, flags: OFlags) -> Result<rustix::fd::OwnedFd> {
    let path = device.to_string();
    let opened =
        open(&path, flags | OFlags::CLOEXEC, Mode::empty()).map_err(|error| errno_error(&path, error))?;
    if paths::path_kind(&paths::stat(&path, &opened)?) != PathKind::Device(device.number) {
        return Err(MounterError::FailedPrecondition(format!(
            "{path} is not the device {:?}",
            device.number
        )));
    }
    Ok(opened)
}

/// Looks up a device by its name in `/dev/disk/by-id`.
pub(super) fn by_stable_id(stable_id: &str) -> Result<DeviceInfo> {
    let path = format!("{BY_ID}/{stable_id}");
    let opened = open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| errno_error(&path, error))?;
    let PathKind::Device(number) = paths::path_kind(&paths::stat(&path, &opened)?) else {
        return Err(MounterError::FailedPrecondition(format!("{path} is not a block device")));
    };
    let device = by_number(number)?;
    let (size, mut users) = (size(number)?, device_users(&device, true)?);
    if !partitions(&device)?.is_empty() {
        users.push("it has partitions".to_owned());
    }
    Ok(DeviceInfo { size, users, is_partition: is_partition(number)?, device })
}

/// Returns true for a partition of the kernel, and for one that kpartx has made with the device mapper.
fn is_partition(number: (u32, u32)) -> Result<bool> {
    let sysfs = sysfs_path(number);
    let is_mapped = match fs::read_to_string(sysfs.join("dm/uuid")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        uuid => uuid.map_err(failed_error)?.starts_with("part"),
    };
    Ok(is_mapped || sysfs.join("partition").exists())
}

/// Returns messages about the current users of a device and its partitions; empty if they are free. An
/// exclusive opener is looked for only if there is no other user, and `may_open` is true.
pub(super) fn device_users(device: &Device, may_open: bool) -> Result<Vec<String>> {
    let table = MountTable::read()?;
    let mut users = Vec::new();
    for part in [vec![device.clone()], partitions(device)?].concat() {
        users.extend(mount_users(table.entries(), &part));
        for holder in directory_entries(&sysfs_path(part.number).join("holders"))? {
            users.push(format!("held by {}", holder.file_name().unwrap_or_default().to_string_lossy()));
        }
        if is_swap(&part)? {
            users.push("swap".to_owned());
        }
    }
    if users.is_empty() && may_open {
        // An exclusive open also detects other mount namespaces, RAID and device mapper, also of a partition.
        match open(device.to_string(), OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
            Ok(_) => {}
            Err(Errno::BUSY) => users.push("an exclusive opener".to_owned()),
            Err(error) => return Err(errno_error(device, error)),
        }
    }
    Ok(users)
}

/// Returns the entries of a directory; none if it does not exist.
fn directory_entries(path: &Path) -> Result<Vec<PathBuf>> {
    let read = match fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(failed_error)?,
    };
    read.map(|entry| entry.map(|entry| entry.path()).map_err(failed_error)).collect()
}

/// Returns the kernel's partitions of a device.
fn partitions(device: &Device) -> Result<Vec<Device>> {
    let mut partitions = Vec::new();
    for entry in directory_entries(&sysfs_path(device.number))? {
        if entry.join("partition").exists() {
            let number = read_trimmed(&entry.join("dev"))?;
            let number = parse_number(&number).ok_or_else(|| failed_error(format_args!("{number:?}")))?;
            partitions.push(by_number(number)?);
        }
    }
    Ok(partitions)
}

/// Parses the major and minor number of a device, such as `8:1`.
pub(super) fn parse_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns true if a device is an active swap area.
fn is_swap(device: &Device) -> Result<bool> {
    let is_same_device = |path: &OsString| {
        let opened = open(path.as_os_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        let stat = opened.and_then(|opened| rustix::fs::fstat(opened).ok());
        stat.is_some_and(|stat| paths::path_kind(&stat) == PathKind::Device(device.number))
    };
    Ok(swap_paths()?.iter().any(is_same_device))
}

/// Returns messages about mounts of a device's filesystem, and about those of its node, such as a raw block
/// volume of another driver.
pub(super) fn mount_users(mounts: &[MountInfoEntry], device: &Device) -> Vec<String> {
    let node = format!("/{}", device.name);
    let mut users = Vec::new();
    for entry in mounts {
        let path = entry.mount_path.to_string_lossy();
        if entry.mount.device == device.number {
            users.push(format!("mounted at {path}"));
        } else if entry.mount.fs_type == "devtmpfs" && entry.fs_root.to_str() == Some(node.as_str()) {
            users.push(format!("its node is mounted at {path}"));
        }
    }
    users
}

/// Returns the paths of the active swap areas.
fn swap_paths() -> Result<Vec<OsString>> {
    match fs::read("/proc/swaps") {
        // A kernel without swap.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed_error(format_args!("/proc/swaps: {error}"))),
        Ok(table) => Ok(parse_swaps(&table)),
    }
}

/// Parses `/proc/swaps`: a header, then one area per line, whose first field is a path with octal escapes.
pub(super) fn parse_swaps(table: &[u8]) -> Vec<OsString> {
    let lines = table.split(|byte| *byte == b'\n').skip(1);
    // The kernel escapes these two and line feeds in a path, and no other white space.
    let paths = lines.filter_map(|line| line.split(|byte| matches!(byte, b' ' | b'\t')).next());
    paths.filter(|path| !path.is_empty()).map(mountinfo::unescape).collect()
}

/// As [`open_node`], for a device that may be new: sysfs shows it before its node exists.
pub(super) fn open_new_node(device: &Device, flags: OFlags) -> Result<rustix::fd::OwnedFd> {
    let opened = wait_for(NODE_WAIT, || match open_node(device, flags) {
        Err(MounterError::NotFound(_)) => Ok(None),
        opened => opened.map(Some),
    })?;
    opened.map_or_else(|| open_node(device, flags), Ok)
}

/// Probes the content of a device. The kernel first drops what it has cached: another node may have written since.
pub(super) fn device_content(tools: &Tools, device: &Device) -> Result<DeviceContent> {
    let opened = open_node(device, OFlags::RDONLY)?;
    fadvise(&opened, 0, None, Advice::DontNeed).map_err(|error| errno_error(device.to_string(), error))?;
    let blkid_output = tools.run(Tool::Blkid, &["-p", "-o", "export", &device.to_string()])?;
    match blkid_output.exit_code {
        Some(0) => Ok(parse_signatures(&blkid_output.stdout)),
        Some(2) if is_blank(device)? => Ok(DeviceContent::Blank),
        Some(2) => Ok(DeviceContent::Unknown),
        Some(8) => Ok(DeviceContent::Other("several signatures".to_owned())),
        code => Err(failed_error(format_args!("blkid ended with {code:?}: {}", blkid_output.stderr))),
    }
}

/// Parses the signatures that blkid has found: a line `KEY=value` for each property.
pub(super) fn parse_signatures(output: &str) -> DeviceContent {
    let value = |key: &str| {
        let lines = output.lines().filter_map(|line| line.split_once('='));
        lines.filter(|(name, _)| *name == key).map(|(_, value)| value.to_owned()).next()
    };
    match (value("USAGE").as_deref(), value("TYPE"), value("PTTYPE")) {
        (Some("filesystem"), Some(name), None) => DeviceContent::Filesystem(name),
        (_, Some(name), _) => DeviceContent::Other(format!("{name:?}")),
        (_, None, Some(table)) => DeviceContent::Other(format!("a partition table of type {table:?}")),
        (_, None, None) => DeviceContent::Other("an unidentified signature".to_owned()),
    }
}

/// Returns true if the first and the last [`BLANK_CHECK_BYTES`] of a device are zero.
fn is_blank(device: &Device) -> Result<bool> {
    let size = size(device.number)?;
    let mut file = File::from(open_node(device, OFlags::RDONLY)?);
    let mut is_zero_range = |from: u64| -> std::io::Result<bool> {
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        std::io::Read::by_ref(&mut file).take(BLANK_CHECK_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes.iter().all(|byte| *byte == 0))
    };
    let result = is_zero_range(0)
        .and_then(|first| Ok(first && is_zero_range(size.saturating_sub(BLANK_CHECK_BYTES))?));
    result.map_err(|error| failed_error(format_args!("{device}: {error}")))
}

/// Returns the loop devices of a file. They are matched by the file's identity, because its name may change.
pub(super) fn loop_devices(tools: &Tools, file: FileId) -> Result<Vec<LoopDevice>> {
    let columns = "NAME,BACK-INO,BACK-MAJ:MIN,RO";
    let output = tools.run_checked(Tool::Losetup, &["--list", "--json", "--output", columns], &[0])?;
    let mut found = Vec::new();
    for ListedLoopDevice { path, read_only } in parse_loop_devices(&output, file)? {
        let opened = open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| errno_error(&path, error))?;
        let PathKind::Device(number) = paths::path_kind(&paths::stat(&path, opened)?) else {
            return Err(MounterError::FailedPrecondition(format!("{path} is not a block device")));
        };
        found.push(LoopDevice { device: by_number(number)?, size: size(number)?, file_id: file, read_only });
    }
    Ok(found)
}

/// A loop device in the list of losetup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedLoopDevice {
    /// Path of its node.
    pub(super) path: String,
    pub(super) read_only: bool,
}

/// Parses the list of losetup, and returns the loop devices of a file.
pub(super) fn parse_loop_devices(output: &str, file: FileId) -> Result<Vec<ListedLoopDevice>> {
    if output.trim().is_empty() {
        return Ok(Vec::new());
    }
    let list: Value =
        serde_json::from_str(output).map_err(|error| failed_error(format_args!("losetup: {error}")))?;
    // Without the list, the devices of a file would be attached again, and never detached.
    let all = list.get("loopdevices").and_then(Value::as_array);
    let all = all.ok_or_else(|| failed_error("losetup: its output has no list of loop devices"))?;
    let (major, minor) = file.device;
    let mut found = Vec::new();
    for entry in all {
        // Some losetup releases write numbers as padded strings.
        let text = |key: &str| match entry.get(key) {
            Some(Value::String(text)) => text.trim().to_owned(),
            Some(value) => value.to_string(),
            None => String::new(),
        };
        if text("back-ino") == file.inode.to_string() && text("back-maj:min") == format!("{major}:{minor}") {
            let read_only = matches!(text("ro").as_str(), "true" | "1");
            found.push(ListedLoopDevice { path: text("name"), read_only });
        }
    }
    Ok(found)
}

/// Detaches a loop device and waits for at most two seconds until the kernel has released it.
pub(super) fn detach_loop(tools: &Tools, device: &Device) -> Result<()> {
    tools.run_checked(Tool::Losetup, &["--detach", &device.to_string()], &[0])?;
    let backing_file = sysfs_path(device.number).join("loop/backing_file");
    wait_for(DETACH_WAIT, || Ok((!backing_file.exists()).then_some(())))?.ok_or_else(|| {
        failed_error(format_args!(
            "{device} is still in use; the kernel detaches it when its last user closes it"
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;
    use crate::mount_point::{MountAttributes, MountPoint};

    #[test]
    fn a_mounted_device_node_is_a_use_of_the_device() {
        let entry = |root: &str, fs_type: &str, device: (u32, u32)| MountInfoEntry {
            mount_path: "/mnt".into(),
            fs_root: root.into(),
            mount: MountPoint {
                fs_type: fs_type.to_owned(),
                source: "x".to_owned(),
                device,
                attributes: MountAttributes::default(),
                filesystem_read_only: false,
            },
        };
        let device = Device { name: "nvme0n1".to_owned(), number: (259, 0) };
        #[rustfmt::skip] // one row a case
        let table = [
            (entry("/", "ext4", (259, 0)),               Some("mounted at /mnt")),
            (entry("/nvme0n1", "devtmpfs", (0, 6)),      Some("its node is mounted at /mnt")),
            (entry("/", "devtmpfs", (0, 6)),             None),
            (entry("/nvme0n1p1", "devtmpfs", (0, 6)),    None),
            (entry("/nvme0n1", "ext4", (8, 1)),          None),
        ];
        for (entry, expected) in table {
            assert_eq!(mount_users(&[entry], &device).first().map(String::as_str), expected);
        }
    }

    #[test]
    fn loop_devices_are_matched_by_the_file_behind_them() {
        let file = FileId { device: (8, 1), inode: 12 };
        let parse = |output: &str| parse_loop_devices(output, file);
        let found = |path: &str, read_only| ListedLoopDevice { path: path.to_owned(), read_only };
        // util-linux 2.38 writes numbers and booleans, 2.32 writes texts.
        let output = r#"{"loopdevices": [
            {"name":"/dev/loop0", "back-ino":12, "back-maj:min":"8:1", "ro":true},
            {"name":"/dev/loop1", "back-ino":"     12", "back-maj:min":"  8:1", "ro":"0"},
            {"name":"/dev/loop2", "back-ino":13, "back-maj:min":"8:1", "ro":true},
            {"name":"/dev/loop3", "back-ino":12, "back-maj:min":"8:17", "ro":true},
            {"name":"/dev/loop4", "back-ino":null, "back-maj:min":null, "ro":false}
        ]}"#;
        assert_eq!(parse(output), Ok(vec![found("/dev/loop0", true), found("/dev/loop1", false)]));
        assert_eq!(parse("\n"), Ok(Vec::new()), "no loop device");
        assert_eq!(parse(r#"{"loopdevices":[]}"#), Ok(Vec::new()));
        for bad in ["[]", "{}", r#"{"loopdevices":null}"#, "losetup"] {
            assert!(parse(bad).unwrap_err().to_string().starts_with("losetup: "), "{bad}");
        }
    }

    #[test]
    fn swap_paths_are_parsed_as_bytes() {
        let table = b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
            /swap\xff\r\x0c                                 file\t\t1024\t\t0\t\t-2\n\
            /my\\040swap\\040(deleted)                     file\t\t1024\t\t0\t\t-3\n\
            /dev/sda2                               partition\t1024\t\t0\t\t-4\n";
        let paths = parse_swaps(table);
        let paths: Vec<&[u8]> = paths.iter().map(|path| path.as_bytes()).collect();
        assert_eq!(paths, [&b"/swap\xff\r\x0c"[..], b"/my swap (deleted)", b"/dev/sda2"]);
        assert!(parse_swaps(b"").is_empty());
        assert!(swap_paths().is_ok());
    }
}
