//! Tests of node-local volumes and of the competition for claims.

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

#[test]
fn attempt_delays_are_spread_and_double() {
    let seconds = |from: u64, to: u64| Duration::from_secs(from)..=Duration::from_secs(to);
    let mut first = Vec::new();
    for number in 0..200 {
        let deployment = NodeDeployment::new(format!("node-{number}").into());
        let at = |attempt| attempt_delay(&deployment, &"uid".into(), attempt);
        assert!(seconds(0, 20).contains(&at(0)) && seconds(20, 40).contains(&at(1)), "{:?}", (at(0), at(1)));
        for later in [2, 3, 31, u32::MAX] {
            assert!(seconds(40, 60).contains(&at(later)), "{later}: {:?}", at(later));
        }
        assert_eq!(at(0), at(0));
        first.push(at(0));
    }
    first.sort();
    for (part, delay) in [(40, 4), (80, 8), (120, 12), (160, 16)] {
        let found = first[part].as_secs_f64();
        assert!((found - f64::from(delay)).abs() < 2.0, "{part} of 200 delays are below {found} s");
    }
    first.dedup();
    assert!(first.len() > 150, "only {} pauses differ", first.len());
}

#[tokio::test(start_paused = true)]
async fn the_next_attempt_comes_after_a_longer_delay() {
    let deployment = NodeDeployment::new("n1".into());
    let (mut contests, uid) = (ImmediateBindingContests::default(), Uid::from("uid"));
    let first = contests.next_attempt(&deployment, &uid).unwrap();
    assert_eq!(first, attempt_delay(&deployment, &uid, 0));
    tokio::time::advance(first / 2).await;
    assert_eq!(
        contests.next_attempt(&deployment, &uid),
        Some(first - first / 2),
        "an early attempt does not extend the delay"
    );
    tokio::time::advance(first).await;
    assert_eq!(contests.next_attempt(&deployment, &uid), None);
    assert_eq!(contests.time_left(&uid), attempt_delay(&deployment, &uid, 1));
    assert!(contests.warn_once(&uid) && !contests.warn_once(&uid));
    contests.retry_now(&uid);
    assert_eq!(
        contests.next_attempt(&deployment, &uid),
        None,
        "another client has written the claim without selecting a node"
    );
    contests.remove(&uid);
    assert_eq!(contests.next_attempt(&deployment, &uid), Some(first));
}
