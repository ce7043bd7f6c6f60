//! OpenAPI documents for `kubectl`: for server-side validation (patchable resources with `fieldValidation`),
//! list merges and `kubectl explain`. Types have no descriptions.

use serde_json::{Map, Value, json};

use crate::descriptors::{GROUPS, ResourceDescriptor, VERSION};
use crate::discovery::{git_version, resources_of_group};
use crate::meta;
use crate::schema::{self, Field, ListType, PatchStrategy, Scalar, Struct, Type};

/// The OpenAPI v2 document without types. kubectl requests it for a kind that is not in the v3 document,
/// before it reports an unknown kind.
pub(crate) fn v2() -> Value {
    json!({"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.36"}, "paths": {}})
}

/// The OpenAPI v2 document in protobuf.
pub(crate) const V2_PROTOBUF: &[u8] = b"\x0a\x032.0\x12\x13\x0a\x0aKubernetes\x12\x05v1.36\x42\x00";

/// The OpenAPI v3 document at a path; `None` if the path has none.
pub(crate) fn document(path: &str) -> Option<Value> {
    let rest = path.trim_end_matches('/').strip_prefix("/openapi/v3")?;
    if rest.is_empty() {
        let mut paths = Map::new();
        for root in std::iter::once(format!("api/{VERSION}"))
            .chain(GROUPS.iter().map(|group| format!("apis/{group}/{VERSION}")))
        {
            let url = format!("/openapi/v3/{root}?hash={}", env!("CARGO_PKG_VERSION"));
            paths.insert(root, json!({"serverRelativeURL": url}));
        }
        return Some(json!({"paths": paths}));
    }
    let group = match rest.trim_matches('/').split('/').collect::<Vec<_>>().as_slice() {
        ["api", VERSION] => "",
        ["apis", group, VERSION] => GROUPS.iter().find(|known| *known == group)?,
        _ => return None,
    };
    let paths: Map<String, Value> = resources_of_group(group).map(path_item).collect();
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": git_version()},
        "paths": paths,
        "components": {"schemas": schemas(group)},
    }))
}

/// The schemas of a group's kinds by name.
fn schemas(group: &str) -> Map<String, Value> {
    let mut schemas = Map::new();
    for resource in resources_of_group(group) {
        let root = schema::of(resource.id);
        add_schema(root, &mut schemas);
        if let Some(Value::Object(document)) = schemas.get_mut(root.name) {
            let kind = json!([{"group": resource.group, "version": VERSION, "kind": resource.kind}]);
            document.insert("x-kubernetes-group-version-kind".to_owned(), kind);
            if let Some(Value::Object(properties)) = document.get_mut("properties") {
                properties.insert("apiVersion".to_owned(), json!({"type": "string"}));
                properties.insert("kind".to_owned(), json!({"type": "string"}));
            }
        }
    }
    schemas
}

fn add_schema(shape: &'static Struct, schemas: &mut Map<String, Value>) {
    if schemas.contains_key(shape.name) {
        return;
    }
    schemas.insert(shape.name.to_owned(), Value::Null);
    let properties: Map<String, Value> = shape
        .fields
        .iter()
        .map(|(name, field)| ((*name).to_owned(), property_schema(field, schemas)))
        .collect();
    let mut document = json!({"type": "object", "properties": properties});
    if shape.atomic {
        meta::set(&mut document, "x-kubernetes-map-type", json!("atomic"));
    }
    schemas.insert(shape.name.to_owned(), document);
}

fn property_schema(field: &'static Field, schemas: &mut Map<String, Value>) -> Value {
    let mut document = type_schema(&field.field_type, schemas);
    match field.patch_strategy {
        PatchStrategy::Replace => {}
        PatchStrategy::Merge => meta::set(&mut document, "x-kubernetes-patch-strategy", json!("merge")),
        PatchStrategy::MergeBy(key) => {
            meta::set(&mut document, "x-kubernetes-patch-strategy", json!("merge"));
            meta::set(&mut document, "x-kubernetes-patch-merge-key", json!(key));
        }
    }
    document
}

fn type_schema(shape: &'static Type, schemas: &mut Map<String, Value>) -> Value {
    match shape {
        Type::Struct(shape) => {
            add_schema(shape, schemas);
            json!({"allOf": [{"$ref": format!("#/components/schemas/{}", shape.name)}]})
        }
        Type::List(member, kind) => {
            let mut list = json!({"type": "array", "items": type_schema(member, schemas)});
            let (name, keys) = match kind {
                ListType::Atomic => ("atomic", None),
                ListType::Set => ("set", None),
                ListType::Keys(keys) => ("map", Some(keys)),
            };
            meta::set(&mut list, "x-kubernetes-list-type", json!(name));
            if let Some(keys) = keys {
                meta::set(&mut list, "x-kubernetes-list-map-keys", json!(keys));
            }
            list
        }
        Type::Map(member, atomic) => {
            let mut map = json!({"type": "object", "additionalProperties": type_schema(member, schemas)});
            if *atomic {
                meta::set(&mut map, "x-kubernetes-map-type", json!("atomic"));
            }
            map
        }
        Type::Scalar(scalar) => match scalar {
            Scalar::Any => json!({"type": "object"}),
            Scalar::String | Scalar::Quantity => json!({"type": "string"}),
            Scalar::Bytes => json!({"type": "string", "format": "byte"}),
            Scalar::Int32 => json!({"type": "integer", "format": "int32"}),
            Scalar::Int64 => json!({"type": "integer", "format": "int64"}),
            Scalar::Bool => json!({"type": "boolean"}),
            Scalar::Time | Scalar::MicroTime => json!({"type": "string", "format": "date-time"}),
            Scalar::IntOrString | Scalar::StringOrInt => json!({"type": "string", "format": "int-or-string"}),
        },
    }
}

fn path_item(resource: &'static ResourceDescriptor) -> (String, Value) {
    let namespace = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let path = format!("{}{namespace}/{}/{{name}}", resource.root(), resource.plural);
    let kind = json!({"group": resource.group, "version": VERSION, "kind": resource.kind});
    let query = |name: &str, description: &str| {
        json!({"name": name, "in": "query", "description": description,
            "schema": {"type": "string", "uniqueItems": true}})
    };
    let patch = json!({
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": kind,
        "parameters": [
            query("dryRun", "All: validate without storing"),
            query("fieldValidation", "Ignore, Warn or Strict: what to do about unknown fields"),
        ],
        "responses": {"200": {"description": "OK"}},
    });
    (path, json!({"patch": patch}))
}
