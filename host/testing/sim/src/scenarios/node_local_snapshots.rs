//! Scenarios of the snapshots of node-local drivers: snapshot-controller writes the node of the volume to the
//! content, and the process of that node takes, restores and deletes the snapshot.

use serde_json::{Value, json};

use super::{
    node_local::{
        HOST_KEY, NODE_TOPOLOGY_KEY, NODES, csi_node_with_key, node_affinity, wait_for_first_consumer_class,
    },
    snapshots::{SNAPSHOT, SOURCE, content, restored, snapshot, snapshot_class, snapshot_of_content},
};
use crate::{
    DriverFault, TopologyBehavior,
    UserAction::{self, Create, Delete, Patch, PatchContents, Settle, Until},
    WaitFor::{CallsCompleted, Deleted, Event},
    objects::{CLAIM, claim, class, node, selected_node, volume, with},
    scenario::Scenario,
};

/// Creates the classes, the claim `source` with a volume on the node `n1`, and its VolumeSnapshot `s`; then
/// performs these actions.
fn after_snapshot(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    let setup = [
        Create(wait_for_first_consumer_class()),
        Create(snapshot_class("Delete")),
        Create(with(claim("source", "gold"), &selected_node("n1"))),
        Settle,
        Create(snapshot()),
        Settle,
    ];
    setup.into_iter().chain(actions).collect()
}

/// The claim `a` from the VolumeSnapshot `s`, with a selected node.
fn restored_on(node: &str) -> Value {
    with(restored(), &selected_node(node))
}

/// A content of an existing snapshot for the VolumeSnapshot `s`, with these labels, and the VolumeSnapshot.
fn existing_content(labels: &Value) -> [UserAction; 2] {
    let content = with(content("Retain"), &json!({"metadata": {"labels": labels}}));
    [Create(content), Create(snapshot_of_content())]
}

const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";
const CREATE_SOURCE: &str = "create source topology.cofferdam.dev/node=n1";
const SNAPSHOT_ON_N1: &str = "snapshot snapshot-s of source on n1";
const TAKEN: &[&str] = &[
    "s Normal CreatingSnapshot",
    "s Normal SnapshotCreated",
    "s Normal SnapshotReady",
    "source Normal ProvisioningSucceeded",
];
const DELAYED_EVENTS: &[&str] = &[
    "a Normal ExternalProvisioning",
    "a Normal WaitForFirstConsumer",
    "source Normal ExternalProvisioning",
    "source Normal WaitForFirstConsumer",
];

