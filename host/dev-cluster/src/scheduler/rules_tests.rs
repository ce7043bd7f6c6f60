//! Decisions of the scheduler about one pod, in variations of a cluster with two nodes.

use cofferdam_cluster::Kind;
use cofferdam_domain::{StorageClass, Uid};
use serde_json::{Value, json};

use super::*;
use crate::kinds::FullVolume;

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

fn bound_claim(name: &str, volume: &str) -> Value {
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

fn pod(name: &str, claims: &[&str], more: Value) -> Arc<FullPod> {
    let volumes: Vec<Value> = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    let mut spec = json!({"containers": [{"name": "c"}], "volumes": volumes});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object(json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec}))
}

/// Two nodes in two zones, and four StorageClasses: `now` with immediate binding, and with
/// WaitForFirstConsumer `late`, `hand` without a provisioner, and `b` for zone b only.
fn cluster() -> SchedulerInput {
    let mut input = SchedulerInput::default();
    for value in [node("n1", "a"), node("n2", "b")] {
        let node = object::<FullNode>(value);
        input.nodes.insert(node.slim.name.clone(), node);
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
        input.classes.insert(class.name.to_string(), class);
    }
    input
}

fn with_claim(mut input: SchedulerInput, value: Value) -> SchedulerInput {
    let claim = object::<Claim>(value);
    input.claims.insert(claim.key.clone(), claim);
    input
}

fn with_volume(mut input: SchedulerInput, value: Value) -> SchedulerInput {
    let volume = object::<FullVolume>(value);
    input.volumes.insert(volume.slim.name.clone(), volume);
    input
}

fn with_node(mut input: SchedulerInput, value: Value) -> SchedulerInput {
    let node = object::<FullNode>(value);
    input.nodes.insert(node.slim.name.clone(), node);
    input
}

fn with_assigned_pod(mut input: SchedulerInput, node: &str, pod: Arc<FullPod>) -> SchedulerInput {
    input.assigned_pods.push((node.into(), pod));
    input
}

fn with_volume_limit(mut input: SchedulerInput, node: &str, count: i32) -> SchedulerInput {
    let value = json!({
        "metadata": {"name": node},
        "spec": {"drivers": [
            {"name": "d", "nodeID": node, "topologyKeys": [], "allocatable": {"count": count}},
        ]},
    });
    input.csi_nodes.insert(node.into(), object(value));
    input
}

fn with_capacity(mut input: SchedulerInput, class: &str, zone: &str, capacity: &str) -> SchedulerInput {
    input.csi_drivers.insert(
        "d".to_owned(),
        object(json!({"metadata": {"name": "d"}, "spec": {"storageCapacity": true}})),
    );
    input.capacities.push(object(json!({
        "metadata": {"name": format!("{class}-{zone}"), "namespace": "default"},
        "storageClassName": class,
        "nodeTopology": {"matchLabels": {"zone": zone}},
        "capacity": capacity,
    })));
    input
}

fn with_assumed_node(mut input: SchedulerInput, node: &str, annotated_claims: &[&str]) -> SchedulerInput {
    let annotated_claims = annotated_claims.iter().map(|claim| Uid::new(format!("uid of {claim}"))).collect();
    input.assumed = Some(AssumedNode { node: node.into(), annotated_claims });
    input
}

fn assume_node(node: &str) -> SchedulingDecision {
    SchedulingDecision::AssumeNode(node.into())
}

fn unschedulable(reason: &str) -> SchedulingDecision {
    SchedulingDecision::Unschedulable(format!("0/2 nodes are available: {reason}."))
}

fn claim_key(claim: &str) -> ClaimKey {
    ClaimKey::new("default", claim)
}

fn claim_with_selected_node(name: &str, node: &str) -> Value {
    let mut claim = claim(name, "late");
    claim["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": node});
    claim
}

fn reserved_volume(name: &str, zone: Option<&str>, claim: &str) -> Value {
    let mut volume = volume(name, zone);
    let uid = format!("uid of {claim}");
    volume["spec"]["claimRef"] = json!({"namespace": "default", "name": claim, "uid": uid});
    volume
}

