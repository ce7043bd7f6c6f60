//! Scenarios of central drivers with topology: volumes are reachable from some nodes only.

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use super::provisioning::REJECTED_CLAIM;
use crate::{
    DriverFault, TopologyBehavior,
    UserAction::{self, Create, Patch, Settle, Until},
    WaitFor::{CallsCompleted, Event},
    objects::{CLAIM, claim, class, csi_node, node, with},
    scenario::Scenario,
};

const NODE: &str = "/api/v1/nodes/n1";

/// A Node in a zone, and its CSINode.
fn node_in(name: &str, zone: &str) -> [UserAction; 2] {
    let mut registered = csi_node(name, name);
    if let Some(keys) = registered.pointer_mut("/spec/drivers/0/topologyKeys") {
        *keys = json!(["zone"]);
    }
    [Create(node(name, &json!({"zone": zone}))), Create(registered)]
}

/// `n1` in zone `a` and `n2` in zone `b`, then further actions.
fn in_two_zones(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    node_in("n1", "a").into_iter().chain(node_in("n2", "b")).chain(actions).collect()
}

fn wait_for_first_consumer_class() -> Value {
    with(class("gold"), &json!({"volumeBindingMode": "WaitForFirstConsumer"}))
}

fn with_allowed_topologies(class: Value, zones: &[&str]) -> Value {
    with(
        class,
        &json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": zones}]}]}),
    )
}

/// Sets the selected-node annotation of the claim.
fn select_node(node: &str) -> UserAction {
    Patch(CLAIM, json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}}))
}

const FAILED: &str = "a Warning ProvisioningFailed";
const RESELECTED: &[&str] = &["a Normal ProvisioningSucceeded", "a Normal WaitForFirstConsumer", FAILED];

/// The scenarios of this module.
#[expect(clippy::too_many_lines, reason = "one table")]
pub(super) fn scenarios() -> Vec<Scenario> {
    let topology = TopologyBehavior { keys: &["zone"], ..TopologyBehavior::default() };
    let base =
        || Scenario { topology, claims: &["a Bound of-a"], array_owners: &["a"], ..Scenario::default() };
    let pending = || Scenario { topology, ..Scenario::default() };
    vec![
        Scenario {
            name: "immediate binding: the topology of every node is preferred",
            actions: in_two_zones([Create(class("gold")), Create(claim("a", "gold"))]),
            volumes: &["of-a Bound a zone=a"],
            events: &["a Normal ProvisioningSucceeded"],
            calls: &["create a zone=a zone=b"],
            ..base()
        },
        Scenario {
            name: "immediate binding with allowedTopologies: only the allowed topologies are passed",
            actions: in_two_zones([
                Create(with_allowed_topologies(class("gold"), &["c", "b"])),
                Create(claim("a", "gold")),
            ]),
            volumes: &["of-a Bound a zone=b"],
            events: &["a Normal ProvisioningSucceeded"],
            calls: &["create a zone=b zone=c"],
            ..base()
        },
        Scenario {
            name: "selected node: its topology is preferred first",
            actions: in_two_zones([
                Create(wait_for_first_consumer_class()),
                Create(claim("a", "gold")),
                Settle,
                select_node("n2"),
            ]),
            volumes: &["of-a Bound a zone=b"],
            events: &["a Normal ProvisioningSucceeded", "a Normal WaitForFirstConsumer"],
            calls: &["create a zone=b zone=a"],
            ..base()
        },
        Scenario {
            name: "selected node outside allowedTopologies: the claim stays Pending",
            actions: in_two_zones([
                Create(with_allowed_topologies(wait_for_first_consumer_class(), &["b"])),
                Create(claim("a", "gold")),
                Settle,
                select_node("n1"),
            ]),
            claims: &["a Pending on n1"],
            events: &["a Normal WaitForFirstConsumer", FAILED],
            unsettled: REJECTED_CLAIM,
            ..pending()
        },
        Scenario {
            name: "no registered node: provisioning waits for the first CSINode",
            // One node only: the volume may be created as soon as one is registered.
            actions: [Create(class("gold")), Create(claim("a", "gold")), Until(Event(FAILED))]
                .into_iter()
                .chain(node_in("n1", "a"))
                .collect(),
            volumes: &["of-a Bound a zone=a"],
            events: &["a Normal ProvisioningSucceeded", FAILED],
            calls: &["create a zone=a"],
            ..base()
        },
        Scenario {
            name: "selected node does not exist: the selected-node annotation is removed",
            actions: in_two_zones([
                Create(wait_for_first_consumer_class()),
                Create(claim("a", "gold")),
                Settle,
                select_node("gone"),
            ]),
            claims: &["a Pending"],
            events: &["a Normal WaitForFirstConsumer", FAILED],
            ..pending()
        },
        Scenario {
            name: "selected node does not exist, another node selected: the claim is provisioned there",
            actions: in_two_zones([
                Create(wait_for_first_consumer_class()),
                Create(claim("a", "gold")),
                Settle,
                select_node("gone"),
                Settle,
                select_node("n1"),
            ]),
            volumes: &["of-a Bound a zone=a"],
            events: RESELECTED,
            calls: &["create a zone=a zone=b"],
            ..base()
        },
        Scenario {
            name: "ResourceExhausted on the selected node: the claim is provisioned on the reselected node",
            actions: in_two_zones([
                Create(wait_for_first_consumer_class()),
                Create(claim("a", "gold")),
                Settle,
                select_node("n1"),
                Settle,
                select_node("n2"),
            ]),
            topology: TopologyBehavior { full_segments: &["zone=a"], ..topology },
            volumes: &["of-a Bound a zone=b"],
            events: RESELECTED,
            calls: &["create a zone=a zone=b", "create a zone=b zone=a"],
            ..base()
        },
        Scenario {
            name: "immediate binding, ResourceExhausted: CreateVolume is retried",
            actions: in_two_zones([Create(class("gold")), Create(claim("a", "gold"))]),
            create_faults: vec![DriverFault::Refuse(ErrorKind::ResourceExhausted)],
            volumes: &["of-a Bound a zone=a"],
            events: &["a Normal ProvisioningSucceeded", FAILED],
            calls: &["create a zone=a zone=b", "create a zone=a zone=b"],
            ..base()
        },
        Scenario {
            name: "Node label changed while the CreateVolume result is unknown: \
                  the request of the intent is repeated",
            actions: in_two_zones([
                Create(wait_for_first_consumer_class()),
                Create(claim("a", "gold")),
                Settle,
                select_node("n1"),
                Until(CallsCompleted(1)),
                Patch(NODE, json!({"metadata": {"labels": {"zone": "c"}}})),
            ]),
            create_faults: vec![DriverFault::LostResponse],
            volumes: &["of-a Bound a zone=a"],
            events: RESELECTED,
            calls: &["create a zone=a zone=b", "create a zone=a zone=b"],
            ..base()
        },
    ]
}
