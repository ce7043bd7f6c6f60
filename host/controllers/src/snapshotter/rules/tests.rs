//! Tests of the rules of VolumeSnapshotContents, case by case.

use cofferdam_cluster::decode;
use cofferdam_sim::objects::with;
use serde_json::{Value, json};

use super::*;

fn read<K: cofferdam_cluster::Kind>(json: &Value) -> K {
    decode::object(&json.to_string()).unwrap().unwrap()
}

fn content_json() -> Value {
    json!({
        "metadata": {
            "name": "content", "uid": "c-uid", "resourceVersion": "7",
            "finalizers": ["other/finalizer", names::SNAPSHOT_CONTENT_PROTECTION],
        },
        "spec": {
            "deletionPolicy": "Delete", "driver": "drv", "volumeSnapshotClassName": "fast",
            "source": {"volumeHandle": "v"},
            "volumeSnapshotRef": {"namespace": "ns", "name": "s", "uid": "s-uid-1"},
        },
    })
}

fn class_json() -> Value {
    json!({
        "metadata": {"name": "fast", "uid": "class", "resourceVersion": "3"},
        "driver": "drv", "deletionPolicy": "Delete",
        "parameters": {
            "tier": "gold", "csi.storage.k8s.io/snapshotter-secret-name": "a",
            "csi.storage.k8s.io/snapshotter-secret-namespace": "b",
        },
    })
}

fn describe(verdict: &SnapshotterVerdict) -> String {
    match verdict {
        SnapshotterVerdict::NoAction(reason) => format!("no action: {reason}"),
        SnapshotterVerdict::MarkCreating => "mark".to_owned(),
        SnapshotterVerdict::Create(request) => format!("create {} of {}", request.name, request.source),
        SnapshotterVerdict::ReadStatus(handle) => format!("read {handle}"),
        SnapshotterVerdict::UnmarkCreating => "unmark".to_owned(),
        SnapshotterVerdict::Delete(handle) => format!("delete {handle}"),
        SnapshotterVerdict::RemoveFinalizer(index) => format!("remove finalizer {index}"),
        SnapshotterVerdict::DeletionFrozen => "frozen".to_owned(),
        SnapshotterVerdict::Fail(message) => format!("fail: {message}"),
        SnapshotterVerdict::FailDeletion(message) => format!("fail deletion: {message}"),
    }
}

fn decide(content: &Value, class: Option<&Value>, is_frozen: bool) -> SnapshotterVerdict {
    let cache = Cache::default();
    class.into_iter().for_each(|class| assert!(cache.snapshot_classes.apply(Ok(read(class)))));
    let content: VolumeSnapshotContent = read(content);
    assert!(cache.snapshot_contents.apply(Ok(content.clone())));
    decide_content(&cache, &content, &SnapshotSettings::default(), &"cluster".into(), is_frozen)
}

fn creating() -> Value {
    json!({"metadata": {"annotations": {names::SNAPSHOT_BEING_CREATED: "yes"}}})
}

fn known(ready: bool) -> Value {
    json!({"status": {"snapshotHandle": "h", "readyToUse": ready}})
}

fn existing() -> Value {
    json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "h"}}})
}

/// Merges changes into an object.
fn all(changes: &[Value]) -> Value {
    changes.iter().fold(json!({}), with)
}

