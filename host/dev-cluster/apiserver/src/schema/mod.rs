//! The types of the served kinds: fields, merge strategies, and serialization of empty values.

mod body;
mod custom;
mod decode;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use crate::descriptors::{PerKind, ResourceKind};

pub(crate) use self::body::{decode, decode_applied};
pub(crate) use self::decode::{empty, fill};

/// The type definitions. The file's head has the grammar.
const TYPE_DEFINITIONS: &str = include_str!("types.txt");

/// The type of a field, list element or map value.
#[derive(Debug)]
pub(crate) enum Type {
    Scalar(Scalar),
    List(Box<Type>, ListType),
    /// A map with arbitrary keys and values of one type. The flag is true if field managers own the map as a
    /// whole, not its entries.
    Map(Box<Type>, bool),
    Struct(&'static Struct),
}

/// A scalar type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar {
    Any,
    String,
    Bytes,
    Int32,
    Int64,
    Bool,
    Quantity,
    /// A time in whole seconds.
    Time,
    /// A time in microseconds.
    MicroTime,
    IntOrString,
    /// A string or integer of a custom resource. Its validation accepts both, but field managers only a
    /// string.
    StringOrInt,
}

/// `x-kubernetes-list-type`
#[derive(Debug)]
pub(crate) enum ListType {
    /// Field managers own the list as a whole, and an apply replaces it.
    Atomic,
    /// Elements are unique scalars.
    Set,
    /// Elements are objects that these fields identify. The names of the fields are sorted.
    Keys(Vec<&'static str>),
}

/// The patch strategy of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchStrategy {
    /// Lists are replaced.
    Replace,
    /// Lists of scalars are merged.
    Merge,
    /// Lists of objects are merged by this field.
    MergeBy(&'static str),
}

/// The serialization of an empty value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EmptyValue {
    /// A Go pointer: an empty value is kept, and an unset one omitted.
    Keep,
    /// `omitempty`: an empty value is omitted.
    Omit,
    /// Always serialized; the type's zero value if unset.
    Fill,
    /// A Go pointer without `omitempty`: null if unset.
    Null,
}

/// A field of a type.
#[derive(Debug)]
pub(crate) struct Field {
    /// The path element: `f:name`.
    pub(crate) element: Arc<str>,
    pub(crate) field_type: Type,
    pub(crate) empty_value: EmptyValue,
    /// Default of the field. It is used only if the field identifies the elements of a list and an element
    /// omits it.
    pub(crate) default: Option<Value>,
    pub(crate) patch_strategy: PatchStrategy,
}

/// A type with named fields.
#[derive(Debug)]
pub(crate) struct Struct {
    pub(crate) name: &'static str,
    /// True if field managers own the struct as a whole, not its fields.
    pub(crate) atomic: bool,
    pub(crate) fields: BTreeMap<&'static str, Field>,
}

/// The type of a kind, without the fields `apiVersion` and `kind`.
pub(crate) fn of(kind: ResourceKind) -> &'static Struct {
    static ROOTS: OnceLock<PerKind<&'static Struct>> = OnceLock::new();
    ROOTS
        .get_or_init(|| {
            let mut parser = Parser { definitions: type_definitions(), parsed: BTreeMap::new() };
            let mut kinds = crate::descriptors::RESOURCES.iter().map(|resource| resource.kind);
            PerKind::new(|| parser.parse_struct(kinds.next().unwrap_or_default()))
        })
        .get(kind)
}

/// The lines of each type definition by type name: first the line with the name, then one line per field.
fn type_definitions() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut texts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut current = "";
    for line in TYPE_DEFINITIONS.lines().filter(|line| !line.starts_with('#')) {
        if !line.starts_with(' ') {
            current = line.split(' ').next().unwrap_or_default();
        }
        texts.entry(current).or_default().push(line);
    }
    texts
}

struct Parser {
    definitions: BTreeMap<&'static str, Vec<&'static str>>,
    parsed: BTreeMap<&'static str, &'static Struct>,
}

