//! Typed decoding of values, as in Go: reports unknown fields, rejects wrong types, treats null as absent,
//! and applies `omitempty` and zero values.

use std::sync::OnceLock;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{EmptyValue, Scalar, Struct, Type};
use crate::base64;
use crate::descriptors::{PerKind, ResourceKind};
use crate::quantity;

#[derive(Default)]
pub(super) struct Decoder {
    pub(super) unknown: Vec<String>,
}

/// A value that does not match its type. The messages are those of Go's decoder.
#[derive(Debug, thiserror::Error)]
pub(super) enum ValueError {
    /// Not base64. Has the index of the first invalid byte.
    #[error("illegal base64 data at input byte {0}")]
    Base64(usize),
    /// Not a quantity.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Quantity,
    /// Not a time.
    #[error("parsing time \"{text}\" as \"{layout}\": cannot parse \"{rest}\" as \"{expected}\"")]
    Time {
        /// The value.
        text: String,
        /// Go's layout of the type.
        layout: &'static str,
        /// The part that cannot be parsed.
        rest: String,
        /// The expected part of the layout.
        expected: &'static str,
    },
    /// A value of another type, or a number that is not an integer in the range of the type.
    #[error("json: cannot unmarshal {found} into Go struct field {owner_type}.{path} of type {expected}")]
    Type {
        /// The JSON type, or the number.
        found: String,
        /// Name of the innermost struct type that contains the value.
        owner_type: &'static str,
        /// Path of the field, without indexes.
        path: String,
        /// The Go type.
        expected: String,
    },
    /// A value that is not an object, where a whole body is decoded.
    #[error("json: cannot unmarshal {found} into Go value of type {expected}")]
    NotAnObject {
        /// The JSON type.
        found: &'static str,
        /// The Go type.
        expected: String,
    },
}

impl ValueError {
    pub(super) fn not_an_object(found: &Value, expected: &Struct) -> Self {
        Self::NotAnObject { found: json_type(found), expected: format!("v1.{}", expected.name) }
    }
}

/// The path of a value, for messages.
#[derive(Clone, Copy)]
struct ValuePath<'a> {
    /// Name of the innermost struct type that contains the value.
    owner_type: &'static str,
    path: &'a str,
}

impl Decoder {
    pub(super) fn object(
        &mut self,
        shape: &'static Struct,
        map: &mut Map<String, Value>,
        path: &str,
    ) -> Result<(), ValueError> {
        let mut result = Ok(());
        map.retain(|name, value| {
            let Some(field) = shape.field(name) else {
                self.unknown.push(join(path, name));
                return false;
            };
            if value.is_null() || result.is_err() {
                return false;
            }
            let path = join(path, name);
            result = self.value(&field.field_type, value, ValuePath { owner_type: shape.name, path: &path });
            matches!(field.empty_value, EmptyValue::Keep | EmptyValue::Null) || !is_empty(value)
        });
        result?;
        fill_struct(shape, map);
        Ok(())
    }

    fn value(
        &mut self,
        shape: &'static Type,
        value: &mut Value,
        place: ValuePath<'_>,
    ) -> Result<(), ValueError> {
        match (shape, &mut *value) {
            (Type::Scalar(scalar), _) => self::scalar(*scalar, value, place),
            (Type::Struct(shape), Value::Object(map)) => self.object(shape, map, place.path),
            (Type::Map(member, _), Value::Object(map)) => {
                for (name, value) in map.iter_mut() {
                    let path = join(place.path, name);
                    // Go's decoder reports the path of the map, not that of its value.
                    let is_scalar = matches!(**member, Type::Scalar(_));
                    let path = if is_scalar { place.path } else { &path };
                    self.member(member, value, ValuePath { path, ..place })?;
                }
                Ok(())
            }
            (Type::List(member, _), Value::Array(members)) => {
                for (index, value) in members.iter_mut().enumerate() {
                    let path = format!("{}[{index}]", place.path);
                    self.member(member, value, ValuePath { path: &path, ..place })?;
                }
                Ok(())
            }
            (Type::Struct(_) | Type::Map(..) | Type::List(..), _) => {
                Err(mismatch(value, place, &type_name(shape)))
            }
        }
    }

    /// Decodes an element of a list or map. Null becomes the zero value of the type.
    fn member(
        &mut self,
        shape: &'static Type,
        value: &mut Value,
        place: ValuePath<'_>,
    ) -> Result<(), ValueError> {
        if value.is_null() {
            *value = match shape {
                Type::Struct(_) | Type::Map(..) => Value::Object(Map::new()),
                Type::List(..) => Value::Array(Vec::new()),
                Type::Scalar(Scalar::Int32 | Scalar::Int64) => Value::from(0),
                Type::Scalar(Scalar::Bool) => Value::Bool(false),
                Type::Scalar(Scalar::Quantity) => Value::from("0"),
                Type::Scalar(_) => Value::from(""),
            };
        }
        self.value(shape, value, place)
    }
}

