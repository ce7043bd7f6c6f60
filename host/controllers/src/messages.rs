//! Messages between the controllers of a process, which [`Channels`](crate::channels::Channels) deliver.

use cofferdam_domain::{ResourceVersion, Uid, VolumeName};
use tokio::time::Instant;

/// The PersistentVolume controller has found that a claim needs a new volume: no existing one matches. The
/// provisioner enqueues the claim, unless the claim waits for the end of a delay, such as a back-off.
#[derive(Clone, Debug)]
pub(crate) struct ClaimNeedsVolume {
    /// The claim's uid.
    pub(crate) claim: Uid,
}

/// The PersistentVolume controller has set the phase of a PersistentVolume to Released, after a live read
/// found that its claim is deleted or bound to another PersistentVolume. The provisioner does not repeat this
/// read if it deletes the volume within a second after the read, and the volume has not changed since.
#[derive(Clone, Debug)]
pub(crate) struct VolumeReleased {
    /// The PersistentVolume.
    pub(crate) volume: VolumeName,
    /// The PersistentVolume's resourceVersion after the write of the phase.
    pub(crate) resource_version: ResourceVersion,
    /// The start of the live read of the claim.
    pub(crate) claim_read_at: Instant,
}
