//! Validation of custom resources: by schema, then by the rules of the schema.
//!
//! The schemas and the messages of the rules are those of the definitions of external-snapshotter. The other
//! messages are those of kube-apiserver's validation by schemas.

use serde_json::Value;

use super::rules::Errors;
use crate::descriptors::ResourceKind;
use crate::schema::{self, Scalar, Struct, Type};
use crate::status::FieldError;

/// Pattern of `status.restoreSize` of a VolumeSnapshot.
const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Validates an object; `old` is the stored object of an update.
pub(super) fn validate(kind: ResourceKind, old: Option<&Value>, next: &Value, errors: &mut Errors) {
    let walk = SchemaWalk { base: "" };
    // Metadata is validated as for other kinds, and an update does not change the status.
    for (name, field) in
        schema::of(kind).fields.iter().filter(|(name, _)| !["metadata", "status"].contains(name))
    {
        if let Some(value) = next.get(name) {
            walk.field(schema::of(kind).name, name, &field.field_type, value, name, errors);
        }
    }
    walk.required(schema::of(kind).name, next, "", errors);
    check_rules(kind, old, next, errors);
}

/// Validates the status of an update of the subresource, which does not change the rest of the object.
pub(super) fn validate_status(kind: ResourceKind, next: &Value, errors: &mut Errors) {
    let shape = schema::of(kind).field("status").map(|field| &field.field_type);
    if let (Some(shape), Some(status)) = (shape, next.get("status")) {
        SchemaWalk { base: "status" }.value(shape, status, "", errors);
    }
    add_unchecked(kind, errors);
}

/// Adds the error of unchecked rules if there are rules and an error prevents their check. Returns whether it
/// does.
fn add_unchecked(kind: ResourceKind, errors: &mut Errors) -> bool {
    let has_rules = matches!(kind, ResourceKind::VolumeSnapshot | ResourceKind::VolumeSnapshotContent);
    let is_prevented = has_rules && errors.iter().any(FieldError::prevents_rules);
    if is_prevented {
        let detail = "some validation rules were not checked because the object was invalid; correct the \
                      existing errors to complete validation";
        errors.push(FieldError::invalid("<nil>", &Value::Null, detail));
    }
    is_prevented
}

/// The required fields of a type.
fn required_fields(type_name: &str) -> &'static [&'static str] {
    match type_name {
        "VolumeSnapshot" | "VolumeSnapshotContent" => &["spec"],
        "VolumeSnapshotSpec" => &["source"],
        "VolumeSnapshotContentSpec" => &["deletionPolicy", "driver", "source", "volumeSnapshotRef"],
        "VolumeSnapshotClass" => &["deletionPolicy", "driver"],
        _ => &[],
    }
}

/// Validation by schema of a part of an object.
struct SchemaWalk {
    /// The field with the root of the schema; empty for the whole object. Messages have paths from this root.
    base: &'static str,
}

impl SchemaWalk {
    /// The path of a field in the object.
    fn full_path(&self, path: &str) -> String {
        match (self.base, path) {
            ("", path) => path.to_owned(),
            (base, "") => base.to_owned(),
            (base, path) => format!("{base}.{path}"),
        }
    }

    fn required(&self, type_name: &str, value: &Value, path: &str, errors: &mut Errors) {
        for name in required_fields(type_name).iter().filter(|name| value.get(**name).is_none()) {
            errors.push(FieldError::required(self.full_path(&join(path, name)), ""));
        }
    }

    fn structure(&self, shape: &'static Struct, value: &Value, path: &str, errors: &mut Errors) {
        for (name, field) in &shape.fields {
            if let Some(value) = value.get(*name) {
                self.field(shape.name, name, &field.field_type, value, &join(path, name), errors);
            }
        }
        self.required(shape.name, value, path, errors);
    }

