//! Tests of node-local volumes.

use cofferdam_cluster::decode;
use cofferdam_domain::{CsiNode, Node};
use serde_json::{Value, json};

use super::*;

const KEY: &str = names::NODE_TOPOLOGY_KEY;

fn local_node(drivers: &[(&str, &[&str])]) -> LocalNode {
    let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect();
    let drivers = drivers.iter().map(|(name, of)| ((*name).into(), keys(of))).collect();
    LocalNode { node: "n1".into(), drivers, immediate_binding: true }
}

fn volume(driver: &str, terms: &Value) -> Volume {
    let object = json!({
        "metadata": {"name": "v", "uid": "u", "resourceVersion": "1"},
        "spec": {
            "csi": {"driver": driver, "volumeHandle": "h"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
    });
    decode::object(&object.to_string()).unwrap().unwrap()
}

fn term(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
}

#[test]
fn a_volume_is_local_if_its_affinity_names_only_this_node() {
    let (local_node, cache) = (local_node(&[("drv", &[KEY])]), Cache::default());
    let segments = [(KEY.to_owned(), "n1".to_owned())].into();
    let zoned = json!({"matchExpressions": [
        {"key": KEY, "operator": "In", "values": ["n1"]},
        {"key": "zone", "operator": "In", "values": ["a", "b"]},
    ]});
    #[rustfmt::skip] // one row per affinity: on the node; certainly not on the node
    let table = [
        ("one term",        json!([term(KEY, "In", &["n1"])]),                              true,  false),
        ("narrower",        json!([zoned]),                                                 true,  false),
        ("another node",    json!([term(KEY, "In", &["n2"])]),                              false, true),
        ("two values",      json!([term(KEY, "In", &["n1", "n2"])]),                        false, false),
        ("two terms",       json!([term(KEY, "In", &["n1"]), term(KEY, "In", &["n2"])]),    false, false),
        ("all but another", json!([term(KEY, "NotIn", &["n2"])]),                           false, false),
        ("another key",     json!([term("zone", "In", &["a"])]),                            false, false),
        ("no term",         json!([]),                                                      false, false),
        ("none",            Value::Null,                                                    false, false),
    ];
    for (name, terms, is_local, is_never_local) in table {
        let volume = volume("drv", &terms);
        assert_eq!(local_node.has_volume(&volume, &cache), is_local, "{name}");
        assert_eq!(volume.is_inaccessible_from(&segments), is_never_local, "{name}");
    }
    assert!(
        !local_node.has_volume(&volume("other", &json!([term(KEY, "In", &["n1"])])), &cache),
        "a volume of another driver"
    );
}

#[test]
fn segments_come_from_node_name_and_node_labels() {
    let drivers = local_node(&[("own", &[KEY]), ("both", &[KEY, "zone"]), ("socket", &[])]);
    assert!(
        drivers.needs_labels()
            && !local_node(&[("own", &[KEY])]).needs_labels()
            && !local_node(&[]).needs_labels()
    );
    let cache = Cache::default();
    let segments = |driver: &str| drivers.segments(&driver.into(), &cache);
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(segments("own"), Ok([pair(KEY, "n1")].into()));
    let error = |driver| segments(driver).unwrap_err().to_string();
    assert_eq!(error("both"), "node n1 has no label zone");
    assert_eq!(error("socket"), "no topology key found on CSINode n1");

    let node =
        json!({"metadata": {"name": "n1", "uid": "u", "resourceVersion": "1", "labels": {"zone": "a"}}});
    assert!(cache.nodes.apply(Ok(decode::object::<Node>(&node.to_string()).unwrap().unwrap())));
    let registered = json!({
        "metadata": {"name": "n1", "uid": "c", "resourceVersion": "1"},
        "spec": {"drivers": [{"name": "socket", "nodeID": "x", "topologyKeys": ["zone"]}]},
    });
    assert!(cache.csi_nodes.apply(Ok(decode::object::<CsiNode>(&registered.to_string()).unwrap().unwrap())));
    assert_eq!(segments("both"), Ok([pair(KEY, "n1"), pair("zone", "a")].into()));
    assert_eq!(segments("socket"), Ok([pair("zone", "a")].into()));
}
