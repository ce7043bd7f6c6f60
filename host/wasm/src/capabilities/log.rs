//! `log`: lines of the guest in the host's log, bounded per call.

use wasmtime::component::HasData;

use crate::bindings::cofferdam::storage::log::{Host, Level as GuestLevel};
use cofferdam_backend::Redactor;

/// Target of guests' lines, so that a filter can choose them.
const LOG_TARGET: &str = "cofferdam_wasm::guest";
/// Bytes that a line, and each of its fields, costs in addition to its text: empty lines count too.
const LINE_OVERHEAD: usize = 16;
/// Most bytes that one byte of a guest's text becomes when it is written out: an escape such as `\u{7f}`.
const MAX_ESCAPE_BYTES: usize = 6;

/// The remaining log allowance of a call.
#[derive(Debug)]
pub(crate) struct GuestLog {
    remaining_bytes: usize,
    dropped_lines: u64,
}

impl GuestLog {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { remaining_bytes: bytes, dropped_lines: 0 }
    }

    /// Charges a line to the allowance; returns `false` if the line must be dropped. After the first line
    /// that does not fit, all lines are dropped, so that the log has no gaps.
    fn try_charge(&mut self, bytes: usize) -> bool {
        if self.dropped_lines == 0 && bytes.saturating_add(LINE_OVERHEAD) <= self.remaining_bytes {
            self.remaining_bytes = self.remaining_bytes.saturating_sub(bytes).saturating_sub(LINE_OVERHEAD);
            true
        } else {
            self.dropped_lines = self.dropped_lines.saturating_add(1);
            false
        }
    }

    /// Returns the number of dropped lines; logs a warning if there are any.
    pub(crate) fn report_dropped_lines(&self) -> u64 {
        if self.dropped_lines > 0 {
            tracing::warn!(
                target: LOG_TARGET,
                dropped_lines = self.dropped_lines,
                "log limit of the call exceeded; lines were dropped"
            );
        }
        self.dropped_lines
    }
}

/// The `log` import of one call.
pub(crate) struct LogView<'a> {
    pub(crate) log: &'a mut GuestLog,
    pub(crate) redactor: &'a Redactor,
}

impl HasData for LogView<'static> {
    type Data<'a> = LogView<'a>;
}

impl Host for LogView<'_> {
    fn write(
        &mut self,
        level: GuestLevel,
        message: String,
        fields: Vec<(String, String)>,
    ) -> wasmtime::Result<()> {
        // Values of fields are charged as if every byte had to be escaped; the message and the keys are
        // charged as they are.
        let field = |(key, value): &(String, String)| {
            LINE_OVERHEAD + key.len() + value.len().saturating_mul(MAX_ESCAPE_BYTES)
        };
        let bytes = fields.iter().map(field).fold(message.len(), usize::saturating_add);
        if !self.log.try_charge(bytes) {
            return Ok(());
        }
        let shown = |text: &str| self.redactor.printable(text);
        let mut line = shown(&message);
        for (key, value) in &fields {
            line.push_str(&format!(" {}={:?}", shown(key), shown(value)));
        }
        // tracing needs a constant level at each call site.
        match level {
            GuestLevel::Trace => tracing::trace!(target: LOG_TARGET, "{line}"),
            GuestLevel::Debug => tracing::debug!(target: LOG_TARGET, "{line}"),
            GuestLevel::Info => tracing::info!(target: LOG_TARGET, "{line}"),
            GuestLevel::Warn => tracing::warn!(target: LOG_TARGET, "{line}"),
            GuestLevel::Error => tracing::error!(target: LOG_TARGET, "{line}"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_log_ends_at_the_first_line_over_the_limit() {
        let mut log = GuestLog::new(100);
        assert_eq!([log.try_charge(10), log.try_charge(80), log.try_charge(1)], [true, false, false]);
        assert_eq!(log.dropped_lines, 2);
    }

    #[test]
    fn empty_log_lines_count_against_the_limit() {
        let mut log = GuestLog::new(64);
        assert_eq!((0..100).filter(|_| log.try_charge(0)).count(), 4);
    }
}
