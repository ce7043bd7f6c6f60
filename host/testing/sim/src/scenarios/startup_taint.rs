//! Scenarios of the startup-taint controller: nodes with the taint of the driver, and their CSINodes.

use serde_json::{Value, json};

use crate::{
    ApiFault, EnvironmentKind, FaultKind,
    UserAction::{self, Create, Patch, Settle},
    objects::{DRIVER, csi_node, node, with},
    remaining_work::WorkKind,
    scenario::{Scenario, in_real_time},
};

const NODE: &str = "/api/v1/nodes/node-1";
const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/node-1";
const TAINTED: &[&str] = &["node-1"];

const ENDLESS_RETRY: &[(EnvironmentKind, &str)] =
    &in_real_time("the process retries for ever, and is not idle");

fn taint(key: &str, effect: &str) -> Value {
    json!({"key": key, "effect": effect})
}

fn startup_taint() -> Value {
    taint(&format!("{DRIVER}/agent-not-ready"), "NoExecute")
}

fn tainted_node(name: &str, taints: &[Value]) -> Value {
    with(node(name, &json!({})), &json!({"spec": {"taints": taints}}))
}

/// A CSINode without drivers, as the kubelet creates it.
fn empty_csi_node() -> Value {
    with(csi_node("node-1", ""), &json!({"spec": {"drivers": []}}))
}

/// The second node joins, with the taint and with the driver.
fn second_node() -> [UserAction; 2] {
    [Create(csi_node("node-2", "id-2")), Create(tainted_node("node-2", &[startup_taint()]))]
}

/// The first node has the taint and another one; then the driver is registered.
fn registered_later() -> Vec<UserAction> {
    let taints = [taint("other", "NoSchedule"), startup_taint()];
    let drivers = json!([{"name": DRIVER, "nodeID": "id-1", "topologyKeys": null}]);
    let register = Patch(CSI_NODE, json!({"spec": {"drivers": drivers}}));
    vec![Create(empty_csi_node()), Create(tainted_node("node-1", &taints)), Settle, register, Settle]
}

fn patch_fault(kind: FaultKind) -> Vec<ApiFault> {
    vec![ApiFault { method: "PATCH", path_prefix: NODE, body_contains: "", kind }]
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let with_fault = |name, kind| Scenario {
        name,
        actions: registered_later(),
        api_faults: patch_fault(kind),
        ..Scenario::default()
    };
    let second_node_beside =
        |actions: Vec<UserAction>| actions.into_iter().chain(second_node()).chain([Settle]).collect();
    vec![
        Scenario {
            name: "a node keeps the start-up taint until the driver is registered",
            actions: second_node_beside(vec![
                Create(empty_csi_node()),
                Create(tainted_node("node-1", &[startup_taint()])),
            ]),
            startup_taints: TAINTED,
            ..Scenario::default()
        },
        Scenario {
            name: "the start-up taint of a node without a CSINode is kept",
            actions: second_node_beside(vec![Create(tainted_node("node-1", &[startup_taint()]))]),
            startup_taints: TAINTED,
            ..Scenario::default()
        },
        Scenario {
            name: "the start-up taint is removed when the driver is registered",
            actions: registered_later(),
            ..Scenario::default()
        },
        Scenario {
            name: "a start-up taint that is set again is removed again",
            actions: vec![
                Create(csi_node("node-1", "id-1")),
                Create(tainted_node("node-1", &[startup_taint()])),
                Settle,
                Patch(NODE, json!({"spec": {"taints": [startup_taint(), taint("other", "NoSchedule")]}})),
                Settle,
            ],
            ..Scenario::default()
        },
        with_fault("a conflicting removal of a start-up taint is repeated", FaultKind::Conflict),
        with_fault("the response to the removal of a start-up taint is lost", FaultKind::LostResponse),
        with_fault("the removal of a start-up taint is lost", FaultKind::LostRequest),
        Scenario {
            name: "the removal of the start-up taint of one node is forbidden",
            actions: second_node_beside(registered_later()),
            api_faults: patch_fault(FaultKind::ForbiddenAlways),
            startup_taints: TAINTED,
            unsettled: &[
                (WorkKind::Write, "the API server forbids the removal for ever"),
                (WorkKind::Retry, "the API server forbids the removal for ever"),
            ],
            skipped_on: ENDLESS_RETRY,
            ..Scenario::default()
        },
    ]
}