/// The scenarios of this module.
#[expect(clippy::too_many_lines, reason = "one table")]
pub(super) fn scenarios() -> Vec<Scenario> {
    let topology = TopologyBehavior { keys: &[NODE_TOPOLOGY_KEY], ..TopologyBehavior::default() };
    let base = || Scenario {
        topology,
        storage_nodes: NODES,
        delayed_events: DELAYED_EVENTS,
        claims: &["source Bound of-source"],
        volumes: &["of-source Bound source topology.cofferdam.dev/node=n1"],
        array_owners: &["source on n1"],
        ..Scenario::default()
    };
    let taken = || Scenario {
        snapshots: &["s of-s ready"],
        snapshot_contents: &["of-s s ready on n1"],
        array_snapshots: &["s on n1"],
        events: TAKEN,
        calls: &[CREATE_SOURCE, SNAPSHOT_ON_N1],
        ..base()
    };
    let restored = || Scenario {
        claims: &["a Bound of-a", "source Bound of-source"],
        volumes: &[
            "of-a Bound a topology.cofferdam.dev/node=n1",
            "of-source Bound source topology.cofferdam.dev/node=n1",
        ],
        array_owners: &["a on n1", "source on n1"],
        events: &[
            "a Normal ProvisioningSucceeded",
            "s Normal CreatingSnapshot",
            "s Normal SnapshotCreated",
            "s Normal SnapshotReady",
            "source Normal ProvisioningSucceeded",
        ],
        calls: &[CREATE_SOURCE, SNAPSHOT_ON_N1, "create a from snapshot-s topology.cofferdam.dev/node=n1"],
        ..taken()
    };
    vec![
        Scenario {
            name: "snapshot of a node-local volume: the process of its node takes it",
            actions: after_snapshot([]),
            ..taken()
        },
        Scenario {
            name: "snapshot of a node-local volume restored on another node: the claim gets no volume there",
            actions: after_snapshot([
                Create(restored_on("n2")),
                Until(Event("a Warning ProvisioningFailed")),
                Patch(CLAIM, selected_node("n1")),
                Until(CallsCompleted(3)),
            ]),
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Normal WaitForFirstConsumer",
                "a Warning ProvisioningFailed",
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
                "source Normal ProvisioningSucceeded",
            ],
            ..restored()
        },
        Scenario {
            name: "snapshot of a node-local volume restored with immediate binding: only its node competes",
            actions: after_snapshot([
                Create(with(class("now"), &json!({"volumeBindingMode": "Immediate"}))),
                Settle,
                Create(with(super::snapshots::restored(), &json!({"spec": {"storageClassName": "now"}}))),
            ]),
            ..restored()
        },
        Scenario {
            name: "snapshot of a node-local volume deleted after its source: the process of its node deletes it",
            actions: after_snapshot([Delete(SOURCE), Until(Deleted(SOURCE)), Settle, Delete(SNAPSHOT)]),
            claims: &[],
            volumes: &[],
            array_owners: &[],
            events: TAKEN,
            calls: &[
                "create gone topology.cofferdam.dev/node=n1",
                "snapshot snapshot-gone of gone on n1",
                "delete gone on n1",
                "delete snapshot-gone on n1",
            ],
            ..base()
        },
        Scenario {
            name: "claim of a node-local restore and its VolumeSnapshot deleted while the CreateVolume result is \
                   unknown: the snapshot is deleted after the volume",
            actions: vec![
                Create(wait_for_first_consumer_class()),
                Create(snapshot_class("Delete")),
                Create(with(volume("v", "gold", "1Gi"), &node_affinity(NODE_TOPOLOGY_KEY, &["n1"]))),
                Settle,
                Create(with(claim("source", "gold"), &json!({"spec": {"volumeName": "v"}}))),
                Settle,
                Create(snapshot()),
                Settle,
                Create(restored_on("n1")),
                Settle,
            ],
            create_faults: vec![DriverFault::ConcurrentActionThen(
                Delete(CLAIM),
                Box::new(DriverFault::ConcurrentActionThen(
                    Delete(SNAPSHOT),
                    Box::new(DriverFault::LostResponse),
                )),
            )],
            claims: &["source Bound v"],
            volumes: &["v Bound source topology.cofferdam.dev/node=n1"],
            array_owners: &[],
            events: &[
                "of-gone Warning SnapshotDeleteError",
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
            ],
            calls: &[
                "snapshot snapshot-gone of static-v on n1",
                "create gone from snapshot-gone topology.cofferdam.dev/node=n1",
                "create gone from snapshot-gone topology.cofferdam.dev/node=n1",
                "delete gone on n1",
                "delete snapshot-gone on n1",
            ],
            ..base()
        },
        Scenario {
            name: "node-local driver with a Node label as its topology key: the content has the matching Node",
            actions: [
                Create(node("n1", &json!({HOST_KEY: "n1"}))),
                Create(node("n2", &json!({HOST_KEY: "n2"}))),
            ]
            .into_iter()
            .chain(after_snapshot([]))
            .collect(),
            topology: TopologyBehavior { keys: &[HOST_KEY], ..TopologyBehavior::default() },
            volumes: &["of-source Bound source disk.example/host=n1"],
            calls: &["create source disk.example/host=n1", SNAPSHOT_ON_N1],
            ..taken()
        },
        Scenario {
            name: "node-local CSI driver: the content has the Node with the label of the CSINode's topology key",
            actions: [
                Create(node("n1", &json!({HOST_KEY: "n1"}))),
                Create(node("n2", &json!({HOST_KEY: "n2"}))),
                csi_node_with_key("n1"),
                csi_node_with_key("n2"),
            ]
            .into_iter()
            .chain(after_snapshot([]))
            .collect(),
            topology: TopologyBehavior {
                keys: &[HOST_KEY],
                keys_only_in_csi_node: true,
                ..TopologyBehavior::default()
            },
            volumes: &["of-source Bound source disk.example/host=n1"],
            calls: &["create source disk.example/host=n1", SNAPSHOT_ON_N1],
            ..taken()
        },
        Scenario {
            name: "existing snapshot of a node-local driver: the process of the content's node reads it",
            actions: existing_content(&json!({MANAGED_BY: "n2"})).into(),
            snapshots: &["s existing ready"],
            snapshot_contents: &["existing s ready on n2"],
            events: &["s Normal SnapshotCreated", "s Normal SnapshotReady"],
            topology,
            storage_nodes: NODES,
            ..Scenario::default()
        },
        Scenario {
            name: "existing snapshot of a node-local driver with a second content without a node: the snapshot is \
                   deleted after that content",
            actions: vec![
                Create(with(content("Delete"), &json!({"metadata": {"labels": {MANAGED_BY: "n1"}}}))),
                Create(with(content("Retain"), &json!({"metadata": {"name": "copy"}}))),
                Create(snapshot_of_content()),
                Settle,
                Delete(SNAPSHOT),
                Until(Event("existing Warning SnapshotDeleteError")),
                Delete("/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/copy"),
            ],
            events: &[
                "existing Warning SnapshotDeleteError",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
            ],
            calls: &["delete static-snapshot on n1"],
            topology,
            storage_nodes: NODES,
            ..Scenario::default()
        },
        Scenario {
            name: "restore of a node-local snapshot whose content gets its node late: the claim waits for it",
            actions: [Create(with(class("now"), &json!({"volumeBindingMode": "Immediate"}))), Settle]
                .into_iter()
                .chain(existing_content(&json!({})))
                .chain([
                    Create(with(super::snapshots::restored(), &json!({"spec": {"storageClassName": "now"}}))),
                    Until(Event("a Warning ProvisioningFailed")),
                    PatchContents(json!({"metadata": {"labels": {MANAGED_BY: "n1"}}})),
                ])
                .collect(),
            claims: &["a Bound of-a"],
            volumes: &["of-a Bound a topology.cofferdam.dev/node=n1"],
            snapshots: &["s existing ready"],
            snapshot_contents: &["existing s ready on n1"],
            array_owners: &["a on n1"],
            events: &[
                "a Normal ExternalProvisioning",
                "a Normal ProvisioningSucceeded",
                "a Warning ProvisioningFailed",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
            ],
            delayed_events: DELAYED_EVENTS,
            calls: &["create a from static-snapshot topology.cofferdam.dev/node=n1"],
            topology,
            storage_nodes: NODES,
            ..Scenario::default()
        },
        Scenario {
            name: "existing snapshot of a node-local driver without a node: no process reads it",
            actions: existing_content(&json!({})).into(),
            snapshots: &["s existing"],
            snapshot_contents: &["existing s"],
            topology,
            storage_nodes: NODES,
            ..Scenario::default()
        },
    ]
}