#[test]
fn a_snapshot_is_created_after_its_annotation_is_written() {
    let retained_unbound = json!({"spec": {"volumeSnapshotRef": {"uid": null}}});
    #[rustfmt::skip] // one row per situation
    let table: [(&str, Value, &str); 12] = [
        ("new", json!({}), "mark"),
        ("marked", creating(), "create snapshot-s-uid-1 of v"),
        ("failed before", json!({"status": {"error": {"message": "m"}, "readyToUse": false}}), "mark"),
        ("created, not ready, marked", all(&[creating(), known(false)]), "unmark"),
        ("created, not ready", known(false), "create snapshot-s-uid-1 of v"),
        ("ready, marked", all(&[creating(), known(true)]), "unmark"),
        ("ready", known(true), "no action: the snapshot is ready"),
        ("not bound", retained_unbound,
            "fail: spec.volumeSnapshotRef.uid is empty; expected the uid of a VolumeSnapshot"),
        ("no class", json!({"spec": {"volumeSnapshotClassName": null}}),
            "fail: spec.volumeSnapshotClassName is absent; expected a VolumeSnapshotClass"),
        ("missing class", json!({"spec": {"volumeSnapshotClassName": "gone"}}),
            "fail: VolumeSnapshotClass gone does not exist"),
        ("existing snapshot", existing(), "read h"),
        ("existing snapshot, ready", all(&[existing(), known(true)]), "no action: the snapshot is ready"),
    ];
    for (name, change, expected) in table {
        let verdict = decide(&with(content_json(), &change), Some(&class_json()), false);
        assert_eq!(describe(&verdict), expected, "{name}");
    }
    let other = with(class_json(), &json!({"driver": "other"}));
    let verdict = decide(&content_json(), Some(&other), false);
    assert_eq!(describe(&verdict), "fail: VolumeSnapshotClass fast has the driver other; expected drv");
    let unknown = with(class_json(), &json!({"parameters": {"csi.storage.k8s.io/tier": "x"}}));
    let verdict = describe(&decide(&content_json(), Some(&unknown), false));
    assert!(verdict.starts_with("fail: VolumeSnapshotClass fast has the parameter csi.storage.k8s.io/tier"));
}

#[test]
fn a_snapshot_is_deleted_once_its_creation_has_a_result() {
    let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let allowed = all(&[
        deleting.clone(),
        json!({"metadata": {"annotations": {names::SNAPSHOT_BEING_DELETED: "yes"}}}),
    ]);
    let retain = json!({"spec": {"deletionPolicy": "Retain"}});
    let unbound = json!({"spec": {"volumeSnapshotRef": {"uid": null}}});
    let finalized = json!({"metadata": {"finalizers": ["other/finalizer"]}});
    #[rustfmt::skip] // one row per situation
    let table: [(&str, Value, bool, &str); 11] = [
        ("snapshot lives", all(&[deleting.clone(), known(true)]), false, "no action: the VolumeSnapshot is not being deleted"),
        ("allowed", all(&[allowed.clone(), known(true)]), false, "delete h"),
        ("allowed, not ready", all(&[allowed.clone(), known(false)]), false, "delete h"),
        ("allowed, frozen", all(&[allowed.clone(), known(true)]), true, "frozen"),
        ("allowed, Retain, frozen", all(&[allowed.clone(), known(true), retain]), true, "remove finalizer 1"),
        ("allowed, no handle", allowed.clone(), false, "remove finalizer 1"),
        ("allowed, result unknown", all(&[allowed.clone(), creating()]), false, "create snapshot-s-uid-1 of v"),
        ("allowed, result known", all(&[allowed.clone(), creating(), known(false)]), false, "unmark"),
        ("allowed, finalizer removed", all(&[allowed.clone(), known(true), finalized]), false,
            "no action: the finalizer of this role is removed"),
        ("never bound", all(&[deleting, existing(), unbound, known(true)]), false, "delete h"),
        ("existing, allowed", all(&[allowed, existing(), known(true)]), false, "delete h"),
    ];
    for (name, change, is_frozen, expected) in table {
        let verdict = decide(&with(content_json(), &change), Some(&class_json()), is_frozen);
        assert_eq!(describe(&verdict), expected, "{name}");
    }
}

#[test]
fn a_snapshot_of_two_contents_is_not_deleted() {
    let cache = Cache::default();
    let allowed = json!({"metadata": {
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {names::SNAPSHOT_BEING_DELETED: "yes"},
    }});
    let content = with(content_json(), &all(&[allowed, known(true)]));
    let other = with(content_json(), &all(&[existing(), json!({"metadata": {"name": "other", "uid": "o"}})]));
    assert!(cache.snapshot_contents.apply(Ok(read(&other))));
    let content: VolumeSnapshotContent = read(&content);
    assert!(cache.snapshot_contents.apply(Ok(content.clone())));
    let verdict = decide_content(&cache, &content, &SnapshotSettings::default(), &"cluster".into(), false);
    let expected =
        "fail deletion: VolumeSnapshotContent other refers to the same snapshot h: it is not deleted";
    assert_eq!(describe(&verdict), expected);
}

