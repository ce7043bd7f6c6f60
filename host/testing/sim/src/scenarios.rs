//! The scenario table of provisioner, attacher, resizer, pv-controller, protection and attach-detach: objects in, faults in → objects, events, driver calls out.
//!
//! It holds on every [`Ground`](crate::Ground). Where one cannot play a scenario, the row says so and why.

mod attaching;
mod leaving;
mod moving;
mod placed;
mod placing;
mod resizing;

use std::time::Duration;

use cofferdam_domain::storage::ErrorKind;
use serde_json::json;

use crate::{
    ApiFault, Fault, Outcome, Place, Places, Publishing, Resizing,
    Sign::{Called, Event, Gone},
    Simulation,
    UserAction::{self, Backup, Compact, Create, Delete, Patch, Restore, Settle, Until},
    objects::{claim, class, pod, volume, with},
};

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";
const CLASS: &str = "/apis/storage.k8s.io/v1/storageclasses/gold";
const MARK: &str = "/api/v1/namespaces/default/configmaps/cofferdam-restored";

/// A row of the table.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    /// What it shows.
    pub name: &'static str,
    /// What the user does.
    pub user: Vec<UserAction>,
    /// What goes wrong with the driver's create calls, one each.
    pub create_faults: Vec<Fault>,
    /// What goes wrong with the driver's delete calls, one each.
    pub delete_faults: Vec<Fault>,
    /// What goes wrong with writes of the processes, one each.
    pub api_faults: Vec<ApiFault>,
    /// What the driver does when it publishes.
    pub publishing: Publishing,
    /// Whether the driver lists where its volumes are published.
    pub told: bool,
    /// What the driver does when it grows and modifies volumes.
    pub resizing: Resizing,
    /// Where the driver's volumes can be.
    pub places: Places,
    /// Nodes that have the driver's storage, each its own; none where it is one for all.
    pub nodes: &'static [&'static str],
    /// [`Outcome::claims`]
    pub claims: &'static [&'static str],
    /// [`Outcome::volumes`]
    pub volumes: &'static [&'static str],
    /// [`Outcome::resizes`]
    pub resizes: &'static [&'static str],
    /// [`Outcome::attachments`]
    pub attachments: &'static [&'static str],
    /// [`Outcome::told`]
    pub told_nodes: &'static [&'static str],
    /// [`Outcome::published`]
    pub published: &'static [&'static str],
    /// [`Outcome::array`]
    pub array: &'static [&'static str],
    /// [`Outcome::events`], where no process died.
    pub events: &'static [&'static str],
    /// [`Outcome::calls`], where no process died.
    pub calls: &'static [&'static str],
    /// [`Outcome::faults`]: what no controller can prevent.
    pub faults: &'static [&'static str],
    /// Grounds that cannot play it, and why.
    pub not_on: &'static [(Place, &'static str)],
}

impl Scenario {
    /// Why this ground cannot play it; absent where it can.
    pub fn refused_by(&self, place: Place) -> Option<&'static str> {
        self.not_on.iter().find(|(refused, _)| *refused == place).map(|(_, why)| *why)
    }

    /// A simulation with the driver that the scenario wants.
    pub fn with_driver(&self, simulation: Simulation) -> Simulation {
        simulation
            .publishing(self.publishing.clone(), self.told)
            .resizing(self.resizing.clone())
            .places(self.places)
            .on_nodes(self.nodes)
            .misfortune(self.api_faults.clone())
    }

    /// What came out otherwise than it should. Where a process died, calls may be repeated and events lost.
    pub fn differences(&self, outcome: &Outcome, died: bool) -> Vec<String> {
        let mut differences = Vec::new();
        let mut compare = |what: &str, found: &[String], expected: &[&str]| {
            if found != expected {
                differences.push(format!("{}: {what}: expected {expected:?}, found {found:?}", self.name));
            }
        };
        compare("faults", &outcome.faults, self.faults);
        compare("claims", &outcome.claims, self.claims);
        compare("volumes", &outcome.volumes, self.volumes);
        compare("resizes", &outcome.resizes, self.resizes);
        compare("attachments", &outcome.attachments, self.attachments);
        compare("told", &outcome.told, self.told_nodes);
        compare("published", &outcome.published, self.published);
        compare("array", &outcome.array, self.array);
        compare("intents", &[outcome.intents.to_string()], &["0"]);
        if !died {
            compare("events", &outcome.events, self.events);
            compare("calls", &outcome.calls, self.calls);
            compare("unused", &outcome.unused, &[]);
        }
        differences
    }
}

