//! Typed walks over objects: fields, differences, merges and checks.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use super::set::{FieldSet, PathElement, TypeRef};
use crate::schema::{ListType, Scalar, Struct, Type};

/// The differences between two objects.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) removed: FieldSet,
    pub(crate) modified: FieldSet,
    pub(crate) added: FieldSet,
}

impl Comparison {
    pub(crate) fn is_same(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// Removes the ignored fields, which an endpoint does not write, from the differences.
    pub(crate) fn ignore(&mut self, ignored: &FieldSet) {
        for set in [&mut self.removed, &mut self.modified, &mut self.added] {
            *set = set.recursive_difference(ignored);
        }
    }

    fn leaf(&mut self, element: &PathElement, old: Option<&Value>, new: Option<&Value>) {
        match (old, new) {
            (None, _) => self.added.insert(element),
            (_, None) => self.removed.insert(element),
            (Some(old), Some(new)) if old != new => self.modified.insert(element),
            (Some(_), Some(_)) => {}
        }
    }

    fn attach(&mut self, element: &PathElement, below: Comparison) {
        self.removed.insert_children(element, below.removed);
        self.modified.insert_children(element, below.modified);
        self.added.insert_children(element, below.added);
    }
}

/// The parts of a value that field managers own separately: none, fields, map entries or list elements.
enum Composition<'a> {
    /// A leaf or an atomic value.
    Leaf,
    Struct(&'a Struct),
    Map(&'a Type),
    List(&'a Type, &'a ListType),
}

fn composition<'a>(shape: TypeRef<'a>) -> Composition<'a> {
    match shape {
        TypeRef::Struct(shape) if !shape.atomic => Composition::Struct(shape),
        TypeRef::Type(Type::Map(member, false)) => Composition::Map(member),
        TypeRef::Type(Type::List(member, kind @ (ListType::Set | ListType::Keys(_)))) => {
            Composition::List(member, kind)
        }
        TypeRef::Struct(_)
        | TypeRef::Type(
            Type::Scalar(_) | Type::Struct(_) | Type::List(_, ListType::Atomic) | Type::Map(_, true),
        )
        | TypeRef::Unknown => Composition::Leaf,
    }
}

fn is_empty_or_absent(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(members)) => members.is_empty(),
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) => false,
    }
}

fn map(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The fields in which two objects differ.
pub(crate) fn compare(shape: &Struct, old: &Value, new: &Value) -> Comparison {
    let mut comparison = Comparison::default();
    compare_struct(shape, Some(old), Some(new), &mut comparison);
    comparison
}

fn compare_struct(shape: &Struct, old: Option<&Value>, new: Option<&Value>, found: &mut Comparison) {
    let (old, new) = (map(old), map(new));
    for (name, field) in &shape.fields {
        let (old, new) = (old.and_then(|old| old.get(*name)), new.and_then(|new| new.get(*name)));
        compare_value(TypeRef::from_type(&field.field_type), old, new, &field.element, found);
    }
}

fn compare_value(
    shape: TypeRef<'_>,
    old: Option<&Value>,
    new: Option<&Value>,
    element: &PathElement,
    found: &mut Comparison,
) {
    // Most values are equal, and equal values have no inner differences.
    if old == new {
        return;
    }
    let parts = composition(shape);
    if matches!(parts, Composition::Leaf) || (is_empty_or_absent(old) && is_empty_or_absent(new)) {
        return found.leaf(element, old, new);
    }
    let mut below = Comparison::default();
    match parts {
        Composition::Leaf => {}
        Composition::Struct(shape) => compare_struct(shape, old, new, &mut below),
        Composition::Map(member) => compare_map(member, map(old), map(new), &mut below),
        Composition::List(member, kind) => compare_list(member, kind, list(old), list(new), &mut below),
    }
    found.attach(element, below);
    if old.is_none() {
        found.added.insert(element);
    } else if new.is_none() {
        found.removed.insert(element);
    }
}

fn compare_map(
    member: &Type,
    old: Option<&Map<String, Value>>,
    new: Option<&Map<String, Value>>,
    found: &mut Comparison,
) {
    for (key, value) in old.into_iter().flatten() {
        let other = new.and_then(|new| new.get(key));
        compare_value(TypeRef::from_type(member), Some(value), other, &field_element(key), found);
    }
    for (key, value) in new.into_iter().flatten() {
        if old.is_none_or(|old| !old.contains_key(key)) {
            compare_value(TypeRef::from_type(member), None, Some(value), &field_element(key), found);
        }
    }
}

fn field_element(key: &str) -> PathElement {
    PathElement::from(format!("f:{key}"))
}

/// The list's elements by path element. Duplicates share a path element.
fn index_by_element<'a>(
    member: &Type,
    kind: &ListType,
    members: &'a [Value],
) -> BTreeMap<PathElement, Vec<&'a Value>> {
    let mut index: BTreeMap<PathElement, Vec<&Value>> = BTreeMap::new();
    for value in members {
        if let Ok(element) = path_element(member, kind, value) {
            index.entry(element).or_default().push(value);
        }
    }
    index
}

