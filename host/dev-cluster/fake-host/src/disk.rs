//! Content of images and disks.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use cofferdam_node::{DeviceContent, FileId};
use parking_lot::Mutex;

/// Content of a disk or an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeDisk {
    /// Result of [`Mounter::device_content`](cofferdam_node::Mounter::device_content).
    pub content: DeviceContent,
    /// Size in bytes of the filesystem; 0 if none was created. Overwriting the content does not change it.
    pub filesystem_size: u64,
    /// Number of times that a mounter created a filesystem on the disk.
    pub format_count: u32,
}

impl FakeDisk {
    /// Creates content that no mounter has formatted. If it is a filesystem, the filesystem has `size` bytes.
    pub fn new(content: DeviceContent, size: u64) -> Self {
        let filesystem_size = if matches!(content, DeviceContent::Filesystem(_)) { size } else { 0 };
        Self { content, filesystem_size, format_count: 0 }
    }
}

impl Default for FakeDisk {
    /// Blank.
    fn default() -> Self {
        Self::new(DeviceContent::Blank, 0)
    }
}

/// Identity of the storage behind a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BackingStorage {
    /// An image file, by its device and inode numbers and its creation time, because inode numbers are
    /// reused. The time is None if it is unknown, and for an image that was added to the fake host.
    Image(FileId, Option<SystemTime>),
    /// A disk, by its stable ID.
    Device(String),
}

/// Content of images and disks. Clones share the content, so that a filesystem that one fake host creates
/// exists on every host with a clone.
#[derive(Clone, Debug, Default)]
pub struct SharedDisks(Arc<Mutex<BTreeMap<BackingStorage, FakeDisk>>>);

impl SharedDisks {
    /// Returns the content of an image or a disk, which is blank if it was never written.
    pub(crate) fn get(&self, storage: &BackingStorage) -> FakeDisk {
        self.0.lock().get(storage).cloned().unwrap_or_default()
    }

    /// Replaces the content of an image or a disk.
    pub(crate) fn set(&self, storage: BackingStorage, disk: FakeDisk) {
        self.0.lock().insert(storage, disk);
    }

    /// Removes the content of deleted image files whose inode number was reused: of images with this file ID
    /// and another creation time.
    pub(crate) fn remove_stale(&self, file: FileId, created_at: Option<SystemTime>) {
        self.0.lock().retain(|storage, _| match storage {
            BackingStorage::Image(other, when) => *other != file || *when == created_at,
            BackingStorage::Device(_) => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn new_image_with_a_reused_inode_number_is_blank() {
        let (file, then) = (FileId { device: (8, 1), inode: 7 }, SystemTime::UNIX_EPOCH);
        let disks = SharedDisks::default();
        let created = [Some(then), Some(then + Duration::from_nanos(1))];
        let [first, second] = created.map(|created| BackingStorage::Image(file, created));
        disks.set(first.clone(), FakeDisk::new(DeviceContent::Unknown, 1));
        disks.remove_stale(file, created[0]);
        assert!(disks.0.lock().contains_key(&first));
        assert!(!disks.0.lock().contains_key(&second));
        disks.remove_stale(file, created[1]);
        assert!(disks.0.lock().is_empty(), "stale files are removed");
    }
}
