//! Tests of the rules for content sources, case by case.

use cofferdam_cluster::decode;
use cofferdam_sim::objects::with;
use serde_json::{Value, json};

use super::*;

fn claim_json(name: &str) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": name, "uid": format!("{name}-uid"), "resourceVersion": "5"},
        "spec": {
            "storageClassName": "gold", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

fn source_json() -> Value {
    with(claim_json("source"), &json!({"spec": {"volumeName": "v"}, "status": {"phase": "Bound"}}))
}

fn clone_json() -> Value {
    let source = json!({"kind": "PersistentVolumeClaim", "name": "source"});
    with(claim_json("a"), &json!({"spec": {"dataSource": source}}))
}

fn volume_json() -> Value {
    json!({
        "metadata": {"name": "v", "uid": "v-uid", "resourceVersion": "7"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": "ns", "name": "source", "uid": "source-uid"},
            "csi": {"driver": "drv", "volumeHandle": "h"},
        },
        "status": {"phase": "Bound"},
    })
}

fn read<K: cofferdam_cluster::Kind>(json: &Value) -> K {
    decode::object(&json.to_string()).unwrap().unwrap()
}

fn cache(claims: &[Value], volumes: &[Value], class: Value) -> Cache {
    let cache = Cache::default();
    claims.iter().for_each(|json| assert!(cache.claims.apply(Ok(read(json)))));
    volumes.iter().for_each(|json| assert!(cache.volumes.apply(Ok(read(json)))));
    assert!(cache.classes.apply(Ok(read(&class))));
    cache
}

fn class_json(driver: &str) -> Value {
    json!({"metadata": {"name": "gold", "uid": "c", "resourceVersion": "3"}, "provisioner": driver})
}

#[test]
fn a_source_is_checked_before_its_volume_is_cloned() {
    let none = || json!({});
    #[rustfmt::skip] // one row per check
    let table: [(&str, Value, Value, Value, &str); 17] = [
        ("bound", none(), none(), none(), "h"),
        ("larger request of the clone", none(), none(), json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}), "h"),
        ("equal request in another notation", none(), none(), json!({"spec": {"resources": {"requests": {"storage": "1024Mi"}}}}), "h"),
        ("Pending", json!({"status": null}), none(), none(), "its phase is Pending; expected Bound"),
        ("Lost", json!({"status": {"phase": "Lost"}}), none(), none(), "its phase is Lost; expected Bound"),
        ("deleting", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), none(), none(), "it is being deleted"),
        ("no class", json!({"spec": {"storageClassName": null}}), none(), none(), "it has no StorageClass; expected the name of one"),
        ("larger", json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}), none(), none(),
            "it requests 2Gi, more than the 1Gi of the new claim; expected at most as much"),
        ("volume missing", json!({"spec": {"volumeName": "w"}}), none(), none(), "its PersistentVolume w does not exist"),
        ("volume not CSI", none(), json!({"spec": {"csi": null, "nfs": {"server": "s", "path": "/"}}}), none(),
            "its PersistentVolume v has no CSI driver; expected drv"),
        ("volume of another driver", none(), json!({"spec": {"csi": {"driver": "other"}}}), none(),
            "its PersistentVolume v has the driver other; expected drv"),
        ("volume of another claim", none(), json!({"spec": {"claimRef": {"name": "b"}}}), none(), "its PersistentVolume v is not bound to it"),
        ("volume of an earlier claim", none(), json!({"spec": {"claimRef": {"uid": "old"}}}), none(), "its PersistentVolume v is not bound to it"),
        ("volume reserved by name", none(), json!({"spec": {"claimRef": {"uid": null}}}), none(), "its PersistentVolume v is not bound to it"),
        ("volume Released", none(), json!({"status": {"phase": "Released"}}), none(), "its PersistentVolume v is not bound to it"),
        ("volumeMode Block", none(), none(), json!({"spec": {"volumeMode": "Block"}}),
            "its volumeMode is Filesystem; expected Block, the volumeMode of the new claim"),
        ("source of volumeMode Block", none(), json!({"spec": {"volumeMode": "Block"}}), none(),
            "its volumeMode is Block; expected Filesystem, the volumeMode of the new claim"),
    ];
    for (name, source, volume, clone, expected) in table {
        let clone = with(clone_json(), &clone);
        let claims = [with(source_json(), &source), clone.clone()];
        let cache = cache(&claims, &[with(volume_json(), &volume)], class_json("drv"));
        let class = cache.class("gold").into_object().unwrap();
        let claim: Claim = read(&clone);
        let found = find_source_volume(&cache, &claim, &claim.source_claim().unwrap(), &class);
        let found = found.map_or_else(|error| error.to_string(), |source| source.handle.to_string());
        assert_eq!(found, expected, "{name}");
    }
    let empty = cache(&[], &[], class_json("drv"));
    let class = empty.class("gold").into_object().unwrap();
    let claim: Claim = read(&clone_json());
    let found = find_source_volume(&empty, &claim, &claim.source_claim().unwrap(), &class);
    assert_eq!(found.unwrap_err(), SourceError::ClaimMissing);
}