fn compare_list(member: &Type, kind: &ListType, old: &[Value], new: &[Value], found: &mut Comparison) {
    let (old, new) = (index_by_element(member, kind, old), index_by_element(member, kind, new));
    let place = |old: Option<&Value>, new: Option<&Value>, element: &PathElement, found: &mut Comparison| {
        compare_value(TypeRef::from_type(member), old, new, element, found);
    };
    for element in old.keys().chain(new.keys().filter(|element| !old.contains_key(*element))) {
        let before = old.get(element).map_or(&[][..], Vec::as_slice);
        let after = new.get(element).map_or(&[][..], Vec::as_slice);
        match (before, after) {
            ([] | [_], [] | [_]) => place(before.first().copied(), after.first().copied(), element, found),
            ([_, _, ..], [_, _, ..]) => {
                if before != after {
                    found.modified.insert(element);
                }
            }
            // Duplicates are owned together, so an element that becomes unique counts as added.
            ([_, _, ..], _) => {
                if let Some(one) = after.first() {
                    place(None, Some(one), element, found);
                }
                found.removed.insert(element);
            }
            (_, [_, _, ..]) => {
                if let Some(one) = before.first() {
                    place(Some(one), None, element, found);
                }
                found.added.insert(element);
            }
        }
    }
}

/// A list element without a path element. The messages are those of structured-merge-diff.
#[derive(Debug, thiserror::Error)]
enum ElementError {
    /// Null in a list of objects.
    #[error("associative list with keys may not have a null element")]
    NullInMap,
    /// Another value than an object in a list of objects.
    #[error("associative list with keys may not have non-map elements")]
    NotAMap,
    /// An object in a set.
    #[error("associative list without keys has an element that's a map type")]
    MapInSet,
    /// A list in a set.
    #[error("not supported: associative list with lists as elements")]
    ListInSet,
    /// Null in a set.
    #[error("associative list without keys has an element that's an explicit null")]
    NullInSet,
}

/// The path element of a list element.
fn path_element(member: &Type, kind: &ListType, value: &Value) -> Result<PathElement, ElementError> {
    match kind {
        ListType::Keys(keys) => {
            let Value::Object(map) = value else {
                return Err(if value.is_null() { ElementError::NullInMap } else { ElementError::NotAMap });
            };
            let mut found = Map::new();
            for key in keys {
                let default = || match member {
                    Type::Struct(shape) => shape.field(key).and_then(|field| field.default.clone()),
                    Type::Scalar(_) | Type::List(..) | Type::Map(..) => None,
                };
                if let Some(value) = map.get(*key).cloned().or_else(default) {
                    found.insert((*key).to_owned(), value);
                }
            }
            Ok(PathElement::from(format!("k:{}", Value::Object(found))))
        }
        ListType::Set | ListType::Atomic => match value {
            Value::Object(_) => Err(ElementError::MapInSet),
            Value::Array(_) => Err(ElementError::ListInSet),
            Value::Null => Err(ElementError::NullInSet),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                Ok(PathElement::from(format!("v:{value}")))
            }
        },
    }
}

/// All fields of an object.
pub(crate) fn fields_of(shape: &Struct, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    if let Some(map) = map(Some(value)) {
        fields_of_struct(shape, map, &mut set);
    }
    set
}

