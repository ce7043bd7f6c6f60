//! Block devices and their content.

use std::fmt;

use crate::file::FileId;

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    /// Kernel name, such as `loop3`.
    pub name: String,
    /// Major and minor number.
    pub number: (u32, u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/dev/{}", self.name)
    }
}

/// A loop device and the file behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopDevice {
    /// The device.
    pub device: Device,
    /// Size of the loop device in bytes. The backing file may have grown since it was attached.
    pub size: u64,
    /// Identity of the backing file.
    pub file_id: FileId,
    /// True if the loop device is read-only.
    pub read_only: bool,
}

/// A block device and its current users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The device.
    pub device: Device,
    /// Size in bytes.
    pub size: u64,
    /// True if the device is a partition of another one.
    pub is_partition: bool,
    /// Messages about the device's users: mounts, partitions, holders, swap, or an exclusive opener. Empty if
    /// the device is free.
    pub users: Vec<String>,
}

/// The content of a device: the signatures that `blkid` finds, and whether the first and last 4 MiB are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceContent {
    /// No signature, and only zeros in the first and last 4 MiB.
    Blank,
    /// One filesystem, with its type as in `mount -t`.
    Filesystem(String),
    /// Data without a known signature, such as an interrupted format or user data.
    Unknown,
    /// Another known signature, such as a partition table, or several signatures; with a description.
    Other(String),
}