fn scalar(scalar: Scalar, value: &mut Value, place: ValuePath<'_>) -> Result<(), ValueError> {
    let name = scalar_name(scalar);
    match (scalar, &mut *value) {
        (Scalar::Any, _) => Ok(()),
        (Scalar::String, Value::String(_)) | (Scalar::Bool, Value::Bool(_)) => Ok(()),
        (
            Scalar::Int64 | Scalar::Int32 | Scalar::IntOrString | Scalar::StringOrInt,
            Value::Number(number),
        ) => {
            let fits = match scalar {
                Scalar::Int64 | Scalar::StringOrInt => number.as_i64().is_some(),
                Scalar::Int32
                | Scalar::IntOrString
                | Scalar::Any
                | Scalar::String
                | Scalar::Bytes
                | Scalar::Bool
                | Scalar::Quantity
                | Scalar::Time
                | Scalar::MicroTime => number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
            };
            if fits { Ok(()) } else { Err(mismatch_as(&format!("number {number}"), place, name)) }
        }
        (Scalar::IntOrString | Scalar::StringOrInt, Value::String(_)) => Ok(()),
        (Scalar::Bytes, Value::String(text)) => {
            base64::first_invalid_index(text).map_or(Ok(()), |index| Err(ValueError::Base64(index)))
        }
        (Scalar::Quantity, found) => {
            // A number is equivalent to its text.
            if let Value::Number(number) = found {
                *found = Value::String(number.to_string());
            }
            match found.as_str().map(str::trim).and_then(quantity::canonical) {
                Some(text) => {
                    *value = Value::String(text);
                    Ok(())
                }
                None => Err(ValueError::Quantity),
            }
        }
        (Scalar::Time | Scalar::MicroTime, Value::String(text)) => {
            let time = time(scalar, text)?;
            *value = Value::String(time);
            Ok(())
        }
        _ => Err(mismatch(value, place, name)),
    }
}

/// Normalizes a time to UTC with a fixed number of digits.
fn time(scalar: Scalar, text: &str) -> Result<String, ValueError> {
    let micro = scalar == Scalar::MicroTime;
    let layout = if micro { "2006-01-02T15:04:05.000000Z07:00" } else { "2006-01-02T15:04:05Z07:00" };
    let parse_error = |rest: &str, expected| ValueError::Time {
        text: text.to_owned(),
        layout,
        rest: rest.to_owned(),
        expected,
    };
    let time: Timestamp = text.parse().map_err(|_| parse_error(text, "2006"))?;
    if !micro {
        return Ok(Timestamp::from_second(time.as_second()).unwrap_or(time).to_string());
    }
    // MicroTime requires six fractional digits.
    let rest = text.get(19..).unwrap_or_default();
    let digits = rest.strip_prefix('.').map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    if digits < 6 {
        return Err(parse_error(rest, ".000000"));
    }
    Ok(format!("{time:.6}"))
}

/// Returns `true` if `omitempty` omits the value.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(members) => members.is_empty(),
        // An empty map. `omitempty` has no effect on structs, so this is not called for them.
        Value::Object(map) => map.is_empty(),
    }
}

/// Adds fields that Go always serializes, in this object only.
fn fill_struct(shape: &'static Struct, map: &mut Map<String, Value>) {
    for (name, field) in &shape.fields {
        let unset = match field.empty_value {
            EmptyValue::Keep | EmptyValue::Omit => continue,
            EmptyValue::Null => Value::Null,
            EmptyValue::Fill if map.contains_key(*name) => continue,
            EmptyValue::Fill => zero_value(&field.field_type),
        };
        map.entry(*name).or_insert(unset);
    }
}

fn zero_value(shape: &'static Type) -> Value {
    match shape {
        Type::Struct(shape) => {
            let mut map = Map::new();
            fill_struct(shape, &mut map);
            Value::Object(map)
        }
        Type::Scalar(Scalar::String | Scalar::Bytes) => Value::from(""),
        Type::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::IntOrString | Scalar::StringOrInt) => {
            Value::from(0)
        }
        Type::Scalar(Scalar::Bool) => Value::Bool(false),
        Type::Scalar(Scalar::Quantity) => Value::from("0"),
        Type::Scalar(Scalar::Any | Scalar::Time | Scalar::MicroTime) | Type::List(..) | Type::Map(..) => {
            Value::Null
        }
    }
}

/// Omits empty fields and adds fields with zero values, as Go does in serialization. Includes nested structs.
fn fill_recursively(shape: &'static Struct, map: &mut Map<String, Value>) {
    map.retain(|name, value| {
        let Some(field) = shape.field(name) else { return true };
        match (&field.field_type, &mut *value) {
            (Type::Struct(shape), Value::Object(map)) => fill_recursively(shape, map),
            (Type::List(member, _), Value::Array(members)) => {
                if let Type::Struct(shape) = &**member {
                    for member in members {
                        if let Value::Object(map) = member {
                            fill_recursively(shape, map);
                        }
                    }
                }
            }
            (Type::Scalar(_) | Type::Struct(_) | Type::List(..) | Type::Map(..), _) => {}
        }
        match field.empty_value {
            EmptyValue::Keep => !value.is_null(),
            EmptyValue::Omit => !is_empty(value),
            EmptyValue::Fill | EmptyValue::Null => true,
        }
    });
    fill_struct(shape, map);
}