fn fields_of_struct(shape: &Struct, map: &Map<String, Value>, set: &mut FieldSet) {
    for (name, value) in map {
        let Some(field) = shape.field(name) else {
            set.insert(&field_element(name));
            continue;
        };
        fields_of_value(TypeRef::from_type(&field.field_type), value, &field.element, set);
        if value.is_null() || value.as_object().is_some_and(Map::is_empty) {
            set.insert(&field.element);
        }
    }
}

fn fields_of_value(shape: TypeRef<'_>, value: &Value, element: &PathElement, set: &mut FieldSet) {
    let mut below = FieldSet::default();
    match composition(shape) {
        Composition::Leaf => return set.insert(element),
        Composition::Struct(shape) => {
            if let Some(map) = map(Some(value)) {
                fields_of_struct(shape, map, &mut below);
            }
        }
        Composition::Map(member) => {
            for (key, value) in map(Some(value)).into_iter().flatten() {
                fields_of_value(TypeRef::from_type(member), value, &field_element(key), &mut below);
                below.insert(&field_element(key));
            }
        }
        Composition::List(member, kind) => {
            for (element, members) in index_by_element(member, kind, list(Some(value))) {
                if let [one] = members.as_slice() {
                    fields_of_value(TypeRef::from_type(member), one, &element, &mut below);
                }
                below.insert(&element);
            }
        }
    }
    set.insert_children(element, below);
}

/// Merges a configuration into an object. Fields of the configuration take precedence.
pub(crate) fn merge(shape: &Struct, live: &Value, config: &Value) -> Value {
    merge_struct(shape, Some(live), Some(config)).unwrap_or_else(|| Value::Object(Map::new()))
}

fn merge_struct(shape: &Struct, live: Option<&Value>, config: Option<&Value>) -> Option<Value> {
    merge_members(map(live), map(config), |name| {
        shape.field(name).map_or(TypeRef::Unknown, |field| TypeRef::from_type(&field.field_type))
    })
}

fn merge_members<'a>(
    live: Option<&Map<String, Value>>,
    config: Option<&Map<String, Value>>,
    shape: impl Fn(&str) -> TypeRef<'a>,
) -> Option<Value> {
    let mut merged = Map::new();
    for (name, value) in live.into_iter().flatten() {
        let other = config.and_then(|config| config.get(name));
        if let Some(value) = merge_value(shape(name), Some(value), other) {
            merged.insert(name.clone(), value);
        }
    }
    for (name, value) in config.into_iter().flatten() {
        if live.is_none_or(|live| !live.contains_key(name))
            && let Some(value) = merge_value(shape(name), None, Some(value))
        {
            merged.insert(name.clone(), value);
        }
    }
    (!merged.is_empty()).then_some(Value::Object(merged))
}

fn merge_value(shape: TypeRef<'_>, live: Option<&Value>, config: Option<&Value>) -> Option<Value> {
    let parts = composition(shape);
    if matches!(parts, Composition::Leaf) || (is_empty_or_absent(live) && is_empty_or_absent(config)) {
        return config.or(live).cloned();
    }
    match parts {
        Composition::Leaf => None,
        Composition::Struct(shape) => merge_struct(shape, live, config),
        Composition::Map(member) => merge_members(map(live), map(config), |_| TypeRef::from_type(member)),
        Composition::List(member, kind) => merge_list(member, kind, list(live), list(config)),
    }
}

/// Merges lists in the configuration's order. Elements that only the object has keep their position before
/// the next common element.
fn merge_list(member: &Type, kind: &ListType, live: &[Value], config: &[Value]) -> Option<Value> {
    let identities = |members: &[Value]| -> Vec<PathElement> {
        members.iter().filter_map(|value| path_element(member, kind, value).ok()).collect()
    };
    let (left, right) = (identities(live), identities(config));
    let (by_left, by_right) = (index_by_element(member, kind, live), index_by_element(member, kind, config));
    // Duplicates in the object are replaced, not merged.
    let unique = |element: &PathElement| match by_left.get(element).map(Vec::as_slice) {
        Some([one]) => Some(*one),
        Some(_) | None => None,
    };
    let mut shared = right.iter().filter(|element| by_left.contains_key(*element));
    let mut next_shared = shared.next();
    let mut merged = std::collections::BTreeSet::new();
    let mut out = Vec::new();
    let mut push_merged = |element: &PathElement, live: Option<&Value>| {
        let config = by_right.get(element).and_then(|members| members.first().copied());
        out.extend(merge_value(TypeRef::from_type(member), live, config));
    };
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if let (Some(own), Some(given)) = (left.get(l), right.get(r)) {
            if own == given {
                merged.insert(own);
                push_merged(own, unique(own));
                (l, r) = (l + 1, r + 1);
                next_shared = shared.next();
                continue;
            }
            if by_right.contains_key(own) && next_shared.is_some_and(|next| next != own) {
                l += 1;
                continue;
            }
        }
        if let Some(own) = left.get(l) {
            if !by_right.contains_key(own) {
                push_merged(own, live.get(l));
                l += 1;
                continue;
            }
            if merged.contains(own) {
                l += 1;
            }
        }
        if let Some(given) = right.get(r) {
            merged.insert(given);
            push_merged(given, unique(given));
            r += 1;
            if next_shared == Some(given) {
                next_shared = shared.next();
            }
        }
    }
    (!out.is_empty()).then_some(Value::Array(out))
}