#[test]
fn only_claims_of_the_same_namespace_are_sources() {
    let table = [
        (json!({"kind": "PersistentVolumeClaim", "name": "source"}), Some("ns/source")),
        (json!({"kind": "PersistentVolumeClaim", "name": "source", "namespace": "ns"}), Some("ns/source")),
        (json!({"kind": "PersistentVolumeClaim", "name": "source", "namespace": ""}), Some("ns/source")),
        (json!({"kind": "PersistentVolumeClaim", "name": "source", "namespace": "other"}), None),
        (json!({"apiGroup": "example.com", "kind": "PersistentVolumeClaim", "name": "source"}), None),
        (json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "source"}), None),
    ];
    for (source, expected) in table {
        let claim = with(claim_json("a"), &json!({"spec": {"dataSourceRef": source}}));
        let found = read::<Claim>(&claim).source_claim().map(|key| key.to_string());
        assert_eq!(found.as_deref(), expected, "{source}");
    }
}

#[test]
fn the_finalizer_is_removed_once_no_clone_is_in_progress() {
    use SourceProtectionVerdict::{NoAction, Remove, Wait};
    let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let protected =
        json!({"metadata": {"finalizers": ["kubernetes.io/pvc-protection", names::CLONING_PROTECTION]}});
    let leaving = with(with(source_json(), &deleting), &protected);
    let bound = with(clone_json(), &json!({"status": {"phase": "Bound"}}));
    let other_namespace = with(clone_json(), &json!({"metadata": {"namespace": "other"}}));
    let other_source = with(clone_json(), &json!({"spec": {"dataSource": {"name": "b"}}}));
    #[rustfmt::skip] // one row per situation
    let table = [
        ("not deleting", with(source_json(), &protected), vec![], "drv", false, NoAction),
        ("no finalizer", with(source_json(), &deleting), vec![], "drv", false, NoAction),
        ("no clone", leaving.clone(), vec![], "drv", false, Remove(1)),
        ("clone with an intent", leaving.clone(), vec![clone_json()], "drv", true, Wait(ClaimKey::new("ns", "a"))),
        ("clone without an intent", leaving.clone(), vec![clone_json()], "drv", false, Remove(1)),
        ("clone of another process", leaving.clone(), vec![clone_json()], "other", false, Wait(ClaimKey::new("ns", "a"))),
        ("bound clone of another process", leaving.clone(), vec![bound], "other", false, Remove(1)),
        ("claim of another namespace", leaving.clone(), vec![other_namespace], "other", false, Remove(1)),
        ("claim with another source", leaving, vec![other_source], "other", false, Remove(1)),
    ];
    for (name, source, clones, driver, has_intent, expected) in table {
        let cache = cache(&clones, &[volume_json()], class_json(driver));
        let is_managed_driver = |driver: &DriverName| driver.as_str() == "drv";
        let source: Claim = read(&source);
        let found = decide_source_protection(&cache, &source, &is_managed_driver, &|_| has_intent);
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn only_changes_that_a_clone_can_wait_for_count() {
    let table = [
        (json!({"metadata": {"labels": {"a": "b"}, "resourceVersion": "6"}}), false),
        (json!({"status": {"phase": "Lost"}}), true),
        (json!({"spec": {"volumeName": "w"}}), true),
        (json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}), true),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), true),
        (json!({"metadata": {"uid": "new"}}), true),
    ];
    let old: Claim = read(&source_json());
    for (change, expected) in table {
        let new = read(&with(source_json(), &change));
        assert_eq!(is_source_change(Some(&old), Some(&new)), expected, "{change}");
    }
    assert!(is_source_change(Some(&old), None) && is_source_change(None, Some(&old)));
}
