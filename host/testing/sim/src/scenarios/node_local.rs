//! Storage that is in nodes: a process on each of them, which settle among themselves whose a claim is.

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use super::{CLAIM, Scenario};
use crate::{
    DriverFault, EnvironmentKind, TopologyBehavior,
    UserAction::{self, Create, Delete, Patch, Settle, Until},
    WaitFor::{CallsCompleted, Event},
    objects::{claim, class, csi_node, node, volume, with},
};

const NODE_TOPOLOGY_KEY: &str = "topology.cofferdam.dev/node";
const NODES: &[&str] = &["n1", "n2"];

fn wait_for_first_consumer_class() -> Value {
    with(class("gold"), &json!({"volumeBindingMode": "WaitForFirstConsumer"}))
}

fn with_allowed_topologies(class: Value, node: &str) -> Value {
    let expressions = json!([{"key": NODE_TOPOLOGY_KEY, "values": [node]}]);
    with(class, &json!({"allowedTopologies": [{"matchLabelExpressions": expressions}]}))
}

/// A registration of the driver with its key.
fn csi_node_with_key(name: &str) -> UserAction {
    let mut object = csi_node(name, name);
    if let Some(keys) = object.pointer_mut("/spec/drivers/0/topologyKeys") {
        *keys = json!(["disk.example/host"]);
    }
    Create(object)
}

/// The scheduler's choice, or that somebody takes it back.
fn select_node(node: impl Into<Value>) -> UserAction {
    Patch(CLAIM, json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node.into()}}}))
}

/// A claim whose class waits for a pod, and then what the scheduler chose.
fn claim_on_node(node: &str, actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    let setup =
        [Create(wait_for_first_consumer_class()), Create(claim("a", "gold")), Settle, select_node(node)];
    setup.into_iter().chain(actions).collect()
}

/// The node is chosen again, and when all is well the claim goes.
fn reselect_then_delete() -> [UserAction; 4] {
    [Settle, select_node("n1"), Settle, Delete(CLAIM)]
}

/// A Released volume of a claim that is gone, on these nodes.
fn released_volume(name: &str, nodes: &[&str]) -> [UserAction; 2] {
    let expressions = json!([{"key": NODE_TOPOLOGY_KEY, "operator": "In", "values": nodes}]);
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}});
    let object = with(
        volume(name, "none", "1Gi"),
        &json!({
            "metadata": {"finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"]},
            "spec": {
                "persistentVolumeReclaimPolicy": "Delete",
                "nodeAffinity": if nodes.is_empty() { Value::Null } else { affinity },
                "claimRef": {"namespace": "default", "name": "was", "uid": "was"},
            },
        }),
    );
    [Create(object), Settle]
}

/// The pauses of the race are a digest of the claim's uid, which is another one every time where time is
/// real.
const CLAIM_RACE: &[(EnvironmentKind, &str)] = &[
    (EnvironmentKind::Http, "on real time either node may be the first at the claim"),
    (EnvironmentKind::Kubernetes, "on real time either node may be the first at the claim"),
];

/// Tested in process only: which retry meets which fault depends on the clock.
const RETRY_ORDER: &[(EnvironmentKind, &str)] = &[
    (EnvironmentKind::Http, "on real time the retries of two processes have no order"),
    (EnvironmentKind::Kubernetes, "on real time the retries of two processes have no order"),
];

/// pv-controller tells a claim that it waits after a while of its own.
const EVENT_TIMING: &[(EnvironmentKind, &str)] = &[
    (
        EnvironmentKind::Http,
        "on real time the claim may be told that its provisioner is waited for, or not yet",
    ),
    (
        EnvironmentKind::Kubernetes,
        "on real time the claim may be told that its provisioner is waited for, or not yet",
    ),
];

