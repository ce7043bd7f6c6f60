//! Sets of field paths, as in `metadata.managedFields`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};

use crate::schema::{Struct, Type};

/// A path element in its wire form: `f:name` is a field or map key, `k:{…}` a list element with these keys,
/// `v:…` a value of a set, and `i:…` a list index. Indexes are only accepted from clients.
pub(crate) type PathElement = Arc<str>;

/// A set of paths. A path and its children are members independently.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldSet(BTreeMap<PathElement, FieldSetNode>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct FieldSetNode {
    is_member: bool,
    children: FieldSet,
}

impl FieldSetNode {
    fn is_empty(&self) -> bool {
        !self.is_member && self.children.is_empty()
    }
}

impl FieldSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a path of one element.
    pub(crate) fn insert(&mut self, element: &PathElement) {
        self.0.entry(Arc::clone(element)).or_default().is_member = true;
    }

    /// Adds paths below an element.
    pub(crate) fn insert_children(&mut self, element: &PathElement, children: FieldSet) {
        if !children.is_empty() {
            let node = self.0.entry(Arc::clone(element)).or_default();
            node.children = std::mem::take(&mut node.children).union(children);
        }
    }

    /// A set of one path.
    pub(crate) fn from_path(path: &[&str]) -> Self {
        let mut set = Self::default();
        if let Some((first, rest)) = path.split_first() {
            let element = PathElement::from(format!("f:{first}"));
            if rest.is_empty() {
                set.insert(&element);
            } else {
                set.insert_children(&element, Self::from_path(rest));
            }
        }
        set
    }

    /// Returns `true` if a path of one element is in the set.
    pub(crate) fn contains(&self, element: &str) -> bool {
        self.0.get(element).is_some_and(|node| node.is_member)
    }

    /// The paths below an element; `None` if there are none.
    pub(crate) fn children(&self, element: &str) -> Option<&FieldSet> {
        self.0.get(element).map(|node| &node.children).filter(|children| !children.is_empty())
    }

    pub(crate) fn union(mut self, other: FieldSet) -> Self {
        for (element, node) in other.0 {
            let own = self.0.entry(element).or_default();
            own.is_member |= node.is_member;
            own.children = std::mem::take(&mut own.children).union(node.children);
        }
        self
    }

    /// The paths of this set that are not in the other set. Children of removed paths stay.
    pub(crate) fn difference(&self, other: &FieldSet) -> Self {
        let keep = |(element, node): (&PathElement, &FieldSetNode)| {
            let node = match other.0.get(element) {
                None => node.clone(),
                Some(gone) => FieldSetNode {
                    is_member: node.is_member && !gone.is_member,
                    children: node.children.difference(&gone.children),
                },
            };
            (!node.is_empty()).then(|| (Arc::clone(element), node))
        };
        Self(self.0.iter().filter_map(keep).collect())
    }

    /// As [`FieldSet::difference`], but removes children with their parent.
    pub(crate) fn recursive_difference(&self, other: &FieldSet) -> Self {
        let keep = |(element, node): (&PathElement, &FieldSetNode)| {
            let node = match other.0.get(element) {
                None => node.clone(),
                Some(gone) if gone.is_member => return None,
                Some(gone) => FieldSetNode {
                    is_member: node.is_member,
                    children: node.children.recursive_difference(&gone.children),
                },
            };
            (!node.is_empty()).then(|| (Arc::clone(element), node))
        };
        Self(self.0.iter().filter_map(keep).collect())
    }

    pub(crate) fn intersection(&self, other: &FieldSet) -> Self {
        let keep = |(element, node): (&PathElement, &FieldSetNode)| {
            let both = other.0.get(element)?;
            let node = FieldSetNode {
                is_member: node.is_member && both.is_member,
                children: node.children.intersection(&both.children),
            };
            (!node.is_empty()).then(|| (Arc::clone(element), node))
        };
        Self(self.0.iter().filter_map(keep).collect())
    }

    /// Adds the declared fields that are prefixes of the paths.
    pub(crate) fn ensure_named_fields_are_members(&self, shape: TypeRef<'_>) -> Self {
        let widen = |(element, node): (&PathElement, &FieldSetNode)| {
            let declared = !node.children.is_empty() && shape.has_field(element);
            let children = node.children.ensure_named_fields_are_members(shape.child(element));
            (Arc::clone(element), FieldSetNode { is_member: node.is_member || declared, children })
        };
        Self(self.0.iter().map(widen).collect())
    }

    /// All paths in readable form, parents first.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect("", &mut paths);
        paths
    }

    fn collect(&self, prefix: &str, paths: &mut Vec<String>) {
        for (element, _) in self.0.iter().filter(|(_, node)| node.is_member) {
            paths.push(format!("{prefix}{}", readable(element)));
        }
        for (element, node) in &self.0 {
            if !node.children.is_empty() {
                node.children.collect(&format!("{prefix}{}", readable(element)), paths);
            }
        }
    }

    /// Serializes the paths as a map, with `.` if the path itself is a member.
    fn serialize_node<S: Serializer>(&self, member: bool, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if member && !self.is_empty() {
            map.serialize_entry(".", &Map::new())?;
        }
        for (element, node) in &self.0 {
            map.serialize_entry(&**element, node)?;
        }
        map.end()
    }

    /// Parses `FieldsV1`. `None` if it is malformed.
    pub(crate) fn from_value(value: &Value) -> Option<Self> {
        let mut set = Self::default();
        for (key, below) in value.as_object()? {
            let below = below.as_object()?;
            if key == "." {
                continue;
            }
            let element = canonical(key)?;
            let children = Self::from_value(&Value::Object(below.clone()))?;
            let member = below.contains_key(".") || children.is_empty();
            set.0.insert(element, FieldSetNode { is_member: member, children });
        }
        Some(set)
    }
}

