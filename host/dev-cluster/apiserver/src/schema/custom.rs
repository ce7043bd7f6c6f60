//! Decoding of custom resources: kube-apiserver decodes their metadata as a Go type and the rest as JSON.
//! Fields that the schema does not declare are pruned.

use serde_json::{Map, Value};

use super::decode::{Decoder, ValueError};
use super::{Struct, Type};

/// Decodes a custom resource in place. Drops unknown fields and returns their paths, sorted. Drops nulls if
/// `drops_nulls`. Values of wrong types remain, for the validation.
pub(super) fn decode(
    root: &'static Struct,
    map: &mut Map<String, Value>,
    drops_nulls: bool,
) -> Result<Vec<String>, ValueError> {
    let mut pruner = Pruner { drops_nulls, unknown: Vec::new() };
    let metadata = map.remove("metadata");
    pruner.object(root, map, "");
    if let Some(metadata) = metadata.filter(|metadata| !metadata.is_null()) {
        let metadata = decode_metadata(root, metadata, &mut pruner.unknown)?;
        map.insert("metadata".to_owned(), metadata);
    }
    pruner.unknown.sort_unstable();
    Ok(pruner.unknown)
}

fn decode_metadata(
    root: &'static Struct,
    mut metadata: Value,
    unknown: &mut Vec<String>,
) -> Result<Value, ValueError> {
    let Some(Type::Struct(shape)) = root.field("metadata").map(|field| &field.field_type) else {
        return Ok(metadata);
    };
    let Value::Object(map) = &mut metadata else {
        return Err(ValueError::not_an_object(&metadata, shape));
    };
    let mut decoder = Decoder::default();
    decoder.object(shape, map, "")?;
    unknown.extend(decoder.unknown.into_iter().map(|field| format!("metadata.{field}")));
    Ok(metadata)
}

struct Pruner {
    drops_nulls: bool,
    unknown: Vec<String>,
}

impl Pruner {
    fn object(&mut self, shape: &'static Struct, map: &mut Map<String, Value>, path: &str) {
        map.retain(|name, value| {
            let path = super::decode::join(path, name);
            let Some(field) = shape.field(name) else {
                self.unknown.push(path);
                return false;
            };
            if value.is_null() && self.drops_nulls {
                return false;
            }
            self.value(Some(&field.field_type), value, &path);
            true
        });
    }

    /// Prunes a value. The schema of a scalar declares no fields, so an object in its place loses all fields.
    fn value(&mut self, shape: Option<&'static Type>, value: &mut Value, path: &str) {
        match (shape, value) {
            (Some(Type::Struct(shape)), Value::Object(map)) => self.object(shape, map, path),
            (Some(Type::Map(member, _)), Value::Object(map)) => map.retain(|name, value| {
                if value.is_null() && self.drops_nulls {
                    return false;
                }
                self.value(Some(member), value, &super::decode::join(path, name));
                true
            }),
            (Some(Type::Scalar(_) | Type::List(..)) | None, Value::Object(map)) => {
                self.unknown.extend(map.keys().map(|name| super::decode::join(path, name)));
                map.clear();
            }
            (shape, Value::Array(members)) => {
                let member = match shape {
                    Some(Type::List(member, _)) => Some(&**member),
                    Some(Type::Scalar(_) | Type::Struct(_) | Type::Map(..)) | None => None,
                };
                for (index, value) in members.iter_mut().enumerate() {
                    self.value(member, value, &format!("{path}[{index}]"));
                }
            }
            (_, number @ Value::Number(_)) => shorten(number),
            (_, Value::Null | Value::Bool(_) | Value::String(_)) => {}
        }
    }
}

/// Replaces a float without a fraction by an integer, as Go does in serialization.
fn shorten(number: &mut Value) {
    /// The largest integer whose floats are exact.
    const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
    let integer = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() <= MAX_EXACT);
    if number.is_f64()
        && let Some(float) = integer
        && let Ok(parsed) = format!("{float:.0}").parse::<i64>()
    {
        *number = Value::from(parsed);
    }
}
