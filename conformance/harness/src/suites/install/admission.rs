//! The policies of `cofferdam render admission-policy`: requests of a node's account are allowed for the node
//! of its token, and denied for others; those of an account with the role `startup-taint` are allowed if they
//! remove the taint from a Node, and change nothing else.

use anyhow::{Context as _, Result, bail, ensure};
use http::{Method, Request, header::CONTENT_TYPE};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

use super::{Cluster, TIMEOUT};
use crate::{account::Account, process, wait::until};

const DRIVER: &str = "pool.policy.cofferdam.dev";
const NAMESPACE: &str = "cofferdam-policy";
/// Account of a node.
const ACCOUNT: &str = "pool";
/// A node-local driver whose topology key names a zone, and the account of its nodes.
const LABELS_DRIVER: &str = "labels.policy.cofferdam.dev";
const LABELS_ACCOUNT: &str = "labels";
/// Account with the role `startup-taint`.
const TAINT_ACCOUNT: &str = "controller";
const NODE: &str = "node-1";
const OTHER_NODE: &str = "node-2";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";
const MERGE_PATCH: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";

/// A request of an account, and the message of its denial; `None` if it is allowed.
#[derive(Clone)]
struct PolicyCase {
    account: &'static str,
    /// Node of the token.
    node: Option<&'static str>,
    method: Method,
    path: String,
    body: Value,
    denial: Option<&'static str>,
}

/// The kinds of snapshots are served.
pub(super) async fn check(cluster: &Cluster<'_>) -> Result<()> {
    let node_local =
        (ACCOUNT, ["provisioner", "resizer", "snapshotter"].as_slice(), ["--drivers", "node"].as_slice());
    let node_labels = (LABELS_ACCOUNT, node_local.1, ["--drivers", "node-labels"].as_slice());
    for (account, roles, flags) in [node_local, node_labels, (TAINT_ACCOUNT, &["startup-taint"], &[])] {
        Account::render(cluster.run, cluster.plane, account, roles, NAMESPACE, flags).await?;
    }
    apply_policies(cluster, "node-local", DRIVER, ACCOUNT).await?;
    apply_policies(cluster, "node-labels", LABELS_DRIVER, LABELS_ACCOUNT).await?;
    apply_policies(cluster, "startup-taint", DRIVER, TAINT_ACCOUNT).await?;
    create_objects(cluster).await?;
    let (of_nodes, of_labels, of_taints) =
        ([cases(), content_cases()].concat(), label_cases(), taint_cases());
    for first in [of_nodes.first(), of_labels.first(), of_taints.first()] {
        let first = first.context("no cases")?;
        // A request that is allowed before must have no effect.
        let first = PolicyCase { path: format!("{}?dryRun=All", first.path), ..first.clone() };
        until("the policies have an effect", TIMEOUT, async || check_case(cluster, &first).await).await?;
    }
    let cases = [of_nodes, of_labels, of_taints].concat();
    for case in &cases {
        check_case(cluster, case)
            .await
            .with_context(|| format!("{} {} {}", case.method, case.path, case.body))?;
    }
    ensure_type_checked(cluster).await?;
    // A DaemonSet would have a pod there.
    cluster.kubectl.run(&["delete", "node", OTHER_NODE]).await?;
    cluster.run.add_note(&format!("{} requests of accounts with admission policies", cases.len()))
}

/// Applies a policy of `cofferdam render admission-policy` for an account.
async fn apply_policies(cluster: &Cluster<'_>, policy: &str, driver: &str, account: &str) -> Result<()> {
    let rendered = [
        "render",
        "admission-policy",
        "--driver",
        driver,
        "--policy",
        policy,
        "--namespace",
        NAMESPACE,
        "--service-account",
        account,
    ];
    let file = cluster.run.directory().join(format!("admission-policy-{policy}.yaml"));
    std::fs::write(&file, process::run_to_completion(cluster.run.program(), &rendered).await?)?;
    cluster.kubectl.run(&["apply", "--filename", &file.display().to_string()]).await?;
    Ok(())
}

