//! Resource usage of a call.

use std::time::Duration;

/// Resources that one call used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallUsage {
    /// Peak linear memory in bytes.
    pub memory_bytes: usize,
    /// CPU time of the guest.
    pub cpu_time: Duration,
    /// Number of dropped log lines: the first that exceeded the limit `log-bytes`, and all after it.
    pub dropped_log_lines: u64,
}