fn read_write_once_pod(mut claim: Value) -> Value {
    claim["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    claim
}

#[test]
fn pod_is_scheduled_where_its_volumes_are_reachable() {
    let two_nodes = cluster;
    let late = || with_claim(two_nodes(), claim("c", "late"));
    let in_b = || with_volume(with_claim(two_nodes(), bound_claim("c", "v")), volume("v", Some("b")));
    let busy = |input| with_assigned_pod(input, "n1", pod("other", &[], json!({})));
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
    let affinity = "1 node(s) didn't match PersistentVolume's node affinity, \
                    1 node(s) didn't match Pod's node affinity/selector";
    let table: Vec<(&str, Arc<FullPod>, SchedulerInput, SchedulingDecision)> = vec![
        ("no volumes", pod("p", &[], json!({})), two_nodes(), assume_node("n1")),
        ("the emptier node", pod("p", &[], json!({})), busy(two_nodes()), assume_node("n2")),
        (
            "node selector",
            pod("p", &[], json!({"nodeSelector": {"zone": "b"}})),
            two_nodes(),
            assume_node("n2"),
        ),
        (
            "another scheduler",
            pod("p", &[], json!({"schedulerName": "mine"})),
            two_nodes(),
            SchedulingDecision::NoAction,
        ),
        (
            "gated",
            pod("p", &[], json!({"schedulingGates": [{"name": "g"}]})),
            two_nodes(),
            SchedulingDecision::NoAction,
        ),
        ("has a node", pod("p", &[], json!({"nodeName": "n1"})), two_nodes(), SchedulingDecision::NoAction),
        (
            "cordoned",
            pod("p", &[], json!({})),
            with_node(two_nodes(), cordoned("n1", "a")),
            assume_node("n2"),
        ),
        (
            "all cordoned",
            pod("p", &[], json!({})),
            with_node(with_node(two_nodes(), cordoned("n1", "a")), cordoned("n2", "b")),
            unschedulable("2 node(s) were unschedulable"),
        ),
        ("tainted", pod("p", &[], json!({})), with_node(two_nodes(), tainted.clone()), assume_node("n2")),
        ("tolerated", pod("p", &[], tolerant), with_node(two_nodes(), tainted), assume_node("n1")),
        ("no claim", plain(), two_nodes(), unschedulable("persistentvolumeclaim \"c\" not found")),
        (
            "immediate, unbound",
            plain(),
            with_claim(two_nodes(), claim("c", "now")),
            unschedulable("pod has unbound immediate PersistentVolumeClaims"),
        ),
        (
            "missing class",
            plain(),
            with_claim(two_nodes(), claim("c", "gone")),
            unschedulable("pod has unbound immediate PersistentVolumeClaims"),
        ),
        ("volume on another node", plain(), in_b(), assume_node("n2")),
        (
            "volume and pod on different nodes",
            pod("p", &["c"], json!({"nodeSelector": {"zone": "a"}})),
            in_b(),
            unschedulable(affinity),
        ),
        (
            "missing volume",
            plain(),
            with_claim(two_nodes(), bound_claim("c", "v")),
            unschedulable("2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"),
        ),
        ("WaitForFirstConsumer", plain(), late(), assume_node("n1")),
        ("allowedTopologies", plain(), with_claim(two_nodes(), claim("c", "b")), assume_node("n2")),
        (
            "no provisioner",
            plain(),
            with_claim(two_nodes(), claim("c", "hand")),
            unschedulable("2 node(s) didn't find available persistent volumes to bind"),
        ),
        (
            "selected-node annotation",
            plain(),
            with_claim(two_nodes(), claim_with_selected_node("c", "n2")),
            assume_node("n2"),
        ),
        (
            "no capacity",
            plain(),
            with_capacity(late(), "late", "a", "1Mi"),
            unschedulable("2 node(s) did not have enough free storage"),
        ),
        (
            "capacity in b",
            plain(),
            with_capacity(with_capacity(late(), "late", "a", "1Mi"), "late", "b", "2Gi"),
            assume_node("n2"),
        ),
        ("volume limit of one node", plain(), with_volume_limit(late(), "n1", 0), assume_node("n2")),
        (
            "registered driver preferred",
            plain(),
            with_assigned_pod(with_volume_limit(late(), "n2", 9), "n2", pod("other", &[], json!({}))),
            assume_node("n2"),
        ),
        (
            "volume limit of both nodes",
            plain(),
            with_volume_limit(with_volume_limit(late(), "n1", 0), "n2", 0),
            unschedulable("2 node(s) exceed max volume count"),
        ),
        (
            "ReadWriteOncePod in use",
            plain(),
            with_assigned_pod(
                with_claim(two_nodes(), read_write_once_pod(claim("c", "late"))),
                "n1",
                pod("o", &["c"], json!({})),
            ),
            unschedulable(
                "2 node has pod using PersistentVolumeClaim with the same name \
                 and ReadWriteOncePod access mode",
            ),
        ),
        (
            "ReadWriteOncePod unused",
            plain(),
            with_claim(two_nodes(), read_write_once_pod(claim("c", "late"))),
            assume_node("n1"),
        ),
    ];
    for (case, pod, input, expected) in table {
        assert_eq!(decide(&pod, &input), expected, "{case}");
    }
}

#[test]
fn volume_limit_counts_each_distinct_volume_once() {
    let input = with_volume(with_claim(cluster(), bound_claim("c", "v")), volume("v", None));
    let input = with_volume_limit(with_volume_limit(input, "n1", 1), "n2", 0);
    // The same volume counts once.
    let shared = with_assigned_pod(input.clone(), "n1", pod("other", &["c"], json!({})));
    assert_eq!(decide(&pod("p", &["c"], json!({})), &shared), assume_node("n1"));
    let mut other = with_volume(with_claim(input, bound_claim("d", "w")), volume("w", None));
    other.volume_attachments.push(object(json!({
        "metadata": {"name": "a"},
        "spec": {"attacher": "d", "nodeName": "n1", "source": {"persistentVolumeName": "w"}},
    })));
    let full = unschedulable("2 node(s) exceed max volume count");
    assert_eq!(decide(&pod("p", &["c"], json!({})), &other), full, "attached volumes count, too");
    // Each claim that is not provisioned yet counts as a volume.
    let late = with_claim(
        with_claim(with_volume_limit(with_volume_limit(cluster(), "n1", 1), "n2", 2), claim("c", "late")),
        claim("d", "late"),
    );
    assert_eq!(decide(&pod("p", &["c", "d"], json!({})), &late), assume_node("n2"));
}

#[test]
fn volumes_are_bound_before_the_pod() {
    let late = || with_claim(cluster(), claim("c", "late"));
    let with_existing_volume = || with_volume(late(), volume("v", Some("a")));
    let done = || with_volume(with_claim(cluster(), bound_claim("c", "v")), volume("v", Some("a")));
    let waits =
        |claims: &str| SchedulingDecision::WaitForBinding(format!("waiting for {claims} to be bound on n1"));
    let named = {
        let mut claim = claim_with_selected_node("c", "n1");
        claim["spec"]["volumeName"] = json!("v");
        claim
    };
    let lost = SchedulingDecision::ForgetNode("provisioning failed for PVC \"c\"".to_owned());
    let away =
        SchedulingDecision::ForgetNode("node(s) didn't match PersistentVolume's node affinity".to_owned());
    let table: Vec<(&str, SchedulerInput, SchedulingDecision)> = vec![
        (
            "matching volume",
            with_assumed_node(with_existing_volume(), "n1", &[]),
            SchedulingDecision::ReserveVolume("v".into(), claim_key("c")),
        ),
        (
            "volume on another node",
            with_assumed_node(with_existing_volume(), "n2", &[]),
            SchedulingDecision::SetSelectedNode(claim_key("c")),
        ),
        (
            "reserved",
            with_assumed_node(with_volume(late(), reserved_volume("v", Some("a"), "c")), "n1", &[]),
            waits("c"),
        ),
        (
            "reserved for another claim",
            with_assumed_node(with_volume(late(), reserved_volume("v", None, "d")), "n1", &[]),
            SchedulingDecision::SetSelectedNode(claim_key("c")),
        ),
        (
            "no matching volume",
            with_assumed_node(late(), "n1", &[]),
            SchedulingDecision::SetSelectedNode(claim_key("c")),
        ),
        (
            "node selected",
            with_assumed_node(with_claim(cluster(), claim_with_selected_node("c", "n1")), "n1", &["c"]),
            waits("c"),
        ),
        ("selection removed", with_assumed_node(late(), "n1", &["c"]), lost),
        (
            "node selected, volume named",
            with_assumed_node(with_volume(with_claim(cluster(), named), volume("v", None)), "n1", &["c"]),
            waits("c"),
        ),
        ("bound", with_assumed_node(done(), "n1", &["c"]), SchedulingDecision::Bind("n1".into())),
        ("volume on another node", with_assumed_node(done(), "n2", &["c"]), away),
        (
            "node deleted",
            with_assumed_node(done(), "n3", &["c"]),
            SchedulingDecision::ForgetNode("node n3 not found".to_owned()),
        ),
    ];
    for (case, input, expected) in table {
        assert_eq!(decide(&pod("p", &["c"], json!({})), &input), expected, "{case}");
    }
}

#[test]
fn smallest_matching_volume_is_reserved() {
    let sized = |name: &str, size: &str| {
        let mut volume = volume(name, None);
        volume["spec"]["capacity"]["storage"] = json!(size);
        volume
    };
    let mut input = with_assumed_node(with_claim(cluster(), claim("c", "late")), "n1", &[]);
    for (name, size) in [("a", "3Gi"), ("b", "2Gi"), ("c", "2Gi"), ("d", "1Mi")] {
        input = with_volume(input, sized(name, size));
    }
    assert_eq!(
        decide(&pod("p", &["c"], json!({})), &input),
        SchedulingDecision::ReserveVolume("b".into(), claim_key("c"))
    );
    // Two claims of a pod are not bound to the same volume.
    let input = with_claim(input, claim("d", "late"));
    let input = with_volume(input, reserved_volume("b", None, "c"));
    assert_eq!(
        decide(&pod("p", &["c", "d"], json!({})), &input),
        SchedulingDecision::ReserveVolume("c".into(), claim_key("d"))
    );
}
