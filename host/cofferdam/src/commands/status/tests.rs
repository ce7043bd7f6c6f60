use std::time::Duration;

use cofferdam_cluster::orphan_report::OrphanKind;
use cofferdam_domain::text::is_control_or_format;
use serde_json::{Value, json};

use super::{
    snapshots::SnapshotObjects,
    summary::{ClusterStatus, IntentState, JournalShard, OrphanCount, StatusObjects},
    table,
};
use crate::style::{Style, TerminalText};

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

fn orphan_count(namespace: &str, count: u64) -> OrphanCount {
    OrphanCount { namespace: namespace.to_owned(), kind: OrphanKind::Volume, count }
}

/// An intent of the claim `shop/NAME`, whose UID is NAME, too.
fn intent(claim: &str, recorded_at: Option<&str>) -> IntentState {
    IntentState {
        claim_namespace: "shop".to_owned(),
        claim_name: claim.to_owned(),
        claim_uid: claim.to_owned(),
        volume: format!("pvc-{claim}"),
        recorded_at: recorded_at.map(|time| time.parse().unwrap()),
    }
}

#[test]
fn intents_are_counted_and_those_of_deleted_claims_wait() {
    let shard = |namespace: &str, intents, undecodable| JournalShard {
        driver: "array.example.com".to_owned(),
        namespace: namespace.to_owned(),
        intents,
        undecodable,
    };
    let with_journals = |journals| StatusObjects { journals, ..cluster() };
    let shown = show(&with_journals(vec![shard("storage", Vec::new(), 0)]));
    assert!(
        shown.contains("  attachments  1 attached, 1 attaching, 1 detaching\n  journal      0 intents\n")
    );

    let shards = || {
        vec![
            shard("storage", vec![intent("b", Some("2026-06-03T11:50:00Z"))], 0),
            shard("storage", vec![intent("deleted", Some("2026-06-03T10:00:00Z")), intent("older", None)], 1),
        ]
    };
    let shown = show(&with_journals(shards()));
    for expected in [
        "  journal      4 intents (oldest 2h0m, 1 not readable by this version)\n",
        ", 2 to create (oldest 2h0m), ",
        "volume pvc-deleted: to create for 2h0m: CreateVolume has no final result, and claim shop/deleted is \
         deleted: the volume is deleted once it is known\n",
        "volume pvc-older: to create: CreateVolume has no final result",
    ] {
        assert!(shown.contains(expected), "{expected}\n{shown}");
    }
    assert!(!shown.contains("pvc-b"), "the claim itself waits: {shown}");
    let status = json!(ClusterStatus::from_objects(&with_journals(shards()), now(), HOUR));
    assert_eq!(
        status["drivers"][0]["journals"],
        json!([{"namespace": "storage", "intents": 4, "undecodable": 1, "oldestSeconds": 7_200}])
    );
    let both = with_journals(vec![shard("z", vec![intent("b", None)], 0), shard("a", Vec::new(), 0)]);
    assert!(show(&both).contains("  journal      0 intents in a, 1 intent in z\n"));
    // Without the claims, nobody knows which of them are deleted.
    let forbidden = vec!["persistentvolumeclaims"];
    let shown = show(&StatusObjects { forbidden, claims: Vec::new(), ..with_journals(shards()) });
    assert!(shown.contains("4 intents") && !shown.contains("to create"), "{shown}");
}

fn show(objects: &StatusObjects) -> String {
    let status = ClusterStatus::from_objects(objects, now(), HOUR);
    table::format_status(&status, now(), Style { colours: false }).as_str().to_owned()
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
        orphans: vec![("pool.example.com".to_owned(), orphan_count("storage", 2))],
        journals: Vec::new(),
        snapshots: SnapshotObjects::default(),
        forbidden: Vec::new(),
    }
}

#[test]
fn status_as_text() {
    let shown = show(&cluster());
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

pool.example.com  no attachments, 0 nodes, 2 orphans, see `cofferdam orphans --namespace storage`
  volumes      1 available

without a CSI driver
  claims       2 pending
  waiting      1 to bind (oldest 2m0s), 1 to provision (oldest 3h0m)
  stuck        claim shop/g: to provision for 3h0m: StorageClass nowhere does not exist
";
    assert_eq!(shown, expected);
}

