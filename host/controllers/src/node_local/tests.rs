//! Tests of node-local volumes.

use std::sync::Arc;

use cofferdam_cluster::{decode, metrics::Metrics};
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

/// A writer whose API server returns these Nodes to every list, each with its labels.
fn writer_with_nodes(cache: Cache, nodes: &[(&str, Value)]) -> Writer {
    let items: Vec<Value> = nodes
        .iter()
        .map(|(name, labels)| {
            json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": labels}})
        })
        .collect();
    let body = json!({"metadata": {"resourceVersion": "1"}, "items": items}).to_string();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        assert!(query.contains("labelSelector=zone%3Da"), "{query}");
        let body = kube::client::Body::from(body.clone().into_bytes());
        async move { Ok::<_, std::io::Error>(http::Response::new(body)) }
    });
    let client = kube::Client::new(service, "default");
    Writer::new(client, Arc::new(cache), Metrics::default())
}

#[tokio::test]
async fn a_volume_is_not_changed_if_another_node_may_have_it() {
    let zone = json!([term("zone", "In", &["a"])]);
    let zone_and_host = json!([{"matchExpressions": [
        {"key": "zone", "operator": "In", "values": ["a"]},
        {"key": "host", "operator": "In", "values": ["n1"]},
    ]}]);
    let node = |name: &'static str| (name, json!({"zone": "a", "host": name}));
    let unreadable = ("n2", json!({"zone": 7}));
    #[rustfmt::skip] // one row a case: affinity, Nodes with the labels of the segments, the other node
    let table = [
        ("only this node",            &zone,          vec![node("n1")],              None),
        ("another node of the zone",  &zone,          vec![node("n1"), node("n2")],  Some("n2")),
        ("a unique key beside",       &zone_and_host, vec![node("n1"), node("n2")],  None),
        ("a Node that is unreadable", &zone_and_host, vec![node("n1"), unreadable],  Some("n2")),
    ];
    for (name, terms, nodes, expected) in table {
        let cache = Cache::default();
        let object = json!({"metadata": {"name": "n1", "uid": "u", "resourceVersion": "1",
            "labels": {"zone": "a", "host": "n1"}}});
        cache.nodes.apply(Ok(decode::object::<Node>(&object.to_string()).unwrap().unwrap()));
        let (local_node, volume) = (local_node(&[("drv", &["zone"])]), volume("drv", terms));
        assert!(local_node.has_volume(&volume, &cache), "{name}");
        let writer = writer_with_nodes(cache, &nodes);
        let found = match local_node.check_only_node(&volume, &writer).await {
            Ok(()) => None,
            Err(OnlyNodeError::Other { other, .. }) => Some(other.to_string()),
            Err(error) => panic!("{name}: {error}"),
        };
        assert_eq!(found.as_deref(), expected, "{name}");
        assert_eq!(writer.cache().nodes.len(), 1, "{name}: other Nodes are not cached");
    }
}

#[tokio::test]
async fn a_volume_is_not_changed_without_the_labels_of_the_own_node() {
    let zone = json!([term("zone", "In", &["a"])]);
    let writer = writer_with_nodes(Cache::default(), &[]);
    let volume = volume("drv", &zone);
    let error = local_node(&[("drv", &["zone"])]).check_only_node(&volume, &writer).await.unwrap_err();
    assert_eq!(error.to_string(), "node n1 has no label zone");
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
