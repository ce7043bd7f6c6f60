//! Strategic merge patch: a merge patch that merges lists by key, with directives.

use serde_json::{Map, Value};

use crate::schema::{PatchStrategy, Struct, Type};
use crate::status::Status;

const PATCH_DIRECTIVE: &str = "$patch";
const RETAIN_KEYS_DIRECTIVE: &str = "$retainKeys";
const SET_ELEMENT_ORDER_DIRECTIVE: &str = "$setElementOrder/";
const DELETE_FROM_PRIMITIVE_LIST_DIRECTIVE: &str = "$deleteFromPrimitiveList/";

/// The merge strategy of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListStrategy {
    /// The list of the patch replaces the object's.
    Atomic,
    /// Elements are objects with this merge key.
    Keyed(&'static str),
    /// Elements are scalars. Elements of the patch that the object's list does not have are added.
    Set,
}

/// The type of the patched object, if known.
type OptionalStruct = Option<&'static Struct>;

/// The merge strategy of a list field of an object with this type.
fn list_strategy(shape: OptionalStruct, field: &str) -> ListStrategy {
    match shape.and_then(|shape| shape.field(field)).map(|field| field.patch_strategy) {
        None | Some(PatchStrategy::Replace) => ListStrategy::Atomic,
        Some(PatchStrategy::Merge) => ListStrategy::Set,
        Some(PatchStrategy::MergeBy(key)) => ListStrategy::Keyed(key),
    }
}

/// The type of a field, or of the elements of a list field.
fn child_struct(shape: OptionalStruct, field: &str) -> OptionalStruct {
    match &shape?.field(field)?.field_type {
        Type::Struct(shape) => Some(shape),
        Type::List(member, _) => match &**member {
            Type::Struct(shape) => Some(shape),
            Type::Scalar(_) | Type::List(..) | Type::Map(..) => None,
        },
        Type::Scalar(_) | Type::Map(..) => None,
    }
}

/// Applies a patch to an object.
pub(super) fn apply(shape: OptionalStruct, value: &mut Value, patch: &Value) -> Result<(), Status> {
    let Value::Object(patch) = patch else {
        *value = patch.clone();
        return Ok(());
    };
    match value {
        Value::Object(map) => merge_object(shape, map, patch),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            let mut map = Map::new();
            merge_object(shape, &mut map, patch)?;
            *value = Value::Object(map);
            Ok(())
        }
    }
}

fn unknown_directive(found: &Value) -> Status {
    Status::bad_request(format!("Unknown patch type found: {found}: expected merge, replace or delete"))
}

fn list<'a>(key: &str, value: &'a Value) -> Result<&'a Vec<Value>, Status> {
    value
        .as_array()
        .ok_or_else(|| Status::bad_request(format!("patch of {key}: a list was expected, not {value}")))
}

fn merge_object(
    shape: OptionalStruct,
    map: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), Status> {
    match patch.get(PATCH_DIRECTIVE).map(Value::as_str) {
        None | Some(Some("merge")) => {}
        Some(Some("replace")) => {
            *map = patch.clone();
            map.remove(PATCH_DIRECTIVE);
            return Ok(());
        }
        Some(Some("delete")) => {
            map.clear();
            return Ok(());
        }
        Some(_) => return Err(unknown_directive(patch.get(PATCH_DIRECTIVE).unwrap_or(&Value::Null))),
    }
    if let Some(retained) = patch.get(RETAIN_KEYS_DIRECTIVE) {
        let retained = list(RETAIN_KEYS_DIRECTIVE, retained)?;
        map.retain(|key, _| retained.iter().any(|kept| kept == key));
    }
    for (key, change) in patch {
        if key == PATCH_DIRECTIVE
            || key == RETAIN_KEYS_DIRECTIVE
            || key.starts_with(SET_ELEMENT_ORDER_DIRECTIVE)
        {
            continue;
        }
        if let Some(field) = key.strip_prefix(DELETE_FROM_PRIMITIVE_LIST_DIRECTIVE) {
            let removed = list(key, change)?;
            if let Some(Value::Array(members)) = map.get_mut(field) {
                members.retain(|member| !removed.contains(member));
            }
            continue;
        }
        merge_member(shape, map, key, change)?;
    }
    // Applied last, so that new elements are ordered, too.
    for (key, order) in patch {
        if let Some(field) = key.strip_prefix(SET_ELEMENT_ORDER_DIRECTIVE)
            && let Some(Value::Array(members)) = map.get_mut(field)
        {
            reorder(members, list(key, order)?, list_strategy(shape, field));
        }
    }
    Ok(())
}

