//! Entry points for the fuzz targets in `host/testing/fuzz`: the parsers of what the node reads from the kernel,
//! from tools, from servers, from its records and from requests. The public functions of this crate reach them only through
//! files of this machine, a tool or a network.
//!
//! The module exists with the feature `fuzzing`, which only the package `cofferdam-fuzz` enables.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    net::SocketAddr,
    path::Path,
};

use super::{
    devices,
    mountinfo::{self, MountInfoEntry},
    mounts, nvme,
    paths::Result,
    rbd, records, sysfs, tools,
};
use crate::{
    block_device::{Device, DeviceContent},
    error::NodeError,
    file::FileId,
    filesystem::Filesystem,
    mount_options::{MountOptions, MountType},
    mount_point::MountPoint,
    nfs::NfsVersion,
    nvme::{NvmeController, NvmeDisk, NvmeHost},
    onc_rpc,
    policy::NodePolicy,
    rbd::{CephUser, RbdDevice, RbdImage},
    record::VolumeRecord,
};

/// Length of a record mark in bytes.
pub const MARK_BYTES: usize = onc_rpc::MARK_BYTES;

/// A line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The mount path.
    pub mount_path: OsString,
    /// The root of the mount within its filesystem.
    pub fs_root: OsString,
    /// The mount.
    pub mount: MountPoint,
}

impl From<&MountInfoEntry> for MountEntry {
    fn from(entry: &MountInfoEntry) -> Self {
        let MountInfoEntry { mount_path, fs_root, mount } = entry.clone();
        Self { mount_path, fs_root, mount }
    }
}

/// A table of mounts.
#[derive(Debug)]
pub struct MountTable(mountinfo::MountTable);

impl MountTable {
    /// Parses `/proc/<pid>/mountinfo`.
    pub fn parse(table: &[u8]) -> Self {
        Self(mountinfo::MountTable::parse(table))
    }

    /// Returns all entries, except those whose lines cannot be read.
    pub fn entries(&self) -> Vec<MountEntry> {
        self.0.entries().iter().map(MountEntry::from).collect()
    }

    /// Returns the mounts at a path.
    ///
    /// # Errors
    /// A line of this path cannot be read.
    pub fn at(&self, path: &OsStr) -> Result<Vec<MountEntry>> {
        Ok(self.0.at(path)?.into_iter().map(MountEntry::from).collect())
    }

    /// Returns the other paths at which the same file or directory is mounted as at this path.
    ///
    /// # Errors
    /// A line of this path cannot be read.
    pub fn mount_refs(&self, mount_path: &OsStr, relative_path: &str) -> Result<Vec<String>> {
        mounts::find_mount_refs(&self.0, mount_path, relative_path)
    }

    /// Returns messages about the mounts of a device.
    pub fn users(&self, device: &Device) -> Vec<String> {
        devices::mount_users(self.0.entries(), device)
    }
}

/// Parses `/proc/swaps`.
pub fn swap_paths(table: &[u8]) -> Vec<OsString> {
    devices::parse_swaps(table)
}

/// Returns a call of the null procedure of NFS, with its record mark.
pub fn null_call(xid: u32, version: u32) -> Vec<u8> {
    onc_rpc::null_call(xid, version)
}

/// Returns the length of the reply after a record mark.
///
/// # Errors
/// The mark is not that of a reply to the null procedure.
pub fn reply_length(mark: [u8; MARK_BYTES]) -> std::result::Result<usize, String> {
    onc_rpc::reply_length(mark).map_err(|error| error.to_string())
}

/// Checks the reply to a null call.
///
/// # Errors
/// The reply is not one to the call, or the server rejects the call.
pub fn check_null_reply(reply: &[u8], xid: u32) -> std::result::Result<(), String> {
    onc_rpc::check_null_reply(reply, xid).map_err(|error| error.to_string())
}

/// The contents of a device's directory in sysfs. An absent attribute does not exist.
pub type Attributes = BTreeMap<String, Vec<u8>>;

fn attribute(attributes: &Attributes) -> impl Fn(&str) -> Result<Option<String>> {
    |name| Ok(attributes.get(name).map(|content| sysfs::attribute_text(content)))
}

