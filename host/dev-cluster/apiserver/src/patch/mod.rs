//! JSON patch, merge patch and strategic merge patch.

mod merge;
mod strategic;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::descriptors::ResourceKind;
use crate::request::PatchType;
use crate::schema;
use crate::status::Status;

/// Maximum number of operations in a JSON patch, as in kube-apiserver.
const MAX_OPERATIONS: usize = 10_000;

/// A parsed patch. It can be applied repeatedly.
#[derive(Debug)]
pub(crate) enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
}

/// Parses a PATCH body.
pub(crate) fn parse(patch_type: PatchType, body: &[u8]) -> Result<Patch, Status> {
    let malformed = |why: String| Status::bad_request(format!("error decoding patch: {why}"));
    let value: Value = serde_json::from_slice(body).map_err(|error| malformed(go_error(&error)))?;
    match patch_type {
        PatchType::Json => {
            let Value::Array(operations) = &value else {
                let found = go_type(&value).unwrap_or("object");
                return Err(malformed(format!(
                    "json: cannot unmarshal {found} into Go value of type []handlers.jsonPatchOp"
                )));
            };
            if operations.len() > MAX_OPERATIONS {
                return Err(Status::bad_request(format!(
                    "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                    operations.len()
                )));
            }
            serde_json::from_value(value).map(Patch::Json).map_err(|_| Status::patch_rejected())
        }
        PatchType::Merge => object(value).map(Patch::Merge),
        PatchType::Strategic => object(value).map(Patch::Strategic),
        PatchType::Apply => Err(Status::bad_request("a configuration is applied, not patched")),
    }
}

fn object(patch: Value) -> Result<Value, Status> {
    match go_type(&patch) {
        None => Ok(if patch.is_null() { Value::Object(serde_json::Map::new()) } else { patch }),
        Some(found) => Err(Status::bad_request(format!(
            "error decoding patch: json: cannot unmarshal {found} into Go value of type \
             map[string]interface {{}}"
        ))),
    }
}

/// Go's type name of a value that is not an object; `None` for values that Go accepts as an object.
pub(crate) fn go_type(value: &Value) -> Option<&'static str> {
    match value {
        Value::Object(_) | Value::Null => None,
        Value::Bool(_) => Some("bool"),
        Value::Number(_) => Some("number"),
        Value::String(_) => Some("string"),
        Value::Array(_) => Some("array"),
    }
}

/// The message of a JSON syntax error: that of Go's encoding/json for truncated input, else serde_json's.
pub(crate) fn go_error(error: &serde_json::Error) -> String {
    if error.is_eof() { "unexpected end of JSON input".to_owned() } else { error.to_string() }
}

impl Patch {
    /// Returns `true` if the patch may change this field of `metadata`.
    pub(crate) fn has_field(&self, field: &str) -> bool {
        let has_in_metadata =
            |patch: &Value| patch.pointer("/metadata").is_some_and(|metadata| metadata.get(field).is_some());
        match self {
            // A path can be a prefix of the field, and a value can contain it.
            Self::Json(patch) => serde_json::to_string(patch).map_or(true, |text| text.contains("metadata")),
            Self::Merge(patch) | Self::Strategic(patch) => has_in_metadata(patch),
        }
    }

    /// The error for a patched object that cannot be decoded.
    pub(crate) fn patch_error(&self, patched: &Value, error: Status) -> Status {
        let Some((_, why)) = error.message.split_once("cannot be handled as a ") else { return error };
        let why = why.split_once(": ").map_or(why, |(_, why)| why);
        match self {
            Self::Json(_) | Self::Merge(_) => Status::invalid_patch_result(&patched.to_string(), why),
            Self::Strategic(patch) => Status::invalid_patch_result(&crate::fields::go_format(patch), why),
        }
    }

    /// Applies the patch to an object of a kind.
    pub(crate) fn apply(&self, kind: ResourceKind, mut value: Value) -> Result<Value, Status> {
        match self {
            Self::Json(patch) => {
                json_patch::patch(&mut value, patch).map_err(|_| Status::patch_rejected())?;
            }
            Self::Merge(patch) => merge::apply(&mut value, patch),
            Self::Strategic(patch) => strategic::apply(Some(schema::of(kind)), &mut value, patch)?,
        }
        Ok(value)
    }
}
