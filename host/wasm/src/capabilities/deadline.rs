//! `deadline`: the time until the deadline of the call.

use tokio::time::Instant;
use wasmtime::component::HasData;

use crate::bindings::cofferdam::storage::deadline::Host;

/// The `deadline` import of one call.
pub(crate) struct DeadlineView {
    pub(crate) deadline: Instant,
}

impl HasData for DeadlineView {
    type Data<'a> = Self;
}

impl Host for DeadlineView {
    fn remaining_ms(&mut self) -> wasmtime::Result<u64> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        Ok(u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX))
    }
}
