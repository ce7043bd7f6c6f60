//! Work queues of VolumeAttachments. Each driver has a queue for attaches and a queue for detaches, with
//! separate workers.
//!
//! Slow attaches therefore occupy no worker of a detach, and drivers do not delay each other. Driver calls
//! for the same volume still wait for each other: see [`crate::volume_locks`].

use cofferdam_cluster::{
    metrics::Metrics,
    queue::{ExponentialBackoff, Queue},
};
use cofferdam_domain::{VolumeAttachment, VolumeAttachmentName};

/// The operation of a work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum QueueKind {
    /// VolumeAttachments to attach: those that are not being deleted.
    Attach,
    /// VolumeAttachments to detach: those that are being deleted.
    Detach,
}

impl QueueKind {
    /// All kinds of queues.
    pub(super) const ALL: [Self; 2] = [Self::Attach, Self::Detach];

    /// Returns the queue of a VolumeAttachment.
    pub(super) fn for_attachment(attachment: &VolumeAttachment) -> Self {
        if attachment.meta.deleting { Self::Detach } else { Self::Attach }
    }

    /// Value of the metric label `queue`.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Detach => "detach",
        }
    }
}

/// The work queues of one driver.
pub(super) struct WorkQueues {
    attach: Queue<VolumeAttachmentName>,
    detach: Queue<VolumeAttachmentName>,
}

impl WorkQueues {
    pub(super) fn new(backoff: ExponentialBackoff, metrics: &Metrics) -> Self {
        Self {
            attach: Queue::new("attacher_attach", backoff, metrics),
            detach: Queue::new("attacher_detach", backoff, metrics),
        }
    }

    pub(super) const fn queue(&self, kind: QueueKind) -> &Queue<VolumeAttachmentName> {
        match kind {
            QueueKind::Attach => &self.attach,
            QueueKind::Detach => &self.detach,
        }
    }
}
