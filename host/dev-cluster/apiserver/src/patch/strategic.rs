//! Strategic merge patch: a merge patch that merges lists by key, with directives.

use serde_json::{Map, Value};

use crate::schema::{Strategy, Struct, Type};
use crate::status::Status;

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";

/// How the members of a list are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListStrategy {
    /// The patch's list replaces the old one.
    Atomic,
    /// Members are objects with this identifying member.
    Keyed(&'static str),
    /// Members are values; the patch adds those that are missing.
    Set,
}

/// The type of the object that is patched, as far as it is known.
type Known = Option<&'static Struct>;

/// The strategy of a list.
fn strategy(shape: Known, field: &str) -> ListStrategy {
    match shape.and_then(|shape| shape.field(field)).map(|field| field.strategy) {
        None | Some(Strategy::Replace) => ListStrategy::Atomic,
        Some(Strategy::Merge) => ListStrategy::Set,
        Some(Strategy::MergeBy(key)) => ListStrategy::Keyed(key),
    }
}

/// The type of a field, or of the members of a list in it.
fn below(shape: Known, field: &str) -> Known {
    match &shape?.field(field)?.shape {
        Type::Struct(shape) => Some(shape),
        Type::List(member, _) => match &**member {
            Type::Struct(shape) => Some(shape),
            Type::Scalar(_) | Type::List(..) | Type::Map(..) => None,
        },
        Type::Scalar(_) | Type::Map(..) => None,
    }
}

/// Applies a patch to an object.
pub(super) fn apply(shape: Known, value: &mut Value, patch: &Value) -> Result<(), Status> {
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
    shape: Known,
    map: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), Status> {
    match patch.get(PATCH).map(Value::as_str) {
        None | Some(Some("merge")) => {}
        Some(Some("replace")) => {
            *map = patch.clone();
            map.remove(PATCH);
            return Ok(());
        }
        Some(Some("delete")) => {
            map.clear();
            return Ok(());
        }
        Some(_) => return Err(unknown_directive(patch.get(PATCH).unwrap_or(&Value::Null))),
    }
    if let Some(retained) = patch.get(RETAIN) {
        let retained = list(RETAIN, retained)?;
        map.retain(|key, _| retained.iter().any(|kept| kept == key));
    }
    for (key, change) in patch {
        if key == PATCH || key == RETAIN || key.starts_with(ORDER) {
            continue;
        }
        if let Some(field) = key.strip_prefix(DELETE_PRIMITIVES) {
            let gone = list(key, change)?;
            if let Some(Value::Array(members)) = map.get_mut(field) {
                members.retain(|member| !gone.contains(member));
            }
            continue;
        }
        merge_member(shape, map, key, change)?;
    }
    // After the changes, so that new members find their place too.
    for (key, order) in patch {
        if let Some(field) = key.strip_prefix(ORDER)
            && let Some(Value::Array(members)) = map.get_mut(field)
        {
            reorder(members, list(key, order)?, strategy(shape, field));
        }
    }
    Ok(())
}

fn merge_member(shape: Known, map: &mut Map<String, Value>, key: &str, change: &Value) -> Result<(), Status> {
    match change {
        Value::Null => {
            map.remove(key);
            Ok(())
        }
        Value::Object(_) => apply(below(shape, key), map.entry(key).or_insert(Value::Null), change),
        Value::Array(changes) => {
            let mut old = match map.remove(key) {
                Some(Value::Array(old)) => old,
                Some(
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_),
                )
                | None => Vec::new(),
            };
            let merged = match strategy(shape, key) {
                ListStrategy::Atomic => changes.clone(),
                ListStrategy::Set => {
                    let mut united = old.clone();
                    united.extend(changes.iter().filter(|member| !old.contains(member)).cloned());
                    arrange(united, changes, &old, Value::clone)
                }
                ListStrategy::Keyed(merge_key) => {
                    let merged = merge_list(below(shape, key), old.clone(), changes, merge_key)?;
                    let identity = |member: &Value| member.get(merge_key).cloned().unwrap_or_default();
                    arrange(merged, changes, &old, identity)
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
    shape: Known,
    mut members: Vec<Value>,
    changes: &[Value],
    merge_key: &str,
) -> Result<Vec<Value>, Status> {
    let replaces = |change: &Value| change.get(PATCH).and_then(Value::as_str) == Some("replace");
    // A list with a bare replace directive is taken as it is, without the directive.
    if changes.iter().any(|change| replaces(change) && change.get(merge_key).is_none()) {
        return Ok(changes.iter().filter(|change| !replaces(change)).cloned().collect());
    }
    for change in changes {
        let Some(identity) = change.get(merge_key) else {
            return Err(Status::internal(format!(
                "map: {} does not contain declared merge key: {merge_key}",
                crate::fields::go(change)
            )));
        };
        let place = members.iter().position(|member| member.get(merge_key) == Some(identity));
        if change.get(PATCH).and_then(Value::as_str) == Some("delete") {
            members.retain(|member| member.get(merge_key) != Some(identity));
            continue;
        }
        match place.and_then(|place| members.get_mut(place)) {
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

/// Members of the patch keep the patch's order, the others theirs; where both could come next, a member that is new or
/// that stood earlier in the old list does.
fn arrange(
    merged: Vec<Value>,
    changes: &[Value],
    old: &[Value],
    identity: impl Fn(&Value) -> Value,
) -> Vec<Value> {
    let place = |list: &[Value], member: &Value| {
        let wanted = identity(member);
        list.iter().position(|one| identity(one) == wanted)
    };
    let (mut patched, others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|member| place(changes, member).is_some());
    patched.sort_by_key(|member| place(changes, member));
    let (mut patched, mut others) = (patched.into_iter().peekable(), others.into_iter().peekable());
    let mut arranged = Vec::new();
    while let (Some(left), Some(right)) = (patched.peek(), others.peek()) {
        let other_first = match (place(old, left), place(old, right)) {
            (Some(left), Some(right)) => right < left,
            (None, _) | (_, None) => false,
        };
        arranged.extend(if other_first { others.next() } else { patched.next() });
    }
    arranged.extend(patched);
    arranged.extend(others);
    arranged
}

/// Puts the listed members into the listed order; unlisted ones keep their place behind their predecessor.
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
    // Stable: an unlisted member shares the rank of the listed one before it.
    ranked.sort_by_key(|(rank, _)| *rank);
    members.extend(ranked.into_iter().map(|(_, member)| member));
}
