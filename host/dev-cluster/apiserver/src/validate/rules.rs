//! Rules that several kinds share.

use serde_json::Value;

use crate::meta::text;
use crate::status::FieldError;

/// The violated rules of an object.
pub(crate) type Errors = Vec<FieldError>;

/// Checks that a field has not changed.
pub(super) fn immutable(old: &Value, next: &Value, pointer: &str, field: &str, errors: &mut Errors) {
    let (old, next) = (old.pointer(pointer), next.pointer(pointer));
    if old != next {
        errors.push(FieldError::invalid(field, next.unwrap_or(&Value::Null), "field is immutable"));
    }
}

/// Checks that a field is a non-empty string, and returns whether it is.
pub(super) fn required(value: &Value, pointer: &str, field: &str, errors: &mut Errors) -> bool {
    let absent = text(value, pointer).is_empty();
    if absent {
        errors.push(FieldError::required(field, ""));
    }
    !absent
}
