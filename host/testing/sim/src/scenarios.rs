//! The scenario table of provisioner, attacher, resizer, pv-controller, protection and attach-detach: objects
//! in, faults in → objects, events, driver calls out.
//!
//! It holds on every [`Ground`](crate::Ground). Where one cannot play a scenario, the row says so and why.

mod attach_detach;
mod detach;
mod node_local;
mod resizing;
mod topology;
mod volume_attachment;

use std::time::Duration;

use cofferdam_domain::storage::ErrorKind;
use serde_json::json;

use crate::{
    ApiFault, DriverFault, EnvironmentKind, FinalState, PublishingBehavior, ResizingBehavior, Simulation,
    TopologyBehavior,
    UserAction::{self, Backup, Compact, Create, Delete, Patch, Restore, Settle, Until},
    WaitFor::{CallsCompleted, Deleted, Event},
    objects::{claim, class, pod, volume, with},
};

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";
const CLASS: &str = "/apis/storage.k8s.io/v1/storageclasses/gold";
const RESTORE_MARKER: &str = "/api/v1/namespaces/default/configmaps/cofferdam-restored";

/// A row of the table.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    /// What it shows.
    pub name: &'static str,
    /// What the user does.
    pub actions: Vec<UserAction>,
    /// What goes wrong with the driver's create calls, one each.
    pub create_faults: Vec<DriverFault>,
    /// What goes wrong with the driver's delete calls, one each.
    pub delete_faults: Vec<DriverFault>,
    /// What goes wrong with writes of the processes, one each.
    pub api_faults: Vec<ApiFault>,
    /// What the driver does when it publishes.
    pub publishing: PublishingBehavior,
    /// Whether the driver lists where its volumes are published.
    pub lists_published_nodes: bool,
    /// What the driver does when it grows and modifies volumes.
    pub resizing: ResizingBehavior,
    /// Where the driver's volumes can be.
    pub topology: TopologyBehavior,
    /// Nodes that have the driver's storage, each its own; none where it is one for all.
    pub storage_nodes: &'static [&'static str],
    /// [`Outcome::claims`]
    pub claims: &'static [&'static str],
    /// [`Outcome::volumes`]
    pub volumes: &'static [&'static str],
    /// [`Outcome::resizes`]
    pub resizes: &'static [&'static str],
    /// [`Outcome::attachments`]
    pub attachments: &'static [&'static str],
    /// [`Outcome::told`]
    pub volumes_attached: &'static [&'static str],
    /// [`Outcome::published`]
    pub published: &'static [&'static str],
    /// [`Outcome::array`]
    pub array_owners: &'static [&'static str],
    /// [`Outcome::events`], where no process died.
    pub events: &'static [&'static str],
    /// [`Outcome::calls`], where no process died.
    pub calls: &'static [&'static str],
    /// [`Outcome::faults`]: what no controller can prevent.
    pub violations: &'static [&'static str],
    /// Grounds that cannot play it, and why.
    pub skipped_on: &'static [(EnvironmentKind, &'static str)],
}

impl Scenario {
    /// Why this ground cannot play it; absent where it can.
    pub fn skip_reason(&self, environment: EnvironmentKind) -> Option<&'static str> {
        self.skipped_on.iter().find(|(refused, _)| *refused == environment).map(|(_, reason)| *reason)
    }

    /// A simulation with the driver that the scenario wants.
    pub fn configure(&self, simulation: Simulation) -> Simulation {
        simulation
            .with_publishing(self.publishing.clone(), self.lists_published_nodes)
            .with_resizing(self.resizing.clone())
            .with_topology(self.topology)
            .with_node_local_driver(self.storage_nodes)
            .with_api_faults(self.api_faults.clone())
    }

    /// What came out otherwise than it should. Where a process died, calls may be repeated and events lost.
    pub fn differences(&self, final_state: &FinalState, crashed: bool) -> Vec<String> {
        let mut differences = Vec::new();
        let mut compare = |what: &str, found: &[String], expected: &[&str]| {
            if found != expected {
                differences.push(format!("{}: {what}: expected {expected:?}, found {found:?}", self.name));
            }
        };
        compare("faults", &final_state.violations, self.violations);
        compare("claims", &final_state.claims, self.claims);
        compare("volumes", &final_state.volumes, self.volumes);
        compare("resizes", &final_state.resizes, self.resizes);
        compare("attachments", &final_state.attachments, self.attachments);
        compare("told", &final_state.volumes_attached, self.volumes_attached);
        compare("published", &final_state.published, self.published);
        compare("array", &final_state.array_owners, self.array_owners);
        compare("intents", &[final_state.intents.to_string()], &["0"]);
        if !crashed {
            compare("events", &final_state.events, self.events);
            compare("calls", &final_state.calls, self.calls);
            compare("unused", &final_state.unused_faults, &[]);
        }
        differences
    }
}

