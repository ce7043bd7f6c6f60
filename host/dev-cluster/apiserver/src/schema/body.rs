//! Decoding of bodies: of built-in kinds as Go types, and of custom resources by their schemas.

use serde_json::Value;

use super::custom;
use super::decode::Decoder;
use crate::descriptors::{ResourceDescriptor, VERSION};
use crate::request::FieldValidation;
use crate::status::Status;

/// Decodes a body in place. Unknown fields are dropped, or rejected with strict validation. Returns the
/// unknown fields for [`FieldValidation::Warn`], else an empty list.
pub(crate) fn decode(
    resource: &ResourceDescriptor,
    body: &mut Value,
    fields: FieldValidation,
) -> Result<Vec<String>, Status> {
    decode_with_nulls(resource, body, fields, true)
}

/// Decodes the result of an apply in place. Unlike [`decode`], keeps the nulls of a custom resource, which
/// its validation rejects.
pub(crate) fn decode_applied(resource: &ResourceDescriptor, body: &mut Value) -> Result<(), Status> {
    decode_with_nulls(resource, body, FieldValidation::Ignore, false).map(|_| ())
}

fn decode_with_nulls(
    resource: &ResourceDescriptor,
    body: &mut Value,
    fields: FieldValidation,
    drops_nulls: bool,
) -> Result<Vec<String>, Status> {
    let mut decoder = Decoder::default();
    let to_bad_request = |why: &str| {
        let kind = resource.kind;
        Status::bad_request(format!("{kind} in version \"{VERSION}\" cannot be handled as a {kind}: {why}"))
    };
    if let Value::Object(map) = body {
        let root = super::of(resource.id);
        let decoded = if resource.is_custom {
            custom::decode(root, map, drops_nulls).map(|unknown| decoder.unknown = unknown)
        } else {
            decoder.object(root, map, "")
        };
        decoded.map_err(|error| to_bad_request(&error.to_string()))?;
    }
    if !decoder.unknown.is_empty() && fields == FieldValidation::Strict {
        // The number of reported fields is limited.
        let list: Vec<String> =
            decoder.unknown.iter().take(16).map(|field| format!("unknown field \"{field}\"")).collect();
        return Err(to_bad_request(&format!("strict decoding error: {}", list.join(", "))));
    }
    Ok(if fields == FieldValidation::Warn { decoder.unknown } else { Vec::new() })
}