#[test]
fn a_driver_is_in_use_while_volumes_attachments_or_intents_need_it() {
    let check = |objects: &StatusObjects, driver: &str| {
        let status = ClusterStatus::from_objects(objects, now(), Duration::from_secs(300));
        super::ensure_unused(&status, driver).map_err(|error| error.to_string())
    };
    let mut objects = cluster();
    let error = check(&objects, "array.example.com").unwrap_err();
    assert!(
        error.contains("array.example.com is in use: ") && error.contains("PersistentVolumes"),
        "{error}"
    );
    let error = check(&objects, "other.example.com").unwrap_err();
    assert!(error.contains("other.example.com is not in the cluster"), "{error}");
    objects.volumes.clear();
    objects.attachments.clear();
    check(&objects, "array.example.com").unwrap();
    objects.journals.push(JournalShard {
        driver: "array.example.com".to_owned(),
        namespace: "storage".to_owned(),
        intents: vec![intent("data", None)],
        undecodable: 1,
    });
    let error = check(&objects, "array.example.com").unwrap_err();
    assert!(error.contains("is in use: 2 open CreateVolume requests;"), "{error}");
    objects.journals.clear();
    let content = snapshot_content("kept", "gone", json!({}));
    objects.snapshots = snapshot_objects(json!([]), json!([content]));
    let error = check(&objects, "array.example.com").unwrap_err();
    assert!(error.contains("is in use: 1 VolumeSnapshotContent;"), "{error}");
    objects.snapshots = SnapshotObjects::default();
    objects.forbidden = vec!["csidrivers"];
    check(&objects, "other.example.com").unwrap();
    objects.forbidden = vec!["csinodes", "volumeattachments"];
    let error = check(&objects, "array.example.com").unwrap_err();
    assert!(error.ends_with("may not list volumeattachments"), "{error}");
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
    assert_eq!(
        status["drivers"][1]["orphans"],
        json!([{"namespace": "storage", "kind": "volume", "count": 2}])
    );
    assert_eq!(array["orphans"], json!([]));
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
            stuck_with(
                "modify",
                None,
                "VolumeAttributesClass gone does not exist or belongs to another driver",
            ),
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

#[tokio::test]
async fn the_kinds_of_snapshots_are_listed_only_if_the_api_server_serves_them() {
    let respond = |code: u16, body: &'static str| {
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| async move {
            assert_eq!(request.uri().path(), "/apis/snapshot.storage.k8s.io/v1");
            http::Response::builder().status(code).body(kube::client::Body::from(body.as_bytes().to_vec()))
        });
        kube::Client::new(service, "default")
    };
    let found =
        r#"{"kind": "APIResourceList", "groupVersion": "snapshot.storage.k8s.io/v1", "resources": []}"#;
    let served = async |code, body| super::serves_snapshots(&respond(code, body)).await;
    assert!(served(200, found).await.unwrap());
    // kube-apiserver's response without the CustomResourceDefinitions
    assert!(!served(404, "404 page not found\n").await.unwrap());
    assert!(served(403, r#"{"kind": "Status", "code": 403, "reason": "Forbidden"}"#).await.unwrap());
    assert!(served(500, "broken").await.is_err());
}

/// A VolumeSnapshot of the claim `shop/CLAIM`.
fn snapshot(name: &str, claim: &str, status: Value) -> Value {
    json!({
        "metadata": {
            "namespace": "shop", "name": name, "uid": name, "creationTimestamp": "2026-06-03T10:30:00Z",
        },
        "spec": {"volumeSnapshotClassName": "fast", "source": {"persistentVolumeClaimName": claim}},
        "status": status,
    })
}

/// The VolumeSnapshotContent of a VolumeSnapshot with the UID `snapshot`.
fn snapshot_content(name: &str, snapshot: &str, status: Value) -> Value {
    json!({
        "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-06-03T10:30:00Z"},
        "spec": {"driver": "array.example.com", "deletionPolicy": "Delete", "source": {"volumeHandle": "h"},
                 "volumeSnapshotRef": {"namespace": "shop", "name": snapshot, "uid": snapshot}},
        "status": status,
    })
}

fn snapshot_objects(snapshots: Value, contents: Value) -> SnapshotObjects {
    SnapshotObjects {
        snapshots: parse_list(snapshots),
        contents: parse_list(contents),
        classes: parse_list(json!([{"metadata": {"name": "fast"}, "driver": "array.example.com"}])),
    }
}

