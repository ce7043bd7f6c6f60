//! Tests of the rules for VolumeSnapshots as sources, case by case.

use cofferdam_cluster::decode;
use cofferdam_sim::objects::with;
use serde_json::{Value, json};

use super::*;

fn read<K: cofferdam_cluster::Kind>(json: &Value) -> K {
    decode::object(&json.to_string()).unwrap().unwrap()
}

fn claim_json() -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "a", "uid": "a-uid", "resourceVersion": "5"},
        "spec": {
            "storageClassName": "gold", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"},
        },
    })
}

fn snapshot_json() -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "s", "uid": "s-uid", "resourceVersion": "6"},
        "spec": {"source": {"persistentVolumeClaimName": "source"}},
        "status": {"boundVolumeSnapshotContentName": "content", "readyToUse": true, "restoreSize": "1Gi"},
    })
}

fn content_json() -> Value {
    json!({
        "metadata": {"name": "content", "uid": "c-uid", "resourceVersion": "7"},
        "spec": {
            "deletionPolicy": "Delete", "driver": "drv", "source": {"volumeHandle": "v"},
            "volumeSnapshotRef": {"namespace": "ns", "name": "s", "uid": "s-uid"},
        },
        "status": {"snapshotHandle": "h", "readyToUse": true, "restoreSize": 1_073_741_824},
    })
}

fn class(driver: &str) -> StorageClass {
    read(&json!({"metadata": {"name": "gold", "uid": "c", "resourceVersion": "3"}, "provisioner": driver}))
}

fn deleting() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
}

fn protected() -> Value {
    json!({"metadata": {"finalizers": ["other/finalizer", names::RESTORE_PROTECTION]}})
}

