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
        SnapshotterVerdict::MarkCreating(request) => format!("mark {}", request.name),
        SnapshotterVerdict::Create(request) => format!("create {} of {}", request.name, request.source),
        SnapshotterVerdict::ReadStatus(handle) => format!("read {handle}"),
        SnapshotterVerdict::UnmarkCreating => "unmark".to_owned(),
        SnapshotterVerdict::RecordHandle(handle) => format!("record {handle}"),
        SnapshotterVerdict::Delete(handle) => format!("delete {handle}"),
        SnapshotterVerdict::RemoveFinalizer(index) => format!("remove finalizer {index}"),
        SnapshotterVerdict::DeletionFrozen => "frozen".to_owned(),
        SnapshotterVerdict::Fail(error) => format!("fail: {error}"),
        SnapshotterVerdict::FailDeletion(message) => format!("fail deletion: {message}"),
    }
}

fn decide(content: &Value, class: Option<&Value>, is_frozen: bool) -> SnapshotterVerdict {
    decide_answered(content, class, is_frozen, false)
}

fn decide_answered(
    content: &Value,
    class: Option<&Value>,
    is_frozen: bool,
    is_answered: bool,
) -> SnapshotterVerdict {
    let cache = Cache::default();
    class.into_iter().for_each(|class| assert!(cache.snapshot_classes.apply(Ok(read(class)))));
    let content: VolumeSnapshotContent = read(content);
    assert!(cache.snapshot_contents.apply(Ok(content.clone())));
    let settings = SnapshotSettings::default();
    decide_content(&cache, &content, &settings, &"cluster".into(), is_frozen, is_answered)
}

fn creating() -> Value {
    json!({"metadata": {"annotations": {names::SNAPSHOT_BEING_CREATED: "yes"}}})
}

