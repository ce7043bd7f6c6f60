//! The three kinds of PATCH bodies that change an object step by step.

mod merge;
mod strategic;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::descriptors::Kind;
use crate::request::PatchType;
use crate::schema;
use crate::status::Status;

/// At most so many operations in one JSON patch, as the real server allows.
const MAX_OPERATIONS: usize = 10_000;

/// A parsed patch, applicable again and again.
#[derive(Debug)]
pub(crate) enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
}

/// Parses a PATCH body.
pub(crate) fn parse(patch_type: PatchType, body: &[u8]) -> Result<Patch, Status> {
    let malformed = |error: serde_json::Error| Status::bad_request(format!("error decoding patch: {error}"));
    match patch_type {
        PatchType::Json => {
            let patch: json_patch::Patch = serde_json::from_slice(body).map_err(malformed)?;
            if patch.0.len() > MAX_OPERATIONS {
                return Err(Status::bad_request(format!(
                    "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                    patch.0.len()
                )));
            }
            Ok(Patch::Json(patch))
        }
        PatchType::Merge => object(serde_json::from_slice(body).map_err(malformed)?).map(Patch::Merge),
        PatchType::Apply => Err(Status::bad_request("a configuration is applied, not patched")),
        PatchType::Strategic => {
            object(serde_json::from_slice(body).map_err(malformed)?).map(Patch::Strategic)
        }
    }
}

fn object(patch: Value) -> Result<Value, Status> {
    if patch.is_object() {
        return Ok(patch);
    }
    Err(Status::bad_request(format!("error decoding patch: an object was expected, not {patch}")))
}

impl Patch {
    /// Whether a field's name occurs in the patch.
    pub(crate) fn mentions(&self, field: &str) -> bool {
        let inside = |patch: &Value| patch.pointer("/metadata").is_some_and(|metadata| metadata.get(field).is_some());
        match self {
            // A path can be a prefix of it, and a value can hold anything.
            Self::Json(patch) => serde_json::to_string(patch).map_or(true, |text| text.contains("metadata")),
            Self::Merge(patch) | Self::Strategic(patch) => inside(patch),
        }
    }

    /// Applies the patch to an object of a kind.
    pub(crate) fn apply(&self, kind: Kind, mut value: Value) -> Result<Value, Status> {
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
