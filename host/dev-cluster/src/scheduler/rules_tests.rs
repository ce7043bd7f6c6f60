//! One cluster, and what becomes of a pod in it when one thing of it is another.

use cofferdam_cluster::Kind;
use serde_json::{Value, json};

use super::*;

fn object<K: Kind>(mut value: Value) -> Arc<K> {
    let meta = value.as_object_mut().unwrap().entry("metadata").or_insert_with(|| json!({}));
    let meta = meta.as_object_mut().unwrap();
    meta.entry("resourceVersion").or_insert(json!("1"));
    let uid = format!("uid of {}", meta["name"].as_str().unwrap());
    meta.entry("uid").or_insert(json!(uid));
    Arc::new(K::decode(&value.to_string()).unwrap())
}

fn node(name: &str, zone: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"zone": zone, "topology.kubernetes.io/zone": zone}}})
}

fn claim(name: &str, class: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "storageClassName": class,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

fn bound(name: &str, volume: &str) -> Value {
    let mut claim = claim(name, "late");
    claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
    claim["spec"]["volumeName"] = json!(volume);
    claim["status"] = json!({"phase": "Bound"});
    claim
}

fn volume(name: &str, zone: Option<&str>) -> Value {
    let terms = zone.map(|zone| {
        json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]},
        ]}})
    });
    json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "late",
            "csi": {"driver": "d", "volumeHandle": name},
            "nodeAffinity": terms,
        },
        "status": {"phase": "Available"},
    })
}

fn class(name: &str, mode: &str, more: Value) -> Value {
    let mut class = json!({"metadata": {"name": name}, "provisioner": "d", "volumeBindingMode": mode});
    class.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    class
}

fn pod(name: &str, claims: &[&str], more: Value) -> Arc<PodObject> {
    let volumes: Vec<Value> = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    let mut spec = json!({"containers": [{"name": "c"}], "volumes": volumes});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object(json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec}))
}

/// Two nodes in two zones; classes that bind at once, late, by hand, and late in zone b alone.
fn cluster() -> Facts {
    let mut facts = Facts::default();
    for value in [node("n1", "a"), node("n2", "b")] {
        let node = object::<NodeObject>(value);
        facts.nodes.insert(node.slim.name.clone(), node);
    }
    for value in [
        class("now", "Immediate", json!({})),
        class("late", "WaitForFirstConsumer", json!({})),
        class("hand", "WaitForFirstConsumer", json!({"provisioner": "kubernetes.io/no-provisioner"})),
        class(
            "b",
            "WaitForFirstConsumer",
            json!({"allowedTopologies": [
                {"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]},
            ]}),
        ),
    ] {
        let class = object::<StorageClass>(value);
        facts.classes.insert(class.name.to_string(), class);
    }
    facts
}

fn with_claim(mut facts: Facts, value: Value) -> Facts {
    let claim = object::<Claim>(value);
    facts.claims.insert(claim.key.clone(), claim);
    facts
}

fn with_volume(mut facts: Facts, value: Value) -> Facts {
    let volume = object::<VolumeObject>(value);
    facts.volumes.insert(volume.slim.name.clone(), volume);
    facts
}

fn with_node(mut facts: Facts, value: Value) -> Facts {
    let node = object::<NodeObject>(value);
    facts.nodes.insert(node.slim.name.clone(), node);
    facts
}

fn placed(mut facts: Facts, node: &str, pod: Arc<PodObject>) -> Facts {
    facts.placed.push((node.into(), pod));
    facts
}

fn limited(mut facts: Facts, node: &str, count: i32) -> Facts {
    let value = json!({
        "metadata": {"name": node},
        "spec": {"drivers": [{"name": "d", "nodeID": node, "topologyKeys": [], "allocatable": {"count": count}}]},
    });
    facts.csi_nodes.insert(node.into(), object(value));
    facts
}

fn measured(mut facts: Facts, class: &str, zone: &str, room: &str) -> Facts {
    facts.csi_drivers.insert(
        "d".to_owned(),
        object(json!({"metadata": {"name": "d"}, "spec": {"storageCapacity": true}})),
    );
    facts.capacities.push(object(json!({
        "metadata": {"name": format!("{class}-{zone}"), "namespace": "default"},
        "storageClassName": class,
        "nodeTopology": {"matchLabels": {"zone": zone}},
        "capacity": room,
    })));
    facts
}

fn chosen(mut facts: Facts, node: &str, told: &[&str]) -> Facts {
    let told = told.iter().map(|claim| Uid::new(format!("uid of {claim}"))).collect();
    facts.chosen = Some(Chosen { node: node.into(), told });
    facts
}

fn choose(node: &str) -> Decision {
    Decision::Choose(node.into())
}

fn none(reason: &str) -> Decision {
    Decision::Unschedulable(format!("0/2 nodes are available: {reason}."))
}

fn key(claim: &str) -> ClaimKey {
    ClaimKey::new("default", claim)
}

fn selected(name: &str, node: &str) -> Value {
    let mut claim = claim(name, "late");
    claim["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": node});
    claim
}

