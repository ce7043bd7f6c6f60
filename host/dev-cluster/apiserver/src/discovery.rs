//! Discovery and version documents.

use serde_json::{Value, json};

use crate::descriptors::{BINDING, GROUPS, RESOURCES, ResourceDescriptor, ResourceKind, VERSION};
use crate::meta;

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// The verbs of custom resources, in the order of kube-apiserver.
const CUSTOM_VERBS: [&str; 8] =
    ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];

/// The emulated Kubernetes release.
const KUBERNETES_VERSION: &str = "v1.36.0";

/// `gitVersion`: the emulated release with a suffix for this server.
pub(crate) fn git_version() -> String {
    format!("{KUBERNETES_VERSION}+cofferdam.{}", env!("CARGO_PKG_VERSION"))
}

/// `/version`.
pub(crate) fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "gitVersion": git_version(),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

/// The discovery document at a path; `None` if the path has none.
pub(crate) fn document(path: &str) -> Option<Value> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api"] => Some(json!({
            "kind": "APIVersions",
            "versions": [VERSION],
            "serverAddressByClientCIDRs": [],
        })),
        ["api", VERSION] => Some(resource_list("")),
        ["apis"] => Some(json!({
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": GROUPS.iter().map(|name| group(name)).collect::<Vec<_>>(),
        })),
        ["apis", name] if GROUPS.contains(name) => {
            let mut document = group(name);
            if let Value::Object(map) = &mut document {
                map.insert("kind".to_owned(), json!("APIGroup"));
                map.insert("apiVersion".to_owned(), json!("v1"));
            }
            Some(document)
        }
        ["apis", name, VERSION] if GROUPS.contains(name) => Some(resource_list(name)),
        _ => None,
    }
}

fn group(name: &str) -> Value {
    let version = json!({"groupVersion": format!("{name}/{VERSION}"), "version": VERSION});
    json!({"name": name, "versions": [version], "preferredVersion": version})
}

/// The resources of a group, by plural name.
pub(crate) fn resources_of_group(group: &str) -> impl Iterator<Item = &'static ResourceDescriptor> {
    let mut resources: Vec<&ResourceDescriptor> =
        RESOURCES.iter().filter(|resource| resource.group == group).collect();
    resources.sort_by_key(|resource| resource.plural);
    resources.into_iter()
}

fn resource_list(group: &str) -> Value {
    let mut resources = Vec::new();
    for resource in resources_of_group(group) {
        let mut entry = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": verbs(resource),
        });
        if !resource.short_names.is_empty() {
            meta::set(&mut entry, "shortNames", json!(resource.short_names));
        }
        if !categories(resource).is_empty() {
            meta::set(&mut entry, "categories", json!(categories(resource)));
        }
        resources.push(entry);
        if resource.id == ResourceKind::Pod {
            resources.push(json!({
                "name": format!("{}/{BINDING}", resource.plural),
                "singularName": "",
                "namespaced": true,
                "kind": "Binding",
                "verbs": ["create"],
            }));
        }
        if resource.has_status {
            resources.push(json!({
                "name": format!("{}/status", resource.plural),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": STATUS_VERBS,
            }));
        }
    }
    let version = if group.is_empty() { VERSION.to_owned() } else { format!("{group}/{VERSION}") };
    let mut list = json!({"kind": "APIResourceList", "groupVersion": version, "resources": resources});
    if !group.is_empty() {
        meta::set(&mut list, "apiVersion", json!("v1"));
    }
    list
}

fn verbs(resource: &ResourceDescriptor) -> Vec<&'static str> {
    if resource.is_custom {
        return CUSTOM_VERBS.to_vec();
    }
    // Namespaces do not support deletecollection.
    let all = |verb: &&'static str| resource.id != ResourceKind::Namespace || *verb != "deletecollection";
    VERBS.into_iter().filter(all).collect()
}

/// Categories, such as `all` for `kubectl get all`.
fn categories(resource: &ResourceDescriptor) -> &'static [&'static str] {
    if resource.id == ResourceKind::Pod { &["all"] } else { &[] }
}

/// The aggregated discovery document of `/api` or `/apis`; `None` for another path.
pub(crate) fn aggregated(path: &str) -> Option<Value> {
    let groups: &[&str] = match path.trim_matches('/') {
        "api" => &[""],
        "apis" => &GROUPS,
        _ => return None,
    };
    let items: Vec<Value> = groups
        .iter()
        .map(|group| {
            let resources: Vec<Value> = resources_of_group(group).map(aggregated_resource).collect();
            let meta = if group.is_empty() { json!({}) } else { json!({"name": group}) };
            json!({
                "metadata": meta,
                "versions": [{"version": VERSION, "freshness": "Current", "resources": resources}],
            })
        })
        .collect();
    Some(json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }))
}

fn aggregated_resource(resource: &'static ResourceDescriptor) -> Value {
    let kind = json!({"group": resource.group, "version": VERSION, "kind": resource.kind});
    let mut document = json!({
        "resource": resource.plural,
        "singularResource": resource.singular,
        "responseKind": kind,
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "shortNames": resource.short_names,
        "categories": categories(resource),
        "verbs": verbs(resource),
    });
    let mut parts = Vec::new();
    if resource.id == ResourceKind::Pod {
        let kind = json!({"group": "", "version": VERSION, "kind": "Binding"});
        parts.push(json!({"subresource": BINDING, "responseKind": kind, "verbs": ["create"]}));
    }
    if resource.has_status {
        parts.push(json!({"subresource": "status", "responseKind": kind, "verbs": STATUS_VERBS}));
    }
    if !parts.is_empty() {
        meta::set(&mut document, "subresources", json!(parts));
    }
    document
}
