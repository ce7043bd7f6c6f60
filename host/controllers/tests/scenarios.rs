//! The scenario table on the embedded API server in this process, on paused time.
//!
//! Each scenario runs in four ways:
//! - without a crash, with all roles in one process; for a node-local driver, with a process per
//!   node for the roles that call the driver, and one process for the others: objects, events and driver calls
//!   must be as expected;
//! - with one process per role, each with the RBAC rules of its role only: objects must be as expected, and
//!   the scenarios together must use every rule, except those for `get`, for Events and for Leases;
//! - once per effect, with a process that crashes after this effect and loses its response: the next process
//!   must reach the same objects, without leaked, lost or differently requested volumes;
//! - the same with writes that the process sends at once in reverse order: with both, it crashes after every
//!   subset of two concurrent writes;
//! - for every sixteenth effect, with a process that loses its Lease after it, and continues in the next term
//!   with the same cache.
//!
//! An effect is a write to the API server or a driver call.
//!
//! After each run, processes with the same roles start anew over the same objects, and must find nothing to
//! do.

#![expect(clippy::unwrap_used, reason = "a test's helper fails with its test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use cofferdam_controllers::{
    Role, attach_detach, attacher, protection, provisioner, pv_controller, rbac::DriverPlacement, resizer,
    snapshot_controller, snapshotter, startup_taint, table,
};
use cofferdam_sim::{
    Effect, FinalState, Scenario, Simulation, UsedRules, UserAction::Wait, deletion_orders, polled_snapshots,
    scenarios,
};
use tokio::runtime::Builder;

/// A simulation of a scenario that spends little time on idle watches. The first test of this file has the
/// watches of a cluster.
fn simulation_with_long_watches(scenario: &Scenario) -> Simulation {
    let faults = (scenario.create_faults.clone(), scenario.delete_faults.clone());
    scenario.configure(Simulation::with_long_watches(&Role::ALL, faults.0, faults.1))
}

/// Runs a scenario. `crashing_process` is the index of the process that may crash: with a node-local driver
/// the index of its node in `storage_nodes`, otherwise 0. The process crashes after the effect of the number
/// `crash_after`, counted from 1; not at all with `None`. Returns the final state, and the number of effects
/// of the process before the crash.
async fn run_scenario(
    scenario: &Scenario,
    crashing_process: usize,
    crash_after: Option<usize>,
) -> (FinalState, usize) {
    let simulation = simulation_with_long_watches(scenario).with_crashing_process(crashing_process);
    let (outcome, effects) = simulation.run(&scenario.actions, crash_after).await;
    (outcome, effects.len())
}