fn merge_member(
    shape: OptionalStruct,
    map: &mut Map<String, Value>,
    key: &str,
    change: &Value,
) -> Result<(), Status> {
    match change {
        Value::Null => {
            map.remove(key);
            Ok(())
        }
        Value::Object(_) => apply(child_struct(shape, key), map.entry(key).or_insert(Value::Null), change),
        Value::Array(changes) => {
            let mut old = match map.remove(key) {
                Some(Value::Array(old)) => old,
                Some(
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_),
                )
                | None => Vec::new(),
            };
            let merged = match list_strategy(shape, key) {
                ListStrategy::Atomic => changes.clone(),
                ListStrategy::Set => {
                    let mut union = old.clone();
                    union.extend(changes.iter().filter(|member| !old.contains(member)).cloned());
                    merge_order(union, changes, &old, Value::clone)
                }
                ListStrategy::Keyed(merge_key) => {
                    let merged = merge_list(child_struct(shape, key), old.clone(), changes, merge_key)?;
                    let identity = |member: &Value| member.get(merge_key).cloned().unwrap_or_default();
                    merge_order(merged, changes, &old, identity)
                }
            };
            old.clear();
            map.insert(key.to_owned(), Value::Array(merged));
            Ok(())
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            map.insert(key.to_owned(), change.clone());
            Ok(())
        }
    }
}

fn merge_list(
    shape: OptionalStruct,
    mut members: Vec<Value>,
    changes: &[Value],
    merge_key: &str,
) -> Result<Vec<Value>, Status> {
    let replaces = |change: &Value| change.get(PATCH_DIRECTIVE).and_then(Value::as_str) == Some("replace");
    // A list with a `$patch: replace` element replaces the old list, without that element.
    if changes.iter().any(|change| replaces(change) && change.get(merge_key).is_none()) {
        return Ok(changes.iter().filter(|change| !replaces(change)).cloned().collect());
    }
    for change in changes {
        let Some(identity) = change.get(merge_key) else {
            return Err(Status::internal(format!(
                "map: {} does not contain declared merge key: {merge_key}",
                crate::fields::go_format(change)
            )));
        };
        let index = members.iter().position(|member| member.get(merge_key) == Some(identity));
        if change.get(PATCH_DIRECTIVE).and_then(Value::as_str) == Some("delete") {
            members.retain(|member| member.get(merge_key) != Some(identity));
            continue;
        }
        match index.and_then(|index| members.get_mut(index)) {
            Some(member) => apply(shape, member, change)?,
            None => {
                let mut member = Value::Null;
                apply(shape, &mut member, change)?;
                members.push(member);
            }
        }
    }
    Ok(members)
}

/// Orders a merged list. Elements of the patch keep the patch's order, and the others the old list's. If both
/// can come next, new elements and those with a lower index in the old list come first.
fn merge_order(
    merged: Vec<Value>,
    changes: &[Value],
    old: &[Value],
    identity: impl Fn(&Value) -> Value,
) -> Vec<Value> {
    let position = |list: &[Value], member: &Value| {
        let wanted = identity(member);
        list.iter().position(|one| identity(one) == wanted)
    };
    let (mut patched, others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|member| position(changes, member).is_some());
    patched.sort_by_key(|member| position(changes, member));
    let (mut patched, mut others) = (patched.into_iter().peekable(), others.into_iter().peekable());
    let mut ordered = Vec::new();
    while let (Some(left), Some(right)) = (patched.peek(), others.peek()) {
        let other_first = match (position(old, left), position(old, right)) {
            (Some(left), Some(right)) => right < left,
            (None, _) | (_, None) => false,
        };
        ordered.extend(if other_first { others.next() } else { patched.next() });
    }
    ordered.extend(patched);
    ordered.extend(others);
    ordered
}

/// Sorts the listed elements into the listed order. Unlisted elements stay after their predecessor.
fn reorder(members: &mut Vec<Value>, order: &[Value], strategy: ListStrategy) {
    let identity = |member: &Value| match strategy {
        ListStrategy::Keyed(key) => member.get(key).cloned().unwrap_or_default(),
        ListStrategy::Atomic | ListStrategy::Set => member.clone(),
    };
    let mut last = None;
    let mut ranked: Vec<(Option<usize>, Value)> = std::mem::take(members)
        .into_iter()
        .map(|member| {
            let wanted = identity(&member);
            let rank = order.iter().position(|one| identity(one) == wanted);
            last = rank.or(last);
            (last, member)
        })
        .collect();
    // Stable sort: an unlisted element has the rank of the listed element before it.
    ranked.sort_by_key(|(rank, _)| *rank);
    members.extend(ranked.into_iter().map(|(_, member)| member));
}
