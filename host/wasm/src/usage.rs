//! Resource usage of a call.

use std::time::Duration;

/// Resources that one call used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallUsage {
    /// Peak linear memory in bytes.
    pub memory_bytes: usize,
    /// CPU time of the guest.
    pub cpu_time: Duration,
    /// Log lines that were dropped because they exceeded the limit `log-bytes`.
    pub dropped_log_lines: u64,
}
