//! Scenarios of node-local drivers: each node has a process, and the processes compete for claims with
//! immediate binding.

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use crate::{
    DriverFault, EnvironmentKind, TopologyBehavior,
    UserAction::{self, Create, Delete, Patch, Settle, Until},
    WaitFor::{CallsCompleted, Event},
    WorkKind,
    objects::{CLAIM, claim, class, csi_node, node, volume, with},
    scenario::{Scenario, in_real_time},
};

pub(super) const NODE_TOPOLOGY_KEY: &str = "topology.cofferdam.dev/node";
/// A topology key whose value is a Node label.
pub(super) const HOST_KEY: &str = "disk.example/host";
/// API path of the Node `n1`.
const NODE: &str = "/api/v1/nodes/n1";
pub(super) const NODES: &[&str] = &["n1", "n2"];

pub(super) fn wait_for_first_consumer_class() -> Value {
    with(class("gold"), &json!({"volumeBindingMode": "WaitForFirstConsumer"}))
}

fn with_allowed_topologies(class: Value, node: &str) -> Value {
    let expressions = json!([{"key": NODE_TOPOLOGY_KEY, "values": [node]}]);
    with(class, &json!({"allowedTopologies": [{"matchLabelExpressions": expressions}]}))
}

/// A CSINode with the driver and its topology key.
pub(super) fn csi_node_with_key(name: &str) -> UserAction {
    let mut object = csi_node(name, name);
    if let Some(keys) = object.pointer_mut("/spec/drivers/0/topologyKeys") {
        *keys = json!([HOST_KEY]);
    }
    Create(object)
}

/// Sets the selected-node annotation of the claim, or removes it.
fn select_node(node: impl Into<Value>) -> UserAction {
    Patch(CLAIM, json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node.into()}}}))
}

/// Creates the claim `a` with WaitForFirstConsumer, and annotates it with the selected node as the scheduler
/// does.
fn claim_on_node(node: &str, actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    let setup =
        [Create(wait_for_first_consumer_class()), Create(claim("a", "gold")), Settle, select_node(node)];
    setup.into_iter().chain(actions).collect()
}

/// Selects the node `n1` for the claim again, and deletes the claim after it was bound.
fn reselect_then_delete() -> [UserAction; 4] {
    [Settle, select_node("n1"), Settle, Delete(CLAIM)]
}

/// A static PersistentVolume of a deleted claim, with reclaim policy Delete and affinity to these nodes. It
/// has no node affinity if `nodes` is empty.
fn released_volume(name: &str, nodes: &[&str]) -> [UserAction; 2] {
    released_volume_of(name, NODE_TOPOLOGY_KEY, nodes)
}

/// As [`released_volume`], with an affinity to these values of a topology key.
fn released_volume_of(name: &str, key: &str, values: &[&str]) -> [UserAction; 2] {
    let object = with(
        volume(name, "none", "1Gi"),
        &json!({
            "metadata": {"finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"]},
            "spec": {
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": {"namespace": "default", "name": "was", "uid": "was"},
            },
        }),
    );
    [Create(with(object, &node_affinity(key, values))), Settle]
}

/// A node affinity to these values of a topology key; none without values.
pub(super) fn node_affinity(key: &str, values: &[&str]) -> Value {
    let expressions = json!([{"key": key, "operator": "In", "values": values}]);
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}});
    json!({"spec": {"nodeAffinity": if values.is_empty() { Value::Null } else { affinity }}})
}

/// The Nodes `n1` and `n2` in these zones.
fn nodes_in_zones(first: &str, second: &str) -> [UserAction; 2] {
    [Create(node("n1", &json!({"zone": first}))), Create(node("n2", &json!({"zone": second})))]
}

/// As [`released_volume`], with the affinity of the zone `a`.
fn zoned_volume() -> [UserAction; 2] {
    released_volume_of("v", "zone", &["a"])
}

/// Reason to skip rows in which nodes compete for a claim: the process of each node delays its
/// attempts by a digest of the claim's UID, the node and the attempt, and the UID is random in real time.
const CLAIM_RACE: &[(EnvironmentKind, &str)] = &in_real_time("in real time either node may win the claim");

