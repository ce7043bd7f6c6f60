//! The scenario table on the embedded API in this process, on paused time.
//!
//! Every scenario is played twice. Once as it stands; and once for each of its effects with a process that is
//! killed after it, the answer lost, and another one that starts on what is there: the same objects must come
//! out, with no volume leaked, lost or asked for in two ways.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use cofferdam_controllers::{
    Role, attach_detach, attacher, protection, provisioner, pv_controller,
    rbac::{self, DriverPlacement},
    resizer,
};
use cofferdam_sim::{FinalState, Scenario, Simulation, UsedRules, scenarios};
use tokio::runtime::Builder;

/// Of a scenario on several nodes, `mortal` says which of their processes may die.
async fn run_scenario(
    scenario: &Scenario,
    crashing_process: usize,
    crash_after: Option<usize>,
) -> (FinalState, usize) {
    let simulation =
        Simulation::new(&Role::ALL, scenario.create_faults.clone(), scenario.delete_faults.clone());
    let simulation = scenario.configure(simulation).with_crashing_process(crashing_process);
    let (outcome, effects) = simulation.run(&scenario.actions, crash_after).await;
    (outcome, effects.len())
}

#[tokio::test(start_paused = true)]
async fn every_scenario_converges() {
    let mut differences = Vec::new();
    for scenario in scenarios() {
        let (outcome, _) = run_scenario(&scenario, 0, None).await;
        differences.extend(scenario.differences(&outcome, false));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn every_scenario_converges_with_one_process_per_role_and_minimal_rbac() {
    let mut used: BTreeMap<(Role, DriverPlacement), BTreeSet<String>> = BTreeMap::new();
    for scenario in scenarios() {
        let faults = (scenario.create_faults.clone(), scenario.delete_faults.clone());
        let simulation =
            scenario.configure(Simulation::new(&Role::ALL, faults.0, faults.1)).with_process_per_role();
        let (outcome, _) = simulation.run(&scenario.actions, None).await;
        assert_eq!(scenario.differences(&outcome, true), [""; 0]);
        for UsedRules { roles, drivers, used: rules } in simulation.used_rules() {
            roles.into_iter().for_each(|role| used.entry((role, drivers)).or_default().extend(rules.clone()));
        }
    }
    // And no rule is there for nothing.
    let mut unused = Vec::new();
    let provisioners = DriverPlacement::ALL.map(|drivers| (provisioner::ROLE, drivers));
    let others = [attacher::ROLE, resizer::ROLE, pv_controller::ROLE, protection::ROLE, attach_detach::ROLE];
    let others = others.map(|role| (role, DriverPlacement::ClusterWide));
    for (role, drivers) in provisioners.into_iter().chain(others) {
        for rule in rbac::rules(&[role].into(), drivers) {
            for verb in rule.verbs {
                let permission = format!("{verb} {}/{}", rule.group, rule.resource);
                // Whatever a role does, it may have to tell of an object that it cannot read, and to read
                // anew what it writes.
                let any_time = rule.resource == "events" || verb == "get";
                if !any_time && !used[&(role, drivers)].contains(&permission) {
                    unused.push(format!("{role}, drivers {drivers:?}: {permission}"));
                }
            }
        }
    }
    assert!(unused.is_empty(), "rights that no scenario uses: {unused:#?}");
}

#[test]
fn every_scenario_converges_after_a_crash_at_any_step() {
    let next = AtomicUsize::new(0);
    // A row waits for nobody and has a clock of its own, so that as many are played at once as there are
    // processors.
    let work = || {
        let (table, mut crashes) = (scenarios(), 0);
        while let Some(scenario) = table.get(next.fetch_add(1, Ordering::Relaxed)) {
            let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            crashes += runtime.block_on(run_every_crash_point(scenario));
        }
        crashes
    };
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let crashes: usize = thread::scope(|scope| {
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert!(crashes > 200, "only {crashes} deaths were died");
}

/// How many deaths a scenario has; each has to end as it should.
async fn run_every_crash_point(scenario: &Scenario) -> usize {
    let mut crashes = 0;
    for crashing_process in 0..scenario.storage_nodes.len().max(1) {
        let (_, effects) = run_scenario(scenario, crashing_process, None).await;
        for crash_after in 1..=effects {
            let (outcome, _) = run_scenario(scenario, crashing_process, Some(crash_after)).await;
            let differences = scenario.differences(&outcome, true);
            assert_eq!(
                differences, [""; 0],
                "process {crashing_process} killed after effect {crash_after} of {effects}: {:?}",
                outcome.calls
            );
            crashes += 1;
        }
    }
    // Where nothing is to be done by a node, nobody can die by it.
    assert!(
        crashes > 0 || !scenario.storage_nodes.is_empty(),
        "{} has no effect to die after",
        scenario.name
    );
    crashes
}
