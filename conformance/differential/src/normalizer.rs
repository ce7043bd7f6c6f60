//! Normalization of responses. Hides what differs between two runs (uids, times, ages, resource versions,
//! continue tokens, generated names, and the order of lists without an order), Go types in messages, and the
//! descriptions of columns.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Length of the suffix that the API server appends to `generateName`.
const SUFFIX_LENGTH: usize = 5;

/// Normalizes the responses of one run of a script. The resource versions of each uid are numbered in the
/// order of their first appearance (`version 1`, `version 2`, …), so that an unexpected write is detected. A
/// resource version beside which there is no uid, such as that of a list, is replaced with `<version>`.
#[derive(Debug, Default)]
pub struct ResponseNormalizer {
    versions: BTreeMap<String, Vec<String>>,
}

impl ResponseNormalizer {
    /// Normalizes the body of a response. `prefix` is `metadata.generateName` of the request's body; `None`
    /// if the request has none.
    pub fn normalize_body(&mut self, body: Value, prefix: Option<&str>) -> Value {
        let mut body = self.normalize_value(body, "");
        if let Some(prefix) = prefix.filter(|prefix| !prefix.is_empty()) {
            map_strings(&mut body, &mut |text| hide_generated_names(text, prefix));
        }
        if body.get("kind").and_then(Value::as_str) == Some("Status") {
            normalize_status(&mut body);
        }
        body
    }

    fn normalize_value(&mut self, value: Value, name: &str) -> Value {
        match value {
            Value::Object(map) => self.normalize_object(map),
            Value::Array(list) if name == "managedFields" => {
                let mut list: Vec<Value> =
                    list.into_iter().map(|one| self.normalize_value(one, "")).collect();
                list.sort_by_key(|entry| {
                    ["manager", "operation", "subresource"]
                        .map(|member| entry.get(member).cloned().unwrap_or_default().to_string())
                });
                Value::Array(list)
            }
            Value::Array(mut list) => {
                if name == "columnDefinitions" {
                    for column in list.iter_mut().filter_map(Value::as_object_mut) {
                        column.remove("description");
                    }
                }
                Value::Array(list.into_iter().map(|one| self.normalize_value(one, name)).collect())
            }
            Value::String(text) => Value::String(normalize_scalar(text, name)),
            other @ (Value::Null | Value::Bool(_) | Value::Number(_)) => other,
        }
    }

    fn normalize_object(&mut self, mut map: Map<String, Value>) -> Value {
        let text = |map: &Map<String, Value>, member: &str| {
            map.get(member).and_then(Value::as_str).map(str::to_owned)
        };
        if let Some(version) = text(&map, "resourceVersion") {
            let normalized = match text(&map, "uid") {
                Some(uid) => {
                    let versions = self.versions.entry(uid).or_default();
                    let index = versions.iter().position(|one| *one == version).unwrap_or_else(|| {
                        versions.push(version.clone());
                        versions.len() - 1
                    });
                    format!("version {}", index + 1)
                }
                None => "<version>".to_owned(),
            };
            map.insert("resourceVersion".to_owned(), Value::String(normalized));
        }
        if let (Some(prefix), Some(name)) = (text(&map, "generateName"), text(&map, "name")) {
            map.insert("name".to_owned(), Value::String(hide_generated_names(&name, &prefix)));
        }
        let members = map.into_iter().map(|(name, value)| {
            let value = self.normalize_value(value, &name);
            (normalize_key(name), value)
        });
        Value::Object(members.collect())
    }
}

