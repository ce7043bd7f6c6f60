//! Scenarios of claims whose volume is a clone of another claim's volume.

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use super::provisioning::{CLASS, REJECTED_CLAIM};
use crate::{
    DriverFault, TopologyBehavior,
    UserAction::{self, Create, Delete, Patch, Settle, Until},
    WaitFor::{CallsCompleted, Deleted, Event},
    objects::{CLAIM, claim, class, selected_node, volume, with},
    scenario::Scenario,
};

/// API path of the source claim.
const SOURCE: &str = "/api/v1/namespaces/default/persistentvolumeclaims/source";
const NODE_TOPOLOGY_KEY: &str = "topology.cofferdam.dev/node";

/// The claim `a` with the claim `source` as its source.
fn clone() -> Value {
    with(claim("a", "gold"), &json!({"spec": {"dataSource": source()}}))
}

fn source() -> Value {
    json!({"kind": "PersistentVolumeClaim", "name": "source"})
}

/// Creates the class and the source claim, waits until it is bound, and performs these actions.
fn after_source(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    let setup = [Create(class("gold")), Create(claim("source", "gold")), Settle];
    setup.into_iter().chain(actions).collect()
}

/// As [`after_source`], but the source claim has a static PersistentVolume: the first create call is that of
/// the clone, also after a crash.
fn after_static_source(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    let policy = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}});
    let setup = [
        Create(class("gold")),
        Create(with(volume("v", "gold", "1Gi"), &policy)),
        Settle,
        Create(claim("source", "gold")),
        Settle,
    ];
    setup.into_iter().chain(actions).collect()
}

const BOTH_BOUND: &[&str] = &["a Bound of-a", "source Bound of-source"];
const BOTH_VOLUMES: &[&str] = &["of-a Bound a", "of-source Bound source"];
const BOTH_SUCCEEDED: &[&str] = &["a Normal ProvisioningSucceeded", "source Normal ProvisioningSucceeded"];
const SUCCEEDED_AFTER_FAILURE: &[&str] = &[
    "a Normal ProvisioningSucceeded",
    "a Warning ProvisioningFailed",
    "source Normal ProvisioningSucceeded",
];
const SUCCEEDED: &[&str] = &["a Normal ProvisioningSucceeded"];
const FAILED: &[&str] = &["a Warning ProvisioningFailed"];
const FAILED_THEN_SUCCEEDED: &[&str] = &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"];

