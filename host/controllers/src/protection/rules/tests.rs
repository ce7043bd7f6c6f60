//! When protection finalizers go.

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
        (PROTECTED, true, "Bound", FinalizerVerdict::NoAction("it is in use")),
        (PROTECTED, true, "Released", FinalizerVerdict::Remove(1)),
        (PROTECTED, true, "Available", FinalizerVerdict::Remove(1)),
        (PROTECTED, false, "Bound", FinalizerVerdict::NoAction("it is protected")),
        (&["other"], false, "Available", FinalizerVerdict::Add),
        (&["other"], true, "Available", FinalizerVerdict::NoAction("it goes")),
    ];
    for (finalizers, deleting, phase, expected) in cases {
        let object = json!({"metadata": metadata(finalizers, deleting), "status": {"phase": phase}});
        for has_local_provisioner in [false, true] {
            let found = decide_volume(&read::<Volume>(&object), has_local_provisioner);
            assert_eq!(found, expected, "{finalizers:?} {deleting} {phase} {has_local_provisioner}");
        }
    }
}

#[test]
fn the_local_provisioner_removes_its_finalizer_first() {
    const BOTH: &[&str] =
        &["external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection"];
    let waits = FinalizerVerdict::NoAction("its provisioner lets go first");
    for (phase, has_local_provisioner, expected) in [
        ("Released", true, waits),
        ("Released", false, FinalizerVerdict::Remove(1)),
        // The provisioner does not touch it.
        ("Available", true, FinalizerVerdict::Remove(1)),
        ("Bound", true, FinalizerVerdict::NoAction("it is in use")),
    ] {
        let object = json!({"metadata": metadata(BOTH, true), "status": {"phase": phase}});
        assert_eq!(
            decide_volume(&read::<Volume>(&object), has_local_provisioner),
            expected,
            "{phase} {has_local_provisioner}"
        );
    }
}

#[test]
fn a_claim_is_in_use_while_a_scheduled_pod_refers_to_it() {
    let pod = |spec: Value, status: Value| json!({"metadata": {"namespace": "ns", "name": "p", "uid": "p", "resourceVersion": "2"}, "spec": spec, "status": status});
    let uses = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]);
    let cases = [
        ("no pod", None, FinalizerVerdict::Remove(0)),
        (
            "running",
            Some(pod(json!({"nodeName": "n", "volumes": uses}), json!({}))),
            FinalizerVerdict::NoAction("it is in use"),
        ),
        (
            "finished: its node may still have it",
            Some(pod(json!({"nodeName": "n", "volumes": uses}), json!({"phase": "Succeeded"}))),
            FinalizerVerdict::NoAction("it is in use"),
        ),
        (
            "not scheduled: it cannot start",
            Some(pod(json!({"volumes": uses}), json!({}))),
            FinalizerVerdict::Remove(0),
        ),
        (
            "another claim",
            Some(pod(
                json!({"nodeName": "n", "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "x"}}]}),
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
                "{name}: the cache alone is not enough"
            );
        }
    }
}

#[test]
fn an_attributes_class_is_in_use_while_a_claim_or_volume_names_it() {
    const PROTECTED: &[&str] = &["kubernetes.io/vac-protection"];
    let named = |spec: Value, status: Value| json!({"metadata": metadata(&[], false), "spec": spec, "status": status});
    let in_use = FinalizerVerdict::NoAction("it is in use");
    let cases = [
        ("nobody", None, None, FinalizerVerdict::Remove(0)),
        ("asked for", Some(named(json!({"volumeAttributesClassName": "fast"}), json!({}))), None, in_use),
        (
            "given",
            Some(named(
                json!({"volumeAttributesClassName": "slow"}),
                json!({"currentVolumeAttributesClassName": "fast"}),
            )),
            None,
            in_use,
        ),
        (
            "on its way",
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
            "another",
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
        assert_eq!(protected, FinalizerVerdict::NoAction("it is protected"), "{name}");
        // Who does not name it any more leaves nothing behind.
        for claim in cache.claims.list() {
            let mut gone = (*claim).clone();
            (gone.attributes_class, gone.status_attributes_class, gone.progress) = ("".into(), None, None);
            gone.meta.resource_version.0 += 1;
            assert!(cache.claims.apply(Ok(gone)));
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
    let stays = FinalizerVerdict::NoAction("a claim or volume that cannot be read may name it");
    assert_eq!(decide_attributes_class(&cache, &class(PROTECTED, true)), stays);
}