fn map_strings(value: &mut Value, change: &mut impl FnMut(&str) -> String) {
    match value {
        Value::String(text) => *text = change(text),
        Value::Array(list) => list.iter_mut().for_each(|one| map_strings(one, change)),
        Value::Object(map) => map.values_mut().for_each(|one| map_strings(one, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Replaces the random suffix after each occurrence of `prefix` with `<random>`.
fn hide_generated_names(text: &str, prefix: &str) -> String {
    let mut hidden = String::new();
    let mut rest = text;
    while let Some(prefix_start) = rest.find(prefix) {
        let (before, found) = rest.split_at(prefix_start + prefix.len());
        hidden.push_str(before);
        let random = found
            .get(..SUFFIX_LENGTH)
            .is_some_and(|end| end.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        rest = if random {
            hidden.push_str("<random>");
            found.get(SUFFIX_LENGTH..).unwrap_or_default()
        } else {
            found
        };
    }
    hidden + rest
}

fn normalize_scalar(text: String, name: &str) -> String {
    match name {
        "continue" if !text.is_empty() => "<token>".to_owned(),
        "uid" if is_uid(&text) => "<uid>".to_owned(),
        "creationTimestamp" | "deletionTimestamp" | "time" | "lastPhaseTransitionTime" if is_time(&text) => {
            "<time>".to_owned()
        }
        "message" => normalize_message(&text),
        "cells" if is_age(&text) => "<age>".to_owned(),
        _ => text,
    }
}

/// Replaces the uid in a key of `managedFields` such as `k:{"uid":"…"}`, which identifies an owner reference.
fn normalize_key(name: String) -> String {
    match name.strip_prefix("k:{\"uid\":\"").and_then(|rest| rest.strip_suffix("\"}")) {
        Some(uid) if is_uid(uid) => "k:{\"uid\":\"<uid>\"}".to_owned(),
        Some(_) | None => name,
    }
}

fn is_uid(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

fn is_time(text: &str) -> bool {
    text.len() >= 20 && text.ends_with('Z') && text.bytes().take(4).all(|byte| byte.is_ascii_digit())
}

fn is_age(text: &str) -> bool {
    text.ends_with(['s', 'm', 'h', 'd']) && text.bytes().next().is_some_and(|byte| byte.is_ascii_digit())
}

/// Replaces uids and resource versions in a message, and removes a trailing diff of Go types.
fn normalize_message(text: &str) -> String {
    let text = text.split("\n@@").next().unwrap_or_default();
    let hide = |word: &str| {
        let core = word.trim_matches(|c: char| matches!(c, '(' | ')' | ',' | '.' | '"'));
        if is_uid(core) {
            word.replace(core, "<uid>")
        } else if core.len() >= 2 && core.bytes().all(|byte| byte.is_ascii_digit()) && is_version(text) {
            word.replace(core, "<version>")
        } else {
            word.to_owned()
        }
    };
    text.split(' ').map(hide).collect::<Vec<_>>().join(" ")
}

fn is_version(message: &str) -> bool {
    ["esource version", "ResourceVersion"].iter().any(|word| message.contains(word))
}

/// Normalizes a Status. Sorts its causes, and removes repeated ones. In the messages of the Status and of the
/// causes, replaces Go structs. In the message of the Status, also replaces a list of causes, and sorts a
/// list of errors.
fn normalize_status(status: &mut Value) {
    let causes = status.pointer_mut("/details/causes").and_then(Value::as_array_mut);
    let mut several = false;
    if let Some(causes) = causes {
        for cause in causes.iter_mut() {
            if let Some(Value::String(text)) = cause.get_mut("message") {
                *text = hide_structure(text);
            }
        }
        causes.sort_by_key(ToString::to_string);
        causes.dedup();
        several = causes.len() > 1;
    }
    if let Some(Value::String(text)) = status.get_mut("message") {
        *text = hide_structure(text);
        if let Some((head, _)) = text.split_once(" is invalid: [") {
            *text = format!("{head} is invalid: <causes>");
        } else if let Some((head, lines)) = text.split_once("errors:\n") {
            let mut lines: Vec<&str> = lines.lines().collect();
            lines.sort_unstable();
            *text = format!("{head}errors:\n{}", lines.join("\n"));
        } else if several {
            // The same rule, violated by several fields.
            text.push_str(" <causes>");
        }
    }
}

fn hide_structure(text: &str) -> String {
    for (open, close) in
        [("Invalid value: {", "}: "), ("Invalid value: [{", "}]: "), ("Invalid value: \"{", "}\": ")]
    {
        if let Some((before, rest)) = text.split_once(open)
            && let Some((_, after)) = rest.rsplit_once(close)
        {
            return format!("{before}Invalid value: <structure>: {after}");
        }
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::ResponseNormalizer;

    #[test]
    fn versions_are_counted_for_each_object() {
        let mut normalizer = ResponseNormalizer::default();
        let mut version_of = |uid: &str, version: &str| {
            let body = json!({"metadata": {"uid": uid, "resourceVersion": version}});
            normalizer.normalize_body(body, None)["metadata"]["resourceVersion"].clone()
        };
        assert_eq!(
            [version_of("a", "7"), version_of("b", "8"), version_of("a", "9"), version_of("a", "7")],
            ["version 1", "version 1", "version 2", "version 1"]
        );
    }

    #[test]
    fn columns_have_no_descriptions() {
        let body = json!({"columnDefinitions": [{"name": "Age", "type": "date", "description": "An age."}]});
        assert_eq!(
            ResponseNormalizer::default().normalize_body(body, None),
            json!({"columnDefinitions": [{"name": "Age", "type": "date"}]})
        );
    }

    #[test]
    fn random_and_unordered_values_are_hidden() {
        let body = json!({
            "kind": "Status",
            "message": "X \"gen-abcde\" is invalid: [b: Invalid value: {\"Z\":1}: no, a: wrong]",
            "details": {"name": "gen-abcde", "causes": [
                {"field": "b", "message": "Invalid value: {\"Z\":1}: no"}, {"field": "a", "message": "wrong"},
            ]},
        });
        assert_eq!(
            ResponseNormalizer::default().normalize_body(body, Some("gen-")),
            json!({
                "kind": "Status",
                "message": "X \"gen-<random>\" is invalid: <causes>",
                "details": {"name": "gen-<random>", "causes": [
                    {"field": "a", "message": "wrong"},
                    {"field": "b", "message": "Invalid value: <structure>: no"},
                ]},
            })
        );
    }
}
