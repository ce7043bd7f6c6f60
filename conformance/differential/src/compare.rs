//! Differences between the responses of two API servers to one file of requests.

use serde_json::Value;

use crate::requests::RequestScript;
use crate::runner::ApiResponse;

/// A difference between two responses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The line of the request in its file, from 1.
    pub line: usize,
    /// Location: `code`, `warnings`, `answer` if one response is missing, or a path into the body. The path
    /// is a JSON pointer without its escapes, and empty for the whole body.
    pub location: String,
    /// Value in the recorded response of kube-apiserver. `nothing` if the body has no such field. For
    /// `answer`, whether there is a response: `true` or `false`.
    pub expected: String,
    /// Value in the response of the API server that is compared with the record, in the same form.
    pub found: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "line {}: {}\n  expected {}\n  found    {}",
            self.line, self.location, self.expected, self.found
        )
    }
}

/// Result of the comparison of the responses to one file of requests.
#[derive(Debug, Default)]
pub struct ScriptComparison {
    /// Differences of requests that are not marked as deviations.
    pub differences: Vec<Difference>,
    /// Line numbers of requests that name a deviation, although their responses do not differ.
    pub stale_deviations: Vec<usize>,
}

/// Compares the responses of two API servers to the requests of a script: `expected` are the recorded ones of
/// kube-apiserver. Both lists have the order of the requests.
#[must_use]
pub fn compare(script: &RequestScript, expected: &[ApiResponse], found: &[ApiResponse]) -> ScriptComparison {
    let mut comparison = ScriptComparison::default();
    for (index, request) in script.requests.iter().enumerate() {
        let mut differences = Vec::new();
        let mut push = |place: &str, expected: String, found: String| {
            differences.push(Difference { line: request.line, location: place.to_owned(), expected, found });
        };
        match (expected.get(index), found.get(index)) {
            (Some(expected), Some(found)) => {
                if expected.code != found.code {
                    push("code", expected.code.to_string(), found.code.to_string());
                }
                if expected.warnings != found.warnings {
                    push("warnings", format!("{:?}", expected.warnings), format!("{:?}", found.warnings));
                }
                compare_bodies(
                    "",
                    &without_last_bookmarks(&expected.body),
                    &without_last_bookmarks(&found.body),
                    &mut push,
                );
            }
            (expected, found) => {
                push("answer", format!("{}", expected.is_some()), format!("{}", found.is_some()));
            }
        }
        match (&request.deviation, differences.is_empty()) {
            (None, _) => comparison.differences.append(&mut differences),
            (Some(_), true) => comparison.stale_deviations.push(request.line),
            (Some(_), false) => {}
        }
    }
    comparison
}

/// Removes the periodic bookmarks at the end of a watch: their number depends on timing. A bookmark with
/// annotations stays: it ends the initial events.
fn without_last_bookmarks(body: &Value) -> Value {
    let mut body = body.clone();
    let is_periodic = |event: &Value| {
        event.get("type").is_some_and(|kind| kind == "BOOKMARK")
            && event.pointer("/object/metadata/annotations").is_none()
    };
    if let Some(events) = body.get_mut("events").and_then(Value::as_array_mut) {
        while events.last().is_some_and(is_periodic) {
            events.pop();
        }
    }
    body
}

fn compare_bodies(
    location: &str,
    expected: &Value,
    found: &Value,
    push: &mut impl FnMut(&str, String, String),
) {
    match (expected, found) {
        (Value::Object(left), Value::Object(right)) => {
            for (name, value) in left {
                let location = format!("{location}/{name}");
                match right.get(name) {
                    Some(other) => compare_bodies(&location, value, other, push),
                    None => push(&location, value.to_string(), "nothing".to_owned()),
                }
            }
            for (name, value) in right.iter().filter(|(name, _)| !left.contains_key(*name)) {
                push(&format!("{location}/{name}"), "nothing".to_owned(), value.to_string());
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (value, other)) in left.iter().zip(right).enumerate() {
                compare_bodies(&format!("{location}/{index}"), value, other, push);
            }
        }
        (left, right) if left == right => {}
        (left, right) => push(location, left.to_string(), right.to_string()),
    }
}
