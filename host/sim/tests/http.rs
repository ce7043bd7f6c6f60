//! The scenario table on the embedded API behind TLS and HTTP, on real time: all rows at once, each on a server of its own.

#![expect(clippy::unwrap_used, reason = "a test's helper fails with its test")]

use std::sync::Arc;

use cofferdam_roles::Role;
use cofferdam_sim::{Ground as _, OverHttp, Place, Scenario, Simulation, scenarios};
use tokio::task::JoinSet;

async fn play(scenario: Scenario) -> Vec<String> {
    let ground = Arc::new(OverHttp::start().await.unwrap());
    assert_eq!(ground.place(), Place::Http);
    let faults = (scenario.create_faults.clone(), scenario.delete_faults.clone());
    let simulation = Simulation::on(ground, &Role::ALL, faults.0, faults.1).unwrap();
    let simulation = scenario.with_driver(simulation);
    let (outcome, _) = simulation.play(&scenario.user, None).await;
    scenario.differences(&outcome, false)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_ends_as_it_should_over_http() {
    let (able, unable): (Vec<_>, Vec<_>) =
        scenarios().into_iter().partition(|scenario| scenario.refused_by(Place::Http).is_none());
    assert_eq!(unable.len(), 4, "what cannot be played here is known, with the reason in the table");
    let mut playing: JoinSet<Vec<String>> = able.into_iter().map(play).collect();
    let mut differences = Vec::new();
    while let Some(found) = playing.join_next().await {
        differences.extend(found.unwrap());
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
