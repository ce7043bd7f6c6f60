//! Events of claims that wait are repeated each half hour, because kube-apiserver keeps events for an hour:
//! `kubectl describe` always shows why a claim waits.

#![expect(clippy::unwrap_used, reason = "a missing value fails the test")]

use std::time::Duration;

use cofferdam_controllers::Role;
use cofferdam_sim::{
    Simulation,
    UserAction::{self, Create, Settle},
    objects::{claim, class, volume, with},
};
use serde_json::{Value, json};

/// Time for which kube-apiserver keeps an event (its default `--event-ttl`).
const EVENT_TTL: Duration = Duration::from_secs(3600);

/// Age of the newest event of the object with this reason at the end of a run of three hours.
async fn age_of_event(actions: Vec<UserAction>, object: &str, reason: &str) -> Option<Duration> {
    let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new());
    let actions: Vec<UserAction> = actions.into_iter().chain([Settle, Settle]).collect();
    let (outcome, _) = simulation.run(&actions, None).await;
    assert_eq!(outcome.violations, [""; 0], "{reason}");
    let events = simulation.object("/api/v1/namespaces/default/events").await.unwrap();
    let times =
        events.pointer("/items").and_then(Value::as_array).into_iter().flatten().filter_map(|event| {
            let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let is_wanted = text("/involvedObject/name") == object && text("/reason") == reason;
            is_wanted.then(|| text("/lastTimestamp").parse::<jiff::Timestamp>().unwrap())
        });
    let newest = times.max()?;
    Some(Duration::try_from(simulation.now() - newest).unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn a_waiting_claim_has_a_recent_event_three_hours_later() {
    let with_class = |class: Value| vec![Create(class), Create(claim("a", "gold"))];
    let delayed = with(class("gold"), &json!({"volumeBindingMode": "WaitForFirstConsumer"}));
    let external = with(class("gold"), &json!({"provisioner": "other.example.com"}));
    let populated = with(
        claim("a", "gold"),
        &json!({"spec": {"dataSourceRef": {"apiGroup": "example.com", "kind": "Image", "name": "x"}}}),
    );
    let named = with(claim("a", ""), &json!({"spec": {"volumeName": "v"}}));
    let block = with(claim("a", ""), &json!({"spec": {"volumeMode": "Block"}}));
    #[rustfmt::skip] // one row per event
    let table = [
        ("WaitForFirstConsumer", with_class(delayed)),
        ("ExternalProvisioning", with_class(external)),
        ("ProvisioningFailed", vec![Create(claim("a", "gold"))]),
        ("FailedBinding", vec![Create(claim("a", ""))]),
        ("FailedBinding", vec![Create(volume("v", "", "1Gi")), Create(block)]),
        ("VolumeMismatch", vec![Create(volume("v", "", "1Mi")), Create(named)]),
        ("Provisioning", vec![Create(class("gold")), Create(populated)]),
    ];
    for (reason, actions) in table {
        let age = age_of_event(actions, "a", reason).await;
        assert!(age.is_some_and(|age| age < EVENT_TTL), "{reason}: {age:?}");
    }
}