fn gold_claim() -> Vec<UserAction> {
    vec![Create(class("gold")), Create(claim("a", "gold"))]
}

fn after_gold_claim(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    gold_claim().into_iter().chain(actions).collect()
}

/// The cluster goes back to where it did not know of claim `b`; then claim `a` is deleted.
fn restore_then_delete_claim(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    // What the processes see after the restore makes them list anew.
    let first = [Settle, Backup, Create(claim("b", "gold")), Settle, Restore, Settle, Delete(CLAIM)];
    after_gold_claim(first.into_iter().chain(actions))
}

const LEAKED_BY_RESTORE: &[&str] = &["leaked: of-gone has neither a PersistentVolume nor a claim"];
const RESTORE_DETECTED_LATE: &[(EnvironmentKind, &str)] = &[(
    EnvironmentKind::Http,
    "the embedded API stays up while it is restored, and only the bookmark after a minute of real time tells its watchers",
)];

/// Tested on its own there.
const VOLUME_RACE: &[(EnvironmentKind, &str)] = &[
    (EnvironmentKind::Http, "on real time the second claim may be the first at the volume"),
    (EnvironmentKind::Kubernetes, "on real time the second claim may be the first at the volume"),
];

const HOUR_OF_REAL_TIME: &[(EnvironmentKind, &str)] = &[
    (EnvironmentKind::Http, "on real time nobody waits for every pause of an hour"),
    (EnvironmentKind::Kubernetes, "on real time nobody waits for every pause of an hour"),
];

/// Tested on its own there.
const EXPAND_MODIFY_RACE: &[(EnvironmentKind, &str)] = &[
    (EnvironmentKind::Http, "on real time the modification may be the first at the driver"),
    (EnvironmentKind::Kubernetes, "on real time the modification may be the first at the driver"),
];

const BOUND: &[&str] = &["a Bound of-a"];
const VOLUME: &[&str] = &["of-a Bound a"];
const SUCCEEDED: &[&str] = &["a Normal ProvisioningSucceeded"];
const FAILED_THEN_SUCCEEDED: &[&str] = &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"];

/// How many rows a ground cannot play: each has its reason in the table, and a new one wants to be seen.
pub const fn skipped_count(environment: EnvironmentKind) -> usize {
    match environment {
        EnvironmentKind::InProcess => 0,
        EnvironmentKind::Http => 33,
        EnvironmentKind::Kubernetes => 31,
    }
}

/// The table.
pub fn scenarios() -> Vec<Scenario> {
    let mut all = claims_and_volumes();
    all.extend(volume_attachment::scenarios());
    all.extend(attach_detach::scenarios());
    all.extend(detach::scenarios());
    all.extend(topology::scenarios());
    all.extend(node_local::scenarios());
    all.extend(resizing::scenarios());
    all
}

