//! The custom resources of snapshot.storage.k8s.io. Messages and states are those of kube-apiserver 1.36.3
//! with the definitions of external-snapshotter client 8.7.0.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says so by panicking"
)]

mod common;

use cofferdam_apiserver::ApiService;
use common::setup;
use futures::{StreamExt, pin_mut};
use http::Request;
use http_body_util::{BodyExt, Full};
use kube::api::{Api, ApiResource, DynamicObject, WatchEvent, WatchParams};
use serde_json::{Value, json};
use tower::ServiceExt;

const GROUP: &str = "/apis/snapshot.storage.k8s.io/v1";
const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots";
const CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
const CLASSES: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses";

/// The error that follows errors that prevent the check of rules.
const UNCHECKED: &str = "<nil>: Invalid value: null: some validation rules were not checked because the \
                         object was invalid; correct the existing errors to complete validation";

struct Answer {
    code: u16,
    warnings: Vec<String>,
    body: Value,
}

impl Answer {
    /// The body of a request that must succeed.
    fn ok(self) -> Value {
        assert!(matches!(self.code, 200 | 201), "{}: {}", self.code, self.body);
        self.body
    }

    /// The code and the message of a rejected request.
    fn rejection(&self) -> (u16, &str) {
        assert_eq!(self.body["kind"], "Status", "{}", self.body);
        (self.code, self.body["message"].as_str().unwrap())
    }
}

struct Client(ApiService);

impl Client {
    fn new() -> Self {
        Self(setup().server.service())
    }

    async fn send(&self, method: &str, path: &str, content_type: &str, body: String) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .header("user-agent", "test/1")
            .body(Full::new(bytes::Bytes::from(body)))
            .unwrap();
        let response = self.0.clone().oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let warnings = response
            .headers()
            .get_all("warning")
            .iter()
            .map(|one| one.to_str().unwrap().to_owned())
            .collect();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Answer { code, warnings, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) }
    }

    async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "application/json", String::new()).await
    }

    async fn create(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, "application/json", body.to_string()).await
    }

    async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send("PUT", path, "application/json", body.to_string()).await
    }

    async fn merge(&self, path: &str, patch: &Value) -> Answer {
        self.send("PATCH", path, "application/merge-patch+json", patch.to_string()).await
    }

    async fn table(&self, path: &str) -> Value {
        let request = Request::get(path)
            .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
            .body(Full::new(bytes::Bytes::new()))
            .unwrap();
        let response = self.0.clone().oneshot(request).await.unwrap();
        serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
    }
}

fn object(kind: &str, name: &str) -> Value {
    let mut object = match kind {
        "VolumeSnapshot" => json!({"spec": {"source": {"persistentVolumeClaimName": "data"}}}),
        "VolumeSnapshotContent" => json!({"spec": {
            "deletionPolicy": "Delete",
            "driver": "d.example.com",
            "source": {"volumeHandle": "v"},
            "volumeSnapshotRef": {"name": "s", "namespace": "default"},
        }}),
        _ => json!({"driver": "d.example.com", "deletionPolicy": "Delete"}),
    };
    object["apiVersion"] = json!("snapshot.storage.k8s.io/v1");
    object["kind"] = json!(kind);
    object["metadata"] = json!({ "name": name });
    object
}

fn snapshot(name: &str) -> Value {
    object("VolumeSnapshot", name)
}

fn content(name: &str) -> Value {
    object("VolumeSnapshotContent", name)
}

fn class(name: &str) -> Value {
    object("VolumeSnapshotClass", name)
}

/// The object with the member at a JSON pointer replaced, or removed if the value is null.
fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = object.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    if value.is_null() {
        parent.remove(name);
    } else {
        parent.insert(name.to_owned(), value);
    }
    object
}