/// The annotations of a creation, with a recorded request.
fn recorded(request: &str) -> Value {
    let annotations = json!({names::SNAPSHOT_BEING_CREATED: "yes", names::SNAPSHOT_REQUEST: request});
    json!({"metadata": {"annotations": annotations}})
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
    let table: [(&str, Value, &str); 16] = [
        ("new", json!({}), "mark snapshot-s-uid-1"),
        ("marked", creating(), "create snapshot-s-uid-1 of v"),
        ("failed before", json!({"status": {"error": {"message": "m"}, "readyToUse": false}}),
            "mark snapshot-s-uid-1"),
        ("created, not ready, marked", all(&[creating(), known(false)]), "create snapshot-s-uid-1 of v"),
        ("created, not ready", known(false), "mark snapshot-s-uid-1"),
        ("ready, marked", all(&[creating(), known(true)]), "unmark"),
        ("ready", known(true), "no action: the snapshot is ready"),
        ("not bound", retained_unbound,
            "fail: spec.volumeSnapshotRef.uid is empty; expected the uid of a VolumeSnapshot"),
        ("no class", json!({"spec": {"volumeSnapshotClassName": null}}),
            "fail: spec.volumeSnapshotClassName is absent; expected a VolumeSnapshotClass"),
        ("missing class", json!({"spec": {"volumeSnapshotClassName": "gone"}}),
            "fail: VolumeSnapshotClass gone does not exist"),
        ("recorded request", recorded("{\"name\":\"n\",\"parameters\":{}}"), "create n of v"),
        ("recorded request, class gone",
            all(&[recorded("{\"name\":\"n\",\"parameters\":{}}"),
                json!({"spec": {"volumeSnapshotClassName": "gone"}})]),
            "create n of v"),
        ("member of a group", json!({"metadata": {"annotations": {names::SNAPSHOT_GROUP_HANDLE: "g"}}}),
            "no action: the snapshot is a member of a group"),
        ("existing snapshot, marked", all(&[existing(), creating()]), "unmark"),
        ("existing snapshot", existing(), "read h"),
        ("existing snapshot, ready", all(&[existing(), known(true)]), "no action: the snapshot is ready"),
    ];
    for (name, change, expected) in table {
        let verdict = decide(&with(content_json(), &change), Some(&class_json()), false);
        assert_eq!(describe(&verdict), expected, "{name}");
    }
    let unreadable = decide(&with(content_json(), &recorded("n")), Some(&class_json()), false);
    assert!(
        describe(&unreadable).starts_with("fail: the annotation cofferdam.dev/create-snapshot-request is")
    );
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
    let group = json!({"status": {"volumeGroupSnapshotHandle": "g"}});
    let deleted = json!({"status": {}});
    #[rustfmt::skip] // one row per situation
    let table: [(&str, Value, bool, &str); 16] = [
        ("snapshot lives", all(&[deleting.clone(), known(true)]), false, "no action: the snapshot is ready"),
        ("allowed", all(&[allowed.clone(), known(true)]), false, "delete h"),
        ("allowed, not ready", all(&[allowed.clone(), known(false)]), false, "delete h"),
        ("allowed, frozen", all(&[allowed.clone(), known(true)]), true, "frozen"),
        ("allowed, Retain, frozen", all(&[allowed.clone(), known(true), retain]), true, "remove finalizer 1"),
        ("allowed, no handle", allowed.clone(), false, "remove finalizer 1"),
        ("allowed, result unknown", all(&[allowed.clone(), creating()]), false, "create snapshot-s-uid-1 of v"),
        ("allowed, created, not ready", all(&[allowed.clone(), creating(), known(false)]), false,
            "create snapshot-s-uid-1 of v"),
        ("allowed, member of a group", all(&[allowed.clone(), known(true), group]), false, "remove finalizer 1"),
        ("existing, not read yet", all(&[allowed.clone(), existing()]), false, "record h"),
        ("existing, not readable", all(&[allowed.clone(), existing(),
            json!({"status": {"error": {"message": "m"}, "readyToUse": false}})]), false, "record h"),
        ("existing, deleted", all(&[allowed.clone(), existing(), deleted]), false, "remove finalizer 1"),
        ("allowed, finalizer removed", all(&[allowed.clone(), known(true), finalized]), false,
            "no action: the finalizer of this role is removed"),
        ("never bound, of a volume", all(&[deleting.clone(), unbound.clone(), known(true)]), false,
            "no action: the snapshot is ready"),
        ("never bound", all(&[deleting, existing(), unbound, known(true)]), false, "delete h"),
        ("existing, allowed", all(&[allowed.clone(), existing(), known(true)]), false, "delete h"),
    ];
    for (name, change, is_frozen, expected) in table {
        let verdict = decide(&with(content_json(), &change), Some(&class_json()), is_frozen);
        assert_eq!(describe(&verdict), expected, "{name}");
    }
    let class_gone = json!({"spec": {"volumeSnapshotClassName": "gone"}});
    let known_only = with(content_json(), &all(&[allowed.clone(), creating(), known(false), class_gone]));
    assert_eq!(describe(&decide(&known_only, None, false)), "unmark", "the handle is known");
    let group = json!({"status": {"volumeGroupSnapshotHandle": "g"}});
    let member = with(content_json(), &all(&[creating(), known(true), group]));
    assert_eq!(describe(&decide(&member, None, false)), "unmark", "a member of a group");
    let lives = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let polled = with(content_json(), &all(&[lives, creating(), known(false)]));
    let verdict = decide_answered(&polled, Some(&class_json()), false, true);
    assert_eq!(describe(&verdict), "create snapshot-s-uid-1 of v", "the VolumeSnapshot lives");
    let answered = with(content_json(), &all(&[allowed, creating(), known(false)]));
    let verdict = decide_answered(&answered, Some(&class_json()), false, true);
    assert_eq!(describe(&verdict), "unmark", "the driver has answered in this run");
}

#[test]
fn only_foreign_changes_end_the_back_off() {
    let changes = [
        (creating(), false),
        (recorded("{}"), false),
        (known(true), false),
        (json!({"metadata": {"finalizers": []}}), false),
        (json!({"metadata": {"uid": "other"}}), true),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), true),
        (json!({"metadata": {"annotations": {names::SNAPSHOT_BEING_DELETED: "yes"}}}), true),
        (json!({"metadata": {"annotations": {names::SNAPSHOT_SECRET_NAME: "s"}}}), true),
        (json!({"spec": {"volumeSnapshotClassName": "slow"}}), true),
        (json!({"spec": {"volumeSnapshotRef": {"uid": null}}}), true),
        (existing(), true),
    ];
    let old: VolumeSnapshotContent = read(&content_json());
    for (change, expected) in changes {
        let new = read(&with(content_json(), &change));
        assert_eq!(needs_decision(&old, &new), expected, "{change}");
    }
}

