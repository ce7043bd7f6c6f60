//! The attacher's lanes and turns: what hangs holds up nothing else.

#![expect(clippy::unwrap_used, reason = "a test's helper fails with its test")]

use std::{collections::BTreeSet, time::Duration};

use cofferdam_controllers::Role;
use cofferdam_sim::{
    Fault, Publishing, Simulation,
    UserAction::{self, Create, Delete, Settle},
    objects::{attachment, csi_node, volume, with},
};
use serde_json::json;

const FIRST: &str = "/apis/storage.k8s.io/v1/volumeattachments/first";

fn simulation(faults: Vec<Fault>) -> Simulation {
    let publishing = Publishing { faults, ..Publishing::default() };
    Simulation::new(&Role::ALL, Vec::new(), Vec::new()).publishing(publishing, false)
}

async fn attached(simulation: &Simulation, name: &str) -> Option<bool> {
    let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}");
    simulation.object(&path).await?.pointer("/status/attached")?.as_bool()
}

async fn until_there(simulation: &Simulation, name: &str) {
    while attached(simulation, name).await.is_none() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// What a scrape shows of one lane.
fn scraped(simulation: &Simulation, metric: &str, lane: &str) -> f64 {
    let line =
        format!("cofferdam_attacher_queue_{metric}{{driver_name=\"sim.cofferdam.dev\",lane=\"{lane}\"}} ");
    let text = simulation.metrics();
    text.lines().find_map(|found| found.strip_prefix(&line)).unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn attachments_that_hang_hold_up_no_detaching_and_show_their_age() {
    let hangs = std::iter::repeat_n(Fault::Slow(Duration::from_secs(100)), 12);
    let simulation = simulation([Fault::Slow(Duration::ZERO)].into_iter().chain(hangs).collect());
    let mut user: Vec<UserAction> = vec![
        Create(csi_node("n", "id")),
        Create(volume("v", "none", "1Gi")),
        Create(attachment("first", "v", "n")),
        Settle,
    ];
    for number in 0..12 {
        let name = format!("slow-{number}");
        user.extend([Create(volume(&name, "none", "1Gi")), Create(attachment(&name, &name, "n"))]);
    }
    user.extend([Delete(FIRST)]);
    let look = async {
        until_there(&simulation, "slow-11").await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(attached(&simulation, "slow-0").await, Some(false), "it hangs");
        assert_eq!(attached(&simulation, "first").await, None, "it has left");
        assert!((12.0..=12.0).contains(&scraped(&simulation, "length", "attach")));
        assert!((29.0..=32.0).contains(&scraped(&simulation, "age_seconds", "attach")));
        assert!(scraped(&simulation, "length", "detach") < 0.5);
    };
    let ((outcome, _), ()) = tokio::join!(simulation.play(&user, None), look);
    assert_eq!(outcome.faults, [""; 0]);
    assert_eq!(outcome.published.len(), 12);
    assert!(scraped(&simulation, "length", "attach") < 0.5);
    assert!(scraped(&simulation, "age_seconds", "attach") < 0.5);
}

#[tokio::test(start_paused = true)]
async fn attachments_that_wait_for_their_turn_at_a_volume_take_no_workers() {
    let simulation = simulation(vec![Fault::Slow(Duration::from_secs(100))]);
    let shared = with(volume("v", "none", "1Gi"), &json!({"spec": {"accessModes": ["ReadWriteMany"]}}));
    let mut user: Vec<UserAction> =
        vec![Create(csi_node("n", "id")), Create(shared), Create(volume("w", "none", "1Gi"))];
    for number in 0..30 {
        let node = format!("n-{number:02}");
        user.extend([Create(csi_node(&node, &node)), Create(attachment(&node, "v", &node))]);
    }
    user.push(Create(attachment("other", "w", "n")));
    let look = async {
        until_there(&simulation, "other").await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(attached(&simulation, "n-29").await, Some(false), "it is not its turn");
        assert_eq!(attached(&simulation, "other").await, Some(true));
    };
    let ((outcome, _), ()) = tokio::join!(simulation.play(&user, None), look);
    assert_eq!(outcome.faults, [""; 0]);
    assert_eq!(outcome.published.len(), 31);
    let asked: BTreeSet<&String> = outcome.calls.iter().collect();
    assert_eq!((outcome.calls.len(), asked.len()), (31, 31), "each was asked for once: {:?}", outcome.calls);
}