/// Requests of the account with the role `startup-taint` about a node whose first taint is that of the
/// driver.
fn taint_cases() -> Vec<PolicyCase> {
    let case = |path: &str, operations: Value, denial: Option<&'static str>| PolicyCase {
        account: TAINT_ACCOUNT,
        node: None,
        method: Method::PATCH,
        path: format!("/api/v1/nodes/{path}"),
        body: operations,
        denial,
    };
    let add = |path: &str, value: Value| json!([{"op": "add", "path": path, "value": value}]);
    let remove = |index: usize| json!([{"op": "remove", "path": format!("/spec/taints/{index}")}]);
    let (only_taints, only_removal) =
        (Some("expected a change of the taints of the Node only"), Some("expected the removal of the taint"));
    let taint = json!({"key": "other", "effect": "NoExecute"});
    vec![
        case(OTHER_NODE, add("/metadata/labels", json!({"a": "b"})), only_taints),
        case(OTHER_NODE, add("/metadata/annotations", json!({"a": "b"})), only_taints),
        case(OTHER_NODE, add("/spec/unschedulable", json!(true)), only_taints),
        case(OTHER_NODE, add("/spec/providerID", json!("other")), only_taints),
        case(OTHER_NODE, add("/spec/taints/0", taint), only_removal),
        case(OTHER_NODE, add("/spec/taints/0/effect", json!("PreferNoSchedule")), only_removal),
        case(OTHER_NODE, remove(1), only_removal),
        case(OTHER_NODE, json!([{"op": "remove", "path": "/spec/taints"}]), only_removal),
        case(OTHER_NODE, remove(0), None),
        case(OTHER_NODE, remove(0), only_removal),
    ]
}

/// Requests of the account of a driver whose node affinities name a zone.
fn label_cases() -> Vec<PolicyCase> {
    let case = |method: Method, path: &str, body: Value, denial: Option<&'static str>| PolicyCase {
        account: LABELS_ACCOUNT,
        node: Some(NODE),
        method,
        path: path.to_owned(),
        body,
        denial,
    };
    let (volumes, contents) =
        ("/api/v1/persistentvolumes", "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents");
    let status = json!({"status": {"readyToUse": true}});
    let of_driver = Some("of the CSI driver labels.policy.cofferdam.dev");
    vec![
        case(Method::POST, volumes, volume("foreign", &csi(DRIVER), NODE), of_driver),
        case(Method::POST, volumes, volume("zonal", &csi(LABELS_DRIVER), OTHER_NODE), None),
        PolicyCase {
            node: None,
            ..case(Method::DELETE, &format!("{volumes}/zonal"), Value::Null, Some("the token names no node"))
        },
        case(Method::DELETE, &format!("{volumes}/zonal"), Value::Null, None),
        case(Method::PATCH, &format!("{contents}/labels-other/status"), status.clone(), of_driver),
        case(Method::PATCH, &format!("{contents}/labels-own/status"), status, None),
    ]
}