#[tokio::test(start_paused = true)]
async fn every_scenario_converges() {
    let mut differences = Vec::new();
    for scenario in scenarios() {
        let faults = (scenario.create_faults.clone(), scenario.delete_faults.clone());
        let simulation = scenario.configure(Simulation::new(&Role::ALL, faults.0, faults.1));
        let (outcome, _) = simulation.run(&scenario.actions, None).await;
        differences.extend(scenario.differences(&outcome, false));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn every_scenario_converges_with_one_process_per_role_and_minimal_rbac() {
    let mut used: BTreeMap<(Role, DriverPlacement), BTreeSet<String>> = BTreeMap::new();
    let mut record_used = |simulation: &Simulation| {
        for UsedRules { roles, drivers, used: rules } in simulation.used_rules() {
            roles.into_iter().for_each(|role| used.entry((role, drivers)).or_default().extend(rules.clone()));
        }
    };
    let mut differences = Vec::new();
    for scenario in scenarios() {
        let simulation = simulation_with_long_watches(&scenario).with_process_per_role();
        let (outcome, _) = simulation.run(&scenario.actions, None).await;
        differences.extend(scenario.differences(&outcome, true));
        record_used(&simulation);
    }
    // The scenarios run without orphan scans, whose reports are written anew every hour.
    let simulation = Simulation::with_long_watches(&Role::ALL, Vec::new(), Vec::new())
        .with_orphan_scan()
        .with_process_per_role();
    let (outcome, _) = simulation.run(&[Wait(Duration::from_secs(3 * 3600))], None).await;
    differences.extend(outcome.violations);
    record_used(&simulation);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    // Every RBAC rule is used by a scenario.
    let mut unused = Vec::new();
    let provisioners = DriverPlacement::ALL.map(|drivers| (provisioner::ROLE, drivers));
    let others = [
        attacher::ROLE,
        resizer::ROLE,
        pv_controller::ROLE,
        protection::ROLE,
        attach_detach::ROLE,
        startup_taint::ROLE,
    ];
    let snapshot_roles = [snapshotter::ROLE, snapshot_controller::ROLE];
    // Their rules depend on the placement of the drivers, and a rule of several placements is used in one.
    for role in snapshot_roles {
        let of_role = |((other, _), _): &(&(Role, DriverPlacement), _)| *other == role;
        let rules = used.iter().filter(of_role).flat_map(|(_, rules)| rules.clone()).collect();
        used.extend(DriverPlacement::ALL.map(|drivers| ((role, drivers), BTreeSet::clone(&rules))));
    }
    let snapshot_roles =
        snapshot_roles.into_iter().flat_map(|role| DriverPlacement::ALL.map(|drivers| (role, drivers)));
    let others = others.map(|role| (role, DriverPlacement::ClusterWide));
    for (role, drivers) in provisioners.into_iter().chain(others).chain(snapshot_roles) {
        for rule in table::rbac_rules(&[role].into(), drivers) {
            for verb in &rule.verbs {
                let permission = format!("{verb} {}/{}", rule.group, rule.resource);
                // Any role may have to emit an event about an undecodable object, and to read what it writes.
                // Leases are the program's, which acquires them before it runs the controllers.
                let any_time = rule.resource == "events" || rule.is_for_leases() || *verb == "get";
                if !any_time && !used[&(role, drivers)].contains(&permission) {
                    unused.push(format!("{role}, drivers {drivers:?}: {permission}"));
                }
            }
        }
    }
    assert!(unused.is_empty(), "permissions that no scenario uses: {unused:#?}");
}

/// In a process of its own, the snapshotter does not have the class that the snapshot-controller has read.
#[tokio::test(start_paused = true)]
async fn a_late_watch_of_classes_fails_no_snapshot_with_one_process_per_role() {
    let late = |row: &Scenario| row.name.starts_with("class whose watch is late");
    let rows: Vec<_> = scenarios().into_iter().filter(late).collect();
    assert_eq!(rows.len(), 2);
    for scenario in rows {
        let simulation = simulation_with_long_watches(&scenario).with_process_per_role();
        let (outcome, _) = simulation.run(&scenario.actions, None).await;
        assert_eq!(scenario.differences(&outcome, false), [""; 0]);
    }
}

#[test]
fn every_scenario_converges_after_a_crash_at_any_step() {
    let crashes = run_crash_points_in_parallel(scenarios);
    assert!(crashes > 200, "only {crashes} crashes");
}

#[test]
fn every_scenario_converges_after_a_crash_between_reversed_writes() {
    let (mut crashes, mut differences) = (0, Vec::new());
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    for scenario in scenarios() {
        let run = |crash_after| {
            let simulation = simulation_with_long_watches(&scenario).with_reversed_writes();
            runtime.block_on(async { simulation.run(&scenario.actions, crash_after).await })
        };
        let (_, effects) = run(None);
        for crash_after in crash_points_of_concurrent_writes(&effects) {
            let (outcome, _) = run(Some(crash_after));
            let found = scenario.differences(&outcome, true);
            differences.extend(found.into_iter().map(|text| format!("crash after {crash_after}: {text}")));
            crashes += 1;
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(crashes > 50, "only {crashes} crashes");
}

/// Maximum number of effects from one of two concurrent writes to the other: events and the journal are
/// written at the same time.
const PAIR_DISTANCE: usize = 4;

/// Numbers of the effects, counted from 1, that are the first of two concurrent writes: the write of a claim
/// before that of the phase of its volume, or the removal of the finalizers of a PersistentVolume before its
/// deletion. Writes that are not concurrent have the other order.
fn crash_points_of_concurrent_writes(effects: &[Effect]) -> Vec<usize> {
    let of_volume = |write: &str| write.contains("/persistentvolumes/");
    let is_pair = |first: &Effect, second: &Effect| {
        let (Effect::Write(first), Effect::Write(second)) = (first, second) else { return false };
        let is_binding = first.starts_with("PATCH ")
            && first.contains("/persistentvolumeclaims/")
            && !first.ends_with("/status")
            && of_volume(second)
            && second.ends_with("/status");
        let is_deletion = first.strip_prefix("PATCH ").is_some_and(of_volume)
            && second.strip_prefix("DELETE ").is_some_and(of_volume);
        is_binding || is_deletion
    };
    let is_first = |index: &usize| {
        let rest = effects.get(*index..).and_then(<[Effect]>::split_first);
        rest.is_some_and(|(first, later)| {
            later.iter().take(PAIR_DISTANCE).any(|second| is_pair(first, second))
        })
    };
    (0..effects.len()).filter(is_first).map(|index| index + 1).collect()
}

#[test]
fn snapshots_that_are_ready_at_the_third_call_converge() {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    for row in polled_snapshots() {
        let (outcome, _) = runtime.block_on(run_scenario(&row, 0, None));
        assert_eq!(row.differences(&outcome, false), [""; 0]);
    }
    let crashes = run_crash_points_in_parallel(polled_snapshots);
    assert!(crashes > 200, "only {crashes} crashes");
}

#[test]
fn snapshots_are_deleted_in_every_order_of_deletions() {
    let orders = deletion_orders();
    let (policies, waits) = (2, 2);
    assert_eq!(orders.len(), (24 + 24 + 2) * policies * waits, "ready, not ready, and existing snapshots");
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    for row in &orders {
        let (outcome, _) = runtime.block_on(run_scenario(row, 0, None));
        assert_eq!(row.differences(&outcome, false), [""; 0], "{:?}", row.actions);
    }
    // A snapshot that is retained cannot leak.
    let deletes = |row: &Scenario| row.array_snapshots.is_empty();
    let crashes = run_crash_points_in_parallel(|| deletion_orders().into_iter().filter(deletes).collect());
    assert!(crashes > 1000, "only {crashes} crashes");
}

/// Crashes each scenario of a table after each effect. Returns the number of crashes.
fn run_crash_points_in_parallel(table: impl Fn() -> Vec<Scenario> + Sync) -> usize {
    let next = AtomicUsize::new(0);
    // Rows do not wait for each other and have their own clocks: one runs per processor.
    let work = || {
        let (table, mut crashes) = (table(), 0);
        while let Some(scenario) = table.get(next.fetch_add(1, Ordering::Relaxed)) {
            let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            crashes += runtime.block_on(run_every_crash_point(scenario));
        }
        crashes
    };
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    })
}

/// Distance between the effects of a row after which a process loses its Lease. Rows begin with different
/// effects.
const TERM_LOSS_DISTANCE: usize = 16;

#[tokio::test(start_paused = true)]
async fn every_scenario_converges_after_the_loss_of_the_lease() {
    let (mut losses, mut differences) = (0, Vec::new());
    for (row, scenario) in scenarios().iter().enumerate() {
        let run = async |lost_after| {
            let simulation = simulation_with_long_watches(scenario);
            simulation.with_term_loss().run(&scenario.actions, lost_after).await
        };
        let (_, effects) = run(None).await;
        for lost_after in (1 + row % TERM_LOSS_DISTANCE..=effects.len()).step_by(TERM_LOSS_DISTANCE) {
            let (outcome, _) = run(Some(lost_after)).await;
            let found = scenario.differences(&outcome, true);
            differences
                .extend(found.into_iter().map(|text| format!("lost after effect {lost_after}: {text}")));
            losses += 1;
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(losses > 200, "only {losses} losses");
}

/// Crashes a scenario after each effect and checks its final state. Returns the number of crashes.
async fn run_every_crash_point(scenario: &Scenario) -> usize {
    let mut crashes = 0;
    for crashing_process in 0..scenario.storage_nodes.len().max(1) {
        let (_, effects) = run_scenario(scenario, crashing_process, None).await;
        for crash_after in 1..=effects {
            let (outcome, _) = run_scenario(scenario, crashing_process, Some(crash_after)).await;
            let differences = scenario.differences(&outcome, true);
            assert_eq!(
                differences, [""; 0],
                "process {crashing_process} crashed after effect {crash_after} of {effects}: {:?}",
                outcome.calls
            );
            crashes += 1;
        }
    }
    // A node without effects cannot crash after one.
    assert!(
        crashes > 0 || !scenario.storage_nodes.is_empty(),
        "{} has no effect to crash after",
        scenario.name
    );
    crashes
}
