//! Tests of the rules of VolumeSnapshots, case by case.

use cofferdam_cluster::decode;
use cofferdam_sim::objects::with;
use serde_json::{Value, json};

use super::*;

fn read<K: cofferdam_cluster::Kind>(json: &Value) -> K {
    decode::object(&json.to_string()).unwrap().unwrap()
}

fn snapshot_json() -> Value {
    json!({
        "metadata": {
            "namespace": "ns", "name": "s", "uid": "1", "resourceVersion": "6",
            "finalizers": [names::SNAPSHOT_SOURCE_PROTECTION],
        },
        "spec": {"source": {"persistentVolumeClaimName": "c"}, "volumeSnapshotClassName": "fast"},
    })
}

fn content_json() -> Value {
    json!({
        "metadata": {"name": "snapcontent-1", "uid": "content-uid", "resourceVersion": "7"},
        "spec": {
            "deletionPolicy": "Retain", "driver": "drv", "source": {"volumeHandle": "v"},
            "volumeSnapshotRef": {"namespace": "ns", "name": "s", "uid": "1"},
        },
    })
}

fn class_json() -> Value {
    json!({
        "metadata": {"name": "fast", "uid": "class", "resourceVersion": "3"},
        "driver": "drv", "deletionPolicy": "Delete",
    })
}

fn claim_json() -> Value {
    json!({
        "metadata": {
            "namespace": "ns", "name": "c", "uid": "c-uid", "resourceVersion": "5",
            "finalizers": [names::SNAPSHOT_CLAIM_PROTECTION],
        },
        "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOnce"]},
        "status": {"phase": "Bound"},
    })
}

fn volume_json() -> Value {
    json!({
        "metadata": {"name": "pv", "uid": "pv-uid", "resourceVersion": "4"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "csi": {"driver": "drv", "volumeHandle": "v"},
            "claimRef": {"namespace": "ns", "name": "c", "uid": "c-uid"},
        },
        "status": {"phase": "Bound"},
    })
}

/// The objects of a decision.
struct Fixture {
    snapshot: Value,
    contents: Vec<Value>,
    classes: Vec<Value>,
    claims: Vec<Value>,
    volumes: Vec<Value>,
}

impl Default for Fixture {
    fn default() -> Self {
        Self {
            snapshot: snapshot_json(),
            contents: Vec::new(),
            classes: vec![class_json()],
            claims: vec![claim_json()],
            volumes: vec![volume_json()],
        }
    }
}

impl Fixture {
    fn cache(&self) -> Cache {
        let cache = Cache::default();
        let version = cofferdam_domain::ResourceVersion(1);
        cache.snapshots.replace(vec![Ok(Arc::new(read(&self.snapshot)))], version);
        let contents = self.contents.iter().map(|json| Ok(Arc::new(read(json)))).collect();
        cache.snapshot_contents.replace(contents, version);
        self.classes.iter().for_each(|json| assert!(cache.snapshot_classes.apply(Ok(read(json)))));
        self.claims.iter().for_each(|json| assert!(cache.claims.apply(Ok(read(json)))));
        self.volumes.iter().for_each(|json| assert!(cache.volumes.apply(Ok(read(json)))));
        cache
    }

    fn decide(&self) -> String {
        describe(&decide_snapshot(&self.cache(), &read(&self.snapshot)))
    }

    fn with_content(change: &Value) -> Self {
        Self { contents: vec![with(content_json(), change)], ..Self::default() }
    }

    fn changing(change: &Value) -> Self {
        Self { snapshot: with(snapshot_json(), change), ..Self::default() }
    }
}

