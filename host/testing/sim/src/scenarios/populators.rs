//! Scenarios of volume populators: a claim whose source is of a kind that the provisioner does not know gets
//! its volume from a populator. The populator follows the protocol of Kubernetes' lib-volume-populator: it
//! creates a second claim, `prime`, without a source, fills its volume, and then rewrites the volume's
//! `claimRef`.

use serde_json::{Value, json};

use super::node_local::wait_for_first_consumer_class;
use crate::{
    DriverFault,
    UserAction::{self, Create, Delete, Patch, RepointVolume, Settle, Until},
    WaitFor::Deleted,
    objects::{CLAIM, claim, class, selected_node, with},
    scenario::Scenario,
};

const PRIME: &str = "/api/v1/namespaces/default/persistentvolumeclaims/prime";
/// Finalizer of the populator on the claim that it fills.
const FINALIZER: &str = "books.example.com/populate-target-protection";

/// The claim `a`, whose source is a `Book`.
fn populated() -> Value {
    let source = json!({"apiGroup": "books.example.com", "kind": "Book", "name": "novel"});
    with(claim("a", "gold"), &json!({"spec": {"dataSourceRef": source}}))
}

/// Creates the class and the claim `a`, whose populator then creates `prime`; waits until its volume is
/// bound, then performs these actions.
fn after_prime(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    let setup = [
        Create(class("gold")),
        Create(populated()),
        Settle,
        Patch(CLAIM, json!({"metadata": {"finalizers": [FINALIZER]}})),
        Create(claim("prime", "gold")),
        Settle,
    ];
    setup.into_iter().chain(actions).collect()
}

/// The populator's last steps, after the volume was bound to the claim `a`.
fn end() -> [UserAction; 3] {
    [Delete(PRIME), Until(Deleted(PRIME)), Patch(CLAIM, json!({"metadata": {"finalizers": null}}))]
}

/// Prime loses its volume to the claim `a`: event `ClaimMisbound`.
const POPULATED: &[&str] =
    &["a Normal Provisioning", "prime Normal ProvisioningSucceeded", "prime Warning ClaimMisbound"];

/// In real time, prime may be deleted before it loses its volume.
const DELAYED_EVENTS: &[&str] = &[
    "prime Warning ClaimMisbound",
    "prime Normal ExternalProvisioning",
    "prime Normal WaitForFirstConsumer",
];

/// The scenarios of this module.
pub(super) fn scenarios() -> Vec<Scenario> {
    let base = || Scenario { delayed_events: DELAYED_EVENTS, ..Scenario::default() };
    let populated_claim = || Scenario {
        claims: &["a Bound of-gone"],
        volumes: &["of-gone Bound a"],
        array_owners: &["gone"],
        events: POPULATED,
        calls: &["create gone"],
        ..base()
    };
    vec![
        Scenario {
            name: "source of an unknown kind: the populator's volume is bound to the claim",
            actions: after_prime([RepointVolume(PRIME, CLAIM), Settle].into_iter().chain(end())),
            ..populated_claim()
        },
        Scenario {
            name: "source of an unknown kind, binding to the first consumer: prime has the node of the claim",
            actions: [
                Create(wait_for_first_consumer_class()),
                Create(populated()),
                Settle,
                Patch(CLAIM, selected_node("n1")),
                Settle,
                Create(with(claim("prime", "gold"), &selected_node("n1"))),
                Settle,
                RepointVolume(PRIME, CLAIM),
                Settle,
            ]
            .into_iter()
            .chain(end())
            .collect(),
            events: &[
                "a Normal Provisioning",
                "a Normal WaitForFirstConsumer",
                "prime Normal ProvisioningSucceeded",
                "prime Warning ClaimMisbound",
            ],
            ..populated_claim()
        },
        Scenario {
            name: "source of an unknown kind, no populator: the claim gets no volume",
            actions: vec![Create(class("gold")), Create(populated())],
            claims: &["a Pending"],
            events: &["a Normal Provisioning"],
            ..base()
        },
        Scenario {
            name: "prime deleted before its volume refers to the claim: the volume is deleted, and the populator \
                   begins again",
            actions: after_prime(
                [
                    Delete(PRIME),
                    Until(Deleted(PRIME)),
                    Settle,
                    Create(claim("prime", "gold")),
                    Settle,
                    RepointVolume(PRIME, CLAIM),
                    Settle,
                ]
                .into_iter()
                .chain(end()),
            ),
            calls: &["create gone", "delete gone", "create gone"],
            ..populated_claim()
        },
        Scenario {
            name: "prime deleted as soon as its volume refers to the claim: the volume is kept",
            actions: after_prime([RepointVolume(PRIME, CLAIM), Delete(PRIME), Settle]),
            ..populated_claim()
        },
        Scenario {
            name: "claim deleted before the volume refers to it: the volume is deleted with prime",
            actions: after_prime([
                Delete(CLAIM),
                Patch(CLAIM, json!({"metadata": {"finalizers": null}})),
                Until(Deleted(CLAIM)),
                Delete(PRIME),
            ]),
            events: &["a Normal Provisioning", "prime Normal ProvisioningSucceeded"],
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "claim deleted as soon as the volume refers to it: the volume is deleted",
            actions: after_prime([
                RepointVolume(PRIME, CLAIM),
                Delete(CLAIM),
                Patch(CLAIM, json!({"metadata": {"finalizers": null}})),
                Until(Deleted(CLAIM)),
                Delete(PRIME),
            ]),
            events: POPULATED,
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "response to CreateVolume of prime lost: the populator's volume is created",
            actions: after_prime([RepointVolume(PRIME, CLAIM), Settle].into_iter().chain(end())),
            create_faults: vec![DriverFault::LostResponse],
            events: &[
                "a Normal Provisioning",
                "prime Normal ProvisioningSucceeded",
                "prime Warning ClaimMisbound",
                "prime Warning ProvisioningFailed",
            ],
            calls: &["create gone", "create gone"],
            ..populated_claim()
        },
    ]
}
