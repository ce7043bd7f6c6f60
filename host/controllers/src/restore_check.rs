//! Detection of a restore of the cluster from a backup, before an effect that cannot be undone.

use std::sync::Arc;

use cofferdam_cluster::{ApiError, Writer, deletion_freeze};

use crate::live_reads::SingleFlightReads;

/// Detects restores with live reads, which the controllers of a process share.
#[derive(Clone)]
pub(crate) struct RestoreCheck {
    writer: Writer,
    reads: Arc<SingleFlightReads>,
}

impl RestoreCheck {
    pub(crate) fn new(writer: Writer) -> Self {
        Self { writer, reads: Arc::default() }
    }

    /// As [`deletion_freeze::detect_restore_live`]: a detected restore is not an error, but freezes
    /// deletions. Concurrent callers share the reads.
    ///
    /// # Errors
    /// [`ApiError`] of the reads.
    pub(crate) async fn detect_live(&self) -> Result<(), ApiError> {
        let read = |_| async { deletion_freeze::detect_restore_live(&self.writer).await };
        self.reads.read_live("", read).await
    }
}
