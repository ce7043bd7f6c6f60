//! The scenario table on the embedded API in this process, on paused time.
//!
//! Every scenario is played twice. Once as it stands; and once for each of its effects with a process that is killed after it,
//! the answer lost, and another one that starts on what is there: the same objects must come out, with no volume leaked, lost or
//! asked for in two ways.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use cofferdam_controllers::{
    Role,
    rbac::{self, Drivers},
};
use cofferdam_sim::{Outcome, Scenario, Simulation, UsedRules, scenarios};
use tokio::runtime::Builder;

/// Of a scenario on several nodes, `mortal` says which of their processes may die.
async fn play(scenario: &Scenario, mortal: usize, die_after: Option<usize>) -> (Outcome, usize) {
    let simulation =
        Simulation::new(&Role::ALL, scenario.create_faults.clone(), scenario.delete_faults.clone());
    let simulation = scenario.with_driver(simulation).mortal(mortal);
    let (outcome, effects) = simulation.play(&scenario.user, die_after).await;
    (outcome, effects.len())
}

#[tokio::test(start_paused = true)]
async fn every_scenario_ends_as_it_should() {
    let mut differences = Vec::new();
    for scenario in scenarios() {
        let (outcome, _) = play(&scenario, 0, None).await;
        differences.extend(scenario.differences(&outcome, false));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn every_scenario_ends_so_with_a_process_for_each_role_and_its_rules_alone() {
    let mut used: BTreeMap<(Role, Drivers), BTreeSet<String>> = BTreeMap::new();
    for scenario in scenarios() {
        let faults = (scenario.create_faults.clone(), scenario.delete_faults.clone());
        let simulation = scenario.with_driver(Simulation::new(&Role::ALL, faults.0, faults.1)).apart();
        let (outcome, _) = simulation.play(&scenario.user, None).await;
        assert_eq!(scenario.differences(&outcome, true), [""; 0]);
        for UsedRules { roles, drivers, used: rules } in simulation.used_rules() {
            roles.into_iter().for_each(|role| used.entry((role, drivers)).or_default().extend(rules.clone()));
        }
    }
    // And no rule is there for nothing.
    let mut idle = Vec::new();
    let provisioners = Drivers::ALL.map(|drivers| (Role::Provisioner, drivers));
    let others = [Role::Attacher, Role::Resizer, Role::PvController, Role::Protection, Role::AttachDetach];
    let others = others.map(|role| (role, Drivers::Anywhere));
    for (role, drivers) in provisioners.into_iter().chain(others) {
        for rule in rbac::rules(&[role].into(), drivers) {
            for verb in rule.verbs {
                let right = format!("{verb} {}/{}", rule.group, rule.resource);
                // Whatever a role does, it may have to tell of an object that it cannot read, and to read anew what it writes.
                let any_time = rule.resource == "events" || verb == "get";
                if !any_time && !used[&(role, drivers)].contains(&right) {
                    idle.push(format!("{role}, drivers {drivers:?}: {right}"));
                }
            }
        }
    }
    assert!(idle.is_empty(), "rights that no scenario uses: {idle:#?}");
}

#[test]
fn every_scenario_ends_so_wherever_the_process_dies() {
    let next = AtomicUsize::new(0);
    // A row waits for nobody and has a clock of its own, so that as many are played at once as there are processors.
    let work = || {
        let (table, mut deaths) = (scenarios(), 0);
        while let Some(scenario) = table.get(next.fetch_add(1, Ordering::Relaxed)) {
            let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            deaths += runtime.block_on(every_death(scenario));
        }
        deaths
    };
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let deaths: usize = thread::scope(|scope| {
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert!(deaths > 200, "only {deaths} deaths were died");
}

/// How many deaths a scenario has; each has to end as it should.
async fn every_death(scenario: &Scenario) -> usize {
    let mut deaths = 0;
    for mortal in 0..scenario.nodes.len().max(1) {
        let (_, effects) = play(scenario, mortal, None).await;
        for n in 1..=effects {
            let (outcome, _) = play(scenario, mortal, Some(n)).await;
            let differences = scenario.differences(&outcome, true);
            assert_eq!(
                differences, [""; 0],
                "process {mortal} killed after effect {n} of {effects}: {:?}",
                outcome.calls
            );
            deaths += 1;
        }
    }
    // Where nothing is to be done by a node, nobody can die by it.
    assert!(deaths > 0 || !scenario.nodes.is_empty(), "{} has no effect to die after", scenario.name);
    deaths
}
