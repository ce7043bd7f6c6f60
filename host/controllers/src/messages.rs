//! Messages between the controllers of a process, which [`Channels`](crate::channels::Channels) deliver.

use cofferdam_domain::{ResourceVersion, Uid, VolumeName};
use tokio::{sync::watch, time::Instant};

/// The PersistentVolume controller has found that a claim needs a new volume: no existing one matches. The
/// provisioner enqueues the claim, unless the claim waits for the end of a delay, such as a back-off.
#[derive(Clone, Debug)]
pub(crate) struct ClaimNeedsVolume {
    /// The claim's uid.
    pub(crate) claim: Uid,
}

/// The PersistentVolume controller is setting the phase of a PersistentVolume to Released, after a live
/// read found that its claim is deleted or bound to another PersistentVolume, or after a write of this
/// process removed the claim. The provisioner does not repeat this read if it deletes the volume within a
/// second after the read, and the volume has not changed since.
#[derive(Clone, Debug)]
pub(crate) struct VolumeReleased {
    /// The PersistentVolume.
    pub(crate) volume: VolumeName,
    /// The start of the live read of the claim, or the response of the write that removed it.
    pub(crate) claim_read_at: Instant,
    /// The PersistentVolume's resourceVersion after the write of the phase, once this write and a check for a
    /// restore of the cluster have succeeded. Closed without a value if one of them fails.
    pub(crate) released: watch::Receiver<Option<ResourceVersion>>,
}
