//! What the node writes down of a volume, before it acts: enough to go on, and to undo, after its death.

use std::collections::BTreeMap;

use cofferdam_domain::storage::{ConnectionInfo, VolumeCapability};
use serde::{Deserialize, Serialize};

use crate::{error::MounterError, mounter::FileId};

/// One publication of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetRecord {
    /// How it is used there.
    pub capability: VolumeCapability,
    /// Whether for reading only.
    pub read_only: bool,
}

/// A volume on this node. It says what was asked, never what is mounted: for that the machine is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// The volume's handle.
    pub volume: String,
    /// Where it is staged; absent for inline volumes.
    pub staging_path: Option<String>,
    /// How it is reached; absent for inline volumes.
    pub connection_info: Option<ConnectionInfo>,
    /// How it was staged.
    pub capability: VolumeCapability,
    /// Bytes of an inline volume, or of memory that has grown.
    pub size: Option<u64>,
    /// The image behind its loop device.
    pub image_id: Option<FileId>,
    /// The device that it is.
    pub device_number: Option<(u32, u32)>,
    /// A filesystem was begun on a blank device, and nothing was seen of its end.
    pub format_in_progress: bool,
    /// Staging has ended.
    pub is_staged: bool,
    /// Where it is published.
    pub targets: BTreeMap<String, TargetRecord>,
}

/// Everything that is written down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeRecords {
    /// The records.
    pub readable: Vec<VolumeRecord>,
    /// Why others cannot be read, for people.
    pub unreadable: Vec<String>,
}

impl VolumeRecords {
    /// Every record. What takes storage for itself has to know all of them; what gives it back has not.
    ///
    /// # Errors
    /// [`MachineError::Failed`] when one cannot be read.
    pub fn all_or_error(self) -> Result<Vec<VolumeRecord>, MounterError> {
        match self.unreadable.first() {
            None => Ok(self.readable),
            Some(problem) => {
                Err(MounterError::Failed(format!("{problem}: expected it to be repaired or removed")))
            }
        }
    }
}
