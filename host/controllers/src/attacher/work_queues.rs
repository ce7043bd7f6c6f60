//! Lanes: attaching and detaching have workers of their own, for each driver by itself. So volumes that hang
//! on their way to a node never hold up those that shall leave one, which may be what the others wait for,
//! and no driver holds up another.

use cofferdam_cluster::{
    metrics::Metrics,
    queue::{ExponentialBackoff, Queue},
};
use cofferdam_domain::{VolumeAttachment, VolumeAttachmentName};

/// Where an attachment is worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum QueueKind {
    /// It shall be attached.
    Attach,
    /// It shall be detached.
    Detach,
}

impl QueueKind {
    /// Both.
    pub(super) const ALL: [Self; 2] = [Self::Attach, Self::Detach];

    /// The lane of an attachment.
    pub(super) fn for_attachment(attachment: &VolumeAttachment) -> Self {
        if attachment.meta.deleting { Self::Detach } else { Self::Attach }
    }

    /// Name in metrics.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Detach => "detach",
        }
    }
}

/// The lanes of one driver.
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
