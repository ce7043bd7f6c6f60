//! Work queues and volume locks of the attacher: slow ControllerPublishVolume calls do not delay detaches,
//! and VolumeAttachments that wait for a call for the same volume occupy no worker.

#![expect(clippy::unwrap_used, reason = "a missing value fails the test")]

use std::{collections::BTreeSet, time::Duration};

use cofferdam_controllers::Role;
use cofferdam_sim::{
    DriverFault, PublishingBehavior, Simulation,
    UserAction::{self, Create, Delete, Settle},
    objects::{csi_node, volume, volume_attachment, with},
};
use serde_json::json;

const FIRST: &str = "/apis/storage.k8s.io/v1/volumeattachments/first";

fn simulation(faults: Vec<DriverFault>) -> Simulation {
    let publishing = PublishingBehavior { publish_faults: faults, ..PublishingBehavior::default() };
    Simulation::new(&Role::ALL, Vec::new(), Vec::new()).with_publishing(publishing, false)
}

async fn attached_status(simulation: &Simulation, name: &str) -> Option<bool> {
    let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}");
    simulation.object(&path).await?.pointer("/status/attached")?.as_bool()
}

async fn wait_for_attachment(simulation: &Simulation, name: &str) {
    while attached_status(simulation, name).await.is_none() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Returns the value of a metric, `length` or `age_seconds`, of one of the attacher's work queues.
fn queue_metric(simulation: &Simulation, metric: &str, queue: &str) -> f64 {
    let line =
        format!("cofferdam_attacher_queue_{metric}{{driver_name=\"sim.cofferdam.dev\",queue=\"{queue}\"}} ");
    let text = simulation.metrics();
    text.lines().find_map(|found| found.strip_prefix(&line)).unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn slow_publish_calls_do_not_delay_detach_and_show_queue_age() {
    let slow_calls = std::iter::repeat_n(DriverFault::Slow(Duration::from_secs(100)), 12);
    let simulation = simulation([DriverFault::Slow(Duration::ZERO)].into_iter().chain(slow_calls).collect());
    let mut actions: Vec<UserAction> = vec![
        Create(csi_node("n", "id")),
        Create(volume("v", "none", "1Gi")),
        Create(volume_attachment("first", "v", "n")),
        Settle,
    ];
    for number in 0..12 {
        let name = format!("slow-{number}");
        actions.extend([Create(volume(&name, "none", "1Gi")), Create(volume_attachment(&name, &name, "n"))]);
    }
    actions.extend([Delete(FIRST)]);
    let check = async {
        wait_for_attachment(&simulation, "slow-11").await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(attached_status(&simulation, "slow-0").await, Some(false), "the publish call is slow");
        assert_eq!(attached_status(&simulation, "first").await, None, "the volume is detached");
        assert!((12.0..=12.0).contains(&queue_metric(&simulation, "length", "attach")));
        assert!((29.0..=32.0).contains(&queue_metric(&simulation, "age_seconds", "attach")));
        assert!(queue_metric(&simulation, "length", "detach") < 0.5);
    };
    let ((outcome, _), ()) = tokio::join!(simulation.run(&actions, None), check);
    assert_eq!(outcome.violations, [""; 0]);
    assert_eq!(outcome.published.len(), 12);
    assert!(queue_metric(&simulation, "length", "attach") < 0.5);
    assert!(queue_metric(&simulation, "age_seconds", "attach") < 0.5);
}

#[tokio::test(start_paused = true)]
async fn attachments_waiting_for_a_volume_lock_occupy_no_workers() {
    let simulation = simulation(vec![DriverFault::Slow(Duration::from_secs(100))]);
    let shared = with(volume("v", "none", "1Gi"), &json!({"spec": {"accessModes": ["ReadWriteMany"]}}));
    let mut actions: Vec<UserAction> =
        vec![Create(csi_node("n", "id")), Create(shared), Create(volume("w", "none", "1Gi"))];
    for number in 0..30 {
        let node = format!("n-{number:02}");
        actions.extend([Create(csi_node(&node, &node)), Create(volume_attachment(&node, "v", &node))]);
    }
    actions.push(Create(volume_attachment("other", "w", "n")));
    let check = async {
        wait_for_attachment(&simulation, "other").await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(attached_status(&simulation, "n-29").await, Some(false), "it waits for the volume lock");
        assert_eq!(attached_status(&simulation, "other").await, Some(true));
    };
    let ((outcome, _), ()) = tokio::join!(simulation.run(&actions, None), check);
    assert_eq!(outcome.violations, [""; 0]);
    assert_eq!(outcome.published.len(), 31);
    let distinct_calls: BTreeSet<&String> = outcome.calls.iter().collect();
    assert_eq!(
        (outcome.calls.len(), distinct_calls.len()),
        (31, 31),
        "one call per attachment: {:?}",
        outcome.calls
    );
}
