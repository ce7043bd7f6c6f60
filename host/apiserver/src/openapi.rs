//! As much OpenAPI as `kubectl` needs to leave validation to the server: which resources can be patched, and that
//! they take `fieldValidation`. Schemas are not published.

use serde_json::{Map, Value, json};

use crate::descriptors::{GROUPS, Resource, VERSION};
use crate::discovery::{git_version, of_group};

/// The document at an OpenAPI v3 path.
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
    let paths: Map<String, Value> = of_group(group).map(path_item).collect();
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": git_version()},
        "paths": paths,
        "components": {"schemas": {}},
    }))
}

fn path_item(resource: &'static Resource) -> (String, Value) {
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
