//! Storage that is in nodes: a process on each of them, which settle among themselves whose a claim is.

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use super::{CLAIM, Scenario};
use crate::{
    Fault, Place, Places,
    Sign::{Called, Event},
    UserAction::{self, Create, Delete, Patch, Settle, Until},
    objects::{claim, class, csi_node, node, volume, with},
};

const KEY: &str = "topology.cofferdam.dev/node";
const NODES: &[&str] = &["n1", "n2"];

fn late() -> Value {
    with(class("gold"), &json!({"volumeBindingMode": "WaitForFirstConsumer"}))
}

fn allowing(class: Value, node: &str) -> Value {
    let expressions = json!([{"key": KEY, "values": [node]}]);
    with(class, &json!({"allowedTopologies": [{"matchLabelExpressions": expressions}]}))
}

/// A registration of the driver with its key.
fn registered(name: &str) -> UserAction {
    let mut object = csi_node(name, name);
    if let Some(keys) = object.pointer_mut("/spec/drivers/0/topologyKeys") {
        *keys = json!(["disk.example/host"]);
    }
    Create(object)
}

/// The scheduler's choice, or that somebody takes it back.
fn chosen(node: impl Into<Value>) -> UserAction {
    Patch(CLAIM, json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node.into()}}}))
}

/// A claim whose class waits for a pod, and then what the scheduler chose.
fn on(node: &str, more: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    let first = [Create(late()), Create(claim("a", "gold")), Settle, chosen(node)];
    first.into_iter().chain(more).collect()
}

/// The node is chosen again, and when all is well the claim goes.
fn and_goes() -> [UserAction; 4] {
    [Settle, chosen("n1"), Settle, Delete(CLAIM)]
}

