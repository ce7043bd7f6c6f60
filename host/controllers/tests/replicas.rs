//! Two replicas of a role over one API server, without leader election.
//!
//! Each claim of two provisioners has one volume, and processes that start anew find nothing to do, also if
//! one of the two crashes at any step. No volume leaks, except in [`LEAKS`]. Replicas of the other roles do
//! not notice each other. The tables list the rules that they break.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{collections::BTreeSet, time::Duration};

use cofferdam_controllers::{Role, attach_detach, attacher, provisioner, resizer};
use cofferdam_domain::storage::ErrorKind;
use cofferdam_sim::{
    DriverFault, Scenario, Simulation,
    UserAction::{Create, Wait},
    objects::{DRIVER, claim, class},
    scenarios,
};
use serde_json::{Value, json};

/// Rows with faults or actions during CreateVolume, in which one of two provisioners crashes after each of
/// its effects. A crash run of every row would take minutes.
const CRASH_ROWS: [&str; 4] = [
    "CreateVolume response lost",
    "claim deleted during CreateVolume",
    "PersistentVolume POST response lost",
    "CreateVolume fails with",
];

/// Rows in which two provisioners leak a volume. The older process sends CreateVolume, and the newer one
/// creates and deletes the volume and removes the intent. The call of the older one then takes effect, and
/// its response is lost: no intent names the volume.
const LEAKS: [&str; 3] = [
    LEAK_WITH_CRASHES,
    "claim recreated under the same name: ",
    "claim deleted while the CreateVolume result is unknown: ",
];
/// The only one of [`CRASH_ROWS`] among them.
const LEAK_WITH_CRASHES: &str = "claim deleted and CreateVolume response lost: ";

/// Two processes with the provisioner, of which the first may be killed, and one with all other roles. With
/// pv-controller in its own process, a provisioner would need no annotation `storage-provisioner`, and
/// pv-controller would not write it: the other provisioner would ignore every claim.
fn two_provisioners(create_faults: Vec<DriverFault>, delete_faults: Vec<DriverFault>) -> Simulation {
    let others: Vec<Role> = Role::ALL.into_iter().filter(|role| *role != provisioner::ROLE).collect();
    Simulation::with_long_watches(&[provisioner::ROLE], create_faults, delete_faults)
        .with_replica(&[provisioner::ROLE])
        .with_replica(&others)
}

/// The scenario with two processes that have the role.
fn simulation(scenario: &Scenario, role: Role) -> Simulation {
    let faults = (scenario.create_faults.clone(), scenario.delete_faults.clone());
    scenario.configure(if role == provisioner::ROLE {
        two_provisioners(faults.0, faults.1)
    } else {
        Simulation::with_long_watches(&Role::ALL, faults.0, faults.1).with_replica(&[role])
    })
}

/// The scenarios of a central driver that expect a call with one of these names.
fn rows_with_calls(names: &[&str]) -> Vec<Scenario> {
    let has_call =
        |row: &Scenario| row.calls.iter().any(|call| names.iter().any(|name| call.starts_with(name)));
    scenarios().into_iter().filter(|row| row.storage_nodes.is_empty() && has_call(row)).collect()
}

/// Differences of the scenarios with a replica of the role.
async fn differences(rows: &[Scenario], role: Role) -> Vec<String> {
    let mut differences = Vec::new();
    for scenario in rows {
        let (outcome, _) = simulation(scenario, role).run(&scenario.actions, None).await;
        differences.extend(scenario.differences(&outcome, true));
    }
    differences
}