    /// Validates a field by its type, and by the other restrictions of the schema.
    fn field(
        &self,
        type_name: &str,
        name: &str,
        shape: &'static Type,
        value: &Value,
        path: &str,
        errors: &mut Errors,
    ) {
        self.value(shape, value, path, errors);
        let field = || self.full_path(path);
        match (type_name, name) {
            ("VolumeSnapshotClass" | "VolumeSnapshotContentSpec", "deletionPolicy") => {
                let supported = ["Delete", "Retain"];
                if !value.as_str().is_some_and(|policy| supported.contains(&policy)) {
                    errors.push(FieldError::not_supported_value(field(), value, &supported));
                }
            }
            ("VolumeSnapshotContentStatus", "restoreSize")
                if value.as_f64().is_some_and(|size| size < 0.0) =>
            {
                let detail = format!("{path} in body should be greater than or equal to 0");
                errors.push(FieldError::invalid(field(), value, &detail));
            }
            ("VolumeSnapshotStatus", "restoreSize")
                if value.as_str().is_some_and(|size| !matches_quantity(size)) =>
            {
                let detail = format!("{path} in body should match '{QUANTITY_PATTERN}'");
                errors.push(FieldError::invalid(field(), value, &detail));
            }
            _ => {}
        }
    }

    fn value(&self, shape: &'static Type, value: &Value, path: &str, errors: &mut Errors) {
        let (expected, found) = match (shape, value) {
            (Type::Struct(shape), Value::Object(_)) => return self.structure(shape, value, path, errors),
            (Type::Map(member, _), Value::Object(map)) => {
                for (name, value) in map {
                    self.value(member, value, &join(path, name), errors);
                }
                return;
            }
            (Type::List(member, _), Value::Array(members)) => {
                for (index, value) in members.iter().enumerate() {
                    self.value(member, value, &format!("{path}[{index}]"), errors);
                }
                return;
            }
            (Type::Struct(_) | Type::Map(..), _) => ("object", type_name(value)),
            (Type::List(..), _) => ("array", type_name(value)),
            (Type::Scalar(Scalar::Int64), Value::Number(number)) if number.as_i64().is_none() => {
                let path_error = FieldError::type_invalid(self.full_path(path), path, "int64", "float64");
                let detail = format!("Checked value must be of type integer with format int64 in {path}");
                errors.push(path_error);
                errors.push(FieldError::invalid(self.base, &Value::from(""), &detail));
                return;
            }
            (Type::Scalar(Scalar::Time), Value::String(text)) => {
                if text.parse::<jiff::Timestamp>().is_ok() {
                    return;
                }
                ("date-time", text.as_str())
            }
            (Type::Scalar(Scalar::Time), Value::Number(number)) => {
                ("date-time", if number.is_f64() { "float64" } else { "int64" })
            }
            (Type::Scalar(scalar), _) => match expected_type(*scalar, value) {
                Some(expected) => (expected, type_name(value)),
                None => return,
            },
        };
        errors.push(FieldError::type_invalid(self.full_path(path), path, expected, found));
    }
}

/// The type of a scalar in messages; `None` if the value has the type.
fn expected_type(scalar: Scalar, value: &Value) -> Option<&'static str> {
    let (matches, name) = match scalar {
        Scalar::Any => (true, ""),
        Scalar::String | Scalar::Bytes | Scalar::Quantity | Scalar::Time | Scalar::MicroTime => {
            (value.is_string(), "string")
        }
        Scalar::Int32 | Scalar::Int64 => (value.is_i64(), "integer"),
        Scalar::Bool => (value.is_boolean(), "boolean"),
        Scalar::IntOrString | Scalar::StringOrInt => {
            (value.is_string() || value.is_i64() || value.is_u64(), "integer,string")
        }
    };
    (!matches).then_some(name)
}

/// The type of a value in messages.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Checks the rules of the schemas (`x-kubernetes-validations`), unless an error prevents it.
fn check_rules(kind: ResourceKind, old: Option<&Value>, next: &Value, errors: &mut Errors) {
    if add_unchecked(kind, errors) {
        return;
    }
    let mut rules = Rules { old, next, errors };
    if kind == ResourceKind::VolumeSnapshot {
        rules.source(
            ["persistentVolumeClaimName", "volumeSnapshotContentName"],
            "exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set",
        );
        rules.class_name();
    } else if kind == ResourceKind::VolumeSnapshotContent {
        rules.required_once_set("spec", "sourceVolumeMode");
        rules.source(
            ["volumeHandle", "snapshotHandle"],
            "exactly one of volumeHandle and snapshotHandle must be set",
        );
        rules.immutable("spec", "sourceVolumeMode");
        rules.reference();
    }
}