/// The scenarios of this module.
#[expect(clippy::too_many_lines, reason = "one table")]
pub(super) fn scenarios() -> Vec<Scenario> {
    let base = Scenario::default;
    let cloned = || Scenario {
        claims: BOTH_BOUND,
        volumes: BOTH_VOLUMES,
        array_owners: &["a", "source"],
        events: BOTH_SUCCEEDED,
        calls: &["create source", "create a from source"],
        ..base()
    };
    // The source is deleted.
    let clone_only = || Scenario {
        claims: &["a Bound of-a"],
        volumes: &["of-a Bound a"],
        array_owners: &["a"],
        events: SUCCEEDED,
        ..base()
    };
    let not_cloned = || Scenario {
        claims: &["a Pending", "source Bound v"],
        volumes: &["v Bound source"],
        events: FAILED,
        unsettled: REJECTED_CLAIM,
        ..base()
    };
    vec![
        Scenario {
            name: "claim with a claim as its dataSource: the volume is cloned",
            actions: after_source([Create(clone())]),
            ..cloned()
        },
        Scenario {
            name: "claim with a claim as its dataSourceRef: the volume is cloned",
            actions: after_source([Create(with(
                claim("a", "gold"),
                &json!({"spec": {"dataSourceRef": source()}}),
            ))]),
            ..cloned()
        },
        Scenario {
            name: "source claim created after its clone: the clone waits for it",
            actions: vec![Create(class("gold")), Create(clone()), Settle, Create(claim("source", "gold"))],
            events: SUCCEEDED_AFTER_FAILURE,
            ..cloned()
        },
        Scenario {
            name: "source claim deleted during CreateVolume of its clone: it stays until the clone exists",
            actions: after_static_source([Create(clone())]),
            create_faults: vec![DriverFault::ConcurrentAction(Delete(SOURCE))],
            calls: &["create a from static-v", "delete static-v"],
            ..clone_only()
        },
        Scenario {
            name: "source claim deleted, CreateVolume response of its clone lost: the call is repeated before \
                   the source is deleted",
            actions: after_static_source([Create(clone())]),
            create_faults: vec![DriverFault::ConcurrentActionThen(
                Delete(SOURCE),
                Box::new(DriverFault::LostRequest),
            )],
            events: FAILED_THEN_SUCCEEDED,
            // The second call may follow an attempt to delete the source.
            delayed_events: &["v Warning VolumeFailedDelete"],
            calls: &["create a from static-v", "create a from static-v", "delete static-v"],
            ..clone_only()
        },
        Scenario {
            name: "clone and source claim deleted while the CreateVolume result is unknown: the clone is \
                   created and deleted, then its source",
            actions: after_static_source([Create(clone())]),
            create_faults: vec![
                DriverFault::ConcurrentActionThen(Delete(CLAIM), Box::new(DriverFault::LostRequest)),
                DriverFault::ConcurrentAction(Delete(SOURCE)),
            ],
            events: &["v Warning VolumeFailedDelete"],
            calls: &[
                "create gone from static-v",
                "create gone from static-v",
                "delete gone",
                "delete static-v",
            ],
            ..base()
        },
        Scenario {
            name: "source claim deleted after its clone is bound: it does not wait",
            actions: after_static_source([Create(clone()), Settle, Delete(SOURCE)]),
            calls: &["create a from static-v", "delete static-v"],
            ..clone_only()
        },
        Scenario {
            name: "source claim deleted before its clone is created: the clone waits for another one",
            actions: after_static_source([Delete(SOURCE), Settle, Create(clone())]),
            claims: &["a Pending"],
            events: FAILED,
            calls: &["delete static-v"],
            unsettled: REJECTED_CLAIM,
            ..base()
        },
        Scenario {
            name: "claim smaller than its source: it is not provisioned",
            actions: after_static_source([Create(with(
                clone(),
                &json!({"spec": {"resources": {"requests": {"storage": "1Mi"}}}}),
            ))]),
            ..not_cloned()
        },
        Scenario {
            name: "claim with another volumeMode than its source: it is not provisioned",
            actions: after_static_source([Create(with(clone(), &json!({"spec": {"volumeMode": "Block"}})))]),
            ..not_cloned()
        },
        Scenario {
            name: "volume of the source claim has another driver: the clone is not provisioned",
            actions: vec![
                Create(class("gold")),
                Create(with(
                    volume("v", "gold", "1Gi"),
                    &json!({"spec": {"csi": {"driver": "other.example.com"}}}),
                )),
                Settle,
                Create(claim("source", "gold")),
                Settle,
                Create(clone()),
            ],
            ..not_cloned()
        },
        Scenario {
            name: "CreateVolume of a clone fails: the call is repeated, and the source stays",
            actions: after_static_source([Create(clone())]),
            create_faults: vec![DriverFault::Refuse(ErrorKind::Internal)],
            claims: &["a Bound of-a", "source Bound v"],
            volumes: &["of-a Bound a", "v Bound source"],
            array_owners: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a from static-v", "create a from static-v"],
            ..base()
        },
        Scenario {
            name: "source claim deleted while its clone waits for its StorageClass: it is not held",
            actions: after_static_source([
                Create(with(clone(), &json!({"spec": {"storageClassName": "silver"}}))),
                Settle,
                Delete(SOURCE),
                Until(Deleted(SOURCE)),
            ]),
            claims: &["a Pending"],
            events: FAILED,
            calls: &["delete static-v"],
            ..base()
        },
        Scenario {
            name: "StorageClass deleted during CreateVolume of a clone: the clone is created, and the source \
                   can be deleted",
            actions: after_static_source([Create(clone()), Settle, Delete(SOURCE)]),
            create_faults: vec![DriverFault::ConcurrentActionThen(
                Delete(CLASS),
                Box::new(DriverFault::LostResponse),
            )],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a from static-v", "create a from static-v", "delete static-v"],
            ..clone_only()
        },
        Scenario {
            name: "source on one node, node-local driver: the claim is cloned on the node of its source",
            actions: vec![
                Create(with(class("gold"), &json!({"volumeBindingMode": "WaitForFirstConsumer"}))),
                Create(with(claim("source", "gold"), &selected_node("n1"))),
                Settle,
                Create(with(clone(), &selected_node("n2"))),
                Until(Event("a Warning ProvisioningFailed")),
                Patch(CLAIM, selected_node("n1")),
                Until(CallsCompleted(2)),
                Settle,
                Delete(SOURCE),
            ],
            topology: TopologyBehavior { keys: &[NODE_TOPOLOGY_KEY], ..TopologyBehavior::default() },
            storage_nodes: &["n1", "n2"],
            claims: &["a Bound of-a"],
            volumes: &["of-a Bound a topology.cofferdam.dev/node=n1"],
            array_owners: &["a on n1"],
            events: SUCCEEDED_AFTER_FAILURE,
            delayed_events: &[
                "a Normal ExternalProvisioning",
                "a Normal WaitForFirstConsumer",
                "source Normal ExternalProvisioning",
                "source Normal WaitForFirstConsumer",
            ],
            calls: &[
                "create gone topology.cofferdam.dev/node=n1",
                "create a from gone topology.cofferdam.dev/node=n1",
                "delete gone on n1",
            ],
            ..base()
        },
    ]
}