fn cases() -> Vec<PolicyCase> {
    let case = |method: Method, path: String, body: Value, denial: Option<&'static str>| PolicyCase {
        account: ACCOUNT,
        node: Some(NODE),
        method,
        path,
        body,
        denial,
    };
    let volumes = || "/api/v1/persistentvolumes".to_owned();
    let volume_path = |name: &str| format!("/api/v1/persistentvolumes/{name}");
    let claim_path = |name: &str| format!("/api/v1/namespaces/default/persistentvolumeclaims/{name}");
    let maps = || format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    let host_path = json!({"hostPath": {"path": "/"}});
    let own_node = "expected a PersistentVolume of the own node; the token is of the node node-1";
    let own_claim = "expected a claim whose selected node is the own node";
    let own_journal = "expected an intent journal of the own node";
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let no_node = json!({"metadata": {"annotations": {SELECTED_NODE: null}}});
    let status = json!({"status": {"conditions": []}});
    vec![
        case(
            Method::POST,
            volumes(),
            volume("host", &host_path, NODE),
            Some("of the CSI driver pool.policy.cofferdam.dev"),
        ),
        PolicyCase {
            node: None,
            ..case(
                Method::POST,
                volumes(),
                volume("none", &csi(DRIVER), NODE),
                Some("the token names no node"),
            )
        },
        case(Method::POST, volumes(), volume("own", &csi(DRIVER), NODE), None),
        case(Method::POST, volumes(), volume("foreign", &csi(DRIVER), OTHER_NODE), Some(own_node)),
        case(
            Method::POST,
            volumes(),
            volume("driver", &csi("array.example.com"), NODE),
            Some("of the CSI driver"),
        ),
        case(Method::PATCH, volume_path("own"), label.clone(), None),
        case(Method::PATCH, volume_path("other"), label.clone(), Some(own_node)),
        case(Method::DELETE, volume_path("other"), Value::Null, Some(own_node)),
        case(Method::DELETE, volume_path("own"), Value::Null, None),
        case(Method::PATCH, claim_path("other"), no_node.clone(), Some(own_claim)),
        case(Method::PATCH, claim_path("own"), label, Some("expected a change of the annotation")),
        case(Method::PATCH, format!("{}/status", claim_path("own")), status.clone(), None),
        case(Method::PATCH, format!("{}/status", claim_path("other")), status, Some(own_claim)),
        case(
            Method::PATCH,
            format!("{}/status", claim_path("own")),
            json!({"status": {"phase": "Lost"}}),
            Some("expected no change of the phase"),
        ),
        case(Method::PATCH, claim_path("own"), no_node.clone(), None),
        case(Method::PATCH, claim_path("bound"), no_node, Some("expected a claim without a volume")),
        case(Method::POST, maps(), config_map(&journal("0"), NODE), None),
        case(Method::POST, maps(), config_map(&journal("1"), OTHER_NODE), Some(own_journal)),
        case(
            Method::POST,
            maps(),
            config_map("cofferdam-orphans-array.example.com", NODE),
            Some(own_journal),
        ),
        case(Method::POST, maps(), config_map("cofferdam-restored", NODE), None),
        case(
            Method::PATCH,
            format!("{}/{}", maps(), journal("7")),
            json!({"metadata": {"annotations": {"cofferdam.dev/node": NODE}}}),
            Some(own_journal),
        ),
    ]
}

/// Requests of a node's account about VolumeSnapshotContents.
fn content_cases() -> Vec<PolicyCase> {
    let case = |name: &str, body: Value, denial: Option<&'static str>| PolicyCase {
        account: ACCOUNT,
        node: Some(NODE),
        method: Method::PATCH,
        path: format!("/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/{name}"),
        body,
        denial,
    };
    let own = Some("of the CSI driver pool.policy.cofferdam.dev and of the own node");
    let unchanged = Some("expected a change of the status, of finalizers or of the annotations");
    let (status, finalizers) =
        (json!({"status": {"readyToUse": true}}), json!({"metadata": {"finalizers": null}}));
    let annotation = |name: &str| json!({"metadata": {"annotations": {name: "true"}}});
    let label = json!({"metadata": {"labels": {MANAGED_BY: OTHER_NODE}}});
    vec![
        case("own/status", status.clone(), None),
        case("other/status", status.clone(), own),
        case("driver/status", status, own),
        case("other", finalizers.clone(), own),
        case("own", label, own),
        case("own", json!({"metadata": {"labels": {"a": "b"}}}), unchanged),
        case("own", json!({"spec": {"deletionPolicy": "Retain"}}), unchanged),
        case("own", annotation("snapshot.storage.kubernetes.io/allow-volume-mode-change"), unchanged),
        case("own", annotation("snapshot.storage.kubernetes.io/volumesnapshot-being-created"), None),
        case("own", annotation("cofferdam.dev/create-snapshot-request"), None),
        case("own", finalizers, None),
    ]
}

/// A VolumeSnapshotContent of a driver and a node.
fn content(name: &str, driver: &str, node: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": {"name": name, "labels": {MANAGED_BY: node}, "finalizers": ["example.com/kept"]},
        "spec": {
            "deletionPolicy": "Delete", "driver": driver, "source": {"volumeHandle": "v"},
            "volumeSnapshotRef": {"namespace": "default", "name": name},
        },
    })
}

fn journal(shard: &str) -> String {
    format!("cofferdam-intents-{DRIVER}.0123456789abcdef-{shard}")
}

fn csi(driver: &str) -> Value {
    json!({"csi": {"driver": driver, "volumeHandle": "v"}})
}

fn volume(name: &str, source: &Value, node: &str) -> Value {
    let expression = json!({"key": "topology.cofferdam.dev/node", "operator": "In", "values": [node]});
    let mut volume = json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
        },
    });
    if let (Some(spec), Some(source)) =
        (volume.pointer_mut("/spec").and_then(Value::as_object_mut), source.as_object())
    {
        spec.extend(source.clone());
    }
    volume
}