fn gold_claim() -> Vec<UserAction> {
    vec![Create(class("gold")), Create(claim("a", "gold"))]
}

fn after_gold_claim(more: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    gold_claim().into_iter().chain(more).collect()
}

/// The cluster goes back to where it did not know of claim `b`; then claim `a` is deleted.
fn restored(more: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    // What the processes see after the restore makes them list anew.
    let first = [Settle, Backup, Create(claim("b", "gold")), Settle, Restore, Settle, Delete(CLAIM)];
    after_gold_claim(first.into_iter().chain(more))
}

const LEFT_BY_RESTORE: &[&str] = &["leaked: of-gone has neither a PersistentVolume nor a claim"];
const LATE: &[(Place, &str)] = &[(
    Place::Http,
    "the embedded API stays up while it is restored, and only the bookmark after a minute of real time tells its watchers",
)];

/// Tested on its own there.
const EITHER: &[(Place, &str)] = &[
    (Place::Http, "on real time the second claim may be the first at the volume"),
    (Place::Kubernetes, "on real time the second claim may be the first at the volume"),
];

const PAUSES: &[(Place, &str)] = &[
    (Place::Http, "on real time nobody waits for every pause of an hour"),
    (Place::Kubernetes, "on real time nobody waits for every pause of an hour"),
];

/// Tested on its own there.
const EITHER_PART: &[(Place, &str)] = &[
    (Place::Http, "on real time the modification may be the first at the driver"),
    (Place::Kubernetes, "on real time the modification may be the first at the driver"),
];

const BOUND: &[&str] = &["a Bound of-a"];
const VOLUME: &[&str] = &["of-a Bound a"];
const SUCCEEDED: &[&str] = &["a Normal ProvisioningSucceeded"];
const FAILED_THEN_SUCCEEDED: &[&str] = &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"];

/// How many rows a ground cannot play: each has its reason in the table, and a new one wants to be seen.
pub const fn unplayed(place: Place) -> usize {
    match place {
        Place::InProcess => 0,
        Place::Http => 33,
        Place::Kubernetes => 31,
    }
}