#[tokio::test]
async fn discovery_lists_the_snapshot_kinds() {
    let client = Client::new();
    let list = client.get(GROUP).await.ok();
    let rows: Vec<Value> = list["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| json!([one["name"], one["kind"], one["namespaced"], one["shortNames"]]))
        .collect();
    let expected = json!([
        ["volumesnapshotclasses", "VolumeSnapshotClass", false, ["vsclass", "vsclasses"]],
        ["volumesnapshotcontents", "VolumeSnapshotContent", false, ["vsc", "vscs"]],
        ["volumesnapshotcontents/status", "VolumeSnapshotContent", false, null],
        ["volumesnapshots", "VolumeSnapshot", true, ["vs"]],
        ["volumesnapshots/status", "VolumeSnapshot", true, null],
    ]);
    assert_eq!(json!(rows), expected);
    let verbs = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
    assert_eq!(list["resources"][0]["verbs"], json!(verbs));
    let group = client.get("/apis/snapshot.storage.k8s.io").await.ok();
    assert_eq!(group["preferredVersion"]["groupVersion"], "snapshot.storage.k8s.io/v1");
    let openapi = client.get("/openapi/v3/apis/snapshot.storage.k8s.io/v1").await.ok();
    let reference = &openapi["components"]["schemas"]["VolumeSnapshotReference"];
    assert_eq!(reference["x-kubernetes-map-type"], "atomic");
    assert_eq!(client.get("/apis/snapshot.storage.k8s.io/v1beta1/volumesnapshots").await.code, 404);
}

#[tokio::test]
async fn a_status_is_written_only_by_the_status_endpoint() {
    let client = Client::new();
    for (path, body) in [(SNAPSHOTS, snapshot("x")), (CONTENTS, content("x"))] {
        let created = client.create(path, &with(body, "/status", json!({"readyToUse": true}))).await.ok();
        assert_eq!(created["status"], Value::Null, "{path}");
        let one = format!("{path}/x");
        let both = json!({
            "metadata": {"labels": {"a": "b"}},
            "spec": {"volumeSnapshotClassName": "fast"},
            "status": {"readyToUse": true},
        });
        let main = client.merge(&one, &both).await.ok();
        assert_eq!(main["status"], Value::Null, "{path}");
        assert_eq!(main["spec"]["volumeSnapshotClassName"], "fast", "{path}");
        let other = json!({
            "metadata": {"labels": {"a": "c"}, "finalizers": ["example.com/f"]},
            "spec": {"volumeSnapshotClassName": "slow"},
            "status": {"readyToUse": false},
        });
        let status = client.merge(&format!("{one}/status"), &other).await.ok();
        assert_eq!(status["status"], json!({"readyToUse": false}), "{path}");
        assert_eq!(status["spec"], main["spec"], "{path}");
        assert_eq!(status["metadata"]["labels"], json!({"a": "b"}), "{path}");
        assert_eq!(status["metadata"]["finalizers"], Value::Null, "{path}");
        let without_status = with(status.clone(), "/status", Value::Null);
        let kept = client.put(&one, &without_status).await.ok();
        assert_eq!(kept["status"], status["status"], "{path}");
    }
    client.create(CLASSES, &class("x")).await.ok();
    assert_eq!(client.get(&format!("{CLASSES}/x/status")).await.code, 404);
}

#[tokio::test]
async fn the_generation_counts_changes_outside_metadata_and_status() {
    let client = Client::new();
    let generation = |object: &Value| object["metadata"]["generation"].as_i64().unwrap();
    let own = with(snapshot("s"), "/metadata/generation", json!(7));
    assert_eq!(generation(&client.create(SNAPSHOTS, &own).await.ok()), 1);
    let one = format!("{SNAPSHOTS}/s");
    for (path, patch, expected) in [
        (one.clone(), json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/f"]}}), 1),
        (format!("{one}/status"), json!({"status": {"readyToUse": true}}), 1),
        (one.clone(), json!({"spec": {"volumeSnapshotClassName": "a"}}), 2),
        (one.clone(), json!({"spec": {"volumeSnapshotClassName": "a"}}), 2),
        (one.clone(), json!({"spec": {"volumeSnapshotClassName": null}}), 3),
        (one.clone(), json!({"metadata": {"generation": 99}}), 3),
    ] {
        assert_eq!(generation(&client.merge(&path, &patch).await.ok()), expected, "{patch}");
    }
    let deleting = client.send("DELETE", &one, "application/json", String::new()).await.ok();
    assert_eq!(generation(&deleting), 4);
    client.create(CLASSES, &class("c")).await.ok();
    let changed = client.merge(&format!("{CLASSES}/c"), &json!({"parameters": {"a": "b"}})).await.ok();
    assert_eq!(generation(&changed), 2);
}

/// Each object without the members that its schema requires, and with values that its schema excludes.
#[tokio::test]
async fn new_objects_are_validated_by_schema_and_rules() {
    let client = Client::new();
    let source = "/spec/source";
    let required = |field: &str| format!("{field}: Required value");
    let many = |errors: &[&str]| format!("[{}]", errors.join(", "));
    let one_of_claim_and_content = "spec.source: Invalid value: exactly one of volumeSnapshotContentName and \
                                    persistentVolumeClaimName must be set";
    let one_of_handles =
        "spec.source: Invalid value: exactly one of volumeHandle and snapshotHandle must be set";
    let reference = "spec.volumeSnapshotRef: Invalid value: both spec.volumeSnapshotRef.name and \
                     spec.volumeSnapshotRef.namespace must be set";
    let policy =
        |value: &str| format!("Unsupported value: \"{value}\": supported values: \"Delete\", \"Retain\"");
    let cases = [
        (with(snapshot("x"), "/spec", Value::Null), many(&[&required("spec"), UNCHECKED])),
        (with(snapshot("x"), source, Value::Null), many(&[&required("spec.source"), UNCHECKED])),
        (with(snapshot("x"), source, json!({})), one_of_claim_and_content.to_owned()),
        (
            with(snapshot("x"), "/spec/source/volumeSnapshotContentName", json!("c")),
            one_of_claim_and_content.to_owned(),
        ),
        (
            with(snapshot("x"), "/spec/volumeSnapshotClassName", json!("")),
            "spec.volumeSnapshotClassName: Invalid value: \"\": volumeSnapshotClassName must not be the \
             empty string when set"
                .to_owned(),
        ),
        (
            with(content("x"), "/spec", json!({})),
            many(&[
                &required("spec.deletionPolicy"),
                &required("spec.driver"),
                &required("spec.source"),
                &required("spec.volumeSnapshotRef"),
                UNCHECKED,
            ]),
        ),
        (
            with(content("x"), "/spec/deletionPolicy", json!("Recycle")),
            many(&[&format!("spec.deletionPolicy: {}", policy("Recycle")), UNCHECKED]),
        ),
        (with(content("x"), source, json!({})), one_of_handles.to_owned()),
        (with(content("x"), "/spec/source/snapshotHandle", json!("h")), one_of_handles.to_owned()),
        (with(content("x"), "/spec/volumeSnapshotRef/name", Value::Null), reference.to_owned()),
        (with(content("x"), "/spec/volumeSnapshotRef/namespace", Value::Null), reference.to_owned()),
        (
            with(with(content("x"), source, json!({})), "/spec/volumeSnapshotRef", json!({})),
            many(&[one_of_handles, reference]),
        ),
        (
            with(with(class("x"), "/driver", Value::Null), "/deletionPolicy", Value::Null),
            many(&[&required("deletionPolicy"), &required("driver")]),
        ),
        (with(class("x"), "/deletionPolicy", json!("no")), format!("deletionPolicy: {}", policy("no"))),
    ];
    for (body, expected) in cases {
        let kind = body["kind"].as_str().unwrap();
        let path = match kind {
            "VolumeSnapshot" => SNAPSHOTS,
            "VolumeSnapshotContent" => CONTENTS,
            _ => CLASSES,
        };
        let answer = client.create(path, &body).await;
        let message = format!("{kind}.snapshot.storage.k8s.io \"x\" is invalid: {expected}");
        assert_eq!(answer.rejection(), (422, message.as_str()), "{body}");
    }
    // The schemas have no minimum lengths, and sourceVolumeMode is not an enumeration.
    for (path, body) in [
        (SNAPSHOTS, with(snapshot("y"), source, json!({"persistentVolumeClaimName": ""}))),
        (CONTENTS, with(content("y"), "/spec/sourceVolumeMode", json!("Other"))),
        (CONTENTS, with(content("z"), "/spec/volumeSnapshotRef", json!({"name": "", "namespace": ""}))),
        (CLASSES, with(class("y"), "/driver", json!(""))),
    ] {
        let created = client.create(path, &body).await.ok();
        let sent = if path == CLASSES { &body["driver"] } else { &body["spec"] };
        assert_eq!(if path == CLASSES { &created["driver"] } else { &created["spec"] }, sent, "{body}");
    }
}

#[tokio::test]
async fn sources_and_the_volume_mode_are_immutable() {
    let client = Client::new();
    client.create(SNAPSHOTS, &snapshot("claim")).await.ok();
    let of_content = with(snapshot("content"), "/spec/source", json!({"volumeSnapshotContentName": "c"}));
    client.create(SNAPSHOTS, &of_content).await.ok();
    client.create(CONTENTS, &content("volume")).await.ok();
    let of_handle = with(content("handle"), "/spec/source", json!({"snapshotHandle": "h"}));
    client.create(CONTENTS, &with(of_handle, "/spec/sourceVolumeMode", json!("Block"))).await.ok();
    let source = |patch: Value| json!({"spec": {"source": patch}});
    let (claim, other) = ("persistentVolumeClaimName", "volumeSnapshotContentName");
    let changed = |field: &str, value: &str| {
        let name = field.rsplit('.').next().unwrap();
        format!("{field}: Invalid value: \"{value}\": {name} is immutable")
    };
    let removed = |name: &str| format!("spec.source: Invalid value: {name} is required once set");
    for (path, patch, expected) in [
        (
            SNAPSHOTS,
            "claim",
            source(json!({claim: "y"})),
            changed("spec.source.persistentVolumeClaimName", "y"),
        ),
        (SNAPSHOTS, "claim", source(json!({claim: null, other: "y"})), removed(claim)),
        (
            SNAPSHOTS,
            "content",
            source(json!({other: "y"})),
            changed("spec.source.volumeSnapshotContentName", "y"),
        ),
        (SNAPSHOTS, "content", source(json!({claim: "y", other: null})), removed(other)),
        (CONTENTS, "volume", source(json!({"volumeHandle": "y"})), changed("spec.source.volumeHandle", "y")),
        (
            CONTENTS,
            "volume",
            source(json!({"volumeHandle": null, "snapshotHandle": "y"})),
            removed("volumeHandle"),
        ),
        (
            CONTENTS,
            "handle",
            source(json!({"snapshotHandle": "y"})),
            changed("spec.source.snapshotHandle", "y"),
        ),
        (
            CONTENTS,
            "handle",
            source(json!({"volumeHandle": "y", "snapshotHandle": null})),
            removed("snapshotHandle"),
        ),
        (
            CONTENTS,
            "handle",
            json!({"spec": {"sourceVolumeMode": "Filesystem"}}),
            changed("spec.sourceVolumeMode", "Filesystem"),
        ),
        (
            CONTENTS,
            "handle",
            json!({"spec": {"sourceVolumeMode": null}}),
            "spec: Invalid value: sourceVolumeMode is required once set".to_owned(),
        ),
    ]
    .map(|(path, name, patch, expected)| (format!("{path}/{name}"), patch, expected))
    {
        let answer = client.merge(&path, &patch).await;
        let (code, message) = answer.rejection();
        assert_eq!(
            (code, message.split_once("is invalid: ").unwrap().1),
            (422, expected.as_str()),
            "{patch}"
        );
    }
    // The other fields can change.
    let mode = json!({"spec": {"sourceVolumeMode": "Block", "deletionPolicy": "Retain", "driver": "other",
        "volumeSnapshotRef": {"uid": "1"}, "volumeSnapshotClassName": ""}});
    let changed = client.merge(&format!("{CONTENTS}/volume"), &mode).await.ok();
    assert_eq!(
        changed["spec"]["volumeSnapshotRef"],
        json!({"name": "s", "namespace": "default", "uid": "1"})
    );
    assert_eq!(changed["spec"]["volumeSnapshotClassName"], "");
}

#[tokio::test]
async fn an_update_requires_a_resource_version() {
    let client = Client::new();
    let created = client.create(SNAPSHOTS, &snapshot("s")).await.ok();
    let one = format!("{SNAPSHOTS}/s");
    let answer = client.put(&one, &with(created.clone(), "/metadata/resourceVersion", Value::Null)).await;
    let expected = "volumesnapshots.snapshot.storage.k8s.io \"s\" is invalid: metadata.resourceVersion: \
                    Invalid value: 0: must be specified for an update";
    assert_eq!(answer.rejection(), (422, expected));
    let next = with(created, "/spec/volumeSnapshotClassName", json!("a"));
    assert_eq!(client.put(&one, &next).await.ok()["spec"]["volumeSnapshotClassName"], "a");
    assert_eq!(client.put(&one, &next).await.code, 409);
    assert_eq!(client.put(&format!("{SNAPSHOTS}/none"), &snapshot("none")).await.code, 404);
}

#[tokio::test]
async fn json_patches_are_applied_and_validated() {
    let client = Client::new();
    client.create(SNAPSHOTS, &snapshot("s")).await.ok();
    let patch = async |operations: Value| {
        client
            .send("PATCH", &format!("{SNAPSHOTS}/s"), "application/json-patch+json", operations.to_string())
            .await
    };
    let class = "/spec/volumeSnapshotClassName";
    let added = patch(json!([{"op": "add", "path": class, "value": "a"}])).await.ok();
    assert_eq!(added["spec"]["volumeSnapshotClassName"], "a");
    assert_eq!(patch(json!([{"op": "test", "path": class, "value": "b"}])).await.code, 422);
    let refused = patch(json!([{"op": "replace", "path": class, "value": ""}])).await;
    assert!(refused.rejection().1.contains("must not be the empty string when set"), "{}", refused.body);
    let source = patch(json!([{"op": "remove", "path": "/spec/source"}])).await;
    assert!(source.rejection().1.contains("spec.source: Required value"), "{}", source.body);
}

#[tokio::test]
async fn tables_have_the_columns_of_the_definitions() {
    let client = Client::new();
    client.create(SNAPSHOTS, &snapshot("a")).await.ok();
    let of_content = with(snapshot("b"), "/spec/source", json!({"volumeSnapshotContentName": "c"}));
    client.create(SNAPSHOTS, &with(of_content, "/spec/volumeSnapshotClassName", json!("fast"))).await.ok();
    let status = json!({"status": {
        "readyToUse": true, "restoreSize": "1Gi", "boundVolumeSnapshotContentName": "c",
        "creationTime": "2025-12-31T23:00:00Z",
    }});
    client.merge(&format!("{SNAPSHOTS}/b/status"), &status).await.ok();
    client.create(CONTENTS, &content("c")).await.ok();
    let status = json!({"status": {"readyToUse": false, "restoreSize": 5}});
    client.merge(&format!("{CONTENTS}/c/status"), &status).await.ok();
    client.create(CLASSES, &class("k")).await.ok();
    for (path, columns, rows) in [
        (
            SNAPSHOTS,
            "Name:string ReadyToUse:boolean SourcePVC:string SourceSnapshotContent:string \
             RestoreSize:string SnapshotClass:string SnapshotContent:string CreationTime:date Age:date",
            json!([
                ["a", null, "data", null, null, null, null, null, "0s"],
                ["b", true, null, "c", "1Gi", "fast", "c", "60m", "0s"],
            ]),
        ),
        (
            CONTENTS,
            "Name:string ReadyToUse:boolean RestoreSize:integer DeletionPolicy:string Driver:string \
             VolumeSnapshotClass:string VolumeSnapshot:string VolumeSnapshotNamespace:string Age:date",
            json!([["c", false, 5, "Delete", "d.example.com", null, "s", "default", "0s"]]),
        ),
        (
            CLASSES,
            "Name:string Driver:string DeletionPolicy:string Age:date",
            json!([["k", "d.example.com", "Delete", "0s"]]),
        ),
    ] {
        let table = client.table(path).await;
        let found: Vec<String> = table["columnDefinitions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| format!("{}:{}", one["name"].as_str().unwrap(), one["type"].as_str().unwrap()))
            .collect();
        assert_eq!(found.join(" "), columns);
        let cells: Vec<Value> =
            table["rows"].as_array().unwrap().iter().map(|row| row["cells"].clone()).collect();
        assert_eq!(json!(cells), rows);
    }
}

#[tokio::test]
async fn snapshots_can_be_watched_and_are_deleted_after_their_last_finalizer() {
    let fixture = setup();
    let client = Client(fixture.server.service());
    let kind = kube::core::GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot");
    let api: Api<DynamicObject> = Api::default_namespaced_with(fixture.client, &ApiResource::from_gvk(&kind));
    let watch = api.watch(&WatchParams::default(), "0").await.unwrap();
    pin_mut!(watch);
    let held = with(snapshot("s"), "/metadata/finalizers", json!(["example.com/f"]));
    client.create(SNAPSHOTS, &held).await.ok();
    let one = format!("{SNAPSHOTS}/s");
    let deleting = client.send("DELETE", &one, "application/json", String::new()).await.ok();
    assert!(deleting["metadata"]["deletionTimestamp"].is_string(), "{deleting}");
    client.merge(&one, &json!({"metadata": {"finalizers": null}})).await.ok();
    let mut events = Vec::new();
    for _ in 0..3 {
        events.push(match watch.next().await.unwrap().unwrap() {
            WatchEvent::Added(_) => "ADDED",
            WatchEvent::Modified(_) => "MODIFIED",
            WatchEvent::Deleted(_) => "DELETED",
            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => panic!("an event of an object was expected"),
        });
    }
    assert_eq!(events, ["ADDED", "MODIFIED", "DELETED"]);
    client.create(CONTENTS, &content("c")).await.ok();
    let path = format!("{CONTENTS}/c");
    let removed = client.send("DELETE", &path, "application/json", String::new()).await.ok();
    assert_eq!((&removed["kind"], &removed["status"]), (&json!("Status"), &json!("Success")));
    assert_eq!(removed["details"]["kind"], "volumesnapshotcontents");
    assert_eq!(client.get(&path).await.code, 404);
}

#[tokio::test]
async fn unknown_fields_are_pruned_with_warnings_or_rejected() {
    let client = Client::new();
    let mut body = snapshot("s");
    body["extra"] = json!(1);
    body["metadata"]["color"] = json!("red");
    body["spec"]["y"] = json!({"z": 2});
    body["spec"]["source"]["q"] = json!(1);
    let strict = client.create(&format!("{SNAPSHOTS}?fieldValidation=Strict"), &body).await;
    let expected = "VolumeSnapshot in version \"v1\" cannot be handled as a VolumeSnapshot: strict decoding \
                    error: unknown field \"extra\", unknown field \"metadata.color\", unknown field \
                    \"spec.source.q\", unknown field \"spec.y\"";
    assert_eq!(strict.rejection(), (400, expected));
    let created = client.create(SNAPSHOTS, &body).await;
    let warning = |field: &str| format!("299 - \"unknown field \\\"{field}\\\"\"");
    let expected = ["extra", "metadata.color", "spec.source.q", "spec.y"].map(warning);
    assert_eq!(created.warnings, expected);
    assert_eq!(created.ok()["spec"], snapshot("s")["spec"]);
    let patch = json!({"spec": {"volumeSnapshotClassName": "a", "y": 1}});
    let strict = client.merge(&format!("{SNAPSHOTS}/s?fieldValidation=Strict"), &patch).await;
    let (code, message) = strict.rejection();
    assert_eq!(code, 422);
    assert!(message.ends_with("strict decoding error: unknown field \"spec.y\""), "{message}");
    let patched = client.merge(&format!("{SNAPSHOTS}/s?fieldValidation=Ignore"), &patch).await;
    assert_eq!(patched.warnings, Vec::<String>::new());
    assert_eq!(patched.ok()["spec"]["y"], Value::Null);
}

#[tokio::test]
async fn wrong_types_are_invalid_and_nulls_are_dropped() {
    let client = Client::new();
    let field = "/spec/volumeSnapshotClassName";
    for (value, found) in [
        (json!(5), "integer"),
        (json!(1.5), "number"),
        (json!(true), "boolean"),
        (json!({}), "object"),
        (json!([]), "array"),
    ] {
        let answer = client.create(SNAPSHOTS, &with(snapshot("s"), field, value)).await;
        let expected = format!(
            "VolumeSnapshot.snapshot.storage.k8s.io \"s\" is invalid: [spec.volumeSnapshotClassName: Invalid \
             value: \"{found}\": spec.volumeSnapshotClassName in body must be of type string: \"{found}\", \
             {UNCHECKED}]"
        );
        assert_eq!(answer.rejection(), (422, expected.as_str()));
    }
    let parameters = client.create(CLASSES, &with(class("c"), "/parameters", json!({"a": 1}))).await;
    let expected = "VolumeSnapshotClass.snapshot.storage.k8s.io \"c\" is invalid: parameters.a: Invalid \
                    value: \"integer\": parameters.a in body must be of type string: \"integer\"";
    assert_eq!(parameters.rejection(), (422, expected));
    let mut body = snapshot("s");
    body["spec"]["volumeSnapshotClassName"] = Value::Null;
    assert_eq!(client.create(SNAPSHOTS, &body).await.ok()["spec"], snapshot("s")["spec"]);
    let mut body = class("c");
    body["parameters"] = json!({"a": null, "b": "x"});
    assert_eq!(client.create(CLASSES, &body).await.ok()["parameters"], json!({"b": "x"}));
    // Metadata has a Go type.
    let labels = json!({"name": "x", "labels": {"a": 1}});
    let answer = client.create(SNAPSHOTS, &with(snapshot("x"), "/metadata", labels)).await;
    let expected = "VolumeSnapshot in version \"v1\" cannot be handled as a VolumeSnapshot: json: cannot \
                    unmarshal number into Go struct field ObjectMeta.labels of type string";
    assert_eq!(answer.rejection(), (400, expected));
    let answer = client.create(SNAPSHOTS, &with(snapshot("x"), "/metadata", json!([]))).await;
    assert!(answer.rejection().1.ends_with("cannot unmarshal array into Go value of type v1.ObjectMeta"));
}

#[tokio::test]
async fn a_status_is_validated_by_schema_and_stored_as_sent() {
    let client = Client::new();
    client.create(SNAPSHOTS, &snapshot("x")).await.ok();
    client.create(CONTENTS, &content("x")).await.ok();
    let typed = |field: &str, expected: &str, found: &str| {
        format!(
            "[status.{field}: Invalid value: \"{found}\": {field} in body must be of type {expected}: \
             \"{found}\", {UNCHECKED}]"
        )
    };
    let float = format!(
        "[status.restoreSize: Invalid value: \"float64\": restoreSize in body must be of type int64: \
         \"float64\", status: Invalid value: \"\": Checked value must be of type integer with format int64 in \
         restoreSize, {UNCHECKED}]"
    );
    let pattern = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";
    for (path, status, expected) in [
        (SNAPSHOTS, json!({"readyToUse": "yes"}), typed("readyToUse", "boolean", "string")),
        (SNAPSHOTS, json!({"restoreSize": 1.5}), typed("restoreSize", "integer,string", "number")),
        (
            SNAPSHOTS,
            json!({"restoreSize": "ten"}),
            format!(
                "status.restoreSize: Invalid value: \"ten\": restoreSize in body should match '{pattern}'"
            ),
        ),
        (SNAPSHOTS, json!({"creationTime": "yesterday"}), typed("creationTime", "date-time", "yesterday")),
        (SNAPSHOTS, json!({"creationTime": 5}), typed("creationTime", "date-time", "int64")),
        (
            SNAPSHOTS,
            json!("x"),
            format!(
                "[status: Invalid value: \"string\":  in body must be of type object: \"string\", {UNCHECKED}]"
            ),
        ),
        (
            CONTENTS,
            json!({"restoreSize": -1}),
            "status.restoreSize: Invalid value: -1: restoreSize in body should be greater than or equal to 0"
                .to_owned(),
        ),
        (CONTENTS, json!({"restoreSize": 1.5}), float),
        (CONTENTS, json!({"creationTime": "now"}), typed("creationTime", "integer", "string")),
    ] {
        let answer = client.merge(&format!("{path}/x/status"), &json!({ "status": status })).await;
        let (code, message) = answer.rejection();
        assert_eq!(
            (code, message.split_once("is invalid: ").unwrap().1),
            (422, expected.as_str()),
            "{status}"
        );
    }
    let status = json!({"readyToUse": false, "restoreSize": "1024Mi", "error": {},
        "creationTime": "2026-01-01T01:00:00.5+01:00"});
    let patch = json!({ "status": status });
    assert_eq!(client.merge(&format!("{SNAPSHOTS}/x/status"), &patch).await.ok()["status"], status);
    let patch = json!({"status": {"restoreSize": 2.0, "creationTime": 0}});
    let stored = client.merge(&format!("{CONTENTS}/x/status"), &patch).await.ok();
    assert_eq!(stored["status"].to_string(), r#"{"creationTime":0,"restoreSize":2}"#);
}

#[tokio::test]
async fn a_body_requires_the_kind_and_version_of_the_resource() {
    let client = Client::new();
    let answer = client.create(SNAPSHOTS, &with(snapshot("s"), "/kind", Value::Null)).await;
    let (code, message) = answer.rejection();
    let start = "the object provided is unrecognized (must be of type VolumeSnapshot): Object 'Kind' is \
                 missing in '{";
    assert!(code == 400 && message.starts_with(start), "{message}");
    let answer = client.create(SNAPSHOTS, &with(snapshot("s"), "/apiVersion", json!("v1"))).await;
    let expected = "the API version in the data (v1) does not match the expected API version \
                    (snapshot.storage.k8s.io/v1)";
    assert_eq!(answer.rejection(), (400, expected));
    let wrong_kind = "Foo.snapshot.storage.k8s.io \"s\" is invalid: kind: Invalid value: \"Foo\": must be \
                      VolumeSnapshot";
    let answer = client.create(SNAPSHOTS, &with(snapshot("s"), "/kind", json!("Foo"))).await;
    assert_eq!(answer.rejection(), (422, wrong_kind));
    assert_eq!(answer.body["details"]["kind"], "Foo");
    client.create(SNAPSHOTS, &snapshot("s")).await.ok();
    let answer = client.merge(&format!("{SNAPSHOTS}/s"), &json!({"kind": "Foo"})).await;
    assert_eq!(answer.rejection(), (422, wrong_kind));
    let version = json!({"apiVersion": "snapshot.storage.k8s.io/v1beta1"});
    let answer = client.merge(&format!("{SNAPSHOTS}/s"), &version).await;
    let expected = "VolumeSnapshot.snapshot.storage.k8s.io \"s\" is invalid: apiVersion: Invalid value: \
                    \"snapshot.storage.k8s.io/v1beta1\": must be snapshot.storage.k8s.io/v1";
    assert_eq!(answer.rejection(), (422, expected));
    // Lists of custom resources repeat both for each item.
    let list = client.get(SNAPSHOTS).await.ok();
    assert_eq!(list["kind"], "VolumeSnapshotList");
    assert_eq!(list["items"][0]["kind"], "VolumeSnapshot");
    assert_eq!(list["items"][0]["apiVersion"], "snapshot.storage.k8s.io/v1");
}

#[tokio::test]
async fn strategic_merge_patches_are_not_supported() {
    let client = Client::new();
    client.create(SNAPSHOTS, &snapshot("s")).await.ok();
    let expected = "the body of the request was in an unknown format - accepted media types include: \
                    application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
    for path in ["s", "s/status", "none"].map(|path| format!("{SNAPSHOTS}/{path}")) {
        let answer =
            client.send("PATCH", &path, "application/strategic-merge-patch+json", "{}".to_owned()).await;
        assert_eq!(answer.rejection(), (415, expected), "{path}");
        assert_eq!(answer.body["reason"], "UnsupportedMediaType");
    }
}

#[tokio::test]
async fn an_applied_reference_is_owned_as_a_whole() {
    let client = Client::new();
    let apply = async |manager: &str, config: &Value| {
        let path = format!("{CONTENTS}/c?fieldManager={manager}");
        client.send("PATCH", &path, "application/apply-patch+yaml", config.to_string()).await
    };
    let created = apply("one", &content("c")).await.ok();
    assert_eq!(
        created["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:volumeSnapshotRef"],
        json!({})
    );
    let reference = |reference: Value| with(content("c"), "/spec", json!({ "volumeSnapshotRef": reference }));
    let with_uid = reference(json!({"name": "s", "namespace": "default", "uid": "1"}));
    let answer = apply("two", &with_uid).await;
    let expected = "Apply failed with 1 conflict: conflict with \"one\": .spec.volumeSnapshotRef";
    assert_eq!(answer.rejection(), (409, expected));
    let forced = apply("two&force=true", &with_uid).await.ok();
    assert_eq!(forced["spec"]["volumeSnapshotRef"]["uid"], "1");
    let smaller = json!({"name": "s", "namespace": "default"});
    let replaced = apply("two", &reference(smaller.clone())).await.ok();
    assert_eq!(replaced["spec"]["volumeSnapshotRef"], smaller);
    let unknown = with(content("c"), "/spec/x", json!(1));
    let answer = apply("one&force=true", &unknown).await;
    let expected = "failed to create typed patch object (/c; snapshot.storage.k8s.io/v1, \
                    Kind=VolumeSnapshotContent): .spec.x: field not declared in schema";
    assert_eq!(answer.rejection(), (500, expected));
    let mut null = content("c");
    null["spec"]["driver"] = Value::Null;
    let answer = apply("one&force=true", &null).await;
    let expected = format!(
        "VolumeSnapshotContent.snapshot.storage.k8s.io \"c\" is invalid: [spec.driver: Invalid value: \
         \"null\": spec.driver in body must be of type string: \"null\", {UNCHECKED}]"
    );
    assert_eq!(answer.rejection(), (422, expected.as_str()));
}

#[tokio::test]
async fn only_names_and_namespaces_are_selectable() {
    let client = Client::new();
    client.create(SNAPSHOTS, &snapshot("s")).await.ok();
    let by_name = client.get(&format!("{SNAPSHOTS}?fieldSelector=metadata.name=s")).await.ok();
    assert_eq!(by_name["items"][0]["metadata"]["name"], "s");
    for (path, field) in [(SNAPSHOTS, "spec.x"), (CONTENTS, "metadata.namespace")] {
        let answer = client.get(&format!("{path}?fieldSelector={field}=a")).await;
        assert_eq!(answer.rejection(), (400, format!("field label not supported: {field}").as_str()));
    }
}
