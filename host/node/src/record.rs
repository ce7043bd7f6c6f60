//! The record of a volume. It is saved before a stage or publish call creates, attaches, formats or mounts
//! anything, so that a restarted process can continue or undo the call.

use std::collections::BTreeMap;

use cofferdam_domain::storage::{ConnectionInfo, VolumeCapability};
use serde::{Deserialize, Serialize};

use crate::{error::MounterError, file::FileId};

/// One publication of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetRecord {
    /// The requested capability.
    pub capability: VolumeCapability,
    /// CSI's `readonly`. The target may be read-only without it: because of an access mode, the mount flag
    /// `ro`, or connection info of kind `none`.
    pub read_only: bool,
}

/// A volume on this node: its requests and the progress of staging. The record does not tell what is mounted:
/// [`Mounter`](crate::Mounter) does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// The volume's handle.
    pub volume: String,
    /// The staging path; absent for inline volumes.
    pub staging_path: Option<String>,
    /// The connection info; absent for inline volumes.
    pub connection_info: Option<ConnectionInfo>,
    /// The capability of the NodeStageVolume request, or of the NodePublishVolume request of an inline
    /// volume.
    pub capability: VolumeCapability,
    /// Size in bytes of an inline volume, also if the pod requests none; the required size of the last
    /// expansion of a tmpfs, which is recorded before the expansion; or the last known size of an NVMe
    /// namespace or an RBD image, which must not shrink. None for any other volume.
    pub size: Option<u64>,
    /// Identity of the volume's image file; None unless the connection info is of kind `image`.
    pub image_id: Option<FileId>,
    /// Major and minor number of the volume's device; None unless the connection info is of kind
    /// `local-device`.
    pub device_number: Option<(u32, u32)>,
    /// True if formatting of a blank device has started and is not known to have finished. False once the
    /// volume is staged as a raw block volume: the device then has user data.
    pub format_in_progress: bool,
    /// True if staging has finished. A reboot removes the mounts, but does not change this field.
    pub is_staged: bool,
    /// The requested publications, by target path. They may not be mounted yet, or no longer.
    pub targets: BTreeMap<String, TargetRecord>,
}

/// All stored records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeRecords {
    /// The records that were read.
    pub readable: Vec<VolumeRecord>,
    /// One message for each record that cannot be read.
    pub unreadable: Vec<String>,
}

impl VolumeRecords {
    /// Returns all records, or an error if one is unreadable. Staging needs every record to detect shared
    /// storage. Unstaging considers all readable records, and fails only if its own volume's is unreadable.
    ///
    /// # Errors
    /// [`MounterError::Failed`] if a record is unreadable.
    pub fn all_or_error(self) -> Result<Vec<VolumeRecord>, MounterError> {
        match self.unreadable.first() {
            None => Ok(self.readable),
            Some(problem) => {
                Err(MounterError::Failed(format!("{problem}: expected it to be repaired or removed")))
            }
        }
    }
}
