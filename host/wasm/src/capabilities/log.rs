//! `log`: lines of the guest in the host's log, bounded per call.

use super::Capabilities;
use crate::bindings::cofferdam::storage::log::{Host, Level as GuestLevel};
use cofferdam_backend::checks;

/// Target of guests' lines, so that a filter can choose them.
const TARGET: &str = "cofferdam_backend::guest";
/// What a line, and each of its fields, costs beside its text: a flood of empty ones is a flood too.
const LINE: usize = 16;
/// Most bytes that one byte of a guest's text becomes when it is written out: an escape such as `\\u{7f}`.
const WORST_ESCAPE: usize = 6;

/// What is left of a call's allowance.
#[derive(Debug)]
pub(crate) struct Log {
    left: usize,
    lost: u64,
}

impl Log {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { left: bytes, lost: 0 }
    }

    /// Takes a line's share; `false` when the allowance is used up. A line that does not fit ends the log: short ones after a
    /// long one would read as if nothing were missing.
    fn charge(&mut self, bytes: usize) -> bool {
        if self.lost == 0 && bytes.saturating_add(LINE) <= self.left {
            self.left = self.left.saturating_sub(bytes).saturating_sub(LINE);
            true
        } else {
            self.lost = self.lost.saturating_add(1);
            false
        }
    }

    /// Says how many lines were lost, and returns it.
    pub(crate) fn finish(&self) -> u64 {
        if self.lost > 0 {
            tracing::warn!(target: TARGET, lines = self.lost, "the backend wrote more than a call may; lines were dropped");
        }
        self.lost
    }
}

impl Host for Capabilities {
    fn write(
        &mut self,
        level: GuestLevel,
        message: String,
        fields: Vec<(String, String)>,
    ) -> wasmtime::Result<()> {
        // Charged as if everything had to be escaped, but for the message of a well-behaved guest, which is not.
        let field =
            |(key, value): &(String, String)| LINE + key.len() + value.len().saturating_mul(WORST_ESCAPE);
        let bytes = fields.iter().map(field).fold(message.len(), usize::saturating_add);
        if !self.log.charge(bytes) {
            return Ok(());
        }
        let shown = |text: &str| checks::printable(&self.redactor.blot(text));
        let mut line = shown(&message);
        for (key, value) in &fields {
            line.push_str(&format!(" {}={:?}", shown(key), shown(value)));
        }
        // The level of an event is a constant of its place in the code.
        match level {
            GuestLevel::Trace => tracing::trace!(target: TARGET, "{line}"),
            GuestLevel::Debug => tracing::debug!(target: TARGET, "{line}"),
            GuestLevel::Info => tracing::info!(target: TARGET, "{line}"),
            GuestLevel::Warn => tracing::warn!(target: TARGET, "{line}"),
            GuestLevel::Error => tracing::error!(target: TARGET, "{line}"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_ends_with_the_first_line_that_does_not_fit() {
        let mut log = Log::new(100);
        assert_eq!([log.charge(10), log.charge(80), log.charge(1)], [true, false, false]);
        assert_eq!(log.lost, 2);
    }

    #[test]
    fn empty_lines_are_not_free() {
        let mut log = Log::new(64);
        assert_eq!((0..100).filter(|_| log.charge(0)).count(), 4);
    }
}