#[test]
fn snapshots_are_counted_by_state_with_their_contents() {
    let ready = json!({"readyToUse": true, "boundVolumeSnapshotContentName": "c-1"});
    let mut deleting = snapshot("s-3", "a", json!({"boundVolumeSnapshotContentName": "c-3"}));
    deleting["metadata"]["deletionTimestamp"] = json!("2026-06-03T11:00:00Z");
    let mut deleting_content = snapshot_content(
        "c-3",
        "s-3",
        json!({"error": {"message": "the array is busy", "time": "2026-06-03T11:58:00Z"}}),
    );
    deleting_content["metadata"]["deletionTimestamp"] = json!("2026-06-03T11:00:00Z");
    let objects = StatusObjects {
        snapshots: snapshot_objects(
            json!([snapshot("s-1", "a", ready), snapshot("s-2", "b", json!({})), deleting]),
            json!([
                snapshot_content("c-1", "s-1", json!({"readyToUse": true})),
                deleting_content,
                snapshot_content("c-4", "deleted", json!({"readyToUse": true})),
            ]),
        ),
        ..cluster()
    };
    let shown = show(&objects);
    for expected in [
        "  snapshots    1 deleting, 1 pending, 1 ready\n",
        "  contents     1 deleting, 1 ready, 1 released\n",
        "1 to snapshot (oldest 1h30m)",
        "snapshot shop/s-2: to snapshot for 1h30m: PersistentVolumeClaim b is not Bound\n",
        "snapshot shop/s-3: to delete for 1h0m: the array is busy\n",
        "snapshot content c-3: to delete for 1h0m: the array is busy\n",
        "2m0s ago, snapshot content c-3: the array is busy\n",
    ] {
        assert!(shown.contains(expected), "{expected}\n{shown}");
    }
    let status = json!(ClusterStatus::from_objects(&objects, now(), HOUR));
    assert_eq!(
        status.pointer("/drivers/0/snapshots"),
        Some(&json!({"ready": 1, "pending": 1, "deleting": 1}))
    );
    assert_eq!(
        status.pointer("/drivers/0/snapshotContents"),
        Some(&json!({"ready": 1, "released": 1, "deleting": 1}))
    );
    // Without the VolumeSnapshots, it is unknown which of them are deleted.
    let mut objects = objects;
    objects.snapshots.snapshots.clear();
    objects.forbidden = vec!["volumesnapshots"];
    let shown = show(&objects);
    assert!(
        shown.contains("  contents     1 deleting, 2 ready\n") && !shown.contains("  snapshots"),
        "{shown}"
    );
    // The kinds are not installed.
    let shown = show(&cluster());
    assert!(!shown.contains("snapshots") && !shown.contains("contents"), "{shown}");
}

#[test]
fn a_deleted_snapshot_shows_what_failed_since_its_deletion() {
    let failure = json!({"message": "the array was busy", "time": "2026-06-03T10:59:00Z"});
    let warning = |uid: &str, time: &str| {
        json!({
            "metadata": {"name": uid, "namespace": "shop"}, "type": "Warning",
            "involvedObject": {"kind": "VolumeSnapshot", "namespace": "shop", "name": uid, "uid": uid},
            "reason": "SnapshotDeletePending", "message": "claim b is restored from it", "lastTimestamp": time,
        })
    };
    let deleting = |name: &str| {
        let mut deleting = snapshot(name, "a", json!({"error": failure}));
        deleting["metadata"]["deletionTimestamp"] = json!("2026-06-03T11:00:00Z");
        deleting["metadata"]["finalizers"] = json!(["a-backup/keeps"]);
        deleting
    };
    let objects = StatusObjects {
        snapshots: snapshot_objects(json!([deleting("s-1"), deleting("s-2")]), json!([])),
        events: parse_list(json!([
            warning("s-1", "2026-06-03T11:30:00Z"),
            warning("s-2", "2026-06-03T10:30:00Z"),
        ])),
        ..cluster()
    };
    let shown = show(&objects);
    for expected in [
        "snapshot shop/s-1: to delete for 1h0m: SnapshotDeletePending: claim b is restored from it\n",
        "snapshot shop/s-2: to delete for 1h0m: waiting for finalizers a-backup/keeps; last error: the array was busy\n",
    ] {
        assert!(shown.contains(expected), "{expected}\n{shown}");
    }
}