#[test]
fn a_snapshot_is_checked_before_it_is_restored() {
    let none = || json!({});
    let allowed = json!({
        "metadata": {"annotations": {names::ALLOW_VOLUME_MODE_CHANGE: "true"}},
        "spec": {"sourceVolumeMode": "Block"},
    });
    #[rustfmt::skip] // one row per check
    let table: [(&str, Value, Value, Value, &str); 19] = [
        ("ready", none(), none(), none(), "h, unprotected"),
        ("protected", protected(), none(), none(), "h"),
        ("deleting", deleting(), none(), none(), "it is being deleted"),
        ("deleting after a request was built", with(deleting(), &protected()), none(), none(), "h"),
        ("without status", json!({"status": null}), none(), none(), "it is not bound to a VolumeSnapshotContent"),
        ("not bound", json!({"status": {"boundVolumeSnapshotContentName": null}}), none(), none(),
            "it is not bound to a VolumeSnapshotContent"),
        ("content of a former snapshot", none(), json!({"spec": {"volumeSnapshotRef": {"uid": "old"}}}), none(),
            "its VolumeSnapshotContent content is not bound to it"),
        ("content of another snapshot", none(), json!({"spec": {"volumeSnapshotRef": {"name": "t"}}}), none(),
            "its VolumeSnapshotContent content is not bound to it"),
        ("content without a uid", none(), json!({"spec": {"volumeSnapshotRef": {"uid": null}}}), none(),
            "its VolumeSnapshotContent content is not bound to it"),
        ("content of another driver", none(), json!({"spec": {"driver": "other"}}), none(), "its driver is other; expected drv"),
        ("not ready", json!({"status": {"readyToUse": false}}), none(), none(), "it is not ready to use"),
        ("readiness unknown", json!({"status": {"readyToUse": null}}), none(), none(), "it is not ready to use"),
        ("no handle", none(), json!({"status": {"snapshotHandle": null}}), none(),
            "its VolumeSnapshotContent content has no snapshotHandle"),
        ("larger", json!({"status": {"restoreSize": "2Gi"}}), none(), none(),
            "its restoreSize is 2Gi, more than the 1Gi of the claim; expected at most as much"),
        ("size unknown", json!({"status": {"restoreSize": null}}), none(), none(), "h, unprotected"),
        ("equal modes", none(), json!({"spec": {"sourceVolumeMode": "Filesystem"}}), none(), "h, unprotected"),
        ("mode unknown", none(), none(), json!({"spec": {"volumeMode": "Block"}}), "h, unprotected"),
        ("other mode", none(), json!({"spec": {"sourceVolumeMode": "Block"}}), none(),
            "its sourceVolumeMode is Block; expected Filesystem, the volumeMode of the claim, or the annotation \
             snapshot.storage.kubernetes.io/allow-volume-mode-change on VolumeSnapshotContent content"),
        ("other mode allowed", none(), allowed, none(), "h, unprotected"),
    ];
    for (name, snapshot, content, claim, expected) in table {
        let live = LiveSnapshot {
            snapshot: Some(Arc::new(read(&with(snapshot_json(), &snapshot)))),
            content: Some(Arc::new(read(&with(content_json(), &content)))),
        };
        let claim: Claim = read(&with(claim_json(), &claim));
        let checked = check_snapshot(&Cache::default(), &claim, &class("drv"), &live, true);
        let found = match checked {
            Ok(FoundSource { content: ContentSource::Snapshot(handle), unprotected }) => {
                format!("{handle}{}", if unprotected.is_some() { ", unprotected" } else { "" })
            }
            Ok(other) => format!("{other:?}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn missing_objects_are_named() {
    let claim: Claim = read(&claim_json());
    let snapshot: Arc<VolumeSnapshot> = Arc::new(read(&snapshot_json()));
    let check = |cache: &Cache, snapshot| {
        let live = LiveSnapshot { snapshot, content: None };
        check_snapshot(cache, &claim, &class("drv"), &live, true).unwrap_err()
    };
    let cache = Cache::default();
    let missing = SnapshotSourceError::ContentMissing("content".into());
    assert_eq!(check(&cache, Some(snapshot)), missing);
    assert_eq!(check(&cache, None), SnapshotSourceError::Missing, "the kind is not listed yet");
    cache.snapshots.clear();
    assert_eq!(check(&cache, None), SnapshotSourceError::NotServed);
    cache.snapshots.replace(Vec::new(), cofferdam_domain::ResourceVersion(1));
    assert_eq!(check(&cache, None), SnapshotSourceError::Missing);
}

#[test]
fn a_mode_conversion_is_allowed_without_the_setting() {
    let live = LiveSnapshot {
        snapshot: Some(Arc::new(read(&snapshot_json()))),
        content: Some(Arc::new(read(&with(content_json(), &json!({"spec": {"sourceVolumeMode": "Block"}}))))),
    };
    let claim: Claim = read(&claim_json());
    assert!(check_snapshot(&Cache::default(), &claim, &class("drv"), &live, false).is_ok());
}

#[test]
fn the_finalizer_is_removed_once_no_claim_waits_for_a_volume() {
    use SourceProtectionVerdict::{NoAction, Remove, Wait};
    let waiting = || Wait(cofferdam_domain::ClaimKey::new("ns", "a"));
    let leaving = with(deleting(), &protected());
    let bound = with(claim_json(), &json!({"status": {"phase": "Bound"}}));
    let other_namespace = with(claim_json(), &json!({"metadata": {"namespace": "other"}}));
    let other_source = with(claim_json(), &json!({"spec": {"dataSource": {"name": "t"}}}));
    #[rustfmt::skip] // one row per situation
    let table = [
        ("no finalizer", json!({}), vec![], "drv", false, NoAction),
        ("no claim", protected(), vec![], "drv", false, Remove(1)),
        ("Bound claim", protected(), vec![bound], "drv", false, Remove(1)),
        ("Pending claim", protected(), vec![claim_json()], "drv", false, NoAction),
        ("Pending claim of another driver", protected(), vec![claim_json()], "other", false, NoAction),
        ("claim of another namespace", protected(), vec![other_namespace], "drv", false, Remove(1)),
        ("claim with another source", protected(), vec![other_source], "drv", false, Remove(1)),
        ("deleting, claim with an intent", leaving.clone(), vec![claim_json()], "drv", true, waiting()),
        ("deleting, claim without an intent", leaving.clone(), vec![claim_json()], "drv", false, Remove(1)),
        ("deleting, claim of another driver", leaving, vec![claim_json()], "other", false, waiting()),
    ];
    for (name, snapshot, claims, driver, has_intent, expected) in table {
        let cache = Cache::default();
        claims.iter().for_each(|json| assert!(cache.claims.apply(Ok(read(json)))));
        assert!(cache.classes.apply(Ok(class(driver))));
        let snapshot: VolumeSnapshot = read(&with(snapshot_json(), &snapshot));
        let is_managed_driver = |driver: &DriverName| driver.as_str() == "drv";
        let found = decide_snapshot_protection(&cache, &snapshot, &is_managed_driver, &|_| has_intent);
        assert_eq!(found, expected, "{name}");
    }
}
