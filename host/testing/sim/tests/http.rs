//! The scenario table on the embedded API server over TLS and HTTP, in real time, many rows once more with a
//! crash, and repeated runs of two rows whose result depends on timing. Rows run concurrently, each on a
//! server of its own.

#![expect(clippy::unwrap_used, reason = "a test's helper fails with its test")]

use std::{collections::BTreeSet, sync::Arc};

use cofferdam_controllers::Role;
use cofferdam_sim::{
    EnvironmentKind, FinalState, HttpCluster, Scenario, Simulation, TestCluster as _, always_crashed,
    polled_snapshots_in_real_time, scenarios, skipped_count,
};
use futures::{StreamExt as _, stream};
use tokio::task::JoinSet;

/// Concurrent scenarios. A constant, so that the delays of the roles in real time do not depend on the size
/// of the table.
const CONCURRENCY: usize = 36;

/// Rows that run once more with a crash, besides [`always_crashed`].
const CRASHED_ROWS: usize = 60;
/// Environment variable with the seed of the rows and effects of the crashes.
const SEED_VARIABLE: &str = "SIM_HTTP_SEED";

/// Runs a scenario, and with `rng` once more with a crash of its first process after a random one of the
/// process's effects. There is no second run if this process has no effect.
async fn run_scenario((scenario, rng): (Scenario, Option<fastrand::Rng>)) -> Vec<String> {
    let (outcome, effects) = run(&scenario, None).await;
    let mut differences = scenario.real_time_differences(outcome, false);
    if let Some(mut rng) = rng.filter(|_| effects > 0) {
        let crash_after = rng.usize(1..=effects);
        let (outcome, _) = run(&scenario, Some(crash_after)).await;
        let crashed = scenario.real_time_differences(outcome, true).into_iter();
        differences
            .extend(crashed.map(|text| format!("crash after effect {crash_after} of {effects}: {text}")));
    }
    differences
}

async fn final_state(scenario: &Scenario) -> FinalState {
    run(scenario, None).await.0
}

/// Runs a scenario with a crash of the first process after this effect, counted from 1. Returns the final
/// state, and the number of effects of this process.
async fn run(scenario: &Scenario, crash_after: Option<usize>) -> (FinalState, usize) {
    let cluster = Arc::new(HttpCluster::start().await.unwrap());
    assert_eq!(cluster.environment(), EnvironmentKind::Http);
    let faults = (scenario.create_faults.clone(), scenario.delete_faults.clone());
    let simulation = Simulation::on_cluster(cluster, &Role::ALL, faults.0, faults.1).unwrap();
    let simulation = scenario.configure(simulation);
    let (outcome, effects) = simulation.run(&scenario.actions, crash_after).await;
    (outcome, effects.len())
}

/// A generator with the seed of [`SEED_VARIABLE`], or with a random one. Prints the seed.
fn seeded_rng() -> fastrand::Rng {
    let seed = std::env::var(SEED_VARIABLE).ok().map(|seed| seed.parse().unwrap());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    #[expect(clippy::print_stdout, reason = "the seed belongs to the output of a failed test")]
    {
        println!("again with {SEED_VARIABLE}={seed}");
    }
    fastrand::Rng::with_seed(seed)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_converges_over_http() {
    let (selected, skipped): (Vec<_>, Vec<_>) =
        scenarios().into_iter().partition(|scenario| scenario.skip_reason(EnvironmentKind::Http).is_none());
    assert_eq!(skipped.len(), skipped_count(EnvironmentKind::Http), "unexpected number of skipped scenarios");
    let mut rng = seeded_rng();
    let (always, others): (Vec<_>, Vec<_>) =
        selected.iter().map(|row| row.name).partition(|name| always_crashed().contains(name));
    let mut crashed: BTreeSet<&str> = rng.choose_multiple(others, CRASHED_ROWS).into_iter().collect();
    crashed.extend(always);
    let rows = selected.into_iter().map(|scenario| {
        let rng = Some(rng.fork()).filter(|_| crashed.contains(scenario.name));
        (scenario, rng)
    });
    let polled = polled_snapshots_in_real_time(EnvironmentKind::Http).into_iter().map(|row| (row, None));
    let rows = rows.chain(polled);
    let results = stream::iter(rows.collect::<Vec<_>>())
        .map(|scenario| tokio::spawn(run_scenario(scenario)))
        .buffer_unordered(CONCURRENCY);
    let found: Vec<Vec<String>> = results.map(Result::unwrap).collect().await;
    let differences = found.concat();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Two claims match one PersistentVolume, sixty times. The claim that loses the PersistentVolume is retried
/// and provisioned. Regression test: one claim in ten stayed Pending.
#[tokio::test(flavor = "multi_thread")]
async fn two_claims_for_one_volume_are_both_bound() {
    let row = || {
        scenarios().into_iter().find(|row| row.name.starts_with("two claims, one matching PersistentVolume"))
    };
    let mut runs: JoinSet<FinalState> =
        (0..60).map(|_| row().unwrap()).map(|row| async move { final_state(&row).await }).collect();
    while let Some(outcome) = runs.join_next().await {
        let outcome = outcome.unwrap();
        let (first, second) = (["a Bound v", "b Bound of-b"], ["a Bound of-a", "b Bound v"]);
        assert!(outcome.claims == first || outcome.claims == second, "{:?}", outcome.claims);
        assert_eq!((outcome.calls.len(), outcome.intents), (1, 0), "{:?}", outcome.calls);
        assert!(outcome.violations.is_empty(), "{:?}", outcome.violations);
    }
}

/// Two nodes with node-local storage compete for a claim with immediate binding, forty times. In each run
/// exactly one volume is created, and each node wins at least one run.
#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_compete_for_a_claim_and_create_one_volume() {
    let row = || {
        scenarios().into_iter().find(|row| row.name.starts_with("two nodes compete for an immediate claim"))
    };
    let mut runs: JoinSet<FinalState> =
        (0..40).map(|_| row().unwrap()).map(|row| async move { final_state(&row).await }).collect();
    let mut winners = [0, 0];
    while let Some(outcome) = runs.join_next().await {
        let outcome = outcome.unwrap();
        assert_eq!(outcome.claims, ["a Bound of-a"]);
        assert_eq!(
            (outcome.calls.len(), outcome.array_owners.len(), outcome.intents),
            (1, 1, 0),
            "{:?}",
            outcome.calls
        );
        assert!(outcome.violations.is_empty(), "{:?}", outcome.violations);
        winners[usize::from(outcome.array_owners == ["a on n2"])] += 1;
    }
    assert!(winners.iter().all(|times| *times > 0), "the same node always wins: {winners:?}");
}
