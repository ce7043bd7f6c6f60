//! Intents whose requests get no final result: their metrics, and the pace of their calls after the claim is
//! deleted.

use cofferdam_controllers::Role;
use cofferdam_sim::{
    DriverFault, Simulation,
    UserAction::{Create, Delete, Repair, Until},
    WaitFor::CallsCompleted,
    objects::{claim, class},
};

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";

/// The value of a metric of the journal.
fn journal_metric(simulation: &Simulation, name: &str) -> f64 {
    let metrics = simulation.metrics();
    let prefix = format!("cofferdam_journal_{name}{{driver_name=\"sim.cofferdam.dev\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&prefix));
    value.and_then(|value| value.parse().ok()).unwrap_or(f64::NAN)
}

#[tokio::test(start_paused = true)]
async fn a_stuck_intent_of_a_deleted_claim_is_measured_and_retried_at_the_longest_backoff() {
    let simulation = Simulation::new(&Role::ALL, vec![DriverFault::LostResponse], Vec::new())
        .with_failing_tiers(&["fast"]);
    let actions =
        [Create(class("gold")), Create(claim("a", "gold")), Until(CallsCompleted(2)), Delete(CLAIM)];
    // The run ends an hour after the deletion.
    let (outcome, _) = simulation.run(&actions, None).await;
    assert_eq!((outcome.intents, outcome.array_owners), (1, vec!["gone".to_owned()]));
    // Two calls before the deletion, one at once, and one every 5 minutes.
    assert!((14..=15).contains(&outcome.calls.len()), "{} calls", outcome.calls.len());
    let metrics = ["intents", "stuck_intents"].map(|name| journal_metric(&simulation, name));
    assert_eq!(metrics, [1.0, 1.0], "{}", simulation.metrics());
    let age = journal_metric(&simulation, "oldest_intent_age_seconds");
    assert!((3_600.0..3_700.0).contains(&age), "{age} seconds");

    // The next process counts the intent from its start, with the same age.
    let (outcome, _) = simulation.run(&[], None).await;
    assert_eq!(outcome.intents, 1);
    assert_eq!(journal_metric(&simulation, "stuck_intents"), 1.0, "{}", simulation.metrics());

    let (outcome, _) = simulation.run(&[Repair], None).await;
    assert_eq!((outcome.intents, outcome.array_owners, outcome.violations), (0, Vec::new(), Vec::new()));
    let metrics = ["intents", "stuck_intents", "oldest_intent_age_seconds"];
    assert_eq!(metrics.map(|name| journal_metric(&simulation, name)), [0.0, 0.0, 0.0]);
}
