//! JSON merge patch (RFC 7386).

use serde_json::{Map, Value};

/// Applies a merge patch: null removes a member, objects are merged, other values replace.
pub(super) fn apply(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    if let Value::Object(map) = value {
        for (key, change) in patch {
            if change.is_null() {
                map.remove(key);
            } else {
                apply(map.entry(key.as_str()).or_insert(Value::Null), change);
            }
        }
    }
}