fn config_map(name: &str, node: &str) -> Value {
    json!({"metadata": {"name": name, "annotations": {"cofferdam.dev/node": node}}})
}

/// Creates objects of both nodes, as administrator.
async fn create_objects(cluster: &Cluster<'_>) -> Result<()> {
    let typed = |kind: &str, mut object: Value| {
        if let Some(fields) = object.as_object_mut() {
            fields.insert("apiVersion".to_owned(), json!("v1"));
            fields.insert("kind".to_owned(), json!(kind));
        }
        object
    };
    let claim = |name: &str, node: &str, volume: &str| {
        json!({
            "metadata": {"name": name, "namespace": "default", "annotations": {SELECTED_NODE: node}},
            "spec": {
                "storageClassName": "unbound", "accessModes": ["ReadWriteOnce"], "volumeName": volume,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        })
    };
    let mut map = config_map(&journal("7"), OTHER_NODE);
    if let Some(metadata) = map.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        metadata.insert("namespace".to_owned(), json!(NAMESPACE));
    }
    let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
    let taints = [taint(&format!("{DRIVER}/agent-not-ready")), taint("kept")];
    let node = json!({"metadata": {"name": OTHER_NODE}, "spec": {"taints": taints}});
    let items = [
        typed("Node", node),
        typed("PersistentVolume", volume("other", &csi(DRIVER), OTHER_NODE)),
        typed("PersistentVolumeClaim", claim("own", NODE, "")),
        typed("PersistentVolumeClaim", claim("other", OTHER_NODE, "")),
        typed("PersistentVolumeClaim", claim("bound", NODE, "absent")),
        typed("ConfigMap", map),
        content("own", DRIVER, NODE),
        content("other", DRIVER, OTHER_NODE),
        content("driver", "array.example.com", NODE),
        content("labels-own", LABELS_DRIVER, NODE),
        content("labels-other", LABELS_DRIVER, OTHER_NODE),
    ];
    let file = cluster.run.directory().join("admission-objects.json");
    std::fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string())?;
    cluster.kubectl.run(&["create", "--filename", &file.display().to_string()]).await?;
    Ok(())
}

async fn check_case(cluster: &Cluster<'_>, case: &PolicyCase) -> Result<()> {
    let content_type = match (&case.method, &case.body) {
        (&Method::PATCH, Value::Array(_)) => JSON_PATCH,
        (&Method::PATCH, _) => MERGE_PATCH,
        _ => "application/json",
    };
    let user = format!("system:serviceaccount:{NAMESPACE}:{}", case.account);
    let mut request = Request::builder()
        .method(case.method.clone())
        .uri(&case.path)
        .header(CONTENT_TYPE, content_type)
        .header("impersonate-user", user)
        .header("impersonate-group", "system:authenticated");
    if let Some(node) = case.node {
        request = request.header("impersonate-extra-authentication.kubernetes.io%2fnode-name", node);
    }
    let body = if case.body.is_null() { Vec::new() } else { case.body.to_string().into_bytes() };
    let result = cluster.client().request_text(request.body(body)?).await;
    match (result, case.denial) {
        (Ok(_), None) => Ok(()),
        (Ok(_), Some(denial)) => bail!("allowed: expected the denial {denial:?}"),
        (Err(error), None) => Err(error.into()),
        (Err(error), Some(denial)) => {
            let error = error.to_string();
            ensure!(
                error.contains("ValidatingAdmissionPolicy") && error.contains(denial),
                "{error}: expected {denial:?}"
            );
            Ok(())
        }
    }
}

/// Checks that the API server finds no error of types in the policies.
async fn ensure_type_checked(cluster: &Cluster<'_>) -> Result<()> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client().clone());
    until("the policies are type-checked", TIMEOUT, async || {
        let all = policies.list(&ListParams::default()).await?.items;
        ensure!(all.len() == 9, "{} policies", all.len());
        for policy in all {
            let status = policy.status.context("no status")?;
            let checked = status.type_checking.context("not type-checked")?;
            let warnings = checked.expression_warnings.unwrap_or_default();
            ensure!(warnings.is_empty(), "{:?}: {warnings:?}", policy.metadata.name);
        }
        Ok(())
    })
    .await
}