fn reserved(name: &str, zone: Option<&str>, claim: &str) -> Value {
    let mut volume = volume(name, zone);
    let uid = format!("uid of {claim}");
    volume["spec"]["claimRef"] = json!({"namespace": "default", "name": claim, "uid": uid});
    volume
}

fn alone(mut claim: Value) -> Value {
    claim["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    claim
}

#[test]
fn a_pod_goes_where_its_volumes_can_be() {
    let two = cluster;
    let late = || with_claim(two(), claim("c", "late"));
    let in_b = || with_volume(with_claim(two(), bound("c", "v")), volume("v", Some("b")));
    let busy = |facts| placed(facts, "n1", pod("other", &[], json!({})));
    let cordoned = |name: &str, zone: &str| {
        let mut node = node(name, zone);
        node["spec"] = json!({"unschedulable": true});
        node
    };
    let tainted = {
        let mut node = node("n1", "a");
        node["spec"] = json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]});
        node
    };
    let tolerant = json!({"tolerations": [{"key": "k", "operator": "Equal", "value": "v"}]});
    let plain = || pod("p", &["c"], json!({}));
    let affine = "1 node(s) didn't match PersistentVolume's node affinity, 1 node(s) didn't match Pod's node affinity/selector";
    #[rustfmt::skip] // one row a case
    let table: Vec<(&str, Arc<PodObject>, Facts, Decision)> = vec![
        ("no volumes",        pod("p", &[], json!({})),                      two(),                     choose("n1")),
        ("the emptier node",  pod("p", &[], json!({})),                      busy(two()),               choose("n2")),
        ("a node by label",   pod("p", &[], json!({"nodeSelector": {"zone": "b"}})), two(),             choose("n2")),
        ("another scheduler", pod("p", &[], json!({"schedulerName": "mine"})), two(),                   Decision::Leave),
        ("gated",             pod("p", &[], json!({"schedulingGates": [{"name": "g"}]})), two(),        Decision::Leave),
        ("has its node",      pod("p", &[], json!({"nodeName": "n1"})),      two(),                     Decision::Leave),
        ("cordoned",          pod("p", &[], json!({})),                      with_node(two(), cordoned("n1", "a")), choose("n2")),
        ("all cordoned",      pod("p", &[], json!({})),                      with_node(with_node(two(), cordoned("n1", "a")), cordoned("n2", "b")),
                              none("2 node(s) were unschedulable")),
        ("tainted",           pod("p", &[], json!({})),                      with_node(two(), tainted.clone()), choose("n2")),
        ("tolerated",         pod("p", &[], tolerant),                       with_node(two(), tainted), choose("n1")),
        ("no claim",          plain(),                                       two(),     none("persistentvolumeclaim \"c\" not found")),
        ("immediate, unbound", plain(),                                      with_claim(two(), claim("c", "now")),
                              none("pod has unbound immediate PersistentVolumeClaims")),
        ("no such class",     plain(),                                       with_claim(two(), claim("c", "gone")),
                              none("pod has unbound immediate PersistentVolumeClaims")),
        ("bound elsewhere",   plain(),                                       in_b(),                    choose("n2")),
        ("bound, and away",   pod("p", &["c"], json!({"nodeSelector": {"zone": "a"}})), in_b(),         none(affine)),
        ("bound to nothing",  plain(),                                       with_claim(two(), bound("c", "v")),
                              none("2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")),
        ("late",              plain(),                                       late(),                    choose("n1")),
        ("late, allowed in b", plain(),                                      with_claim(two(), claim("c", "b")), choose("n2")),
        ("late, by hand",     plain(),                                       with_claim(two(), claim("c", "hand")),
                              none("2 node(s) didn't find available persistent volumes to bind")),
        ("selected before",   plain(),                                       with_claim(two(), selected("c", "n2")), choose("n2")),
        ("no room",           plain(),                                       measured(late(), "late", "a", "1Mi"),
                              none("2 node(s) did not have enough free storage")),
        ("room in b",         plain(),                                       measured(measured(late(), "late", "a", "1Mi"), "late", "b", "2Gi"),
                              choose("n2")),
        ("a full node",       plain(),                                       limited(late(), "n1", 0),  choose("n2")),
        ("its driver is there", plain(),                                     placed(limited(late(), "n2", 9), "n2", pod("other", &[], json!({}))), choose("n2")),
        ("full nodes",        plain(),                                       limited(limited(late(), "n1", 0), "n2", 0),
                              none("2 node(s) exceed max volume count")),
        ("for one pod",       plain(),                                       placed(with_claim(two(), alone(claim("c", "late"))), "n1", pod("o", &["c"], json!({}))),
                              none("2 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode")),
        ("for one pod, free", plain(),                                       with_claim(two(), alone(claim("c", "late"))), choose("n1")),
    ];
    for (case, pod, facts, expected) in table {
        assert_eq!(decide(&pod, &facts), expected, "{case}");
    }
}

