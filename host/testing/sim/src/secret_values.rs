//! Invariant: no process writes the value of a Secret.
//!
//! The simulation appends a marker to each value of each Secret that a user creates or patches. Request
//! bodies and paths, which include Events, log lines and metrics of the processes must not contain it:
//! neither plain, nor in Base64, nor in hexadecimal. The marker consists of letters and digits, which JSON
//! and percent-encoding leave unchanged. Calls in the form of
//! [`ScriptedDriver::calls`](crate::ScriptedDriver::calls) have the values without it.

use std::{
    fmt::{self, Write as _},
    sync::{Arc, LazyLock, Once},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use serde_json::Value;
use tracing::{
    Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Appended to each value. The characters before the marker differ in JSON and in percent-encoding.
const SUFFIX: &str = "\"%/+ValueOfASecretXq7Zw9";
/// The part of [`SUFFIX`] that is searched for.
const MARKER: &str = "ValueOfASecretXq7Zw9";

/// The marker: plain, in hexadecimal in lower and in upper case, and in Base64 at each alignment.
static NEEDLES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let encoded = (0..3).map(|alignment| {
        let text = format!("{}{MARKER}", " ".repeat(alignment));
        let characters = STANDARD.encode(&text);
        // The first and the last characters also have bits of the text before and after the marker.
        let complete = characters.chars().take(text.len() * 8 / 6).skip((alignment * 8).div_ceil(6));
        complete.collect()
    });
    let hexadecimal = lower_hex(MARKER);
    [MARKER.to_owned(), hexadecimal.to_uppercase(), hexadecimal].into_iter().chain(encoded).collect()
});

/// Log lines with a value, of all simulations of this process. Each was written by a controller process, or
/// by the simulation itself.
static LOG_LINES: LazyLock<Arc<Mutex<Vec<String>>>> = LazyLock::new(Arc::default);

fn lower_hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns true if the text contains the value of a Secret that a user of a simulation created or patched:
/// plain, in Base64 or in hexadecimal.
pub fn has_secret_value(text: &str) -> bool {
    NEEDLES.iter().any(|needle| text.contains(needle))
}

/// The value of a Secret with the marker.
fn mark(value: &str) -> String {
    format!("{value}{SUFFIX}")
}

/// The value of a Secret without the marker.
pub(crate) fn without_marker(value: &str) -> &str {
    value.strip_suffix(SUFFIX).unwrap_or(value)
}

/// Marks the values of a Secret, or of a merge patch of one. Values that are not UTF-8 remain as they are.
pub(crate) fn mark_values(secret: &mut Value) {
    let values = |secret: &mut Value, field: &str, mark: &dyn Fn(&str) -> Option<String>| {
        let values = secret.get_mut(field).and_then(Value::as_object_mut);
        for value in values.into_iter().flat_map(|values| values.values_mut()) {
            if let Some(marked) = value.as_str().and_then(mark) {
                *value = marked.into();
            }
        }
    };
    values(secret, "stringData", &|value| Some(mark(value)));
    values(secret, "data", &|value| {
        let value = String::from_utf8(STANDARD.decode(value).ok()?).ok()?;
        Some(STANDARD.encode(mark(&value)))
    });
}

/// Searches the log lines of this process for values of Secrets.
///
/// # Panics
/// If another subscriber is installed: it would get the log lines instead.
pub(crate) fn check_log_lines() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let installed = tracing::subscriber::set_global_default(LogCheck { found: Arc::clone(&LOG_LINES) });
        assert!(installed.is_ok(), "another subscriber is installed, so no log line would be checked");
    });
}

/// Returns and removes the log lines with a value of a Secret.
pub(crate) fn take_log_lines() -> Vec<String> {
    std::mem::take(&mut *LOG_LINES.lock())
}

/// Collects log lines with values of Secrets.
struct LogCheck {
    found: Arc<Mutex<Vec<String>>>,
}

impl LogCheck {
    fn check(&self, start: String, record: impl FnOnce(&mut FieldWriter)) {
        let mut line = FieldWriter(start);
        record(&mut line);
        if has_secret_value(&line.0) {
            self.found.lock().push(line.0);
        }
    }
}

fn start_of_line(metadata: &Metadata<'_>) -> String {
    format!("{} {}:", metadata.level(), metadata.target())
}

struct FieldWriter(String);

impl Visit for FieldWriter {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Subscriber for LogCheck {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("cofferdam") || *metadata.level() <= Level::INFO
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        self.check(start_of_line(span.metadata()), |line| span.record(line));
        span::Id::from_u64(1)
    }

    /// Checks fields that a span gets after its creation. All spans have the same ID here, so the line has no
    /// target.
    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        self.check("span:".to_owned(), |line| values.record(line));
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        self.check(start_of_line(event.metadata()), |line| event.record(line));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[cfg(test)]
mod tests {
    use cofferdam_controllers::Role;
    use serde_json::json;

    use super::*;
    use crate::{
        Simulation,
        UserAction::Create,
        objects::{claim, class, with},
    };

    #[test]
    fn values_are_found_in_each_encoding() {
        let value = mark("one");
        let json = json!({"a": value}).to_string();
        let percent: String = value
            .bytes()
            .map(|byte| match byte.is_ascii_alphanumeric() {
                true => char::from(byte).to_string(),
                false => format!("%{byte:02X}"),
            })
            .collect();
        assert!(json.contains("\\\"%") && percent.contains("%22%25"));
        let hexadecimal = lower_hex(&value);
        assert!(hexadecimal.contains("6f"), "the cases differ");
        let hexadecimal = [hexadecimal.to_uppercase(), hexadecimal];
        let plain = [value.clone(), json.clone(), json!({"data": json}).to_string(), percent];
        for text in plain.into_iter().chain(hexadecimal) {
            assert!(has_secret_value(&text), "{text}");
        }
        for before in ["", "x", "xy", "xyz"] {
            for after in ["", "x", "xy"] {
                let text = STANDARD.encode(format!("{before}{value}{after}"));
                assert!(has_secret_value(&text), "{text}");
            }
        }
        assert!(!has_secret_value("one"));
        let mut secret =
            json!({"stringData": {"a": "one"}, "data": {"b": STANDARD.encode("two"), "c": "/w=="}});
        mark_values(&mut secret);
        let two = STANDARD.encode(mark("two"));
        assert_eq!(secret, json!({"stringData": {"a": value}, "data": {"b": two, "c": "/w=="}}));
        assert_eq!(without_marker(&value), "one");
    }

    #[test]
    fn a_value_in_a_log_line_is_found() {
        let found = Arc::<Mutex<Vec<String>>>::default();
        tracing::subscriber::with_default(LogCheck { found: Arc::clone(&found) }, || {
            tracing::info!("no value");
            tracing::trace!(target: "cofferdam_controllers", error = %mark("one"), "failed");
            let span = tracing::info_span!("call", error = tracing::field::Empty);
            span.record("error", mark("two"));
        });
        assert_eq!(found.lock().len(), 2, "{:?}", found.lock());
    }

    /// The parameter of the class reaches the intent journal.
    #[tokio::test(start_paused = true)]
    async fn a_value_in_a_request_is_a_violation() {
        let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new());
        let planted = with(class("gold"), &json!({"parameters": {"tier": mark("one")}}));
        let (outcome, _) = simulation.run(&[Create(planted), Create(claim("a", "gold"))], None).await;
        let journal = "/api/v1/namespaces/default/configmaps/cofferdam-intents-sim.cofferdam.dev-0";
        assert_eq!(outcome.violations, [format!("PATCH {journal} has the value of a Secret")]);
    }
}