/// Go's name of a type.
fn type_name(shape: &Type) -> String {
    match shape {
        Type::Scalar(scalar) => scalar_name(*scalar).to_owned(),
        Type::List(member, _) => format!("[]{}", type_name(member)),
        Type::Map(member, _) => format!("map[string]{}", type_name(member)),
        Type::Struct(shape) => format!("v1.{}", shape.name),
    }
}

fn scalar_name(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::Any => "interface {}",
        Scalar::String => "string",
        Scalar::Bytes => "[]uint8",
        Scalar::Int32 => "int32",
        Scalar::Int64 => "int64",
        Scalar::Bool => "bool",
        Scalar::Quantity => "resource.Quantity",
        Scalar::Time => "v1.Time",
        Scalar::MicroTime => "v1.MicroTime",
        Scalar::IntOrString | Scalar::StringOrInt => "intstr.IntOrString",
    }
}

fn mismatch(found: &Value, place: ValuePath<'_>, expected: &str) -> ValueError {
    mismatch_as(json_type(found), place, expected)
}

/// The name of a JSON type in Go's messages.
fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn mismatch_as(found: &str, place: ValuePath<'_>, expected: &str) -> ValueError {
    // Go's decoder reports fields without indexes.
    let mut path = String::new();
    let mut in_index = false;
    for character in place.path.chars() {
        match character {
            '[' => in_index = true,
            ']' => in_index = false,
            other if !in_index => path.push(other),
            _ => {}
        }
    }
    ValueError::Type {
        found: found.to_owned(),
        owner_type: place.owner_type,
        path,
        expected: expected.to_owned(),
    }
}

pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// An empty object of a kind, as Go serializes it.
pub(crate) fn empty(kind: ResourceKind) -> &'static Value {
    static EMPTY: OnceLock<PerKind<OnceLock<Value>>> = OnceLock::new();
    EMPTY.get_or_init(|| PerKind::new(OnceLock::new)).get(kind).get_or_init(|| {
        let mut value = Value::Object(serde_json::Map::new());
        fill(kind, &mut value);
        value
    })
}

/// Omits empty fields and adds fields with zero values to an object of a kind, as Go does in serialization.
/// Of a custom resource, to its metadata.
pub(crate) fn fill(kind: ResourceKind, value: &mut Value) {
    let Value::Object(map) = value else { return };
    let root = super::of(kind);
    if !kind.resource().is_custom {
        return fill_recursively(root, map);
    }
    // Only the metadata of custom resources has a Go type.
    if let Some(Type::Struct(shape)) = root.field("metadata").map(|field| &field.field_type)
        && let Value::Object(metadata) = map.entry("metadata").or_insert_with(|| Value::Object(Map::new()))
    {
        fill_recursively(shape, metadata);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::descriptors::ResourceKind;
    use crate::{request::FieldValidation, schema::decode};

    #[test]
    fn decoded_bodies_match_the_go_types() {
        let mut body = json!({
            "metadata": {"name": "c", "labels": {}, "annotations": null,
                "creationTimestamp": "2026-01-01T01:00:00.5+01:00"},
            "spec": {"storageClassName": "", "volumeName": "", "resources": {"requests": {"storage": 5}},
                "color": "red"},
        });
        let unknown =
            decode(ResourceKind::PersistentVolumeClaim.resource(), &mut body, FieldValidation::Warn).unwrap();
        assert_eq!(unknown, ["spec.color"]);
        assert_eq!(
            body,
            json!({
                "metadata": {"name": "c", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"storageClassName": "", "resources": {"requests": {"storage": "5"}}},
                "status": {},
            })
        );
    }

    #[test]
    fn type_errors_match_the_messages_of_go() {
        for (body, expected) in [
            (
                json!({"spec": {"volumeName": 5}}),
                "json: cannot unmarshal number into Go struct field \
                 PersistentVolumeClaimSpec.spec.volumeName of type string",
            ),
            (
                json!({"spec": []}),
                "json: cannot unmarshal array into Go struct field PersistentVolumeClaim.spec of type \
                 v1.PersistentVolumeClaimSpec",
            ),
            (
                json!({"metadata": {"ownerReferences": [{"controller": "yes"}]}}),
                "json: cannot unmarshal string into Go struct field \
                 OwnerReference.metadata.ownerReferences.controller of type bool",
            ),
            (
                json!({"spec": {"resources": {"requests": {"storage": "ten"}}}}),
                "quantities must match the regular expression",
            ),
        ] {
            let mut body = body;
            let error =
                decode(ResourceKind::PersistentVolumeClaim.resource(), &mut body, FieldValidation::Ignore)
                    .unwrap_err();
            assert!(error.message.contains(expected), "{}", error.message);
        }
    }
}
