//! The types of the served kinds: which fields there are, how lists and maps merge, and what Go writes or
//! leaves out.

mod decode;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use crate::descriptors::{PerKind, ResourceKind};

pub(crate) use self::decode::decode;

/// See its head for the grammar.
const TYPE_DEFINITIONS: &str = include_str!("types.txt");

/// What a field, a member of a list or a value of a map holds.
#[derive(Debug)]
pub(crate) enum Type {
    Scalar(Scalar),
    List(Box<Type>, ListType),
    /// Keys are free, values are of one type. Owned as a whole when atomic.
    Map(Box<Type>, bool),
    Struct(&'static Struct),
}

/// A leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar {
    Any,
    String,
    Bytes,
    Int32,
    Int64,
    Bool,
    Quantity,
    /// Whole seconds.
    Time,
    /// Microseconds.
    MicroTime,
    IntOrString,
}

/// How the members of a list are told apart.
#[derive(Debug)]
pub(crate) enum ListType {
    /// Not at all: the list is one value.
    Atomic,
    /// By their value.
    Set,
    /// By these fields, in the order of their names.
    Keys(Vec<&'static str>),
}

/// How a strategic merge patch treats a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchStrategy {
    /// Lists are replaced.
    Replace,
    /// Lists of values are united.
    Merge,
    /// Lists of objects are merged by this field.
    MergeBy(&'static str),
}

/// What becomes of an empty value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EmptyValue {
    /// A pointer in Go: it is kept.
    Keep,
    /// `omitempty`: it is left out.
    Omit,
    /// It is written even when nobody has set it.
    Fill,
    /// A pointer in Go that is written as null when nobody has set it.
    Null,
}

/// A field of a type.
#[derive(Debug)]
pub(crate) struct Field {
    /// The name as a path of owned fields has it: `f:name`.
    pub(crate) element: Arc<str>,
    pub(crate) field_type: Type,
    pub(crate) empty_value: EmptyValue,
    /// What an absent key of a list's member counts as.
    pub(crate) default: Option<Value>,
    pub(crate) patch_strategy: PatchStrategy,
}

/// A type with named fields.
#[derive(Debug)]
pub(crate) struct Struct {
    pub(crate) name: &'static str,
    /// Owned as a whole.
    pub(crate) atomic: bool,
    pub(crate) fields: BTreeMap<&'static str, Field>,
}

/// The type of a kind's objects, without `apiVersion` and `kind`.
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

/// The lines of each type, the head first.
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
    /// A type by its name, or by its name and `=granular`.
    fn parse_struct(&mut self, text: &'static str) -> &'static Struct {
        if let Some(done) = self.parsed.get(text) {
            return done;
        }
        let (name, granular) = text.strip_suffix("=granular").map_or((text, false), |name| (name, true));
        let lines = self.definitions.get(name).cloned().unwrap_or_default();
        let atomic = !granular && lines.first().is_some_and(|head| head.ends_with(" atomic"));
        let fields = lines.iter().skip(1).filter_map(|line| self.parse_field(line)).collect();
        // Once per type and process, so the types can live as long as the process.
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
            name => return Type::Struct(self.parse_struct(name)),
        })
    }
}

impl Struct {
    /// The field with this name.
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        self.fields.get(name)
    }
}

/// An object of a kind that nobody has set anything of, as Go's types write it.
pub(crate) fn empty(kind: ResourceKind) -> &'static Value {
    static EMPTY: OnceLock<PerKind<OnceLock<Value>>> = OnceLock::new();
    EMPTY.get_or_init(|| PerKind::new(OnceLock::new)).get(kind).get_or_init(|| {
        let mut value = Value::Object(serde_json::Map::new());
        fill(kind, &mut value);
        value
    })
}

/// Leaves out and fills in what Go's types would.
pub(crate) fn fill(kind: ResourceKind, value: &mut Value) {
    if let Value::Object(map) = value {
        decode::fill_recursively(of(kind), map);
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
