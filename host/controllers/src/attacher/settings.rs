//! Settings of the attacher.

use std::time::Duration;

/// Settings of the attacher, with the flags that set them.
#[derive(Clone, Debug)]
pub struct AttacherSettings {
    /// Maximum concurrent attaches per driver. The same limit applies to detaches per driver, and to
    /// PersistentVolumes of all drivers (`--worker-threads`).
    pub worker_threads: usize,
    /// Interval between reconciles of all VolumeAttachments of this process's drivers and of all
    /// PersistentVolumes that are being deleted (`--resync`).
    pub resync: Duration,
    /// Interval between comparisons of VolumeAttachments with ListVolumes, for drivers that list published
    /// nodes (`--reconcile-sync`).
    pub reconcile_sync: Duration,
    /// Maximum volumes per page of ListVolumes (`--max-entries`). `None`, which is 0 in the flag, leaves it
    /// to the driver.
    pub max_entries: Option<u32>,
    /// Filesystem type of volumes that have none (`--default-fstype`).
    pub default_fs_type: Option<String>,
    /// The feature gate `MutableCSINodeAllocatableCount`: without it, `status.attachError` has no
    /// `errorCode`.
    pub attach_error_code: bool,
}

impl Default for AttacherSettings {
    /// The defaults of external-attacher's flags.
    fn default() -> Self {
        Self {
            worker_threads: 10,
            resync: Duration::from_secs(600),
            reconcile_sync: Duration::from_secs(60),
            max_entries: None,
            default_fs_type: None,
            attach_error_code: true,
        }
    }
}