/// The table.
pub fn scenarios() -> Vec<Scenario> {
    let mut all = claims_and_volumes();
    all.extend(attaching::scenarios());
    all.extend(moving::scenarios());
    all.extend(leaving::scenarios());
    all.extend(placing::scenarios());
    all.extend(placed::scenarios());
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
            user: gold_claim(),
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: SUCCEEDED,
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "and nothing is left when the claim goes",
            user: after_gold_claim([Settle, Delete(CLAIM)]),
            events: SUCCEEDED,
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "with Retain the volume stays, Released",
            user: vec![Create(retain()), Create(claim("a", "gold")), Settle, Delete(CLAIM)],
            volumes: &["of-gone Released a"],
            array: &["gone"],
            events: SUCCEEDED,
            calls: &["create gone"],
            ..base()
        },
        Scenario {
            name: "the default class is used",
            user: vec![
                Create(with(
                    class("gold"),
                    &json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}),
                )),
                Create(with(claim("a", "gold"), &json!({"spec": {"storageClassName": null}}))),
            ],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: SUCCEEDED,
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "a class that comes late",
            user: vec![Create(claim("a", "gold")), Settle, Create(class("gold"))],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"],
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "late binding waits for the scheduler's node",
            user: vec![
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
            array: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Normal WaitForFirstConsumer"],
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "a static volume: the smallest that fits",
            user: vec![
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
            user: vec![Create(claim("a", "none")), Settle, Create(volume("v", "none", "1Gi"))],
            claims: &["a Bound v"],
            volumes: &["v Bound a"],
            events: &["a Warning ProvisioningFailed"],
            ..base()
        },
        Scenario {
            name: "a static volume with Retain is released with its claim",
            user: vec![
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
            user: gold_claim(),
            create_faults: vec![Fault::LostAnswer],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "the request is lost, twice",
            user: gold_claim(),
            create_faults: vec![Fault::LostRequest, Fault::LostRequest],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a", "create a"],
            ..base()
        },
        Scenario {
            name: "the array is full, and then has room",
            user: gold_claim(),
            create_faults: vec![Fault::Refuse(ErrorKind::ResourceExhausted)],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "the volume is too small: it is deleted, and asked for anew",
            user: gold_claim(),
            create_faults: vec![Fault::Size(1 << 20)],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "delete a", "create a"],
            ..base()
        },
        Scenario {
            name: "the driver takes its time, and the claim is told",
            user: gold_claim(),
            create_faults: vec![Fault::Slow(Duration::from_secs(3))],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: &["a Normal Provisioning", "a Normal ProvisioningSucceeded"],
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "the claim is deleted while the driver works",
            user: gold_claim(),
            create_faults: vec![Fault::Meanwhile(Delete(CLAIM))],
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "the claim is deleted while the driver works, with Retain",
            user: vec![Create(retain()), Create(claim("a", "gold"))],
            create_faults: vec![Fault::Meanwhile(Delete(CLAIM))],
            volumes: &["of-gone Released a"],
            array: &["gone"],
            calls: &["create gone"],
            ..base()
        },
        Scenario {
            name: "the answer is lost and the claim deleted",
            user: gold_claim(),
            create_faults: vec![Fault::MeanwhileThen(Delete(CLAIM), Box::new(Fault::LostAnswer))],
            calls: &["create gone", "create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "the claim is deleted and comes again",
            user: after_gold_claim([Until(Called(3)), Until(Gone(CLAIM)), Create(claim("a", "gold"))]),
            create_faults: vec![Fault::MeanwhileThen(Delete(CLAIM), Box::new(Fault::LostAnswer))],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: SUCCEEDED,
            calls: &["create gone", "create gone", "delete gone", "create a"],
            ..base()
        },
        Scenario {
            name: "the class is removed while the answer is out",
            user: after_gold_claim([Until(Called(1)), Delete(CLASS)]),
            create_faults: vec![Fault::LostAnswer],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"],
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "the class changes while the answer is out: the first request is repeated",
            user: after_gold_claim([
                Until(Called(1)),
                Delete(CLASS),
                Create(with(class("gold"), &json!({"parameters": {"tier": "slow"}}))),
            ]),
            create_faults: vec![Fault::LostAnswer],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"],
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "an invalid request waits for another class",
            user: after_gold_claim([
                Until(Event("a Warning ProvisioningFailed")),
                Delete(CLASS),
                Create(class("gold")),
            ]),
            create_faults: vec![Fault::Refuse(ErrorKind::InvalidArgument)],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "deleting fails once, and its answer is lost once",
            user: after_gold_claim([Settle, Delete(CLAIM)]),
            delete_faults: vec![Fault::Refuse(ErrorKind::Internal), Fault::LostAnswer],
            events: &["a Normal ProvisioningSucceeded", "volume Warning VolumeFailedDelete"],
            calls: &["create gone", "delete gone", "delete gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "watches fall behind",
            user: after_gold_claim([Settle, Compact, Delete(CLAIM), Compact]),
            events: SUCCEEDED,
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "a claim in use stays until its pod is gone",
            user: after_gold_claim([Settle, Create(pod("p", "a")), Settle, Delete(CLAIM), Settle]),
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: SUCCEEDED,
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "and then goes",
            user: after_gold_claim([
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
            user: vec![
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
            user: vec![
                Create(class("gold")),
                Create(volume("v", "gold", "1Gi")),
                Settle,
                Create(claim("a", "gold")),
                Create(claim("b", "gold")),
            ],
            claims: &["a Bound v", "b Bound of-b"],
            volumes: &["of-b Bound b", "v Bound a"],
            array: &["b"],
            events: &["b Normal ProvisioningSucceeded"],
            calls: &["create b"],
            not_on: EITHER,
            ..base()
        },
        Scenario {
            name: "a class that restricts topologies",
            user: vec![
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
            user: restored([]),
            volumes: &["of-gone Released a"],
            // What the backup does not know is deleted least of all.
            array: &["gone", "gone"],
            events: &["a Normal ProvisioningSucceeded", "volume Warning DeletionHeld"],
            calls: &["create gone", "create gone"],
            faults: LEFT_BY_RESTORE,
            not_on: LATE,
            ..base()
        },
        Scenario {
            name: "and go on when the operator has looked",
            user: restored([Settle, Delete(MARK)]),
            array: &["gone"],
            events: &["a Normal ProvisioningSucceeded", "volume Warning DeletionHeld"],
            calls: &["create gone", "create gone", "delete gone"],
            faults: LEFT_BY_RESTORE,
            not_on: LATE,
            ..base()
        },
        Scenario {
            name: "sizes and parameters that cannot be",
            user: vec![
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
    fn what_cannot_be_played_is_known() {
        for place in [Place::InProcess, Place::Http, Place::Kubernetes] {
            let refused = scenarios().into_iter().filter(|row| row.refused_by(place).is_some());
            assert_eq!(refused.count(), unplayed(place), "{place}");
        }
    }
}
