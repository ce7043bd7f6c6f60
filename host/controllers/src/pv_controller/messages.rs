//! Messages of the PersistentVolume controller to other controllers of the process.

use cofferdam_domain::{ResourceVersion, Uid, VolumeName};
use tokio::time::Instant;

/// A claim needs a new volume: no existing one matches.
#[derive(Clone, Debug)]
pub(crate) struct ProvisioningRequested {
    /// The claim's uid.
    pub(crate) claim: Uid,
}

/// The controller has set the phase of a volume to Released.
#[derive(Clone, Debug)]
pub(crate) struct VolumeReleased {
    /// The volume.
    pub(crate) volume: VolumeName,
    /// The volume's version after the write.
    pub(crate) resource_version: ResourceVersion,
    /// The start of the live read that found the claim deleted.
    pub(crate) claim_read_at: Instant,
}