fn describe(verdict: &SnapshotVerdict) -> String {
    match verdict {
        SnapshotVerdict::NoAction(reason) => format!("no action: {reason}"),
        SnapshotVerdict::SetClass(class) => format!("set class {class}"),
        SnapshotVerdict::AddFinalizers(names) => {
            let short = |name: &&str| name.rsplit('/').next().unwrap_or_default().to_owned();
            format!("add {}", names.iter().map(short).collect::<Vec<_>>().join(", "))
        }
        SnapshotVerdict::AddClaimFinalizer(claim) => format!("protect claim {}", claim.key),
        SnapshotVerdict::CreateContent { class, volume } => {
            format!("create the content of {} with {}", volume.name, class.name)
        }
        SnapshotVerdict::BindContent(content) => format!("bind {}", content.name),
        SnapshotVerdict::UpdateStatus { status, is_created, is_ready } => {
            let events = [(*is_created, " created"), (*is_ready, " ready")];
            let events: String = events.iter().filter(|(is, _)| *is).map(|(_, event)| *event).collect();
            let content = status.content.as_ref().map(ToString::to_string).unwrap_or_default();
            let size = status.restore_size.map(|size| format!(" {size}")).unwrap_or_default();
            format!("status {content}{size}{events}")
        }
        SnapshotVerdict::MarkContent(content) => format!("mark {}", content.name),
        SnapshotVerdict::DeleteContent(content) => format!("delete {}", content.name),
        SnapshotVerdict::RemoveFinalizers { finalizers, unbound_content } => {
            let indexes: Vec<_> = finalizers.iter().map(|(index, _)| index.to_string()).collect();
            let unless = unbound_content.as_ref().map(|name| format!(" unless {name} exists"));
            format!("remove finalizers {}{}", indexes.join(", "), unless.unwrap_or_default())
        }
        SnapshotVerdict::DeletePending(claim) => format!("pending: {claim}"),
        SnapshotVerdict::Fail(SnapshotFailure { reason, message, .. }) => format!("{reason}: {message}"),
    }
}

fn from_content(name: &str) -> Value {
    json!({"spec": {"source": {"persistentVolumeClaimName": null, "volumeSnapshotContentName": name}}})
}

fn existing() -> Value {
    json!({
        "metadata": {"name": "existing"},
        "spec": {"source": {"volumeHandle": null, "snapshotHandle": "h"}},
    })
}

