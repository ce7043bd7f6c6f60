//! Helpers for objects as JSON.

use jiff::Timestamp;
use serde_json::{Map, Value};

/// The string at a JSON pointer; empty if absent.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The name of an object.
pub(crate) fn name(value: &Value) -> &str {
    text(value, "/metadata/name")
}

/// The namespace of an object; empty for cluster-scoped objects.
pub(crate) fn namespace(value: &Value) -> &str {
    text(value, "/metadata/namespace")
}

/// Edits a member that is a JSON object. Creates the member if it is missing or not an object, and removes it
/// if it is empty afterwards.
pub(crate) fn edit<R>(
    value: &mut Value,
    member: &str,
    change: impl FnOnce(&mut Map<String, Value>) -> R,
) -> R {
    let mut child = match value.get_mut(member).map(Value::take) {
        Some(Value::Object(map)) => map,
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) | None => {
            Map::new()
        }
    };
    let result = change(&mut child);
    if let Value::Object(map) = value {
        if child.is_empty() {
            map.remove(member);
        } else {
            map.insert(member.to_owned(), Value::Object(child));
        }
    }
    result
}

/// Edits `metadata`.
pub(crate) fn edit_meta<R>(value: &mut Value, change: impl FnOnce(&mut Map<String, Value>) -> R) -> R {
    edit(value, "metadata", change)
}

/// Copies a member from another object, or removes it if the other object has none.
pub(crate) fn copy_member(to: &mut Value, from: &Value, member: &str) {
    if let Value::Object(map) = to {
        match from.get(member) {
            Some(found) => map.insert(member.to_owned(), found.clone()),
            None => map.remove(member),
        };
    }
}

/// Removes a member of the top level.
pub(crate) fn remove(value: &mut Value, member: &str) -> Option<Value> {
    value.as_object_mut().and_then(|map| map.remove(member))
}

/// Sets a member of the top level.
pub(crate) fn set(value: &mut Value, member: &str, to: Value) {
    if let Value::Object(map) = value {
        map.insert(member.to_owned(), to);
    }
}

/// Sets a member to a default if it is missing, empty or not a string.
pub(crate) fn set_default(map: &mut Map<String, Value>, member: &str, value: &str) {
    let absent = map.get(member).and_then(Value::as_str).unwrap_or_default().is_empty();
    if absent {
        map.insert(member.to_owned(), Value::from(value));
    }
}

/// The finalizers of an object.
pub(crate) fn finalizers(value: &Value) -> Vec<&str> {
    strings(value, "/metadata/finalizers")
}

/// The strings of the list at a JSON pointer.
pub(crate) fn strings<'a>(value: &'a Value, pointer: &str) -> Vec<&'a str> {
    list(value, pointer).iter().filter_map(Value::as_str).collect()
}

/// The elements of the list at a JSON pointer; empty if absent.
pub(crate) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns `true` if the object is being deleted.
pub(crate) fn deleting(value: &Value) -> bool {
    value.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null())
}

/// Returns `true` if a terminating object has a grace period above 0.
pub(crate) fn has_grace(value: &Value) -> bool {
    value
        .pointer("/metadata/deletionGracePeriodSeconds")
        .and_then(Value::as_i64)
        .is_some_and(|grace| grace > 0)
}

/// The uids of an object's owners.
pub(crate) fn owners(value: &Value) -> impl Iterator<Item = &str> {
    list(value, "/metadata/ownerReferences").iter().filter_map(|owner| owner.get("uid")?.as_str())
}

/// A time in Kubernetes' format: RFC 3339 with whole seconds.
pub(crate) fn timestamp(at: Timestamp) -> Value {
    let seconds = Timestamp::from_second(at.as_second()).unwrap_or(at);
    Value::String(seconds.to_string())
}