/// A Released volume of a claim that is gone, on these nodes.
fn released(name: &str, nodes: &[&str]) -> [UserAction; 2] {
    let expressions = json!([{"key": KEY, "operator": "In", "values": nodes}]);
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

/// The pauses of the race are a digest of the claim's uid, which is another one every time where time is real.
const EITHER: &[(Place, &str)] = &[
    (Place::Http, "on real time either node may be the first at the claim"),
    (Place::Kubernetes, "on real time either node may be the first at the claim"),
];

/// Tested in process only: which retry meets which fault depends on the clock.
const IN_ORDER: &[(Place, &str)] = &[
    (Place::Http, "on real time the retries of two processes have no order"),
    (Place::Kubernetes, "on real time the retries of two processes have no order"),
];

/// pv-controller tells a claim that it waits after a while of its own.
const TOLD_LATE: &[(Place, &str)] = &[
    (Place::Http, "on real time the claim may be told that its provisioner is waited for, or not yet"),
    (Place::Kubernetes, "on real time the claim may be told that its provisioner is waited for, or not yet"),
];

const HERE: &[&str] = &["of-a Bound a topology.cofferdam.dev/node=n1"];
const THERE: &[&str] = &["of-a Bound a topology.cofferdam.dev/node=n2"];
const FAILED: &str = "a Warning ProvisioningFailed";
const CREATED_HERE: &str = "create a topology.cofferdam.dev/node=n1";
const CREATED_THERE: &str = "create a topology.cofferdam.dev/node=n2";
/// The race takes longer than pv-controller waits before it says so.
const SUCCEEDED: &[&str] = &["a Normal ExternalProvisioning", "a Normal ProvisioningSucceeded"];
const SUCCEEDED_AND_TOLD: &[&str] =
    &["a Normal ExternalProvisioning", "a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"];
const SUCCEEDED_LATE: &[&str] = &["a Normal ProvisioningSucceeded", "a Normal WaitForFirstConsumer"];
const SUCCEEDED_AFTER_ALL: &[&str] =
    &["a Normal ProvisioningSucceeded", "a Normal WaitForFirstConsumer", "a Warning ProvisioningFailed"];

/// The rows.
#[expect(clippy::too_many_lines, reason = "one table")]
pub(super) fn scenarios() -> Vec<Scenario> {
    let places = Places { keys: &[KEY], ..Places::default() };
    let nowhere = || Scenario { places, nodes: NODES, ..Scenario::default() };
    let here = || Scenario {
        claims: &["a Bound of-a"],
        volumes: HERE,
        array: &["a on n1"],
        events: SUCCEEDED_LATE,
        calls: &[CREATED_HERE],
        ..nowhere()
    };
    let there = || Scenario { volumes: THERE, array: &["a on n2"], calls: &[CREATED_THERE], ..here() };
    vec![
        Scenario { name: "the chosen node's process makes the volume", user: on("n1", []), ..here() },
        Scenario {
            name: "a volume of a node grows, by that node's process",
            // The API's own look at the class may be late: it allows growth from the beginning.
            user: vec![
                Create(with(late(), &json!({"allowVolumeExpansion": true}))),
                Create(claim("a", "gold")),
                Settle,
                chosen("n1"),
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
            calls: &[CREATED_HERE, "expand a 2Gi on n1"],
            ..here()
        },
        Scenario { name: "and that of another node another node's", user: on("n2", []), ..there() },
        Scenario {
            name: "a node without a process is waited for",
            user: on("n3", []),
            claims: &["a Pending on n3"],
            events: &["a Normal ExternalProvisioning", "a Normal WaitForFirstConsumer"],
            not_on: TOLD_LATE,
            ..nowhere()
        },
        Scenario {
            name: "and the volume goes where it is",
            user: on("n2", [Settle, Delete(CLAIM)]),
            claims: &[],
            volumes: &[],
            array: &[],
            calls: &["create gone topology.cofferdam.dev/node=n2", "delete gone on n2"],
            ..there()
        },
        Scenario {
            name: "two nodes race for a claim: one volume",
            user: vec![Create(class("gold")), Create(claim("a", "gold"))],
            events: SUCCEEDED,
            not_on: EITHER,
            ..there()
        },
        Scenario {
            name: "the first of the race has no room, and the other one takes the claim",
            user: vec![Create(class("gold")), Create(claim("a", "gold"))],
            places: Places { full: &["topology.cofferdam.dev/node=n2"], ..places },
            events: SUCCEEDED_AND_TOLD,
            calls: &[CREATED_THERE, CREATED_HERE],
            not_on: EITHER,
            ..here()
        },
        Scenario {
            name: "a driver that tells of its room is not asked in vain",
            user: vec![Create(class("gold")), Create(claim("a", "gold"))],
            places: Places { full: &["topology.cofferdam.dev/node=n2"], tells: true, ..places },
            events: SUCCEEDED_AND_TOLD,
            not_on: EITHER,
            ..here()
        },
        Scenario {
            name: "no node has room, and the claim is told",
            user: vec![Create(class("gold")), Create(claim("a", "gold"))],
            places: Places {
                full: &["topology.cofferdam.dev/node=n1", "topology.cofferdam.dev/node=n2"],
                tells: true,
                ..places
            },
            claims: &["a Pending"],
            events: &["a Normal ExternalProvisioning", "a Warning ProvisioningFailed"],
            not_on: TOLD_LATE,
            ..nowhere()
        },
        Scenario {
            name: "only the nodes that the class allows race",
            user: vec![Create(allowing(class("gold"), "n1")), Create(claim("a", "gold"))],
            events: SUCCEEDED,
            not_on: TOLD_LATE,
            ..here()
        },
        Scenario {
            name: "there is no room at the chosen node: another one is chosen",
            user: on("n1", [Settle, chosen("n2")]),
            create_faults: vec![Fault::Refuse(ErrorKind::ResourceExhausted)],
            events: SUCCEEDED_AFTER_ALL,
            calls: &[CREATED_HERE, CREATED_THERE],
            ..there()
        },
        Scenario {
            name: "another node is chosen while the answer is out: the first one's volume goes",
            user: on("n1", [Until(Called(1)), chosen("n2")]),
            // More than one: who comes after a process that died shall not have the volume before the choice is another one.
            create_faults: vec![Fault::LostAnswer, Fault::LostRequest, Fault::LostRequest],
            events: &[
                "a Normal ExternalProvisioning",
                "a Normal ProvisioningSucceeded",
                "a Normal WaitForFirstConsumer",
                "a Warning ProvisioningFailed",
            ],
            not_on: IN_ORDER,
            calls: &[CREATED_HERE, CREATED_HERE, CREATED_THERE, CREATED_THERE, CREATED_HERE, "delete a on n1"],
            ..there()
        },
        Scenario {
            name: "another node is chosen while the driver works: the first one's volume goes",
            user: on("n1", []),
            create_faults: vec![Fault::Meanwhile(chosen("n2"))],
            not_on: IN_ORDER,
            calls: &[CREATED_HERE, CREATED_THERE, "delete a on n1"],
            ..there()
        },
        Scenario {
            name: "and also with Retain, for nobody has ever had it",
            user: vec![
                Create(with(late(), &json!({"reclaimPolicy": "Retain"}))),
                Create(claim("a", "gold")),
                Settle,
                chosen("n1"),
            ],
            create_faults: vec![Fault::Meanwhile(chosen("n2"))],
            not_on: IN_ORDER,
            calls: &[CREATED_HERE, CREATED_THERE, "delete a on n1"],
            ..there()
        },
        Scenario {
            name: "the answer is lost and the claim deleted",
            user: on("n1", [Until(Called(1)), Delete(CLAIM)]),
            create_faults: vec![Fault::LostAnswer],
            events: &["a Normal WaitForFirstConsumer", "a Warning ProvisioningFailed"],
            calls: &[
                "create gone topology.cofferdam.dev/node=n1",
                "create gone topology.cofferdam.dev/node=n1",
                "delete gone on n1",
            ],
            ..nowhere()
        },
        Scenario {
            name: "a volume of two nodes is deleted by neither",
            user: released("v", NODES).into(),
            volumes: &["v Released was topology.cofferdam.dev/node=n1"],
            ..nowhere()
        },
        Scenario {
            name: "and so is one of no node, and one of a node that is gone",
            user: released("v", &[]).into_iter().chain(released("w", &["n3"])).collect(),
            volumes: &["v Released was", "w Released was topology.cofferdam.dev/node=n3"],
            ..nowhere()
        },
        Scenario {
            name: "a static volume of one node is deleted there",
            user: released("v", &["n1"]).into(),
            calls: &["delete static-v on n1"],
            ..nowhere()
        },
        Scenario {
            name: "a node is also where its labels say",
            user: [Create(node("n1", &json!({"zone": "a"})))].into_iter().chain(on("n1", and_goes())).collect(),
            create_faults: vec![Fault::Refuse(ErrorKind::ResourceExhausted)],
            places: Places { keys: &["zone", KEY], ..places },
            events: SUCCEEDED_AFTER_ALL,
            calls: &[
                "create gone topology.cofferdam.dev/node=n1,zone=a",
                "create gone topology.cofferdam.dev/node=n1,zone=a",
                "delete gone on n1",
            ],
            ..nowhere()
        },
        Scenario {
            name: "the label that a driver needs comes late",
            user: on("n1", [Until(Event(FAILED)), Create(node("n1", &json!({"zone": "a"})))]),
            places: Places { keys: &["zone", KEY], ..places },
            volumes: &["of-a Bound a topology.cofferdam.dev/node=n1,zone=a"],
            events: SUCCEEDED_AFTER_ALL,
            calls: &["create a topology.cofferdam.dev/node=n1,zone=a"],
            not_on: TOLD_LATE,
            ..here()
        },
        Scenario {
            name: "an existing CSI driver of a node, whose key stands in the CSINode",
            user: [registered("n1"), Create(node("n1", &json!({"disk.example/host": "n1"})))]
                .into_iter()
                .chain(on("n1", and_goes()))
                .collect(),
            create_faults: vec![Fault::Refuse(ErrorKind::ResourceExhausted)],
            places: Places { keys: &["disk.example/host"], hidden: true, ..places },
            events: SUCCEEDED_AFTER_ALL,
            calls: &[
                "create gone disk.example/host=n1",
                "create gone disk.example/host=n1",
                "delete gone on n1",
            ],
            ..nowhere()
        },
        Scenario {
            name: "two volumes with one handle on two nodes have nothing to do with each other",
            user: released("v", &["n1"])
                .into_iter()
                .chain([Create(with(
                    volume("w", "none", "1Gi"),
                    &json!({"spec": {"csi": {"volumeHandle": "static-v"}, "nodeAffinity": {"required": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": KEY, "operator": "In", "values": ["n2"]}]}],
                    }}}}),
                ))])
                .collect(),
            volumes: &["w Available  topology.cofferdam.dev/node=n2"],
            calls: &["delete static-v on n1"],
            ..nowhere()
        },
    ]
}