#[test]
fn a_stuck_snapshot_shows_its_reason_and_belongs_to_a_driver() {
    let failure = |message: &str| json!({"message": message, "time": "2026-06-03T11:59:00Z"});
    let bound = |error: Value| json!({"boundVolumeSnapshotContentName": "c", "error": error});
    let content = |error: Value| json!([snapshot_content("c", "s", json!({"error": error}))]);
    let with_class = |class: Value, claim: &str| {
        let mut snapshot = snapshot("s", claim, json!({}));
        snapshot["spec"]["volumeSnapshotClassName"] = class;
        snapshot
    };
    let mut existing = snapshot("s", "", json!({}));
    existing["spec"]["source"] = json!({"volumeSnapshotContentName": "c"});
    let none = || json!([]);
    let array = Some("array.example.com");
    let pool = Some("pool.example.com");
    let rows = [
        (snapshot("s", "a", json!({})), none(), vec![], array, "no reason reported"),
        (
            snapshot("s", "a", bound(failure("it is busy"))),
            content(failure("no space")),
            vec![],
            array,
            "it is busy",
        ),
        (snapshot("s", "a", bound(Value::Null)), content(failure("no space")), vec![], array, "no space"),
        (
            snapshot("s", "a", bound(Value::Null)),
            none(),
            vec![],
            array,
            "VolumeSnapshotContent c does not exist",
        ),
        (
            snapshot("s", "a", bound(Value::Null)),
            none(),
            vec!["volumesnapshotcontents"],
            array,
            "no reason reported",
        ),
        (existing.clone(), none(), vec![], array, "VolumeSnapshotContent c does not exist"),
        (existing, content(Value::Null), vec![], array, "no reason reported"),
        (snapshot("s", "b", json!({})), none(), vec![], array, "PersistentVolumeClaim b is not Bound"),
        (snapshot("s", "x", json!({})), none(), vec![], array, "PersistentVolumeClaim x does not exist"),
        (snapshot("s", "x", json!({})), none(), vec!["persistentvolumeclaims"], array, "no reason reported"),
        // Without a class, the driver is that of the claim's volume.
        (with_class(Value::Null, "p"), none(), vec![], pool, "no reason reported"),
        (with_class(json!("gone"), "p"), none(), vec![], pool, "VolumeSnapshotClass gone does not exist"),
        (with_class(json!("gone"), "p"), none(), vec!["volumesnapshotclasses"], pool, "no reason reported"),
    ];
    for (snapshot, contents, forbidden, driver, reason) in rows {
        let mut objects =
            StatusObjects { snapshots: snapshot_objects(json!([snapshot]), contents), ..cluster() };
        let created = "2026-06-03T09:00:00Z";
        let claim = claim("p", created, json!({"volumeName": "pv-3"}), json!({"phase": "Bound"}));
        objects.claims.extend(parse_list(json!([claim])));
        objects.forbidden = forbidden.clone();
        let status = ClusterStatus::from_objects(&objects, now(), HOUR);
        let found = status.drivers.iter().find_map(|driver| {
            let stuck = driver.stuck.iter().find(|stuck| stuck.object.kind == "VolumeSnapshot")?;
            Some((driver.driver.as_deref(), stuck.reason.as_str()))
        });
        assert_eq!(found, Some((driver, reason)), "{snapshot} {forbidden:?}");
    }
}

#[test]
fn an_empty_cluster_and_forbidden_kinds_are_reported() {
    assert!(show(&StatusObjects::default()).starts_with("no storage"));
    let shown = show(&StatusObjects { forbidden: vec!["events", "csinodes"], ..cluster() });
    assert!(shown.ends_with("\nnot shown, because you may not list them: events, csinodes\n"), "{shown}");
}

#[test]
fn two_reports_about_one_driver_are_shown_with_their_namespaces() {
    let driver = || "pool.example.com".to_owned();
    let mut objects = cluster();
    for orphans in [[("storage", 2), ("shop", 0)], [("shop", 0), ("storage", 2)]] {
        objects.orphans = orphans.map(|(namespace, count)| (driver(), orphan_count(namespace, count))).into();
        let shown = show(&objects);
        assert!(
            shown.contains("0 nodes, 2 orphans, see `cofferdam orphans --namespace storage`\n"),
            "{shown}"
        );
        let status = json!(ClusterStatus::from_objects(&objects, now(), HOUR));
        assert_eq!(
            status["drivers"][1]["orphans"],
            json!([
                {"namespace": "shop", "kind": "volume", "count": 0},
                {"namespace": "storage", "kind": "volume", "count": 2},
            ])
        );
    }
}

#[test]
fn orphaned_snapshots_are_not_counted_as_volumes() {
    let snapshots = OrphanCount { kind: OrphanKind::Snapshot, ..orphan_count("storage", 3) };
    let mut objects = cluster();
    objects.orphans =
        [orphan_count("storage", 2), snapshots].map(|n| ("pool.example.com".to_owned(), n)).into();
    let shown = show(&objects);
    let see = "see `cofferdam orphans --namespace storage`";
    assert!(shown.contains(&format!("2 orphans, {see}, 3 orphaned snapshots, {see}\n")), "{shown}");
}