/// Removes the paths of a set from an object, and values that become empty by it.
pub(crate) fn remove(shape: &Struct, value: &Value, removed: &FieldSet) -> Value {
    remove_from_value(TypeRef::Struct(shape), value, removed).unwrap_or_else(|| Value::Object(Map::new()))
}

fn remove_from_value(shape: TypeRef<'_>, value: &Value, removed: &FieldSet) -> Option<Value> {
    match composition(shape) {
        Composition::Leaf => match value {
            Value::Object(_) | Value::Array(_) => None,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(value.clone()),
        },
        Composition::Struct(shape) => remove_members(value, removed, |name| {
            shape.field(name).map_or(TypeRef::Unknown, |field| TypeRef::from_type(&field.field_type))
        }),
        Composition::Map(member) => remove_members(value, removed, |_| TypeRef::from_type(member)),
        Composition::List(member, kind) => {
            let kept = value.as_array()?.iter().filter_map(|value| match path_element(member, kind, value) {
                Ok(element) => remove_member(TypeRef::from_type(member), &element, value, removed),
                Err(_) => Some(value.clone()),
            });
            let kept: Vec<Value> = kept.collect();
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
    }
}

fn remove_members<'a>(
    value: &Value,
    removed: &FieldSet,
    shape: impl Fn(&str) -> TypeRef<'a>,
) -> Option<Value> {
    let kept = value.as_object()?.iter().filter_map(|(name, value)| {
        remove_member(shape(name), &field_element(name), value, removed).map(|value| (name.clone(), value))
    });
    let kept: Map<String, Value> = kept.collect();
    (!kept.is_empty()).then_some(Value::Object(kept))
}

fn remove_member(shape: TypeRef<'_>, element: &str, value: &Value, removed: &FieldSet) -> Option<Value> {
    if removed.contains(element) {
        return None;
    }
    match removed.children(element) {
        // An empty value becomes null, which the decoder treats as absent.
        Some(below) => Some(remove_from_value(shape, value, below).unwrap_or_default()),
        None => Some(value.clone()),
    }
}

/// Checks a configuration against the type: unknown fields, wrong types, duplicate list elements.
pub(crate) fn check(shape: &Struct, config: &Value) -> Result<(), TypeErrors> {
    let mut errors = Vec::new();
    check_value(TypeRef::Struct(shape), config, "", &mut errors);
    TypeErrors::result(errors)
}

/// Checks the fields of a custom resource against their types, except metadata, which is decoded as a Go type
/// before.
pub(crate) fn check_custom(shape: &Struct, object: &Value) -> Result<(), TypeErrors> {
    let mut errors = Vec::new();
    for (name, value) in map(Some(object)).into_iter().flatten().filter(|(name, _)| *name != "metadata") {
        if let Some(field) = shape.field(name) {
            check_value(TypeRef::from_type(&field.field_type), value, &format!(".{name}"), &mut errors);
        }
    }
    TypeErrors::result(errors)
}

/// Fields of a configuration or object that do not match its type, sorted and without duplicates. The message
/// is that of structured-merge-diff.
#[derive(Debug)]
pub(crate) struct TypeErrors(Vec<String>);

impl TypeErrors {
    fn result(mut errors: Vec<String>) -> Result<(), Self> {
        errors.sort_unstable();
        errors.dedup();
        if errors.is_empty() { Ok(()) } else { Err(Self(errors)) }
    }
}