/// Parses the attributes of an NVMe controller.
///
/// # Errors
/// [`MounterError`](crate::MounterError)
pub fn nvme_controller(
    name: &str,
    host: Option<&NvmeHost>,
    attributes: &Attributes,
) -> Result<Option<NvmeController>> {
    nvme::parse_controller(name, host, attribute(attributes))
}

/// Parses the address of an NVMe controller.
pub fn controller_address(text: &str) -> Option<SocketAddr> {
    crate::nvme::parse_controller_address(text)
}

/// Returns true for the name of an NVMe namespace's disk.
pub fn is_nvme_disk(name: &str) -> bool {
    nvme::is_disk_name(name)
}

/// Parses the attributes of an NVMe disk.
///
/// # Errors
/// A number or a size is invalid.
pub fn nvme_disk(name: &str, attributes: &Attributes) -> Result<Option<NvmeDisk>> {
    nvme::parse_disk(name, attribute(attributes))
}

/// Formats 128 bits as a UUID.
pub fn uuid_text(bytes: [u8; 16]) -> String {
    crate::nvme::uuid_text(bytes)
}

/// Checks the result of a connection to an NVMe subsystem.
///
/// # Errors
/// It has no instance.
pub fn check_nvme_instance(result: &[u8]) -> Result<()> {
    nvme::check_instance(result)
}

/// Parses the attributes of a mapped RBD image.
///
/// # Errors
/// A number or a size is invalid.
pub fn rbd_device(id: &str, attributes: &Attributes) -> Result<Option<RbdDevice>> {
    rbd::parse_device(id, attribute(attributes))
}

/// Parses the major and minor number of a device.
pub fn device_number(text: &str) -> Option<(u32, u32)> {
    devices::parse_number(text)
}

/// Parses the signatures that blkid has found.
pub fn signatures(output: &str) -> DeviceContent {
    devices::parse_signatures(output)
}

/// Parses the list of losetup. Returns the path of each loop device of a file, and true if it is read-only.
///
/// # Errors
/// The output is not a list of loop devices.
pub fn loop_devices(output: &str, file: FileId) -> Result<Vec<(String, bool)>> {
    let found = devices::parse_loop_devices(output, file)?;
    Ok(found.into_iter().map(|listed| (listed.path, listed.read_only)).collect())
}

/// Returns the end of a tool's standard error, on one line.
pub fn end_of_stderr(stderr: &[u8]) -> String {
    tools::end_of_stderr(stderr)
}

/// Returns a message of a filesystem context without its level.
pub fn kernel_message(line: &[u8]) -> String {
    mounts::kernel_message(line)
}

/// Returns the command that maps an image.
pub fn rbd_command(image: &RbdImage, user: &CephUser, key_name: &str) -> String {
    rbd::map_command(image, user, key_name)
}

/// Parses the mount flags of a volume on `ext4`, `xfs`, a `tmpfs`, a version of NFS such as `4.2`, or another
/// mount.
///
/// # Errors
/// An option is not allowed.
pub fn mount_options(filesystem: &str, flags: &[String]) -> std::result::Result<MountOptions, NodeError> {
    let version = NfsVersion::ALL.into_iter().find(|version| version.as_str() == filesystem);
    let mount_type = match (Filesystem::from_name(filesystem), version) {
        (Some(filesystem), _) => MountType::Device(filesystem),
        (None, Some(version)) => MountType::Nfs(version),
        (None, None) if filesystem == "tmpfs" => MountType::Tmpfs,
        (None, None) => MountType::Bind,
    };
    MountOptions::from_flags(flags, mount_type, NodePolicy::default().base_attributes())
}

/// Decodes the record in a file.
///
/// # Errors
/// The text is not a record.
pub fn decode_record(path: &Path, text: &str) -> Result<VolumeRecord> {
    records::decode(path, text)
}

/// Encodes a record.
///
/// # Errors
/// It is too large.
pub fn encode_record(record: &VolumeRecord) -> Result<Vec<u8>> {
    records::encode(record)
}
