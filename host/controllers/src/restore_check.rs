//! Detection of a restore before an effect that cannot be undone.

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

    /// Detects a restore that the watches have not detected yet; afterwards [`deletion_freeze::is_frozen`] is
    /// true. Concurrent callers share the reads.
    ///
    /// # Errors
    /// [`ApiError`] of the reads.
    pub(crate) async fn check_live(&self) -> Result<(), ApiError> {
        self.reads.read_live("", |_| deletion_freeze::check_live(&self.writer)).await
    }
}