impl fmt::Display for TypeErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => f.write_str(one),
            many => write!(f, "errors:\n  {}", many.join("\n  ")),
        }
    }
}

fn check_value(shape: TypeRef<'_>, value: &Value, path: &str, errors: &mut Vec<String>) {
    if value.is_null() {
        return;
    }
    match (shape, value) {
        (TypeRef::Unknown, _) => {}
        (TypeRef::Struct(shape), Value::Object(map)) => {
            for (name, value) in map {
                let path = format!("{path}.{name}");
                match shape.field(name) {
                    Some(field) => check_value(TypeRef::from_type(&field.field_type), value, &path, errors),
                    None => errors.push(format!("{path}: field not declared in schema")),
                }
            }
        }
        (TypeRef::Type(Type::Map(member, _)), Value::Object(map)) => {
            for (name, value) in map {
                check_value(TypeRef::from_type(member), value, &format!("{path}.{name}"), errors);
            }
        }
        (TypeRef::Type(Type::List(member, kind)), Value::Array(members)) => {
            check_list(member, kind, members, path, errors);
        }
        (TypeRef::Type(Type::Scalar(scalar)), _) => check_scalar(*scalar, value, path, errors),
        (TypeRef::Struct(_) | TypeRef::Type(Type::Struct(_) | Type::Map(..)), _) => {
            errors.push(format!("{path}: expected map, got &{{{}}}", go_format(value)));
        }
        (TypeRef::Type(Type::List(..)), _) => {
            errors.push(format!("{path}: expected list, got &{{{}}}", go_format(value)))
        }
    }
}

fn check_list(member: &Type, kind: &ListType, members: &[Value], path: &str, errors: &mut Vec<String>) {
    let mut elements = std::collections::BTreeSet::new();
    for (index, value) in members.iter().enumerate() {
        let path = match kind {
            ListType::Atomic => format!("{path}[{index}]"),
            ListType::Set | ListType::Keys(_) => {
                let element = match path_element(member, kind, value) {
                    Ok(element) => element,
                    Err(why) => return errors.push(format!("{path}: element {index}: {why}")),
                };
                let shown = super::set::readable(&element);
                if !elements.insert(element) {
                    errors.push(format!("{path}: duplicate entries for key {shown}"));
                }
                format!("{path}{shown}")
            }
        };
        check_value(TypeRef::from_type(member), value, &path, errors);
    }
}

fn check_scalar(scalar: Scalar, value: &Value, path: &str, errors: &mut Vec<String>) {
    let (fits, wanted) = match scalar {
        Scalar::Any => (true, ""),
        Scalar::String | Scalar::Bytes | Scalar::Time | Scalar::MicroTime | Scalar::StringOrInt => {
            (value.is_string(), "string")
        }
        Scalar::Int32 | Scalar::Int64 => (value.is_number(), "numeric (int or float)"),
        Scalar::Bool => (value.is_boolean(), "boolean"),
        Scalar::Quantity | Scalar::IntOrString => (!value.is_object() && !value.is_array(), "any scalar"),
    };
    if fits {
        return;
    }
    // kube-apiserver prints the value with one of three Go formats.
    let shown = match scalar {
        Scalar::Int32 | Scalar::Int64 => match value {
            Value::String(_) => "string".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Array(_) => "[]interface {}".to_owned(),
            Value::Null | Value::Number(_) | Value::Object(_) => "map[string]interface {}".to_owned(),
        },
        Scalar::String | Scalar::Bytes | Scalar::Time | Scalar::MicroTime | Scalar::StringOrInt => {
            format!("&value.valueUnstructured{{Value:{}}}", go_format(value))
        }
        Scalar::Any | Scalar::Bool | Scalar::Quantity | Scalar::IntOrString => {
            format!("&{{{}}}", go_format(value))
        }
    };
    errors.push(format!("{path}: expected {wanted}, got {shown}"));
}

/// A value in Go's `%v` format.
pub(crate) fn go_format(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(members) => format!("[{}]", members.iter().map(go_format).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let members: Vec<String> =
                map.iter().map(|(key, value)| format!("{key}:{}", go_format(value))).collect();
            format!("map[{}]", members.join(" "))
        }
    }
}