#[test]
fn no_text_of_an_object_reaches_the_terminal_unescaped() {
    let hostile = "x\u{1b}[2J\u{1b}]52;c;eA==\u{7}\u{9b}1m\r\n  claims 0\u{202e}y\u{2066}\u{200b}\u{2028}";
    let mut driver = volume(hostile, hostile, json!({"phase": hostile, "message": hostile}));
    driver["spec"]["csi"]["volumeHandle"] = json!(hostile);
    let mut detaching = attachment(
        hostile,
        hostile,
        hostile,
        json!({"attached": false, "attachError": {"time": "2026-06-03T11:50:00Z", "message": hostile}}),
    );
    detaching["spec"]["attacher"] = json!(hostile);
    let mut deleting = claim(hostile, "2026-06-03T09:00:00Z", json!({}), json!({"phase": "Bound"}));
    deleting["metadata"]["namespace"] = json!(hostile);
    deleting["metadata"]["deletionTimestamp"] = json!("2026-06-03T10:30:00Z");
    deleting["metadata"]["finalizers"] = json!([hostile]);
    let hostile_error = json!({"error": {"message": hostile, "time": "2026-06-03T11:50:00Z"}});
    let mut hostile_snapshot = snapshot(hostile, hostile, hostile_error.clone());
    hostile_snapshot["spec"]["volumeSnapshotClassName"] = json!(hostile);
    let mut hostile_content = snapshot_content(hostile, hostile, hostile_error);
    hostile_content["spec"]["driver"] = json!(hostile);
    let objects = StatusObjects {
        drivers: parse_list(json!([{"metadata": {"name": hostile}, "spec": {}}])),
        nodes: parse_list(json!([{"metadata": {"name": hostile}, "spec": {"drivers": [
            {"name": hostile, "nodeID": hostile}]}}])),
        classes: parse_list(json!([{"metadata": {"name": hostile}, "provisioner": hostile}])),
        claims: parse_list(json!([
            deleting,
            claim("lost", "2026-06-03T09:00:00Z", json!({"volumeName": hostile}), json!({"phase": "Lost"})),
            claim(
                "a",
                "2026-06-03T09:00:00Z",
                json!({"storageClassName": hostile}),
                json!({"phase": hostile}),
            ),
        ])),
        volumes: parse_list(json!([driver])),
        attachments: parse_list(json!([detaching])),
        snapshots: SnapshotObjects {
            snapshots: parse_list(json!([hostile_snapshot])),
            contents: parse_list(json!([hostile_content])),
            classes: parse_list(json!([{"metadata": {"name": hostile}, "driver": hostile}])),
        },
        events: parse_list(json!([
            {"metadata": {}, "involvedObject": {"uid": "a"}, "type": "Warning",
             "reason": hostile, "message": hostile, "lastTimestamp": "2026-06-03T11:55:00Z"},
        ])),
        orphans: vec![(hostile.to_owned(), orphan_count(hostile, 1))],
        journals: ["one", hostile]
            .map(|namespace| JournalShard {
                driver: hostile.to_owned(),
                namespace: namespace.to_owned(),
                intents: vec![intent(hostile, None)],
                undecodable: 1,
            })
            .into(),
        forbidden: Vec::new(),
    };
    let status = ClusterStatus::from_objects(&objects, now(), HOUR);
    let shown = show(&objects);
    assert!(!shown.chars().any(|c| c != '\n' && is_control_or_format(c)), "{shown:?}");
    assert!(shown.starts_with("x\\u{1b}[2J") && shown.matches("\\u{202e}").count() >= 8, "{shown}");
    // With colours, only those of the program are escape sequences.
    let coloured = table::format_status(&status, now(), Style { colours: true });
    for sequence in coloured.as_str().split('\u{1b}').skip(1) {
        let code = sequence.strip_prefix('[').and_then(|rest| rest.split_once('m')).map(|(code, _)| code);
        assert!(code.is_some_and(|code| code.bytes().all(|b| b.is_ascii_digit())), "{sequence:?}");
    }
    let json_text = TerminalText::from_json(&json!(status));
    assert!(!json_text.as_str().chars().any(|c| c != '\n' && is_control_or_format(c)), "{json_text:?}");
}