/// Reason to skip the row in which no node has capacity: the short delays of competing nodes in real time
/// bound the pause between their attempts, too.
const CAPACITY_POLLED: &[(EnvironmentKind, &str)] =
    &in_real_time("each process calls GetCapacity more often than an idle process may");

/// Events that may occur or not in real time: pv-controller emits ExternalProvisioning if a node's process
/// needs more than a second to provision the claim, as on a busy machine.
const DELAYED_EVENTS: &[&str] = &["a Normal ExternalProvisioning"];

const BOUND_ON_N1: &[&str] = &["of-a Bound a topology.cofferdam.dev/node=n1"];
const BOUND_ON_N2: &[&str] = &["of-a Bound a topology.cofferdam.dev/node=n2"];
const FAILED: &str = "a Warning ProvisioningFailed";
const CREATE_ON_N1: &str = "create a topology.cofferdam.dev/node=n1";
const CREATE_ON_N2: &str = "create a topology.cofferdam.dev/node=n2";
/// In paused time, the delays of the competing nodes are longer than pv-controller's delay before
/// ExternalProvisioning.
const SUCCEEDED: &[&str] = &["a Normal ExternalProvisioning", "a Normal ProvisioningSucceeded"];
const SUCCEEDED_AFTER_FAILURE: &[&str] =
    &["a Normal ExternalProvisioning", "a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"];
const SUCCEEDED_AFTER_SELECTION: &[&str] =
    &["a Normal ProvisioningSucceeded", "a Normal WaitForFirstConsumer"];
const SUCCEEDED_AFTER_RESELECTION: &[&str] =
    &["a Normal ProvisioningSucceeded", "a Normal WaitForFirstConsumer", "a Warning ProvisioningFailed"];