/// Serializes as `FieldsV1`.
impl Serialize for FieldSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.serialize_node(false, serializer)
    }
}

impl Serialize for FieldSetNode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.children.serialize_node(self.is_member, serializer)
    }
}

/// The canonical form of a path element; `None` if it is malformed.
fn canonical(text: &str) -> Option<PathElement> {
    let (kind, rest) = text.split_once(':')?;
    match kind {
        "f" => Some(PathElement::from(text)),
        "k" | "v" => {
            let value: Value = serde_json::from_str(rest).ok()?;
            (kind == "v" || value.is_object()).then(|| PathElement::from(format!("{kind}:{value}")))
        }
        "i" => rest.parse::<i64>().ok().map(|_| PathElement::from(text)),
        _ => None,
    }
}

/// A path element as in messages: `.name`, `[key=value]`.
pub(super) fn readable(element: &str) -> String {
    match element.split_once(':') {
        Some(("k", keys)) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        Some(("v", value)) => format!("[={value}]"),
        Some(("i", index)) => format!("[{index}]"),
        Some((_, name)) => format!(".{name}"),
        None => element.to_owned(),
    }
}

/// The type at a path, if known.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TypeRef<'a> {
    Struct(&'a Struct),
    /// Any type except a struct.
    Type(&'a Type),
    Unknown,
}

impl<'a> TypeRef<'a> {
    pub(crate) fn from_type(shape: &'a Type) -> Self {
        match shape {
            Type::Struct(shape) => Self::Struct(shape),
            Type::Scalar(_) | Type::List(..) | Type::Map(..) => Self::Type(shape),
        }
    }

    fn has_field(self, element: &str) -> bool {
        match self {
            TypeRef::Struct(shape) => {
                element.strip_prefix("f:").is_some_and(|name| shape.field(name).is_some())
            }
            TypeRef::Type(_) | TypeRef::Unknown => false,
        }
    }

    fn child(self, element: &str) -> TypeRef<'a> {
        match self {
            TypeRef::Struct(shape) => element
                .strip_prefix("f:")
                .and_then(|name| shape.field(name))
                .map_or(TypeRef::Unknown, |field| TypeRef::from_type(&field.field_type)),
            TypeRef::Type(Type::Map(member, _)) => TypeRef::from_type(member),
            TypeRef::Type(Type::List(member, _)) if element.starts_with("k:") => TypeRef::from_type(member),
            TypeRef::Type(_) | TypeRef::Unknown => TypeRef::Unknown,
        }
    }
}
