//! Tests of the protection rules.

use cofferdam_cluster::{Cache, Kind, decode};
use cofferdam_domain::{Claim, Pod, Volume, VolumeAttributesClass};
use serde_json::{Value, json};

use super::{FinalizerVerdict, decide_attributes_class, decide_claim, decide_volume};

fn read<K: Kind>(json: &Value) -> K {
    decode::object(&json.to_string()).unwrap().unwrap()
}

fn metadata(finalizers: &[&str], deleting: bool) -> Value {
    let mut metadata = json!({
        "namespace": "ns", "name": "c", "uid": "u", "resourceVersion": "1", "finalizers": finalizers,
    });
    if deleting {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    metadata
}

#[test]
fn a_volume_is_in_use_while_it_is_bound() {
    const PROTECTED: &[&str] = &["other", "kubernetes.io/pv-protection"];
    let cases = [
        (PROTECTED, true, "Bound", FinalizerVerdict::NoAction("the object is in use")),
        (PROTECTED, true, "Released", FinalizerVerdict::Remove(1)),
        (PROTECTED, true, "Available", FinalizerVerdict::Remove(1)),
        (PROTECTED, false, "Bound", FinalizerVerdict::NoAction("the object is protected")),
        (&["other"], false, "Available", FinalizerVerdict::Add),
        (&["other"], true, "Available", FinalizerVerdict::NoAction("the object is being deleted")),
    ];
    for (finalizers, deleting, phase, expected) in cases {
        let object = json!({"metadata": metadata(finalizers, deleting), "status": {"phase": phase}});
        for is_provisioned_here in [false, true] {
            let found = decide_volume(&read::<Volume>(&object), is_provisioned_here);
            assert_eq!(found, expected, "{finalizers:?} {deleting} {phase} {is_provisioned_here}");
        }
    }
}

#[test]
fn the_local_provisioner_removes_its_finalizer_first() {
    const BOTH: &[&str] =
        &["external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection"];
    let waits = FinalizerVerdict::NoAction("waiting for the provisioner's finalizer");
    for (phase, is_provisioned_here, expected) in [
        ("Released", true, waits),
        ("Released", false, FinalizerVerdict::Remove(1)),
        // The provisioner does not change its finalizer.
        ("Available", true, FinalizerVerdict::Remove(1)),
        ("Bound", true, FinalizerVerdict::NoAction("the object is in use")),
    ] {
        let object = json!({"metadata": metadata(BOTH, true), "status": {"phase": phase}});
        assert_eq!(
            decide_volume(&read::<Volume>(&object), is_provisioned_here),
            expected,
            "{phase} {is_provisioned_here}"
        );
    }
}

#[test]
fn the_finalizer_is_not_added_to_a_volume_that_the_local_provisioner_deletes() {
    let deletes = FinalizerVerdict::NoAction("the provisioner deletes the volume");
    for (phase, policy, is_provisioned_here, expected) in [
        ("Released", "Delete", true, deletes),
        ("Released", "Delete", false, FinalizerVerdict::Add),
        ("Released", "Retain", true, FinalizerVerdict::Add),
        ("Bound", "Delete", true, FinalizerVerdict::Add),
    ] {
        let object = json!({
            "metadata": metadata(&[], false),
            "spec": {"persistentVolumeReclaimPolicy": policy},
            "status": {"phase": phase},
        });
        let found = decide_volume(&read::<Volume>(&object), is_provisioned_here);
        assert_eq!(found, expected, "{phase} {policy} {is_provisioned_here}");
    }
}

#[test]
fn a_claim_is_in_use_while_a_scheduled_pod_refers_to_it() {
    let pod = |spec: Value, status: Value| {
        let metadata = json!({"namespace": "ns", "name": "p", "uid": "p", "resourceVersion": "2"});
        json!({"metadata": metadata, "spec": spec, "status": status})
    };
    let uses = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]);
    let cases = [
        ("no pod", None, FinalizerVerdict::Remove(0)),
        (
            "running",
            Some(pod(json!({"nodeName": "n", "volumes": uses}), json!({}))),
            FinalizerVerdict::NoAction("the object is in use"),
        ),
        (
            "terminated: the node may still have the volume mounted",
            Some(pod(json!({"nodeName": "n", "volumes": uses}), json!({"phase": "Succeeded"}))),
            FinalizerVerdict::NoAction("the object is in use"),
        ),
        ("not scheduled", Some(pod(json!({"volumes": uses}), json!({}))), FinalizerVerdict::Remove(0)),
        (
            "another claim",
            Some(pod(
                json!({
                    "nodeName": "n",
                    "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "x"}}],
                }),
                json!({}),
            )),
            FinalizerVerdict::Remove(0),
        ),
    ];
    let object = json!({
        "metadata": metadata(&["kubernetes.io/pvc-protection"], true),
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let object: Claim = read(&object);
    for (name, pod, expected) in cases {
        let cache = Cache::default();
        pod.iter().for_each(|pod| assert!(cache.pods.apply(Ok(read::<Pod>(pod)))));
        assert_eq!(decide_claim(&cache, &object, true), expected, "{name}");
        if expected == FinalizerVerdict::Remove(0) {
            assert_eq!(
                decide_claim(&cache, &object, false),
                FinalizerVerdict::RefreshPods,
                "{name}: a live read is required"
            );
        }
    }
}

#[test]
fn an_attributes_class_is_in_use_while_a_claim_or_volume_names_it() {
    const PROTECTED: &[&str] = &["kubernetes.io/vac-protection"];
    let named = |spec: Value, status: Value| {
        let metadata = metadata(&[], false);
        json!({"metadata": metadata, "spec": spec, "status": status})
    };
    let in_use = FinalizerVerdict::NoAction("the object is in use");
    let cases = [
        ("no user", None, None, FinalizerVerdict::Remove(0)),
        ("requested", Some(named(json!({"volumeAttributesClassName": "fast"}), json!({}))), None, in_use),
        (
            "current",
            Some(named(
                json!({"volumeAttributesClassName": "slow"}),
                json!({"currentVolumeAttributesClassName": "fast"}),
            )),
            None,
            in_use,
        ),
        (
            "target",
            Some(named(
                json!({"volumeAttributesClassName": "slow"}),
                json!({
                    "currentVolumeAttributesClassName": "slow",
                    "modifyVolumeStatus": {"targetVolumeAttributesClassName": "fast", "status": "InProgress"},
                }),
            )),
            None,
            in_use,
        ),
        (
            "another class",
            Some(named(json!({"volumeAttributesClassName": "slow"}), json!({}))),
            None,
            FinalizerVerdict::Remove(0),
        ),
        ("of a volume", None, Some(named(json!({"volumeAttributesClassName": "fast"}), json!({}))), in_use),
    ];
    let class = |finalizers, deleting| {
        let mut object = json!({"metadata": metadata(finalizers, deleting), "driverName": "drv"});
        object["metadata"]["name"] = json!("fast");
        read::<VolumeAttributesClass>(&object)
    };
    for (name, claim, volume, expected) in cases {
        let cache = Cache::default();
        claim.iter().for_each(|claim| assert!(cache.claims.apply(Ok(read::<Claim>(claim)))));
        volume.iter().for_each(|volume| assert!(cache.volumes.apply(Ok(read::<Volume>(volume)))));
        assert_eq!(decide_attributes_class(&cache, &class(PROTECTED, true)), expected, "{name}");
        let protected = decide_attributes_class(&cache, &class(PROTECTED, false));
        assert_eq!(protected, FinalizerVerdict::NoAction("the object is protected"), "{name}");
        // An object that no longer names the class does not block the removal.
        for claim in cache.claims.list() {
            let mut released = (*claim).clone();
            (released.attributes_class, released.status_attributes_class, released.progress) =
                ("".into(), None, None);
            released.meta.resource_version.0 += 1;
            assert!(cache.claims.apply(Ok(released)));
        }
        for volume in cache.volumes.list() {
            assert!(cache.volumes.delete(&volume.name, &volume.meta.uid, volume.meta.resource_version));
        }
        assert_eq!(
            decide_attributes_class(&cache, &class(PROTECTED, true)),
            FinalizerVerdict::Remove(0),
            "{name}"
        );
    }
    assert_eq!(decide_attributes_class(&Cache::default(), &class(&[], false)), FinalizerVerdict::Add);
    let cache = Cache::default();
    let odd = json!({"metadata": metadata(&[], false), "spec": {"accessModes": "all"}});
    cache.claims.apply(decode::object(&odd.to_string()).unwrap());
    assert!(cache.claims.has_undecodable());
    let stays = FinalizerVerdict::NoAction("an undecodable claim or volume may name the class");
    assert_eq!(decide_attributes_class(&cache, &class(PROTECTED, true)), stays);
}