#[test]
fn volumes_of_other_pods_count_by_what_they_are() {
    let facts = with_volume(with_claim(cluster(), bound("c", "v")), volume("v", None));
    let facts = limited(limited(facts, "n1", 1), "n2", 0);
    // The same volume once more is no other one.
    let shared = placed(facts.clone(), "n1", pod("other", &["c"], json!({})));
    assert_eq!(decide(&pod("p", &["c"], json!({})), &shared), choose("n1"));
    let mut other = with_volume(with_claim(facts, bound("d", "w")), volume("w", None));
    other.attachments.push(object(json!({
        "metadata": {"name": "a"},
        "spec": {"attacher": "d", "nodeName": "n1", "source": {"persistentVolumeName": "w"}},
    })));
    let full = none("2 node(s) exceed max volume count");
    assert_eq!(decide(&pod("p", &["c"], json!({})), &other), full, "what is attached counts, too");
    // Of claims that are not provisioned yet each is one.
    let late = with_claim(
        with_claim(limited(limited(cluster(), "n1", 1), "n2", 2), claim("c", "late")),
        claim("d", "late"),
    );
    assert_eq!(decide(&pod("p", &["c", "d"], json!({})), &late), choose("n2"));
}

#[test]
fn what_is_written_before_a_pod_is_bound() {
    let late = || with_claim(cluster(), claim("c", "late"));
    let there = || with_volume(late(), volume("v", Some("a")));
    let done = || with_volume(with_claim(cluster(), bound("c", "v")), volume("v", Some("a")));
    let waits = |claims: &str| Decision::Wait(format!("waits for {claims} to be bound for n1"));
    let named = {
        let mut claim = selected("c", "n1");
        claim["spec"]["volumeName"] = json!("v");
        claim
    };
    let lost = Decision::GiveUp("provisioning failed for PVC \"c\"".to_owned());
    let away = Decision::GiveUp("node(s) didn't match PersistentVolume's node affinity".to_owned());
    #[rustfmt::skip] // one row a case
    let table: Vec<(&str, Facts, Decision)> = vec![
        ("a volume that is there",   chosen(there(), "n1", &[]),          Decision::Reserve("v".into(), key("c"))),
        ("one that is elsewhere",    chosen(there(), "n2", &[]),          Decision::Tell(key("c"))),
        ("reserved",                 chosen(with_volume(late(), reserved("v", Some("a"), "c")), "n1", &[]), waits("c")),
        ("of another claim",         chosen(with_volume(late(), reserved("v", None, "d")), "n1", &[]), Decision::Tell(key("c"))),
        ("none is there",            chosen(late(), "n1", &[]),           Decision::Tell(key("c"))),
        ("told",                     chosen(with_claim(cluster(), selected("c", "n1")), "n1", &["c"]), waits("c")),
        ("told, and taken back",     chosen(late(), "n1", &["c"]),        lost),
        ("told, and named",          chosen(with_volume(with_claim(cluster(), named), volume("v", None)), "n1", &["c"]), waits("c")),
        ("bound",                    chosen(done(), "n1", &["c"]),        Decision::Bind("n1".into())),
        ("bound elsewhere",          chosen(done(), "n2", &["c"]),        away),
        ("the node is gone",         chosen(done(), "n3", &["c"]),        Decision::GiveUp("node n3 not found".to_owned())),
    ];
    for (case, facts, expected) in table {
        assert_eq!(decide(&pod("p", &["c"], json!({})), &facts), expected, "{case}");
    }
}

#[test]
fn the_smallest_volume_that_fits_is_taken() {
    let sized = |name: &str, size: &str| {
        let mut volume = volume(name, None);
        volume["spec"]["capacity"]["storage"] = json!(size);
        volume
    };
    let mut facts = chosen(with_claim(cluster(), claim("c", "late")), "n1", &[]);
    for (name, size) in [("a", "3Gi"), ("b", "2Gi"), ("c", "2Gi"), ("d", "1Mi")] {
        facts = with_volume(facts, sized(name, size));
    }
    assert_eq!(decide(&pod("p", &["c"], json!({})), &facts), Decision::Reserve("b".into(), key("c")));
    // Two claims of a pod do not get the same one.
    let facts = with_claim(facts, claim("d", "late"));
    let facts = with_volume(facts, reserved("b", None, "c"));
    assert_eq!(decide(&pod("p", &["c", "d"], json!({})), &facts), Decision::Reserve("c".into(), key("d")));
}