#[test]
fn a_snapshot_of_two_contents_is_not_deleted() {
    let cache = Cache::default();
    let allowed = json!({"metadata": {
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {names::SNAPSHOT_BEING_DELETED: "yes"},
    }});
    let content = with(content_json(), &all(&[allowed.clone(), known(true)]));
    let other = with(content_json(), &all(&[existing(), json!({"metadata": {"name": "other", "uid": "o"}})]));
    assert!(cache.snapshot_contents.apply(Ok(read(&other))));
    let content: VolumeSnapshotContent = read(&content);
    assert!(cache.snapshot_contents.apply(Ok(content.clone())));
    let settings = SnapshotSettings::default();
    let decide = || decide_content(&cache, &content, &settings, &"cluster".into(), false, false);
    let verdict = decide();
    let expected =
        "fail deletion: VolumeSnapshotContent other refers to the same snapshot h: it is not deleted";
    assert_eq!(describe(&verdict), expected);
    let other = with(other, &all(&[allowed, json!({"metadata": {"resourceVersion": "8"}})]));
    assert!(cache.snapshot_contents.apply(Ok(read(&other))));
    assert_eq!(describe(&decide()), "delete h", "the other content deletes the snapshot, too");
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
    let request = class_request(&cache, &content, &settings).unwrap();
    let request = create_request(&content, &"v".into(), request, &"cluster".into()).unwrap();
    assert_eq!(
        request_annotation(&request),
        "{\"name\":\"snap-sui\",\"parameters\":{\"csi.storage.k8s.io/volumesnapshot/name\":\"s\",\
         \"csi.storage.k8s.io/volumesnapshot/namespace\":\"ns\",\
         \"csi.storage.k8s.io/volumesnapshotcontent/name\":\"content\",\"tier\":\"gold\"}}"
    );
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
    let found = (owner.cluster_id.as_str(), &owner.snapshot_uid, owner.content_name.as_str());
    assert_eq!((found, owner.retain), (("cluster", &"s-uid-1".into(), "content"), false));
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
        let error = secret_of(&content(name, namespace)).unwrap_err().to_string();
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
    let decide = |error, is_recovered, is_released| match decide_after_create(
        &request,
        Err(error),
        is_recovered,
        is_released,
    ) {
        CreatedVerdict::Fail { is_final, .. } => is_final,
        CreatedVerdict::Save(_) => panic!("an error is no snapshot"),
    };
    let is_final_for = |error, is_recovered| decide(error, is_recovered, false);
    for (kind, expected) in [
        (ErrorKind::Internal, true),
        (ErrorKind::ResourceExhausted, true),
        (ErrorKind::Unavailable, false),
        (ErrorKind::DeadlineExceeded, false),
    ] {
        let error = StorageError::with_unknown_effect(kind, "m");
        assert_eq!(decide(error, false, true), expected, "{kind:?} for a known snapshot, to be deleted");
    }
    let is_final = |error| is_final_for(error, false);
    for (kind, expected) in [
        (ErrorKind::InvalidArgument, true),
        (ErrorKind::NotFound, true),
        (ErrorKind::Internal, false),
        (ErrorKind::PermissionDenied, false),
        (ErrorKind::Unauthenticated, false),
    ] {
        let error = StorageError::with_known_effect(kind, "m");
        assert_eq!(is_final_for(error, true), expected, "{kind:?} after the call of another process");
    }
    for (kind, expected) in [
        (ErrorKind::InvalidArgument, true),
        (ErrorKind::NotFound, true),
        (ErrorKind::FailedPrecondition, true),
        (ErrorKind::Internal, true),
        (ErrorKind::AlreadyExists, true),
        (ErrorKind::ResourceExhausted, true),
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
    assert_eq!(
        decide_after_create(&request, Ok(snapshot("v")), false, false),
        CreatedVerdict::Save(snapshot("v"))
    );
    let CreatedVerdict::Fail { message, is_final } =
        decide_after_create(&request, Ok(snapshot("w")), false, false)
    else {
        panic!("a snapshot of another volume is no result")
    };
    assert_eq!(message, "the driver returned a snapshot of volume w; expected volume v");
    assert!(!is_final);
}

#[test]
fn a_snapshot_that_was_lost_before_it_was_ready_is_replaced() {
    let snapshot = Snapshot {
        handle: "snap-2".into(),
        source: "v".into(),
        size: None,
        created_at_ms: 0,
        ready: true,
        group: None,
        owner: None,
    };
    let status = |handle: Option<&str>, ready| SnapshotContentStatus {
        handle: handle.map(Into::into),
        ready,
        ..SnapshotContentStatus::default()
    };
    for (status, expected) in [
        (None, SnapshotIdentity::Known),
        (Some(status(None, None)), SnapshotIdentity::Known),
        (Some(status(Some("snap-2"), Some(false))), SnapshotIdentity::Known),
        (Some(status(Some("snap-2"), Some(true))), SnapshotIdentity::Known),
        (Some(status(Some("snap-1"), Some(false))), SnapshotIdentity::Recreated),
        (Some(status(Some("snap-1"), None)), SnapshotIdentity::Recreated),
        (Some(status(Some("snap-1"), Some(true))), SnapshotIdentity::Foreign),
    ] {
        assert_eq!(compare_with_status(status.as_ref(), &snapshot), expected, "{status:?}");
    }
}
