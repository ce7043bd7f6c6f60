//! Resource usage of a call.

use std::time::Duration;

/// Resources that one call used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallUsage {
    /// Peak linear memory in bytes.
    pub memory_bytes: usize,
    /// Time that the guest computed, by the clock of its threads.
    pub cpu_time: Duration,
    /// Lines that it wrote beyond the limit of its log.
    pub dropped_log_lines: u64,
}