#[expect(clippy::too_many_lines, reason = "one table")]
fn claims_and_volumes() -> Vec<Scenario> {
    let base = Scenario::default;
    let retain = || with(class("gold"), &json!({"reclaimPolicy": "Retain"}));
    vec![
        Scenario {
            name: "a claim gets its volume",
            actions: gold_claim(),
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: SUCCEEDED,
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "and nothing is left when the claim goes",
            actions: after_gold_claim([Settle, Delete(CLAIM)]),
            events: SUCCEEDED,
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "with Retain the volume stays, Released",
            actions: vec![Create(retain()), Create(claim("a", "gold")), Settle, Delete(CLAIM)],
            volumes: &["of-gone Released a"],
            array_owners: &["gone"],
            events: SUCCEEDED,
            calls: &["create gone"],
            ..base()
        },
        Scenario {
            name: "the default class is used",
            actions: vec![
                Create(with(
                    class("gold"),
                    &json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}),
                )),
                Create(with(claim("a", "gold"), &json!({"spec": {"storageClassName": null}}))),
            ],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: SUCCEEDED,
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "a class that comes late",
            actions: vec![Create(claim("a", "gold")), Settle, Create(class("gold"))],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"],
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "late binding waits for the scheduler's node",
            actions: vec![
                Create(with(class("gold"), &json!({"volumeBindingMode": "WaitForFirstConsumer"}))),
                Create(claim("a", "gold")),
                Settle,
                Patch(
                    CLAIM,
                    json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n"}}}),
                ),
            ],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Normal WaitForFirstConsumer"],
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "a static volume: the smallest that fits",
            actions: vec![
                Create(volume("small", "none", "1Gi")),
                Create(volume("large", "none", "9Gi")),
                Create(volume("fitting", "none", "3Gi")),
                Settle,
                Create(with(
                    claim("a", "none"),
                    &json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}),
                )),
            ],
            claims: &["a Bound fitting"],
            volumes: &["fitting Bound a", "large Available", "small Available"],
            ..base()
        },
        Scenario {
            name: "a static volume that comes after its claim",
            actions: vec![Create(claim("a", "none")), Settle, Create(volume("v", "none", "1Gi"))],
            claims: &["a Bound v"],
            volumes: &["v Bound a"],
            events: &["a Warning ProvisioningFailed"],
            ..base()
        },
        Scenario {
            name: "a static volume with Retain is released with its claim",
            actions: vec![
                Create(volume("v", "none", "1Gi")),
                Settle,
                Create(claim("a", "none")),
                Settle,
                Delete(CLAIM),
            ],
            volumes: &["v Released a"],
            ..base()
        },
        Scenario {
            name: "the driver's answer is lost",
            actions: gold_claim(),
            create_faults: vec![DriverFault::LostResponse],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "the request is lost, twice",
            actions: gold_claim(),
            create_faults: vec![DriverFault::LostRequest, DriverFault::LostRequest],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a", "create a"],
            ..base()
        },
        Scenario {
            name: "the array is full, and then has room",
            actions: gold_claim(),
            create_faults: vec![DriverFault::Refuse(ErrorKind::ResourceExhausted)],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "the volume is too small: it is deleted, and asked for anew",
            actions: gold_claim(),
            create_faults: vec![DriverFault::WrongSize(1 << 20)],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "delete a", "create a"],
            ..base()
        },
        Scenario {
            name: "the driver takes its time, and the claim is told",
            actions: gold_claim(),
            create_faults: vec![DriverFault::Slow(Duration::from_secs(3))],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: &["a Normal Provisioning", "a Normal ProvisioningSucceeded"],
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "the claim is deleted while the driver works",
            actions: gold_claim(),
            create_faults: vec![DriverFault::ConcurrentAction(Delete(CLAIM))],
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "the claim is deleted while the driver works, with Retain",
            actions: vec![Create(retain()), Create(claim("a", "gold"))],
            create_faults: vec![DriverFault::ConcurrentAction(Delete(CLAIM))],
            volumes: &["of-gone Released a"],
            array_owners: &["gone"],
            calls: &["create gone"],
            ..base()
        },
        Scenario {
            name: "the answer is lost and the claim deleted",
            actions: gold_claim(),
            create_faults: vec![DriverFault::ConcurrentActionThen(
                Delete(CLAIM),
                Box::new(DriverFault::LostResponse),
            )],
            calls: &["create gone", "create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "the claim is deleted and comes again",
            actions: after_gold_claim([
                Until(CallsCompleted(3)),
                Until(Deleted(CLAIM)),
                Create(claim("a", "gold")),
            ]),
            create_faults: vec![DriverFault::ConcurrentActionThen(
                Delete(CLAIM),
                Box::new(DriverFault::LostResponse),
            )],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: SUCCEEDED,
            calls: &["create gone", "create gone", "delete gone", "create a"],
            ..base()
        },
        Scenario {
            name: "the class is removed while the answer is out",
            actions: after_gold_claim([Until(CallsCompleted(1)), Delete(CLASS)]),
            create_faults: vec![DriverFault::LostResponse],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"],
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "the class changes while the answer is out: the first request is repeated",
            actions: after_gold_claim([
                Until(CallsCompleted(1)),
                Delete(CLASS),
                Create(with(class("gold"), &json!({"parameters": {"tier": "slow"}}))),
            ]),
            create_faults: vec![DriverFault::LostResponse],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"],
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "an invalid request waits for another class",
            actions: after_gold_claim([
                Until(Event("a Warning ProvisioningFailed")),
                Delete(CLASS),
                Create(class("gold")),
            ]),
            create_faults: vec![DriverFault::Refuse(ErrorKind::InvalidArgument)],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "deleting fails once, and its answer is lost once",
            actions: after_gold_claim([Settle, Delete(CLAIM)]),
            delete_faults: vec![DriverFault::Refuse(ErrorKind::Internal), DriverFault::LostResponse],
            events: &["a Normal ProvisioningSucceeded", "volume Warning VolumeFailedDelete"],
            calls: &["create gone", "delete gone", "delete gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "watches fall behind",
            actions: after_gold_claim([Settle, Compact, Delete(CLAIM), Compact]),
            events: SUCCEEDED,
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "a claim in use stays until its pod is gone",
            actions: after_gold_claim([Settle, Create(pod("p", "a")), Settle, Delete(CLAIM), Settle]),
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: SUCCEEDED,
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "and then goes",
            actions: after_gold_claim([
                Settle,
                Create(pod("p", "a")),
                Settle,
                Delete(CLAIM),
                Settle,
                Delete("/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0"),
            ]),
            events: SUCCEEDED,
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "a volume that goes under its claim",
            actions: vec![
                Create(volume("v", "none", "1Gi")),
                Settle,
                Create(claim("a", "none")),
                Settle,
                Patch("/api/v1/persistentvolumes/v", json!({"metadata": {"finalizers": null}})),
                Delete("/api/v1/persistentvolumes/v"),
                Patch("/api/v1/persistentvolumes/v", json!({"metadata": {"finalizers": null}})),
            ],
            claims: &["a Lost v"],
            events: &["a Warning ClaimLost"],
            ..base()
        },
        Scenario {
            name: "two claims, one free volume: the other gets a new one",
            actions: vec![
                Create(class("gold")),
                Create(volume("v", "gold", "1Gi")),
                Settle,
                Create(claim("a", "gold")),
                Create(claim("b", "gold")),
            ],
            claims: &["a Bound v", "b Bound of-b"],
            volumes: &["of-b Bound b", "v Bound a"],
            array_owners: &["b"],
            events: &["b Normal ProvisioningSucceeded"],
            calls: &["create b"],
            skipped_on: VOLUME_RACE,
            ..base()
        },
        Scenario {
            name: "a class that restricts topologies",
            actions: vec![
                Create(with(
                    class("gold"),
                    &json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]}),
                )),
                Create(claim("a", "gold")),
            ],
            claims: &["a Pending"],
            events: &["a Warning ProvisioningFailed"],
            ..base()
        },
        Scenario {
            name: "deletions wait after a restore",
            actions: restore_then_delete_claim([]),
            volumes: &["of-gone Released a"],
            // What the backup does not know is deleted least of all.
            array_owners: &["gone", "gone"],
            events: &["a Normal ProvisioningSucceeded", "volume Warning DeletionFrozen"],
            calls: &["create gone", "create gone"],
            violations: LEAKED_BY_RESTORE,
            skipped_on: RESTORE_DETECTED_LATE,
            ..base()
        },
        Scenario {
            name: "and go on when the operator has looked",
            actions: restore_then_delete_claim([Settle, Delete(RESTORE_MARKER)]),
            array_owners: &["gone"],
            events: &["a Normal ProvisioningSucceeded", "volume Warning DeletionFrozen"],
            calls: &["create gone", "create gone", "delete gone"],
            violations: LEAKED_BY_RESTORE,
            skipped_on: RESTORE_DETECTED_LATE,
            ..base()
        },
        Scenario {
            name: "sizes and parameters that cannot be",
            actions: vec![
                Create(class("gold")),
                Create(with(
                    claim("a", "gold"),
                    &json!({"spec": {"resources": {"requests": {"storage": "1e99"}}}}),
                )),
                Create(with(class("odd"), &json!({"parameters": {"csi.storage.k8s.io/odd": "x"}}))),
                Create(claim("b", "odd")),
            ],
            claims: &["a Pending", "b Pending"],
            events: &["a Warning ProvisioningFailed", "b Warning ProvisioningFailed"],
            ..base()
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_scenarios_are_counted_per_environment() {
        for place in [EnvironmentKind::InProcess, EnvironmentKind::Http, EnvironmentKind::Kubernetes] {
            let refused = scenarios().into_iter().filter(|row| row.skip_reason(place).is_some());
            assert_eq!(refused.count(), skipped_count(place), "{place}");
        }
    }
}