impl Parser {
    /// Parses a reference to a type: a name, or a name and `=granular`.
    fn parse_struct(&mut self, text: &'static str) -> &'static Struct {
        if let Some(done) = self.parsed.get(text) {
            return done;
        }
        let (name, granular) = text.strip_suffix("=granular").map_or((text, false), |name| (name, true));
        let lines = self.definitions.get(name).cloned().unwrap_or_default();
        let atomic = !granular && lines.first().is_some_and(|head| head.ends_with(" atomic"));
        let fields = lines.iter().skip(1).filter_map(|line| self.parse_field(line)).collect();
        // Leaked once per type: types are static.
        let parsed: &'static Struct = Box::leak(Box::new(Struct { name, atomic, fields }));
        self.parsed.insert(text, parsed);
        parsed
    }

    fn parse_field(&mut self, line: &'static str) -> Option<(&'static str, Field)> {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let shape = self.parse_type(words.next()?);
        let (mut empty, mut default, mut strategy) = (EmptyValue::Keep, None, PatchStrategy::Replace);
        for word in words {
            let (flag, value) = word.split_once('=').unwrap_or((word, ""));
            match flag {
                "+" => empty = EmptyValue::Fill,
                "*" => empty = EmptyValue::Null,
                "-" => empty = EmptyValue::Omit,
                "merge" => strategy = PatchStrategy::Merge,
                other => {
                    if let Some((_, key)) = other.split_once(':') {
                        strategy = PatchStrategy::MergeBy(key);
                    }
                }
            }
            if !value.is_empty() {
                default = Some(Value::from(value));
            }
        }
        let element = Arc::from(format!("f:{name}"));
        Some((
            name,
            Field { element, field_type: shape, empty_value: empty, default, patch_strategy: strategy },
        ))
    }

    fn parse_type(&mut self, text: &'static str) -> Type {
        if let Some(rest) = text.strip_prefix('[') {
            let (member, kind) = rest.rsplit_once(']').unwrap_or((rest, ""));
            let kind = match kind.strip_prefix('=') {
                None => ListType::Atomic,
                Some("set") => ListType::Set,
                Some(keys) => {
                    let mut keys: Vec<&str> = keys.split(',').collect();
                    keys.sort_unstable();
                    ListType::Keys(keys)
                }
            };
            return Type::List(Box::new(self.parse_type(member)), kind);
        }
        if let Some(rest) = text.strip_prefix('{') {
            let (member, kind) = rest.rsplit_once('}').unwrap_or((rest, ""));
            return Type::Map(Box::new(self.parse_type(member)), kind == "=atomic");
        }
        Type::Scalar(match text {
            "any" => Scalar::Any,
            "string" => Scalar::String,
            "bytes" => Scalar::Bytes,
            "int32" => Scalar::Int32,
            "int64" => Scalar::Int64,
            "bool" => Scalar::Bool,
            "quantity" => Scalar::Quantity,
            "time" => Scalar::Time,
            "microtime" => Scalar::MicroTime,
            "intorstring" => Scalar::IntOrString,
            "stringorint" => Scalar::StringOrInt,
            name => return Type::Struct(self.parse_struct(name)),
        })
    }
}

impl Struct {
    /// Finds a field by name.
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        self.fields.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::{ListType, ResourceKind, Type, empty, of};
    use crate::descriptors::RESOURCES;

    #[test]
    fn every_kind_has_a_schema() {
        for resource in &RESOURCES {
            assert!(of(resource.id).fields.len() > 1, "{}", resource.kind);
            assert!(of(resource.id).field("metadata").is_some(), "{}", resource.kind);
        }
    }

    #[test]
    fn list_map_keys_are_parsed() {
        let Some(Type::Struct(spec)) = of(ResourceKind::Pod).field("spec").map(|field| &field.field_type)
        else {
            panic!()
        };
        let Some(Type::List(container, ListType::Keys(keys))) =
            spec.field("containers").map(|one| &one.field_type)
        else {
            panic!()
        };
        assert_eq!(*keys, ["name"]);
        let Type::Struct(container) = &**container else { panic!() };
        let Some(Type::List(_, ListType::Keys(keys))) = container.field("ports").map(|one| &one.field_type)
        else {
            panic!()
        };
        assert_eq!(*keys, ["containerPort", "protocol"]);
    }

    #[test]
    fn empty_objects_match_go_zero_values() {
        assert_eq!(
            empty(ResourceKind::PersistentVolumeClaim).to_string(),
            r#"{"metadata":{},"spec":{"resources":{}},"status":{}}"#
        );
        assert_eq!(empty(ResourceKind::CsiNode).to_string(), r#"{"metadata":{},"spec":{"drivers":null}}"#);
    }
}
