use std::time::Duration;

use serde_json::{Value, json};

use super::{
    summary::{ClusterStatus, StatusObjects},
    table,
};
use crate::style::Style;

const HOUR: Duration = Duration::from_secs(3600);

fn now() -> jiff::Timestamp {
    "2026-06-03T12:00:00Z".parse().unwrap()
}

fn parse_list<K: serde::de::DeserializeOwned>(objects: Value) -> Vec<K> {
    serde_json::from_value(objects).unwrap()
}

fn claim(name: &str, created: &str, spec: Value, status: Value) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": name, "uid": name, "creationTimestamp": created},
        "spec": spec, "status": status,
    })
}

fn volume(name: &str, driver: &str, status: Value) -> Value {
    json!({
        "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-06-01T00:00:00Z"},
        "spec": {"persistentVolumeReclaimPolicy": "Delete", "csi": {"driver": driver, "volumeHandle": name}},
        "status": status,
    })
}

fn attachment(name: &str, node: &str, volume: &str, status: Value) -> Value {
    json!({
        "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-06-03T11:59:00Z"},
        "spec": {
            "attacher": "array.example.com", "nodeName": node, "source": {"persistentVolumeName": volume},
        },
        "status": status,
    })
}

/// A cluster with objects in most states.
fn cluster() -> StatusObjects {
    let (early, late) = ("2026-06-03T09:00:00Z", "2026-06-03T11:58:00Z");
    let mut detaching = attachment(
        "va-3",
        "n1",
        "pv-1",
        json!({
            "attached": true,
            "detachError": {"time": "2026-06-03T11:50:00Z", "message": "the array is busy\n\u{1b}[2Jnow"},
        }),
    );
    detaching["metadata"]["deletionTimestamp"] = json!("2026-06-03T10:00:00Z");
    let mut deleting = claim("gone", early, json!({"volumeName": "pv-1"}), json!({"phase": "Bound"}));
    deleting["metadata"]["deletionTimestamp"] = json!("2026-06-03T10:30:00Z");
    deleting["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
    let resizing = json!({"phase": "Bound", "conditions": [
        {"type": "Resizing", "status": "True", "lastTransitionTime": "2026-06-03T10:59:00Z", "message": ""},
    ]});
    StatusObjects {
        drivers: parse_list(
            json!([{"metadata": {"name": "array.example.com"}, "spec": {"attachRequired": true}},
                             {"metadata": {"name": "pool.example.com"}, "spec": {"attachRequired": false}}]),
        ),
        nodes: parse_list(json!([{"metadata": {"name": "n1"}, "spec": {"drivers": [
            {"name": "array.example.com", "nodeID": "n1"}]}}])),
        classes: parse_list(json!([
            {"metadata": {"name": "fast"}, "provisioner": "array.example.com"},
            {"metadata": {"name": "late"}, "provisioner": "array.example.com",
             "volumeBindingMode": "WaitForFirstConsumer"},
            {"metadata": {"name": "manual"}, "provisioner": "kubernetes.io/no-provisioner"},
        ])),
        claims: parse_list(json!([
            claim("a", early, json!({"volumeName": "pv-1"}), json!({"phase": "Bound"})),
            claim("b", early, json!({"storageClassName": "fast"}), json!({"phase": "Pending"})),
            claim("c", late, json!({"storageClassName": "fast"}), json!({"phase": "Pending"})),
            claim("d", early, json!({"storageClassName": "late"}), json!({"phase": "Pending"})),
            claim(
                "e",
                late,
                json!({"volumeName": "pv-9", "storageClassName": "fast"}),
                json!({"phase": "Lost"})
            ),
            claim("f", early, json!({"volumeName": "pv-1"}), resizing),
            claim("g", early, json!({"storageClassName": "nowhere"}), json!({"phase": "Pending"})),
            claim("h", late, json!({"storageClassName": "manual"}), json!({"phase": "Pending"})),
            deleting,
        ])),
        volumes: parse_list(json!([
            volume("pv-1", "array.example.com", json!({"phase": "Bound"})),
            volume(
                "pv-2",
                "array.example.com",
                json!({"phase": "Released", "lastPhaseTransitionTime": early})
            ),
            volume("pv-3", "pool.example.com", json!({"phase": "Available"})),
        ])),
        attachments: parse_list(json!([
            attachment("va-1", "n1", "pv-1", json!({"attached": true})),
            attachment("va-2", "n2", "pv-1", json!({"attached": false})),
            detaching,
        ])),
        events: parse_list(json!([
            {"metadata": {}, "involvedObject": {"uid": "b"}, "type": "Warning",
             "reason": "ProvisioningFailed", "message": "no room",
             "lastTimestamp": "2026-06-03T11:55:00Z"},
            {"metadata": {}, "involvedObject": {"uid": "b"}, "type": "Warning",
             "reason": "ProvisioningFailed", "message": "an older reason",
             "lastTimestamp": "2026-06-03T10:00:00Z"},
            {"metadata": {}, "involvedObject": {"uid": "pv-2"}, "type": "Warning",
             "reason": "VolumeFailedDelete", "message": "in use",
             "series": {"count": 3, "lastObservedTime": "2026-06-03T11:59:30.000000Z"}},
            {"metadata": {}, "involvedObject": {"uid": "other"}, "type": "Warning", "message": "x"},
        ])),
        orphans: [("pool.example.com".to_owned(), 2)].into(),
        forbidden: Vec::new(),
    }
}

#[test]
fn status_as_text() {
    let shown = table::format_status(
        &ClusterStatus::from_objects(&cluster(), now(), HOUR),
        now(),
        Style { colours: false },
    );
    let expected = "\
array.example.com  1 node
  claims       1 bound, 1 deleting, 1 lost, 2 pending, 1 resizing, 1 waiting for a pod
  volumes      1 bound, 1 released
  attachments  1 attached, 1 attaching, 1 detaching
  waiting      1 to attach (oldest 1m0s), 1 to bind (oldest 2m0s), 2 to delete (oldest 3h0m), 1 to detach \
     (oldest 2h0m), \
2 to provision (oldest 3h0m), 1 to resize (oldest 1h1m)
  stuck        volume pv-2: to delete for 3h0m: VolumeFailedDelete: in use
               claim shop/b: to provision for 3h0m: ProvisioningFailed: no room
               attachment va-3: to detach for 2h0m: the array is busy\\u{a}\\u{1b}[2Jnow
               claim shop/gone: to delete for 1h30m: waiting for finalizers kubernetes.io/pvc-protection
               claim shop/f: to resize for 1h1m: no reason reported
               claim shop/e: to bind for 2m0s: PersistentVolume pv-9 does not exist
  last errors  30s ago, volume pv-2: VolumeFailedDelete: in use
               5m0s ago, claim shop/b: ProvisioningFailed: no room
               10m0s ago, attachment va-3: the array is busy\\u{a}\\u{1b}[2Jnow

pool.example.com  no attachments, 0 nodes, 2 orphans, see `cofferdam orphans`
  volumes      1 available

without a CSI driver
  claims       2 pending
  waiting      1 to bind (oldest 2m0s), 1 to provision (oldest 3h0m)
  stuck        claim shop/g: to provision for 3h0m: StorageClass nowhere does not exist
";
    assert_eq!(shown, expected);
}

#[test]
fn status_as_json() {
    let status = json!(ClusterStatus::from_objects(&cluster(), now(), HOUR));
    let array = &status["drivers"][0];
    assert_eq!(array["driver"], "array.example.com");
    assert_eq!(
        (&array["installed"], &array["attachRequired"], &array["nodes"]),
        (&json!(true), &json!(true), &json!(1))
    );
    assert_eq!(array["claims"]["pending"], 2);
    assert_eq!(array["waiting"]["provision"], json!({"count": 2, "oldestSeconds": 10_800}));
    assert_eq!(
        array["stuck"][1],
        json!({"kind": "PersistentVolumeClaim", "namespace": "shop", "name": "b", "operation": "provision",
               "seconds": 10_800, "reason": "ProvisioningFailed: no room"})
    );
    assert_eq!(status["drivers"][1]["orphans"], 2);
    assert_eq!(status["drivers"][2]["driver"], Value::Null);
}

#[test]
fn stuck_resize_and_modify_operations_show_their_reason() {
    let since = |kind: &str, minutes: u8, message: &str| {
        let time = format!("2026-06-03T11:{minutes}:00Z");
        json!({"type": kind, "status": "True", "lastTransitionTime": time, "message": message})
    };
    let spec = |class: Value, size: &str| {
        let resources = json!({"requests": {"storage": size}});
        json!({"volumeName": "pv-1", "volumeAttributesClassName": class, "resources": resources})
    };
    let status = |more: Value| {
        let mut status = json!({
            "phase": "Bound", "capacity": {"storage": "1Gi"}, "currentVolumeAttributesClassName": "old",
        });
        status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        status
    };
    let conditions = |conditions: &[Value]| status(json!({"conditions": conditions}));
    let stuck = |spec: Value, status: Value| {
        let claims = parse_list(json!([claim("a", "2026-06-03T09:00:00Z", spec, status)]));
        let objects = StatusObjects { claims, attachments: Vec::new(), events: Vec::new(), ..cluster() };
        let status = ClusterStatus::from_objects(&objects, now(), Duration::from_secs(1));
        let stuck = status.drivers[0].stuck.iter().find(|stuck| stuck.object.name == "a");
        stuck.map(|stuck| (stuck.operation, stuck.seconds, stuck.reason.clone()))
    };
    let stuck_with = |operation: &'static str, minutes: Option<i64>, reason: &str| {
        Some((operation, minutes.map(|minutes| minutes * 60), reason.to_owned()))
    };
    let unknown_reason = "no reason reported";
    let node = "kubelet expands the filesystem when a pod uses the volume";
    let modifying = since("ModifyingVolume", 40, "Modifying volume to \"fast\" failed. Waiting for retry.");
    let failed = since("ModifyVolumeError", 50, "too fast");
    let resizing = since("Resizing", 30, "");
    let pending = json!({"modifyVolumeStatus": {"status": "Pending"}});
    let rows = [
        (spec(json!("old"), "1Gi"), status(json!({})), None),
        (spec(json!("old"), "2Gi"), status(json!({})), stuck_with("resize", None, unknown_reason)),
        (
            spec(json!("old"), "2Gi"),
            conditions(std::slice::from_ref(&resizing)),
            stuck_with("resize", Some(30), unknown_reason),
        ),
        (
            spec(json!("old"), "2Gi"),
            conditions(&[resizing.clone(), since("ControllerResizeError", 50, "no room")]),
            stuck_with("resize", Some(30), "no room"),
        ),
        (
            spec(json!("old"), "2Gi"),
            conditions(&[resizing.clone(), since("FileSystemResizePending", 50, "x")]),
            stuck_with("resize on the node", Some(30), node),
        ),
        (
            spec(json!("old"), "2Gi"),
            conditions(&[
                resizing,
                since("FileSystemResizePending", 50, "x"),
                since("NodeResizeError", 55, "busy"),
            ]),
            stuck_with("resize on the node", Some(30), "busy"),
        ),
        (spec(json!("fast"), "1Gi"), status(json!({})), stuck_with("modify", None, unknown_reason)),
        (
            spec(json!("gone"), "1Gi"),
            status(pending),
            stuck_with("modify", None, "VolumeAttributesClass gone does not exist or is of another driver"),
        ),
        (
            spec(json!("fast"), "1Gi"),
            conditions(&[modifying, failed]),
            stuck_with("modify", Some(20), "too fast"),
        ),
        (spec(Value::Null, "1Gi"), status(json!({})), None),
    ];
    for (spec, status, expected) in rows {
        assert_eq!(stuck(spec.clone(), status.clone()), expected, "{spec} {status}");
    }
}

#[test]
fn a_stuck_attachment_shows_its_missing_prerequisite() {
    let reason = |node: &str, volume: &str, forbidden: Vec<&'static str>| {
        let attachments = parse_list(json!([attachment("va", node, volume, json!({"attached": false}))]));
        let objects = StatusObjects { attachments, forbidden, ..cluster() };
        let status = ClusterStatus::from_objects(&objects, now(), Duration::from_secs(1));
        let array = &status.drivers[0];
        array.stuck.iter().find(|stuck| stuck.object.name == "va").unwrap().reason.clone()
    };
    let rows = [
        ("n1", "pv-1", vec![], "no reason reported"),
        ("n1", "pv-7", vec![], "PersistentVolume pv-7 does not exist"),
        ("n1", "pv-7", vec!["persistentvolumes"], "no reason reported"),
        ("n2", "pv-1", vec![], "the node n2 has no CSINode"),
        ("n2", "pv-1", vec!["csinodes"], "no reason reported"),
    ];
    for (node, volume, forbidden, expected) in rows {
        assert_eq!(reason(node, volume, forbidden.clone()), expected, "{node} {volume} {forbidden:?}");
    }
}

#[test]
fn an_empty_cluster_and_forbidden_kinds_are_reported() {
    let plain = Style { colours: false };
    let nothing = ClusterStatus::from_objects(&StatusObjects::default(), now(), HOUR);
    assert!(table::format_status(&nothing, now(), plain).starts_with("no storage"));
    let forbidden = StatusObjects { forbidden: vec!["events", "csinodes"], ..cluster() };
    let shown = table::format_status(&ClusterStatus::from_objects(&forbidden, now(), HOUR), now(), plain);
    assert!(shown.ends_with("\nnot shown, because you may not list them: events, csinodes\n"), "{shown}");
}