/// The scenarios of this module.
#[expect(clippy::too_many_lines, reason = "one table")]
pub(super) fn scenarios() -> Vec<Scenario> {
    let topology = TopologyBehavior { keys: &[NODE_TOPOLOGY_KEY], ..TopologyBehavior::default() };
    let unprovisioned =
        || Scenario { topology, storage_nodes: NODES, delayed_events: DELAYED_EVENTS, ..Scenario::default() };
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
        Scenario {
            name: "node-local driver, selected node: its process creates the volume",
            actions: claim_on_node("n1", []),
            ..on_n1()
        },
        Scenario {
            name: "node-local volume expanded: the process of its node calls ControllerExpandVolume",
            // kube-apiserver's cached StorageClass may be stale, so the class allows expansion from the
            // beginning.
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
        Scenario {
            name: "node-local driver, another selected node: \
                  that node's process creates the volume",
            actions: claim_on_node("n2", []),
            ..on_n2()
        },
        Scenario {
            name: "selected node without a node-local process: the claim stays Pending",
            actions: claim_on_node("n3", []),
            claims: &["a Pending on n3"],
            events: &["a Normal ExternalProvisioning", "a Normal WaitForFirstConsumer"],
            ..unprovisioned()
        },
        Scenario {
            name: "claim of a node-local volume deleted: the process of its node deletes the volume",
            actions: claim_on_node("n2", [Settle, Delete(CLAIM)]),
            claims: &[],
            volumes: &[],
            array_owners: &[],
            calls: &["create gone topology.cofferdam.dev/node=n2", "delete gone on n2"],
            ..on_n2()
        },
        Scenario {
            name: "two nodes compete for an immediate claim: one volume is created",
            actions: vec![Create(class("gold")), Create(claim("a", "gold"))],
            events: SUCCEEDED,
            skipped_on: CLAIM_RACE,
            ..on_n2()
        },
        Scenario {
            name: "first node has no capacity: the other node provisions the immediate claim",
            actions: vec![Create(class("gold")), Create(claim("a", "gold"))],
            topology: TopologyBehavior { full_segments: &["topology.cofferdam.dev/node=n2"], ..topology },
            events: SUCCEEDED_AFTER_FAILURE,
            calls: &[CREATE_ON_N2, CREATE_ON_N1],
            skipped_on: CLAIM_RACE,
            ..on_n1()
        },
        Scenario {
            name: "driver reports no capacity on a node: CreateVolume is not called there",
            actions: vec![Create(class("gold")), Create(claim("a", "gold"))],
            topology: TopologyBehavior {
                full_segments: &["topology.cofferdam.dev/node=n2"],
                reports_capacity: true,
                ..topology
            },
            events: SUCCEEDED_AFTER_FAILURE,
            skipped_on: CLAIM_RACE,
            ..on_n1()
        },
        Scenario {
            name: "no node has capacity: ProvisioningFailed is emitted on the claim",
            actions: vec![Create(class("gold")), Create(claim("a", "gold"))],
            topology: TopologyBehavior {
                full_segments: &["topology.cofferdam.dev/node=n1", "topology.cofferdam.dev/node=n2"],
                reports_capacity: true,
                ..topology
            },
            claims: &["a Pending"],
            events: &["a Normal ExternalProvisioning", "a Warning ProvisioningFailed"],
            skipped_on: CAPACITY_POLLED,
            unsettled: &[(WorkKind::Retry, "each node asks its driver for the capacity again")],
            ..unprovisioned()
        },
        Scenario {
            name: "allowedTopologies: only the allowed node provisions the immediate claim",
            actions: vec![Create(with_allowed_topologies(class("gold"), "n1")), Create(claim("a", "gold"))],
            events: SUCCEEDED,
            ..on_n1()
        },
        Scenario {
            name: "node-local CreateVolume fails with ResourceExhausted: \
                  the claim is provisioned on the reselected node",
            actions: claim_on_node("n1", [Settle, select_node("n2")]),
            create_faults: vec![DriverFault::Refuse(ErrorKind::ResourceExhausted)],
            events: SUCCEEDED_AFTER_RESELECTION,
            calls: &[CREATE_ON_N1, CREATE_ON_N2],
            ..on_n2()
        },
        Scenario {
            name: "another node selected while the CreateVolume result is unknown: \
                  the first node's volume is deleted",
            actions: claim_on_node("n1", [Until(CallsCompleted(1)), select_node("n2")]),
            // More than one fault: the replacement of a crashed process must not create the volume before
            // another node is selected.
            create_faults: vec![
                DriverFault::LostResponse,
                DriverFault::LostRequest,
                DriverFault::LostRequest,
            ],
            events: &[
                "a Normal ExternalProvisioning",
                "a Normal ProvisioningSucceeded",
                "a Normal WaitForFirstConsumer",
                "a Warning ProvisioningFailed",
            ],
            // The retries of two processes are not ordered.
            races_calls: true,
            // The selection of another node does not end the back-off of the first node's request.
            calls: &[CREATE_ON_N1, CREATE_ON_N2, CREATE_ON_N1, CREATE_ON_N2, CREATE_ON_N1, "delete a on n1"],
            ..on_n2()
        },
        Scenario {
            name: "another node selected during CreateVolume: the first node's volume is deleted",
            actions: claim_on_node("n1", []),
            create_faults: vec![DriverFault::ConcurrentAction(select_node("n2"))],
            // The retries of two processes are not ordered.
            races_calls: true,
            calls: &[CREATE_ON_N1, CREATE_ON_N2, "delete a on n1"],
            ..on_n2()
        },
        Scenario {
            name: "another node selected during CreateVolume, reclaim policy Retain: \
                  the first node's volume is deleted",
            actions: vec![
                Create(with(wait_for_first_consumer_class(), &json!({"reclaimPolicy": "Retain"}))),
                Create(claim("a", "gold")),
                Settle,
                select_node("n1"),
            ],
            create_faults: vec![DriverFault::ConcurrentAction(select_node("n2"))],
            // The retries of two processes are not ordered.
            races_calls: true,
            calls: &[CREATE_ON_N1, CREATE_ON_N2, "delete a on n1"],
            ..on_n2()
        },
        Scenario {
            name: "node-local claim deleted and CreateVolume response lost: \
                  the call is repeated, then the volume is deleted",
            actions: claim_on_node("n1", []),
            create_faults: vec![DriverFault::ConcurrentActionThen(
                Delete(CLAIM),
                Box::new(DriverFault::LostResponse),
            )],
            events: &["a Normal WaitForFirstConsumer"],
            calls: &[
                "create gone topology.cofferdam.dev/node=n1",
                "create gone topology.cofferdam.dev/node=n1",
                "delete gone on n1",
            ],
            ..unprovisioned()
        },
        Scenario {
            name: "Released volume with the affinity of two nodes: it is not deleted",
            actions: released_volume("v", NODES).into(),
            volumes: &["v Released was topology.cofferdam.dev/node=n1"],
            ..unprovisioned()
        },
        Scenario {
            name: "Released volume without node affinity or of a missing node: it is not deleted",
            actions: released_volume("v", &[]).into_iter().chain(released_volume("w", &["n3"])).collect(),
            volumes: &["v Released was", "w Released was topology.cofferdam.dev/node=n3"],
            ..unprovisioned()
        },
        Scenario {
            name: "Released static volume of one node: the process of that node deletes it",
            actions: released_volume("v", &["n1"]).into(),
            calls: &["delete static-v on n1"],
            ..unprovisioned()
        },
        Scenario {
            name: "node-local driver with a second topology key: its value is taken from the Node label",
            actions: [Create(node("n1", &json!({"zone": "a"})))]
                .into_iter()
                .chain(claim_on_node("n1", reselect_then_delete()))
                .collect(),
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
            name: "Node label of a topology key set late: provisioning waits for it",
            actions: claim_on_node("n1", [Until(Event(FAILED)), Create(node("n1", &json!({"zone": "a"})))]),
            topology: TopologyBehavior { keys: &["zone", NODE_TOPOLOGY_KEY], ..topology },
            volumes: &["of-a Bound a topology.cofferdam.dev/node=n1,zone=a"],
            events: SUCCEEDED_AFTER_RESELECTION,
            calls: &["create a topology.cofferdam.dev/node=n1,zone=a"],
            ..on_n1()
        },
        Scenario {
            name: "node-local CSI driver: its topology key is taken from the CSINode",
            actions: [csi_node_with_key("n1"), Create(node("n1", &json!({HOST_KEY: "n1"})))]
                .into_iter()
                .chain(claim_on_node("n1", reselect_then_delete()))
                .collect(),
            create_faults: vec![DriverFault::Refuse(ErrorKind::ResourceExhausted)],
            topology: TopologyBehavior { keys: &[HOST_KEY], keys_only_in_csi_node: true, ..topology },
            events: SUCCEEDED_AFTER_RESELECTION,
            calls: &[
                "create gone disk.example/host=n1",
                "create gone disk.example/host=n1",
                "delete gone on n1",
            ],
            ..unprovisioned()
        },
        Scenario {
            name: "Released volume, topology key with the same value on two nodes: it is not deleted",
            actions: nodes_in_zones("a", "a").into_iter().chain(zoned_volume()).collect(),
            topology: TopologyBehavior { keys: &["zone"], ..topology },
            volumes: &["v Released was zone=a"],
            events: &["v Warning VolumeFailedDelete"],
            unsettled: &[(WorkKind::Retry, "the deletion is retried, without a call")],
            // Each retry reads the Nodes.
            retries_slowly: true,
            ..unprovisioned()
        },
        Scenario {
            name: "node-local volume expanded, topology key with the same value on two nodes: \
                  it is not expanded",
            actions: nodes_in_zones("a", "a")
                .into_iter()
                .chain([
                    Create(with(class("gold"), &json!({"allowVolumeExpansion": true}))),
                    Create(with(volume("v", "gold", "1Gi"), &node_affinity("zone", &["a"]))),
                    Settle,
                    Create(with(claim("a", "gold"), &json!({"spec": {"volumeName": "v"}}))),
                    Settle,
                    Patch(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})),
                ])
                .collect(),
            topology: TopologyBehavior { keys: &["zone"], ..topology },
            claims: &["a Bound v"],
            volumes: &["v Bound a zone=a"],
            resizes: &["a 1Gi/1Gi allocated=2Gi ControllerResizeInProgress Resizing"],
            events: &["a Warning VolumeResizeFailed"],
            unsettled: &[(WorkKind::Retry, "the expansion is retried, without a call")],
            // Each retry reads the Nodes.
            retries_slowly: true,
            ..unprovisioned()
        },
        Scenario {
            name: "Released volume, topology key with a value per node: the process of its node deletes it",
            actions: nodes_in_zones("a", "b").into_iter().chain(zoned_volume()).collect(),
            topology: TopologyBehavior { keys: &["zone"], ..topology },
            calls: &["delete static-v on n1"],
            ..unprovisioned()
        },
        Scenario {
            name: "Released volume while the Node lacks the label of a topology key: \
                   it is deleted after the label is set again",
            actions: [
                Create(node("n1", &json!({HOST_KEY: "n1"}))),
                Settle,
                Patch(NODE, json!({"metadata": {"labels": {HOST_KEY: null}}})),
                Settle,
            ]
            .into_iter()
            .chain(released_volume_of("v", HOST_KEY, &["n1"]))
            .chain([Patch(NODE, json!({"metadata": {"labels": {HOST_KEY: "n1"}}}))])
            .collect(),
            topology: TopologyBehavior { keys: &[HOST_KEY], ..topology },
            calls: &["delete static-v on n1"],
            ..unprovisioned()
        },
        Scenario {
            name: "node-local claim resized while the Node lacks the label of a topology key: \
                   the volume is expanded after the label is set again",
            actions: vec![
                Create(node("n1", &json!({HOST_KEY: "n1"}))),
                Create(with(wait_for_first_consumer_class(), &json!({"allowVolumeExpansion": true}))),
                Create(claim("a", "gold")),
                Settle,
                select_node("n1"),
                Settle,
                Patch(NODE, json!({"metadata": {"labels": {HOST_KEY: null}}})),
                Settle,
                Patch(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})),
                Settle,
                Patch(NODE, json!({"metadata": {"labels": {HOST_KEY: "n1"}}})),
            ],
            topology: TopologyBehavior { keys: &[HOST_KEY], ..topology },
            volumes: &["of-a Bound a disk.example/host=n1"],
            resizes: &["a 2Gi/2Gi allocated=2Gi no-node"],
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Normal Resizing",
                "a Normal VolumeResizeSuccessful",
                "a Normal WaitForFirstConsumer",
            ],
            calls: &["create a disk.example/host=n1", "expand a 2Gi on n1"],
            ..on_n1()
        },
        Scenario {
            name: "Released volume while its node has no CSINode: it is deleted after the CSINode is created again",
            actions: [
                csi_node_with_key("n1"),
                Create(node("n1", &json!({HOST_KEY: "n1"}))),
                Settle,
                Delete("/apis/storage.k8s.io/v1/csinodes/n1"),
                Settle,
            ]
            .into_iter()
            .chain(released_volume_of("v", HOST_KEY, &["n1"]))
            .chain([csi_node_with_key("n1")])
            .collect(),
            topology: TopologyBehavior { keys: &[HOST_KEY], keys_only_in_csi_node: true, ..topology },
            calls: &["delete static-v on n1"],
            ..unprovisioned()
        },
        Scenario {
            name: "two volumes with the same handle on two nodes: deleting one does not affect the other",
            actions: released_volume("v", &["n1"])
                .into_iter()
                .chain([Create(with(
                    volume("w", "none", "1Gi"),
                    &json!({"spec": {"csi": {"volumeHandle": "static-v"}, "nodeAffinity": {"required": {
                        "nodeSelectorTerms": [{"matchExpressions": [
                            {"key": NODE_TOPOLOGY_KEY, "operator": "In", "values": ["n2"]},
                        ]}],
                    }}}}),
                ))])
                .collect(),
            volumes: &["w Available  topology.cofferdam.dev/node=n2"],
            calls: &["delete static-v on n1"],
            ..unprovisioned()
        },
    ]
}