#[test]
fn the_request_has_name_parameters_and_owner() {
    let cache = Cache::default();
    assert!(cache.snapshot_classes.apply(Ok(read(&class_json()))));
    let settings = SnapshotSettings {
        name_prefix: "snap".to_owned(),
        name_uuid_length: Some(3),
        extra_create_metadata: true,
        ..SnapshotSettings::default()
    };
    let content: VolumeSnapshotContent = read(&content_json());
    let request = create_request(&cache, &content, &"v".into(), &settings, &"cluster".into()).unwrap();
    assert_eq!((request.name.as_str(), request.source.as_str()), ("snap-sui", "v"));
    let parameters: Vec<_> = request.parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let expected = [
        "csi.storage.k8s.io/volumesnapshot/name=s",
        "csi.storage.k8s.io/volumesnapshot/namespace=ns",
        "csi.storage.k8s.io/volumesnapshotcontent/name=content",
        "tier=gold",
    ];
    assert_eq!(parameters, expected);
    let owner = request.owner.unwrap();
    let found = (owner.cluster_id.as_str(), owner.snapshot_uid.as_str(), owner.content_name.as_str());
    assert_eq!((found, owner.retain), (("cluster", "s-uid-1", "content"), false));
}

#[test]
fn the_secret_is_that_of_both_annotations() {
    let content = |name: &str, namespace: &str| -> VolumeSnapshotContent {
        let annotations =
            json!({names::SNAPSHOT_SECRET_NAME: name, names::SNAPSHOT_SECRET_NAMESPACE: namespace});
        read(&with(content_json(), &json!({"metadata": {"annotations": annotations}})))
    };
    assert_eq!(secret_of(&read(&content_json())), Ok(None));
    assert_eq!(secret_of(&content("", "")), Ok(None));
    assert_eq!(secret_of(&content("a", "ns")).unwrap().unwrap().to_string(), "ns/a");
    for (name, namespace) in [("a", ""), ("", "ns")] {
        let error = secret_of(&content(name, namespace)).unwrap_err();
        assert!(error.starts_with("only one of the annotations"), "{error}");
    }
}

#[test]
fn only_final_errors_end_the_creation() {
    let request = CreateSnapshot {
        name: "snapshot-1".to_owned(),
        source: "v".into(),
        parameters: cofferdam_domain::storage::Parameters::new(),
        owner: None,
    };
    let is_final = |error| match decide_after_create(&request, Err(error)) {
        CreatedVerdict::Fail { is_final, .. } => is_final,
        CreatedVerdict::Save(_) => panic!("an error is no snapshot"),
    };
    for (kind, expected) in [
        (ErrorKind::InvalidArgument, true),
        (ErrorKind::NotFound, true),
        (ErrorKind::FailedPrecondition, true),
        (ErrorKind::Internal, true),
        (ErrorKind::AlreadyExists, true),
        (ErrorKind::ResourceExhausted, false),
        (ErrorKind::Unavailable, false),
        (ErrorKind::DeadlineExceeded, false),
        (ErrorKind::Cancelled, false),
        (ErrorKind::Aborted, false),
    ] {
        assert_eq!(is_final(StorageError::with_known_effect(kind, "m")), expected, "{kind:?}");
        assert!(!is_final(StorageError::with_unknown_effect(kind, "m")), "{kind:?} with an unknown result");
    }
    let snapshot = |source: &str| Snapshot {
        handle: "h".into(),
        source: source.into(),
        size: None,
        created_at_ms: 1,
        ready: true,
        group: None,
        owner: None,
    };
    assert_eq!(decide_after_create(&request, Ok(snapshot("v"))), CreatedVerdict::Save(snapshot("v")));
    let CreatedVerdict::Fail { message, is_final } = decide_after_create(&request, Ok(snapshot("w"))) else {
        panic!("a snapshot of another volume is no result")
    };
    assert_eq!(message, "the driver returned a snapshot of volume w; expected volume v");
    assert!(!is_final);
}
