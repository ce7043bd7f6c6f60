//! The log of simulated processes.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use parking_lot::Mutex;
use tracing::{
    Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Collects the text of every log line, of every level and target.
#[derive(Clone, Default)]
pub(crate) struct LogCollector(Arc<Mutex<String>>);

impl LogCollector {
    pub(crate) fn text(&self) -> String {
        self.0.lock().clone()
    }
}

struct FieldWriter<'a>(&'a mut String);

impl Visit for FieldWriter<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Subscriber for LogCollector {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        span.record(&mut FieldWriter(&mut self.0.lock()));
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut FieldWriter(&mut self.0.lock()));
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut log = self.0.lock();
        let _ = write!(log, "\n{} {}:", event.metadata().level(), event.metadata().target());
        event.record(&mut FieldWriter(&mut log));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