struct Rules<'a> {
    old: Option<&'a Value>,
    next: &'a Value,
    errors: &'a mut Errors,
}

impl Rules<'_> {
    /// Both states of a field.
    fn states(&self, parent: &str, name: &str) -> (Option<&Value>, Option<&Value>) {
        let pointer = format!("/{}/{name}", parent.replace('.', "/"));
        (self.old.and_then(|old| old.pointer(&pointer)), self.next.pointer(&pointer))
    }

    fn required_once_set(&mut self, parent: &str, name: &str) {
        if let (Some(_), None) = self.states(parent, name) {
            let message = format!("{name} is required once set");
            self.errors.push(FieldError::violated_rule(parent, &message));
        }
    }

    fn immutable(&mut self, parent: &str, name: &str) {
        if let (Some(old), Some(next)) = self.states(parent, name)
            && old != next
        {
            let error = FieldError::invalid(join(parent, name), next, &format!("{name} is immutable"));
            self.errors.push(error);
        }
    }

    /// `spec.source`: one of two immutable fields. `exactly_one` is the message if not one is set.
    fn source(&mut self, fields: [&str; 2], exactly_one: &str) {
        const SOURCE: &str = "spec.source";
        for name in fields {
            self.required_once_set(SOURCE, name);
        }
        if fields.iter().filter(|name| self.states(SOURCE, name).1.is_some()).count() != 1 {
            self.errors.push(FieldError::violated_rule(SOURCE, exactly_one));
        }
        for name in fields {
            self.immutable(SOURCE, name);
        }
    }

    /// `spec.volumeSnapshotClassName`: not empty.
    fn class_name(&mut self) {
        let (_, name) = self.states("spec", "volumeSnapshotClassName");
        if let Some(name) = name.filter(|name| name.as_str() == Some("")) {
            let detail = "volumeSnapshotClassName must not be the empty string when set";
            let error = FieldError::invalid("spec.volumeSnapshotClassName", name, detail);
            self.errors.push(error);
        }
    }

    /// `spec.volumeSnapshotRef`: has a name and a namespace.
    fn reference(&mut self) {
        const REFERENCE: &str = "spec.volumeSnapshotRef";
        if ["name", "namespace"].into_iter().any(|name| self.states(REFERENCE, name).1.is_none()) {
            let message = "both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set";
            self.errors.push(FieldError::violated_rule(REFERENCE, message));
        }
    }
}

/// Returns `true` if [`QUANTITY_PATTERN`] matches.
fn matches_quantity(text: &str) -> bool {
    let unsigned = |text: &str| text.strip_prefix(['+', '-']).unwrap_or(text).to_owned();
    let is_number = |text: &str| {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        !(whole.is_empty() && fraction.is_empty())
            && [whole, fraction].iter().all(|digits| digits.bytes().all(|one| one.is_ascii_digit()))
    };
    let text = unsigned(text);
    let end = text.find(|one: char| !one.is_ascii_digit() && one != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end).unwrap_or((&text, ""));
    let has_suffix = match suffix {
        "" | "n" | "u" | "m" | "k" | "M" | "G" | "T" | "P" | "E" | "Ki" | "Mi" | "Gi" | "Ti" | "Pi"
        | "Ei" => true,
        exponent => exponent.strip_prefix(['e', 'E']).is_some_and(|text| is_number(&unsigned(text))),
    };
    is_number(number) && has_suffix
}

#[cfg(test)]
mod tests {
    use super::matches_quantity;

    #[test]
    fn quantities_match_the_pattern_of_the_definition() {
        for (text, expected) in [
            ("1Gi", true),
            ("+.5", true),
            ("-1.", true),
            ("1e3", true),
            ("1E-.5", true),
            ("7E", true),
            ("", false),
            (".", false),
            ("1.2.3", false),
            ("1K", false),
            ("1mi", false),
            ("1e", false),
            ("--1", false),
            ("1 Gi", false),
        ] {
            assert_eq!(matches_quantity(text), expected, "{text}");
        }
    }
}
