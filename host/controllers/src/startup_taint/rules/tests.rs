//! Tests of the rules of start-up taints.

use cofferdam_cluster::{Kind, decode};
use cofferdam_domain::{CsiNode, DriverName, Node};
use serde_json::{Value, json};

use super::{registered_drivers, removal_patch};

fn read<K: Kind>(json: &Value) -> K {
    decode::object(&json.to_string()).unwrap().unwrap()
}

fn taint(key: &str) -> Value {
    json!({"key": key, "effect": "NoExecute"})
}

#[test]
fn the_taint_of_a_registered_driver_is_removed() {
    let csi_node = |owner: Option<&str>, drivers: &[(&str, &str)]| {
        let owners: Vec<Value> = owner
            .map(|uid| json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": uid}))
            .into_iter()
            .collect();
        let drivers: Vec<Value> = drivers
            .iter()
            .map(|(name, id)| json!({"name": name, "nodeID": id, "topologyKeys": null}))
            .collect();
        json!({
            "metadata": {"name": "n", "resourceVersion": "1", "ownerReferences": owners},
            "spec": {"drivers": drivers},
        })
    };
    const TAINTED: &[&str] = &["a/agent-not-ready", "other", "b/agent-not-ready", "c/agent-not-ready"];
    // Taints of the node, its CSINode, and the drivers whose taint is removed. The driver c is not managed.
    let cases: [(&[&str], Option<Value>, &[&str]); 8] = [
        (TAINTED, None, &[]),
        (TAINTED, Some(csi_node(None, &[])), &[]),
        (TAINTED, Some(csi_node(None, &[("a", "id")])), &["a"]),
        (TAINTED, Some(csi_node(Some("u"), &[("a", "id"), ("b", "id"), ("c", "id")])), &["a", "b"]),
        (TAINTED, Some(csi_node(None, &[("c", "id")])), &[]),
        // A registration without a node id is not complete.
        (TAINTED, Some(csi_node(None, &[("a", "")])), &[]),
        // The CSINode of an earlier Node of this name.
        (TAINTED, Some(csi_node(Some("u-0"), &[("a", "id")])), &[]),
        (&["a", "agent-not-ready"], Some(csi_node(None, &[("a", "id")])), &[]),
    ];
    for (taints, csi_node, expected) in cases {
        let taints: Vec<Value> = taints.iter().map(|key| taint(key)).collect();
        let node: Node = read(&json!({
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}, "spec": {"taints": taints},
        }));
        let csi_node: Option<CsiNode> = csi_node.as_ref().map(read);
        let is_managed = |driver: &DriverName| driver.as_str() != "c";
        let found = registered_drivers(&node, csi_node.as_ref(), is_managed);
        assert_eq!(found.iter().map(|driver| driver.as_str()).collect::<Vec<_>>(), expected, "{csi_node:?}");
    }
}

#[test]
fn the_patch_tests_the_list_and_keeps_other_taints() {
    let drivers: [DriverName; 2] = ["a".into(), "b".into()];
    let drivers: Vec<&DriverName> = drivers.iter().collect();
    let (a, b) = (taint("a/agent-not-ready"), taint("b/agent-not-ready"));
    // Fields that this version does not know are kept.
    let other =
        json!({"key": "other", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z", "new": 1});
    let test = |list: &Value| json!({"op": "test", "path": "/spec/taints", "value": list});
    let cases = [
        (Value::Null, None),
        (json!([]), None),
        (json!([other]), None),
        (json!([a]), Some(json!({"op": "remove", "path": "/spec/taints"}))),
        (json!([a, b, a]), Some(json!({"op": "remove", "path": "/spec/taints"}))),
        (json!([b, other, a]), Some(json!({"op": "replace", "path": "/spec/taints", "value": [other]}))),
    ];
    for (taints, change) in cases {
        let expected = change.map(|change| vec![test(&taints), change]);
        assert_eq!(removal_patch(&taints, &drivers), expected, "{taints}");
    }
}