/// Requires that each difference contains one of `known`, and that each of `known` is in a difference.
fn assert_known(differences: &[String], known: &[&str]) {
    let new: Vec<_> =
        differences.iter().filter(|found| !known.iter().any(|text| found.contains(text))).collect();
    assert!(new.is_empty(), "{new:#?}");
    for text in known {
        assert!(differences.iter().any(|found| found.contains(text)), "no longer found: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_provisioners_create_one_volume_per_claim() {
    let rows = rows_with_calls(&["create", "delete"]);
    assert!(rows.len() > 20, "{} rows", rows.len());
    assert_known(&differences(&rows, provisioner::ROLE).await, &LEAKS);
}

#[tokio::test(start_paused = true)]
async fn two_provisioners_leak_nothing_else_if_one_crashes_at_any_step() {
    let mut crashes = 0;
    let mut differences = Vec::new();
    for scenario in rows_with_calls(&["create"]) {
        if !CRASH_ROWS.iter().any(|text| scenario.name.contains(text)) {
            continue;
        }
        let run = async |crash_after| {
            simulation(&scenario, provisioner::ROLE).run(&scenario.actions, crash_after).await
        };
        let (_, effects) = run(None).await;
        for crash_after in 1..=effects.len() {
            let (outcome, _) = run(Some(crash_after)).await;
            differences.extend(scenario.differences(&outcome, true));
            crashes += 1;
        }
    }
    assert!(crashes > 20, "only {crashes} crashes");
    assert_known(&differences, &[LEAK_WITH_CRASHES]);
}

/// Messages of the events with this reason, each once.
async fn messages(simulation: &Simulation, reason: &str) -> BTreeSet<String> {
    let events = simulation.object("/api/v1/namespaces/default/events").await.unwrap();
    let text =
        |event: &Value, name: &str| event.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let events = events.pointer("/items").and_then(Value::as_array).into_iter().flatten();
    let with_reason = events.filter(|event| text(event, "reason") == reason);
    with_reason.map(|event| text(event, "message")).collect()
}

/// The value of an annotation of the journal's ConfigMap with this number.
async fn journal_annotation(simulation: &Simulation, shard: usize, name: &str) -> Option<String> {
    let path = format!("/api/v1/namespaces/default/configmaps/cofferdam-intents-{DRIVER}-{shard}");
    let map = simulation.object(&path).await?;
    map.get("metadata")?.get("annotations")?.get(name)?.as_str().map(str::to_owned)
}

/// Each request fails finally, so that its intent is removed, and is sent again after five minutes.
#[tokio::test(start_paused = true)]
async fn two_provisioners_whose_claims_always_fail_do_not_exchange_the_journal() {
    let faults = vec![DriverFault::Refuse(ErrorKind::InvalidArgument); 1000];
    let simulation = two_provisioners(faults, Vec::new());
    let actions = [
        Create(class("gold")),
        Create(claim("a", "gold")),
        Create(claim("b", "gold")),
        Wait(Duration::from_secs(3 * 3600)),
    ];
    let (outcome, _) = simulation.run(&actions, None).await;
    assert_eq!(outcome.violations, [""; 0]);
    assert!(outcome.calls.len() > 50, "{} calls", outcome.calls.len());
    let taken = messages(&simulation, "IntentJournalTaken").await;
    // The older process has a request, too, and waits for the newer one.
    let waiting = messages(&simulation, "WaitingForJournal").await;
    assert_eq!((taken.len(), waiting.len()), (1, 1), "{taken:#?} {waiting:#?}");
}

#[tokio::test(start_paused = true)]
async fn the_owner_of_a_journal_is_in_each_of_its_config_maps() {
    let simulation = two_provisioners(Vec::new(), Vec::new());
    let further = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("cofferdam-intents-{DRIVER}-1"), "namespace": "default"},
    });
    let actions = [Create(further), Create(class("gold")), Create(claim("a", "gold"))];
    let (outcome, _) = simulation.run(&actions, None).await;
    assert_eq!((outcome.violations, outcome.array_owners), (Vec::new(), vec!["a".to_owned()]));
    let owner = "cofferdam.dev/journal-owner";
    let first = journal_annotation(&simulation, 0, owner).await;
    assert!(first.is_some());
    assert_eq!(journal_annotation(&simulation, 1, owner).await, first);
}

/// A write of one replica that takes effect late is unknown to the other.
#[tokio::test(start_paused = true)]
async fn two_attach_detach_controllers_may_attach_a_volume_twice() {
    let known =
        ["VolumeAttachment created after the pod moved: it is detached, then attached to the new node: \
                  violations: expected [], found [\"multi-attach: v on node-2 and node-1\"]"];
    assert_known(&differences(&rows_with_calls(&["publish"]), attach_detach::ROLE).await, &known);
}

/// One attacher publishes a volume while the other unpublishes it and removes the VolumeAttachment's
/// finalizer.
#[tokio::test(start_paused = true)]
async fn two_attachers_may_leave_a_volume_published() {
    let known = [
        "is published to id without a VolumeAttachment",
        "is published to id-1 without a VolumeAttachment",
        "published: expected [], found [\"static-v id\"]",
        "published: expected [], found [\"static-v id-1\"]",
        "attachments: expected [\"b attached directory\"], found [\"b attached directory attachError 9\"]",
    ];
    assert_known(&differences(&rows_with_calls(&["publish"]), attacher::ROLE).await, &known);
}

/// The final size and class are right, but the driver gets two calls for a volume at once.
#[tokio::test(start_paused = true)]
async fn two_resizers_may_change_a_volume_at_once() {
    let known = ["is changed by two calls at once"];
    assert_known(&differences(&rows_with_calls(&["expand", "modify"]), resizer::ROLE).await, &known);
}
