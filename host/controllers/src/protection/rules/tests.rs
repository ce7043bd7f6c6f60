//! When protection finalizers go.

use cofferdam_cluster::{Cache, Kind, decode};
use cofferdam_domain::{AttributesClass, Claim, Pod, Volume};
use serde_json::{Value, json};

use super::{Verdict, attributes_class, claim, volume};

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
        (PROTECTED, true, "Bound", Verdict::Settled("it is in use")),
        (PROTECTED, true, "Released", Verdict::Remove(1)),
        (PROTECTED, true, "Available", Verdict::Remove(1)),
        (PROTECTED, false, "Bound", Verdict::Settled("it is protected")),
        (&["other"], false, "Available", Verdict::Add),
        (&["other"], true, "Available", Verdict::Settled("it goes")),
    ];
    for (finalizers, deleting, phase, expected) in cases {
        let object = json!({"metadata": metadata(finalizers, deleting), "status": {"phase": phase}});
        for provisioner_here in [false, true] {
            let found = volume(&read::<Volume>(&object), provisioner_here);
            assert_eq!(found, expected, "{finalizers:?} {deleting} {phase} {provisioner_here}");
        }
    }
}

#[test]
fn the_provisioner_of_this_process_lets_go_first() {
    const BOTH: &[&str] =
        &["external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection"];
    let waits = Verdict::Settled("its provisioner lets go first");
    for (phase, provisioner_here, expected) in [
        ("Released", true, waits),
        ("Released", false, Verdict::Remove(1)),
        // The provisioner does not touch it.
        ("Available", true, Verdict::Remove(1)),
        ("Bound", true, Verdict::Settled("it is in use")),
    ] {
        let object = json!({"metadata": metadata(BOTH, true), "status": {"phase": phase}});
        assert_eq!(
            volume(&read::<Volume>(&object), provisioner_here),
            expected,
            "{phase} {provisioner_here}"
        );
    }
}

#[test]
fn a_claim_is_in_use_while_a_scheduled_pod_refers_to_it() {
    let pod = |spec: Value, status: Value| json!({"metadata": {"namespace": "ns", "name": "p", "uid": "p", "resourceVersion": "2"}, "spec": spec, "status": status});
    let uses = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]);
    let cases = [
        ("no pod", None, Verdict::Remove(0)),
        (
            "running",
            Some(pod(json!({"nodeName": "n", "volumes": uses}), json!({}))),
            Verdict::Settled("it is in use"),
        ),
        (
            "finished: its node may still have it",
            Some(pod(json!({"nodeName": "n", "volumes": uses}), json!({"phase": "Succeeded"}))),
            Verdict::Settled("it is in use"),
        ),
        (
            "not scheduled: it cannot start",
            Some(pod(json!({"volumes": uses}), json!({}))),
            Verdict::Remove(0),
        ),
        (
            "another claim",
            Some(pod(
                json!({"nodeName": "n", "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "x"}}]}),
                json!({}),
            )),
            Verdict::Remove(0),
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
        assert_eq!(claim(&cache, &object, true), expected, "{name}");
        if expected == Verdict::Remove(0) {
            assert_eq!(
                claim(&cache, &object, false),
                Verdict::LookUpPods,
                "{name}: the cache alone is not enough"
            );
        }
    }
}

#[test]
fn an_attributes_class_is_in_use_while_it_is_named() {
    const PROTECTED: &[&str] = &["kubernetes.io/vac-protection"];
    let named = |spec: Value, status: Value| json!({"metadata": metadata(&[], false), "spec": spec, "status": status});
    let in_use = Verdict::Settled("it is in use");
    let cases = [
        ("nobody", None, None, Verdict::Remove(0)),
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
            Verdict::Remove(0),
        ),
        ("of a volume", None, Some(named(json!({"volumeAttributesClassName": "fast"}), json!({}))), in_use),
    ];
    let class = |finalizers, deleting| {
        let mut object = json!({"metadata": metadata(finalizers, deleting), "driverName": "drv"});
        object["metadata"]["name"] = json!("fast");
        read::<AttributesClass>(&object)
    };
    for (name, claim, volume, expected) in cases {
        let cache = Cache::default();
        claim.iter().for_each(|claim| assert!(cache.claims.apply(Ok(read::<Claim>(claim)))));
        volume.iter().for_each(|volume| assert!(cache.volumes.apply(Ok(read::<Volume>(volume)))));
        assert_eq!(attributes_class(&cache, &class(PROTECTED, true)), expected, "{name}");
        let protected = attributes_class(&cache, &class(PROTECTED, false));
        assert_eq!(protected, Verdict::Settled("it is protected"), "{name}");
        // Who does not name it any more leaves nothing behind.
        for claim in cache.claims.list() {
            let mut gone = (*claim).clone();
            (gone.attributes_class, gone.status_attributes_class, gone.progress) = ("".into(), None, None);
            gone.meta.version.0 += 1;
            assert!(cache.claims.apply(Ok(gone)));
        }
        for volume in cache.volumes.list() {
            assert!(cache.volumes.delete(&volume.name, &volume.meta.uid, volume.meta.version));
        }
        assert_eq!(attributes_class(&cache, &class(PROTECTED, true)), Verdict::Remove(0), "{name}");
    }
    assert_eq!(attributes_class(&Cache::default(), &class(&[], false)), Verdict::Add);
    let cache = Cache::default();
    let odd = json!({"metadata": metadata(&[], false), "spec": {"accessModes": "all"}});
    cache.claims.apply(decode::object(&odd.to_string()).unwrap());
    assert!(cache.claims.has_opaque());
    let stays = Verdict::Settled("a claim or volume that cannot be read may name it");
    assert_eq!(attributes_class(&cache, &class(PROTECTED, true)), stays);
}
