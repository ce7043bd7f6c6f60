//! What a call took.

use std::time::Duration;

/// What one call used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Most linear memory at once, in bytes.
    pub memory_bytes: usize,
    /// Time that the guest computed, by the clock of its threads.
    pub computed: Duration,
    /// Lines that it wrote beyond the limit of its log.
    pub lost_lines: u64,
}
