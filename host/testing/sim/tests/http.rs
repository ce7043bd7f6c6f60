//! The scenario table on the embedded API behind TLS and HTTP, on real time: many rows at once, each on a server of its own.

#![expect(clippy::unwrap_used, reason = "a test's helper fails with its test")]

use std::sync::Arc;

use cofferdam_controllers::Role;
use cofferdam_sim::{Ground as _, Outcome, OverHttp, Place, Scenario, Simulation, scenarios, unplayed};
use futures::{StreamExt as _, stream};
use tokio::task::JoinSet;

/// Scenarios that are played at once: what a role waits for in real time must not depend on how many rows the table has.
const AT_ONCE: usize = 48;

async fn play(scenario: Scenario) -> Vec<String> {
    let outcome = outcome(&scenario).await;
    scenario.differences(&outcome, false)
}

async fn outcome(scenario: &Scenario) -> Outcome {
    let ground = Arc::new(OverHttp::start().await.unwrap());
    assert_eq!(ground.place(), Place::Http);
    let faults = (scenario.create_faults.clone(), scenario.delete_faults.clone());
    let simulation = Simulation::on(ground, &Role::ALL, faults.0, faults.1).unwrap();
    let simulation = scenario.with_driver(simulation);
    simulation.play(&scenario.user, None).await.0
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_ends_as_it_should_over_http() {
    let (able, unable): (Vec<_>, Vec<_>) =
        scenarios().into_iter().partition(|scenario| scenario.refused_by(Place::Http).is_none());
    assert_eq!(unable.len(), unplayed(Place::Http), "what cannot be played here is known");
    let playing = stream::iter(able).map(|scenario| tokio::spawn(play(scenario))).buffer_unordered(AT_ONCE);
    let found: Vec<Vec<String>> = playing.map(Result::unwrap).collect().await;
    let differences = found.concat();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Who is decided at the same time as another, and loses, is not forgotten: seen as one claim in ten that stayed Pending.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_claims_for_one_volume_both_get_one() {
    let race = || scenarios().into_iter().find(|row| row.name.starts_with("two claims, one free volume"));
    let mut playing: JoinSet<Outcome> =
        (0..60).map(|_| race().unwrap()).map(|race| async move { outcome(&race).await }).collect();
    while let Some(outcome) = playing.join_next().await {
        let outcome = outcome.unwrap();
        let (first, second) = (["a Bound v", "b Bound of-b"], ["a Bound of-a", "b Bound v"]);
        assert!(outcome.claims == first || outcome.claims == second, "{:?}", outcome.claims);
        assert_eq!((outcome.calls.len(), outcome.intents), (1, 0), "{:?}", outcome.calls);
        assert!(outcome.faults.is_empty(), "{:?}", outcome.faults);
    }
}

/// Whoever of two nodes is the first at a claim, there is one volume.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_nodes_one_makes_the_volume() {
    let race = || scenarios().into_iter().find(|row| row.name.starts_with("two nodes race for a claim"));
    let mut playing: JoinSet<Outcome> =
        (0..40).map(|_| race().unwrap()).map(|race| async move { outcome(&race).await }).collect();
    let mut firsts = [0, 0];
    while let Some(outcome) = playing.join_next().await {
        let outcome = outcome.unwrap();
        assert_eq!(outcome.claims, ["a Bound of-a"]);
        assert_eq!(
            (outcome.calls.len(), outcome.array.len(), outcome.intents),
            (1, 1, 0),
            "{:?}",
            outcome.calls
        );
        assert!(outcome.faults.is_empty(), "{:?}", outcome.faults);
        firsts[usize::from(outcome.array == ["a on n2"])] += 1;
    }
    assert!(firsts.iter().all(|times| *times > 0), "the same node is always the first: {firsts:?}");
}
