//! Detection of a restore before an effect that cannot be undone.

use std::sync::Arc;

use cofferdam_cluster::{
    ApiError, Writer,
    deletion_freeze::{self, RestoreCheckResult},
};

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

    /// As [`deletion_freeze::check_live`]. Concurrent callers share the reads.
    ///
    /// # Errors
    /// [`ApiError`] of the reads.
    pub(crate) async fn check_live(&self) -> Result<RestoreCheckResult, ApiError> {
        let read = |_| async { deletion_freeze::check_live(&self.writer).await.map(|_| ()) };
        self.reads.read_live("", read).await?;
        // Another caller may have done the reads; the detector has their result.
        Ok(RestoreCheckResult::of_detector(&self.writer.cache().restore_detector))
    }
}
