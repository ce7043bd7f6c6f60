//! What a call took.

use std::time::Duration;

/// What one call used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallUsage {
    /// Most linear memory at once, in bytes.
    pub memory_bytes: usize,
    /// Time that the guest computed, by the clock of its threads.
    pub cpu_time: Duration,
    /// Lines that it wrote beyond the limit of its log.
    pub dropped_log_lines: u64,
}