const BOUND_ON_N1: &[&str] = &["of-a Bound a topology.cofferdam.dev/node=n1"];
const BOUND_ON_N2: &[&str] = &["of-a Bound a topology.cofferdam.dev/node=n2"];
const FAILED: &str = "a Warning ProvisioningFailed";
const CREATE_ON_N1: &str = "create a topology.cofferdam.dev/node=n1";
const CREATE_ON_N2: &str = "create a topology.cofferdam.dev/node=n2";
/// The race takes longer than pv-controller waits before it says so.
const SUCCEEDED: &[&str] = &["a Normal ExternalProvisioning", "a Normal ProvisioningSucceeded"];
const SUCCEEDED_AFTER_FAILURE: &[&str] =
    &["a Normal ExternalProvisioning", "a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"];
const SUCCEEDED_AFTER_SELECTION: &[&str] =
    &["a Normal ProvisioningSucceeded", "a Normal WaitForFirstConsumer"];
const SUCCEEDED_AFTER_RESELECTION: &[&str] =
    &["a Normal ProvisioningSucceeded", "a Normal WaitForFirstConsumer", "a Warning ProvisioningFailed"];

/// The rows.
#[expect(clippy::too_many_lines, reason = "one table")]
pub(super) fn scenarios() -> Vec<Scenario> {
    let topology = TopologyBehavior { keys: &[NODE_TOPOLOGY_KEY], ..TopologyBehavior::default() };
    let unprovisioned = || Scenario { topology, storage_nodes: NODES, ..Scenario::default() };
    let on_n1 = || Scenario {
        claims: &["a Bound of-a"],
        volumes: BOUND_ON_N1,
        array_owners: &["a on n1"],
        events: SUCCEEDED_AFTER_SELECTION,
        calls: &[CREATE_ON_N1],
        ..unprovisioned()
    };
    let on_n2 =
        || Scenario { volumes: BOUND_ON_N2, array_owners: &["a on n2"], calls: &[CREATE_ON_N2], ..on_n1() };
    vec![
        Scenario { name: "the chosen node's process makes the volume", actions: claim_on_node("n1", []), ..on_n1() },
        Scenario {
            name: "a volume of a node grows, by that node's process",
            // The API's own look at the class may be late: it allows growth from the beginning.
            actions: vec![
                Create(with(wait_for_first_consumer_class(), &json!({"allowVolumeExpansion": true}))),
                Create(claim("a", "gold")),
                Settle,
                select_node("n1"),
                Settle,
                Patch(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})),
            ],
            resizes: &["a 2Gi/2Gi allocated=2Gi no-node"],
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Normal Resizing",
                "a Normal VolumeResizeSuccessful",
                "a Normal WaitForFirstConsumer",
            ],
            calls: &[CREATE_ON_N1, "expand a 2Gi on n1"],
            ..on_n1()
        },
        Scenario { name: "and that of another node another node's", actions: claim_on_node("n2", []), ..on_n2() },
        Scenario {
            name: "a node without a process is waited for",
            actions: claim_on_node("n3", []),
            claims: &["a Pending on n3"],
            events: &["a Normal ExternalProvisioning", "a Normal WaitForFirstConsumer"],
            skipped_on: EVENT_TIMING,
            ..unprovisioned()
        },
        Scenario {
            name: "and the volume goes where it is",
            actions: claim_on_node("n2", [Settle, Delete(CLAIM)]),
            claims: &[],
            volumes: &[],
            array_owners: &[],
            calls: &["create gone topology.cofferdam.dev/node=n2", "delete gone on n2"],
            ..on_n2()
        },
        Scenario {
            name: "two nodes race for a claim: one volume",
            actions: vec![Create(class("gold")), Create(claim("a", "gold"))],
            events: SUCCEEDED,
            skipped_on: CLAIM_RACE,
            ..on_n2()
        },
        Scenario {
            name: "the first of the race has no room, and the other one takes the claim",
            actions: vec![Create(class("gold")), Create(claim("a", "gold"))],
            topology: TopologyBehavior { full_segments: &["topology.cofferdam.dev/node=n2"], ..topology },
            events: SUCCEEDED_AFTER_FAILURE,
            calls: &[CREATE_ON_N2, CREATE_ON_N1],
            skipped_on: CLAIM_RACE,
            ..on_n1()
        },
        Scenario {
            name: "a driver that tells of its room is not asked in vain",
            actions: vec![Create(class("gold")), Create(claim("a", "gold"))],
            topology: TopologyBehavior { full_segments: &["topology.cofferdam.dev/node=n2"], reports_capacity: true, ..topology },
            events: SUCCEEDED_AFTER_FAILURE,
            skipped_on: CLAIM_RACE,
            ..on_n1()
        },
        Scenario {
            name: "no node has room, and the claim is told",
            actions: vec![Create(class("gold")), Create(claim("a", "gold"))],
            topology: TopologyBehavior {
                full_segments: &["topology.cofferdam.dev/node=n1", "topology.cofferdam.dev/node=n2"],
                reports_capacity: true,
                ..topology
            },
            claims: &["a Pending"],
            events: &["a Normal ExternalProvisioning", "a Warning ProvisioningFailed"],
            skipped_on: EVENT_TIMING,
            ..unprovisioned()
        },
        Scenario {
            name: "only the nodes that the class allows race",
            actions: vec![Create(with_allowed_topologies(class("gold"), "n1")), Create(claim("a", "gold"))],
            events: SUCCEEDED,
            skipped_on: EVENT_TIMING,
            ..on_n1()
        },
        Scenario {
            name: "there is no room at the chosen node: another one is chosen",
            actions: claim_on_node("n1", [Settle, select_node("n2")]),
            create_faults: vec![DriverFault::Refuse(ErrorKind::ResourceExhausted)],
            events: SUCCEEDED_AFTER_RESELECTION,
            calls: &[CREATE_ON_N1, CREATE_ON_N2],
            ..on_n2()
        },
        Scenario {
            name: "another node is chosen while the answer is out: the first one's volume goes",
            actions: claim_on_node("n1", [Until(CallsCompleted(1)), select_node("n2")]),
            // More than one: who comes after a process that died shall not have the volume before the choice
            // is another one.
            create_faults: vec![DriverFault::LostResponse, DriverFault::LostRequest, DriverFault::LostRequest],
            events: &[
                "a Normal ExternalProvisioning",
                "a Normal ProvisioningSucceeded",
                "a Normal WaitForFirstConsumer",
                "a Warning ProvisioningFailed",
            ],
            skipped_on: RETRY_ORDER,
            calls: &[CREATE_ON_N1, CREATE_ON_N1, CREATE_ON_N2, CREATE_ON_N2, CREATE_ON_N1, "delete a on n1"],
            ..on_n2()
        },
        Scenario {
            name: "another node is chosen while the driver works: the first one's volume goes",
            actions: claim_on_node("n1", []),
            create_faults: vec![DriverFault::ConcurrentAction(select_node("n2"))],
            skipped_on: RETRY_ORDER,
            calls: &[CREATE_ON_N1, CREATE_ON_N2, "delete a on n1"],
            ..on_n2()
        },
        Scenario {
            name: "and also with Retain, for nobody has ever had it",
            actions: vec![
                Create(with(wait_for_first_consumer_class(), &json!({"reclaimPolicy": "Retain"}))),
                Create(claim("a", "gold")),
                Settle,
                select_node("n1"),
            ],
            create_faults: vec![DriverFault::ConcurrentAction(select_node("n2"))],
            skipped_on: RETRY_ORDER,
            calls: &[CREATE_ON_N1, CREATE_ON_N2, "delete a on n1"],
            ..on_n2()
        },
        Scenario {
            name: "the answer is lost and the claim deleted",
            actions: claim_on_node("n1", [Until(CallsCompleted(1)), Delete(CLAIM)]),
            create_faults: vec![DriverFault::LostResponse],
            events: &["a Normal WaitForFirstConsumer", "a Warning ProvisioningFailed"],
            calls: &[
                "create gone topology.cofferdam.dev/node=n1",
                "create gone topology.cofferdam.dev/node=n1",
                "delete gone on n1",
            ],
            ..unprovisioned()
        },
        Scenario {
            name: "a volume of two nodes is deleted by neither",
            actions: released_volume("v", NODES).into(),
            volumes: &["v Released was topology.cofferdam.dev/node=n1"],
            ..unprovisioned()
        },
        Scenario {
            name: "and so is one of no node, and one of a node that is gone",
            actions: released_volume("v", &[]).into_iter().chain(released_volume("w", &["n3"])).collect(),
            volumes: &["v Released was", "w Released was topology.cofferdam.dev/node=n3"],
            ..unprovisioned()
        },
        Scenario {
            name: "a static volume of one node is deleted there",
            actions: released_volume("v", &["n1"]).into(),
            calls: &["delete static-v on n1"],
            ..unprovisioned()
        },
        Scenario {
            name: "a node is also where its labels say",
            actions: [Create(node("n1", &json!({"zone": "a"})))].into_iter().chain(claim_on_node("n1", reselect_then_delete())).collect(),
            create_faults: vec![DriverFault::Refuse(ErrorKind::ResourceExhausted)],
            topology: TopologyBehavior { keys: &["zone", NODE_TOPOLOGY_KEY], ..topology },
            events: SUCCEEDED_AFTER_RESELECTION,
            calls: &[
                "create gone topology.cofferdam.dev/node=n1,zone=a",
                "create gone topology.cofferdam.dev/node=n1,zone=a",
                "delete gone on n1",
            ],
            ..unprovisioned()
        },
        Scenario {
            name: "the label that a driver needs comes late",
            actions: claim_on_node("n1", [Until(Event(FAILED)), Create(node("n1", &json!({"zone": "a"})))]),
            topology: TopologyBehavior { keys: &["zone", NODE_TOPOLOGY_KEY], ..topology },
            volumes: &["of-a Bound a topology.cofferdam.dev/node=n1,zone=a"],
            events: SUCCEEDED_AFTER_RESELECTION,
            calls: &["create a topology.cofferdam.dev/node=n1,zone=a"],
            skipped_on: EVENT_TIMING,
            ..on_n1()
        },
        Scenario {
            name: "an existing CSI driver of a node, whose key stands in the CSINode",
            actions: [csi_node_with_key("n1"), Create(node("n1", &json!({"disk.example/host": "n1"})))]
                .into_iter()
                .chain(claim_on_node("n1", reselect_then_delete()))
                .collect(),
            create_faults: vec![DriverFault::Refuse(ErrorKind::ResourceExhausted)],
            topology: TopologyBehavior { keys: &["disk.example/host"], keys_only_in_csi_node: true, ..topology },
            events: SUCCEEDED_AFTER_RESELECTION,
            calls: &[
                "create gone disk.example/host=n1",
                "create gone disk.example/host=n1",
                "delete gone on n1",
            ],
            ..unprovisioned()
        },
        Scenario {
            name: "two volumes with one handle on two nodes have nothing to do with each other",
            actions: released_volume("v", &["n1"])
                .into_iter()
                .chain([Create(with(
                    volume("w", "none", "1Gi"),
                    &json!({"spec": {"csi": {"volumeHandle": "static-v"}, "nodeAffinity": {"required": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": NODE_TOPOLOGY_KEY, "operator": "In", "values": ["n2"]}]}],
                    }}}}),
                ))])
                .collect(),
            volumes: &["w Available  topology.cofferdam.dev/node=n2"],
            calls: &["delete static-v on n1"],
            ..unprovisioned()
        },
    ]
}