#[test]
fn a_new_snapshot_gets_a_content() {
    let no_finalizer = json!({"metadata": {"finalizers": null}});
    assert_eq!(Fixture::default().decide(), "create the content of pv with fast");
    assert_eq!(Fixture::changing(&no_finalizer).decide(), "add volumesnapshot-as-source-protection");
    let claim = |change: Value| Fixture { claims: vec![with(claim_json(), &change)], ..Fixture::default() };
    let volume =
        |change: Value| Fixture { volumes: vec![with(volume_json(), &change)], ..Fixture::default() };
    let failed = "SnapshotContentCreationFailed: ";
    #[rustfmt::skip] // one row per situation
    let table = [
        (claim(no_finalizer), "protect claim ns/c".to_owned()),
        (Fixture { claims: Vec::new(), ..Fixture::default() }, format!("{failed}claim ns/c does not exist")),
        (claim(json!({"status": {"phase": "Pending"}, "spec": {"volumeName": null}})),
            format!("{failed}claim ns/c is Pending; expected Bound")),
        (claim(json!({"status": {"phase": "Lost"}})), format!("{failed}claim ns/c is Lost; expected Bound")),
        (claim(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
            format!("{failed}claim ns/c is being deleted")),
        (Fixture { volumes: Vec::new(), ..Fixture::default() },
            format!("{failed}PersistentVolume pv of claim ns/c does not exist")),
        (volume(json!({"spec": {"claimRef": {"uid": "other"}}})),
            format!("{failed}PersistentVolume pv is not bound to claim ns/c")),
        (volume(json!({"spec": {"csi": null}})),
            format!("{failed}PersistentVolume pv of claim ns/c has no CSI driver; expected one")),
        (volume(json!({"spec": {"csi": {"driver": "other"}}})),
            format!("{failed}VolumeSnapshotClass fast has the driver drv; expected other, the driver of \
                     PersistentVolume pv")),
    ];
    for (fixture, expected) in table {
        assert_eq!(fixture.decide(), expected);
    }
}

#[test]
fn a_snapshot_without_a_class_gets_the_default_class_of_its_driver() {
    let default = |name: &str, driver: &str| {
        let metadata = json!({"name": name, "annotations": {names::DEFAULT_SNAPSHOT_CLASS: "true"}});
        with(class_json(), &json!({"metadata": metadata, "driver": driver}))
    };
    let unclassed = json!({"spec": {"volumeSnapshotClassName": null}});
    let failed = "SetDefaultSnapshotClassFailed: driver drv has ";
    for (classes, expected) in [
        (vec![default("a", "drv"), default("b", "other"), class_json()], "set class a".to_owned()),
        (
            vec![class_json()],
            format!("{failed}no default VolumeSnapshotClass; expected one, or spec.volumeSnapshotClassName"),
        ),
        (
            vec![default("b", "drv"), default("a", "drv")],
            format!("{failed}several default VolumeSnapshotClasses: a, b; expected one"),
        ),
    ] {
        assert_eq!(Fixture { classes, ..Fixture::changing(&unclassed) }.decide(), expected);
    }
    let missing = Fixture { classes: Vec::new(), ..Fixture::default() };
    assert_eq!(missing.decide(), "GetSnapshotClassFailed: VolumeSnapshotClass fast does not exist");
    // A VolumeSnapshot that was never classed can be deleted.
    let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let fixture = Fixture { classes: Vec::new(), ..Fixture::changing(&with(unclassed, &deleting)) };
    assert_eq!(fixture.decide(), "remove finalizers 0 unless snapcontent-1 exists");
}

#[test]
fn the_status_is_copied_from_the_content() {
    let ready = json!({"status": {
        "snapshotHandle": "h", "creationTime": 1_700_000_000_500_000_000_i64, "readyToUse": true,
        "restoreSize": 1_073_741_824,
    }});
    assert_eq!(Fixture::with_content(&json!({})).decide(), "status snapcontent-1");
    assert_eq!(Fixture::with_content(&ready).decide(), "status snapcontent-1 1Gi created ready");
    let copied = json!({"status": {
        "boundVolumeSnapshotContentName": "snapcontent-1", "creationTime": "2023-11-14T22:13:20Z",
        "readyToUse": true, "restoreSize": "1Gi",
    }});
    let fixture = Fixture { snapshot: with(snapshot_json(), &copied), ..Fixture::with_content(&ready) };
    assert_eq!(fixture.decide(), "no action: the snapshot is ready");
    let pending = with(copied.clone(), &json!({"status": {"readyToUse": false}}));
    let fixture = Fixture { snapshot: with(snapshot_json(), &pending), ..Fixture::with_content(&ready) };
    assert_eq!(fixture.decide(), "status snapcontent-1 1Gi ready");
    let not_ready = with(ready, &json!({"status": {"readyToUse": false}}));
    let fixture = Fixture { snapshot: with(snapshot_json(), &pending), ..Fixture::with_content(&not_ready) };
    assert_eq!(fixture.decide(), "no action: the status is that of the content");
    // A ready VolumeSnapshot needs its content.
    let expected = "SnapshotContentMissing: VolumeSnapshotContent snapcontent-1 is missing: the snapshot is \
                    not taken again, because it would have the present data; expected a new VolumeSnapshot";
    for lost in [&copied, &pending] {
        assert_eq!(Fixture::changing(lost).decide(), expected);
    }
    let misbound = Fixture {
        snapshot: with(snapshot_json(), &copied),
        ..Fixture::with_content(&json!({"spec": {"volumeSnapshotRef": {"uid": "2"}}}))
    };
    assert_eq!(
        misbound.decide(),
        "SnapshotMisbound: VolumeSnapshotContent snapcontent-1 is not bound to the VolumeSnapshot"
    );
}

#[test]
fn a_content_that_is_deleted_with_its_snapshot_protects_it() {
    let fixture = Fixture::with_content(&json!({"spec": {"deletionPolicy": "Delete"}}));
    assert_eq!(fixture.decide(), "add volumesnapshot-bound-protection");
}

#[test]
fn the_status_does_not_hide_a_content_from_the_deletion() {
    let forged = json!({
        "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"boundVolumeSnapshotContentName": "other"},
    });
    let snapshot = with(snapshot_json(), &forged);
    let fixture = Fixture { snapshot, ..Fixture::with_content(&json!({})) };
    assert_eq!(fixture.decide(), "mark snapcontent-1");
}

#[test]
fn a_snapshot_of_an_existing_content_is_bound_to_it() {
    let unbound = json!({"spec": {"volumeSnapshotRef": {"uid": null}}});
    let decide = |content: Option<Value>| {
        let contents = content.map(|change| with(with(content_json(), &existing()), &change));
        let contents = contents.into_iter().collect();
        Fixture { contents, ..Fixture::changing(&from_content("existing")) }.decide()
    };
    #[rustfmt::skip] // one row per situation
    let table = [
        (Some(unbound), "bind existing"),
        (Some(json!({})), "status existing"),
        (None, "SnapshotContentMissing: VolumeSnapshotContent existing does not exist"),
        (Some(json!({"spec": {"source": {"snapshotHandle": null, "volumeHandle": "v"}}})),
            "SnapshotContentMismatch: VolumeSnapshotContent existing has no spec.source.snapshotHandle; \
             expected an existing snapshot"),
        (Some(json!({"spec": {"volumeSnapshotRef": {"name": "t"}}})),
            "SnapshotContentMisbound: spec.volumeSnapshotRef of VolumeSnapshotContent existing is ns/t; \
             expected this VolumeSnapshot"),
        (Some(json!({"spec": {"volumeSnapshotRef": {"uid": "2"}}})),
            "SnapshotContentMisbound: spec.volumeSnapshotRef of VolumeSnapshotContent existing is ns/s with \
             another uid; expected this VolumeSnapshot"),
    ];
    for (content, expected) in table {
        assert_eq!(decide(content), expected);
    }
    let foreign = Fixture::with_content(&json!({"spec": {"volumeSnapshotRef": {"name": "t"}}}));
    assert_eq!(
        foreign.decide(),
        "SnapshotContentMisbound: spec.volumeSnapshotRef of VolumeSnapshotContent snapcontent-1 is ns/t; \
         expected this VolumeSnapshot"
    );
}

#[test]
fn the_deletion_of_a_snapshot_follows_the_policy_of_its_content() {
    let deleting = json!({"metadata": {
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "finalizers": [names::SNAPSHOT_SOURCE_PROTECTION, names::SNAPSHOT_BOUND_PROTECTION],
    }});
    let only_bound = json!({"metadata": {"finalizers": [names::SNAPSHOT_BOUND_PROTECTION]}});
    let marked = json!({"metadata": {"annotations": {names::SNAPSHOT_BEING_DELETED: "yes"}}});
    let delete = json!({"spec": {"deletionPolicy": "Delete"}});
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let other = json!({"spec": {"volumeSnapshotRef": {"uid": "2"}}});
    let protected = json!({"metadata": {"finalizers": [
        names::SNAPSHOT_SOURCE_PROTECTION, names::RESTORE_PROTECTION,
    ]}});
    let only_protected = json!({"metadata": {"finalizers": [names::RESTORE_PROTECTION]}});
    let may_be_restored = "pending: a provisioner may be creating a volume from the snapshot: waiting until \
                           it removes the finalizer \
                           provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
    let both = |a: &Value, b: &Value| with(a.clone(), b);
    #[rustfmt::skip] // one row per situation
    let table = [
        ("no content", json!({}), None, "remove finalizers 0, 1 unless snapcontent-1 exists"),
        ("being restored", protected.clone(), Some(json!({})), may_be_restored),
        ("being restored, no content", protected.clone(), None, may_be_restored),
        ("being restored, done", only_protected, Some(json!({})),
            "no action: the finalizers of this role are removed"),
        ("content of another", json!({}), Some(other), "remove finalizers 0, 1 unless snapcontent-1 exists"),
        ("not marked", json!({}), Some(json!({})), "mark snapcontent-1"),
        ("marked, Retain", json!({}), Some(marked.clone()), "remove finalizers 0, 1"),
        ("marked, Delete", json!({}), Some(both(&marked, &delete)), "delete snapcontent-1"),
        ("content going", json!({}), Some(both(&both(&marked, &delete), &going)), "remove finalizers 0"),
        ("waiting", only_bound, Some(both(&both(&marked, &delete), &going)),
            "no action: waiting for the deletion of the content"),
        ("member of a group", json!({"status": {"volumeGroupSnapshotName": "g"}}), Some(json!({})),
            "pending: the VolumeSnapshot is a member of a VolumeGroupSnapshot, which this program leaves alone"),
        ("done", json!({"metadata": {"finalizers": ["other/finalizer"]}}), None,
            "no action: the finalizers of this role are removed"),
    ];
    for (name, snapshot, content, expected) in table {
        let contents = content.map(|change| with(content_json(), &change)).into_iter().collect();
        let snapshot = both(&deleting, &snapshot);
        let fixture = Fixture { contents, ..Fixture::changing(&snapshot) };
        assert_eq!(fixture.decide(), expected, "{name}");
    }
    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    let restoring = json!({
        "metadata": {"namespace": "ns", "name": "r", "uid": "r", "resourceVersion": "5"},
        "spec": {"dataSourceRef": source},
    });
    let claims = vec![claim_json(), restoring];
    let restored = |contents| Fixture { claims: claims.clone(), contents, ..Fixture::changing(&deleting) };
    let claim_waits = "pending: claim ns/r has no volume yet and names the VolumeSnapshot as its source: ";
    assert_eq!(
        restored(vec![content_json()]).decide(),
        format!(
            "{claim_waits}provisioners refuse a VolumeSnapshot that is being deleted, so delete the claim \
             unless its volume is being created"
        )
    );
    let snapshot = with(snapshot_json(), &both(&deleting, &protected));
    assert_eq!(
        Fixture { snapshot, ..restored(vec![content_json()]) }.decide(),
        format!("{claim_waits}waiting until it has a volume or is deleted")
    );
    assert_eq!(
        restored(Vec::new()).decide(),
        "remove finalizers 0, 1 unless snapcontent-1 exists",
        "a claim cannot be restored from a snapshot that was never taken"
    );
}

#[test]
fn a_claim_keeps_its_finalizer_while_a_snapshot_is_created() {
    let ready = json!({"status": {"boundVolumeSnapshotContentName": "snapcontent-1", "readyToUse": true}});
    let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let other = json!({"spec": {"source": {"persistentVolumeClaimName": "d"}}});
    #[rustfmt::skip] // one row per situation
    let table = [
        ("not ready", json!({}), Some(json!({})), None),
        ("without a content", json!({}), None, None),
        ("ready", ready, Some(json!({})), Some(0)),
        ("deleting, content exists", deleting.clone(), Some(json!({})), None),
        ("deleting, no content", deleting, None, Some(0)),
        ("taken, content lost", json!({"status": {"creationTime": "2023-11-14T22:13:20Z"}}), None, Some(0)),
        ("snapshot of another claim", other, None, Some(0)),
    ];
    for (name, snapshot, content, expected) in table {
        let contents = content.map(|change| with(content_json(), &change)).into_iter().collect();
        let fixture = Fixture { contents, ..Fixture::changing(&snapshot) };
        let found = removable_claim_finalizer(&fixture.cache(), &read(&claim_json()));
        assert_eq!(found, expected, "{name}");
    }
    let cache = Fixture::changing(&json!({"spec": {"source": {"persistentVolumeClaimName": "d"}}})).cache();
    cache.snapshots.clear();
    assert_eq!(removable_claim_finalizer(&cache, &read(&claim_json())), None, "the kind is not served");
    let cache = Fixture::changing(&json!({"spec": {"source": {"persistentVolumeClaimName": "d"}}})).cache();
    cache.snapshot_contents.clear();
    assert_eq!(removable_claim_finalizer(&cache, &read(&claim_json())), None, "contents are not served");
}

#[test]
fn a_bound_content_gets_its_finalizer() {
    let cache = Fixture::default().cache();
    let decide = |change: &Value| decide_content(&cache, &read(&with(content_json(), change)), false);
    assert_eq!(decide(&json!({})), ContentVerdict::AddFinalizer);
    let protected = json!({"metadata": {"finalizers": [names::SNAPSHOT_CONTENT_PROTECTION]}});
    assert!(matches!(decide(&protected), ContentVerdict::NoAction(_)));
    let unbound = json!({"spec": {"volumeSnapshotRef": {"uid": null}}});
    assert_eq!(decide(&unbound), ContentVerdict::NoAction("the content is not bound"));
    assert_eq!(decide(&json!({"spec": {"source": {"volumeHandle": null}}})), ContentVerdict::Invalid(0));
}

#[test]
fn a_deleted_content_whose_snapshot_is_gone_is_reported() {
    let deleting = with(
        content_json(),
        &json!({"metadata": {
            "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [names::SNAPSHOT_CONTENT_PROTECTION],
        }}),
    );
    let cache = Fixture::default().cache();
    let decide = |change: &Value| decide_content(&cache, &read(&with(deleting.clone(), change)), false);
    let has_action = |change: Value| !matches!(decide(&change), ContentVerdict::NoAction(_));
    assert!(!has_action(json!({})), "the VolumeSnapshot exists");
    for other in [json!({"uid": "2"}), json!({"name": "t"})] {
        let verdict = decide(&json!({"spec": {"volumeSnapshotRef": other}}));
        assert_eq!(verdict, ContentVerdict::SnapshotMissing, "{other}");
    }
    let gone = json!({"spec": {"volumeSnapshotRef": {"uid": "2"}}});
    let marked = json!({"metadata": {"annotations": {names::SNAPSHOT_BEING_DELETED: "yes"}}});
    assert!(!has_action(with(gone.clone(), &marked)), "its deletion is allowed");
    assert!(!has_action(with(gone, &json!({"metadata": {"finalizers": ["other/finalizer"]}}))));
}

#[test]
fn a_content_whose_snapshot_is_lost_is_deleted_unless_it_may_be_a_copy() {
    let abandoned = json!({
        "metadata": {"finalizers": [names::SNAPSHOT_CONTENT_PROTECTION]},
        "spec": {"deletionPolicy": "Delete", "volumeSnapshotRef": {"uid": "2"}},
    });
    let marked = json!({"metadata": {"annotations": {names::SNAPSHOT_BEING_DELETED: "yes"}}});
    let being_created = json!({"metadata": {"annotations": {names::SNAPSHOT_BEING_CREATED: "yes"}}});
    let created = json!({"status": {"snapshotHandle": "h"}});
    let cache = Fixture::default().cache();
    let decide = |changes: &[&Value], is_lost: bool| {
        let content =
            changes.iter().fold(with(content_json(), &abandoned), |json, change| with(json, change));
        decide_content(&cache, &read(&content), is_lost)
    };
    let keeps =
        |changes: &[&Value], is_lost: bool| matches!(decide(changes, is_lost), ContentVerdict::NoAction(_));
    assert_eq!(decide(&[], false), ContentVerdict::MarkAbandoned, "nothing is created yet");
    assert_eq!(decide(&[&created, &being_created], false), ContentVerdict::MarkAbandoned);
    assert_eq!(decide(&[&created], true), ContentVerdict::MarkAbandoned);
    assert_eq!(
        decide(&[&created], false),
        ContentVerdict::SnapshotMissing,
        "it may be a copy of another cluster's"
    );
    assert_eq!(decide(&[&created, &marked], false), ContentVerdict::DeleteAbandoned);
    let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    assert!(keeps(&[&created, &marked, &deleting], true));
    assert_eq!(decide(&[&created, &deleting], true), ContentVerdict::MarkAbandoned);
    for other in
        [json!({"spec": {"volumeSnapshotRef": {"uid": "1"}}}), json!({"spec": {"deletionPolicy": "Retain"}})]
    {
        assert!(keeps(&[&created, &other], true), "{other}");
    }
    let existing = json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "h"}}});
    assert_eq!(decide(&[&created, &existing], true), ContentVerdict::SnapshotMissing);
}
