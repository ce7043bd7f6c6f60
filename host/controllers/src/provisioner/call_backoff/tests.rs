//! Tests of the back-off of CreateVolume calls.

use cofferdam_domain::storage::{CapacityRange, CreateVolume};

use super::*;
use crate::provisioner::mending;

const BACKOFF: ExponentialBackoff =
    ExponentialBackoff { initial: Duration::from_secs(1), max: Duration::from_secs(10) };

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// An intent of the claim with the UID `claim` for a volume of this size.
fn intent(claim: &str, size: u64) -> Intent {
    let intent = mending::tests::intent("fast");
    let capacity = CapacityRange { required: Some(size), limit: None };
    let request = CreateVolume { name: format!("pvc-{claim}"), capacity, ..intent.request.clone() };
    Intent { claim_uid: claim.into(), request, ..intent }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_waits_for_the_backoff() {
    let (calls, uid) = (CallBackoff::new(BACKOFF), Uid::from("a"));
    assert_eq!(calls.time_left(&uid), None, "before the first call");
    for delay in [1, 2, 4, 8, 10, 10] {
        calls.record_failure(&intent("a", 1), None);
        assert_eq!(calls.time_left(&uid), Some(seconds(delay)));
        assert_eq!(calls.time_left_for_new(&intent("a", 1)), Some(seconds(delay)), "the same request");
        assert_eq!(calls.time_left(&"b".into()), None, "another claim");
        tokio::time::advance(seconds(delay)).await;
        assert_eq!((calls.time_left(&uid), calls.time_left_for_new(&intent("a", 1))), (None, None));
    }
    calls.remove(&uid);
    calls.record_failure(&intent("a", 1), None);
    assert_eq!(calls.time_left(&uid), Some(seconds(1)));
    calls.clear();
    assert_eq!(calls.time_left(&uid), None);
}

#[tokio::test(start_paused = true)]
async fn one_new_request_is_sent_before_the_end_of_the_backoff() {
    let (calls, uid) = (CallBackoff::new(BACKOFF), Uid::from("a"));
    for _ in 0..3 {
        calls.record_failure(&intent("a", 1), None);
    }
    assert_eq!(calls.time_left_for_new(&intent("a", 2)), None, "the request has changed");
    assert_eq!(calls.time_left(&uid), None, "its intent is written");
    calls.record_failure(&intent("a", 2), None);
    for size in [1, 2, 3] {
        assert_eq!(calls.time_left_for_new(&intent("a", size)), Some(seconds(8)), "size {size}");
    }
    // The back-off before the new request had four seconds left.
    tokio::time::advance(seconds(4)).await;
    assert_eq!(calls.time_left_for_new(&intent("a", 2)), Some(seconds(4)));
    assert_eq!(calls.time_left_for_new(&intent("a", 3)), None);

    let mut recreated_class = intent("a", 3);
    recreated_class.class.uid = "recreated".into();
    calls.record_failure(&intent("a", 3), None);
    tokio::time::advance(seconds(4)).await;
    assert_eq!(calls.time_left_for_new(&recreated_class), None, "the class was created again");
}

#[tokio::test(start_paused = true)]
async fn the_driver_can_suggest_a_longer_delay() {
    let (calls, uid) = (CallBackoff::new(BACKOFF), Uid::from("a"));
    let suggested = [(Some(7), 7), (Some(1), 2), (Some(60), 10)];
    for (suggested, expected) in suggested {
        calls.record_failure(&intent("a", 1), suggested.map(seconds));
        assert_eq!(calls.time_left(&uid), Some(seconds(expected)));
    }
}

#[tokio::test(start_paused = true)]
async fn failures_expire() {
    let (calls, uid) = (CallBackoff::new(BACKOFF), Uid::from("a"));
    for _ in 0..3 {
        calls.record_failure(&intent("a", 1), None);
    }
    tokio::time::advance(seconds(4) + BACKOFF.max + seconds(1)).await;
    calls.record_failure(&intent("a", 1), None);
    assert_eq!(calls.time_left(&uid), Some(seconds(1)));

    for number in 0..PRUNE_THRESHOLD {
        calls.record_failure(&intent(&number.to_string(), 1), None);
    }
    tokio::time::advance(2 * BACKOFF.max).await;
    calls.record_failure(&intent("a", 1), None);
    assert_eq!(calls.claims.lock().len(), 1, "expired failures are removed");
}

#[tokio::test(start_paused = true)]
async fn the_other_request_of_an_intent_follows_at_once() {
    let (calls, uid) = (CallBackoff::new(BACKOFF), Uid::from("a"));
    assert_eq!(calls.last_request(&uid), None);
    for _ in 0..2 {
        assert!(!calls.has_existing_volume(&uid));
        calls.record_already_exists(&intent("a", 2));
        assert_eq!(calls.last_request(&uid), Some(request_digest(&intent("a", 2))));
        assert_eq!(calls.time_left(&uid), None);
        calls.record_failure(&intent("a", 1), None);
        assert_eq!(calls.last_request(&uid), Some(request_digest(&intent("a", 1))));
        assert!(calls.has_existing_volume(&uid), "the first request does not tell otherwise");
        calls.record_failure(&intent("a", 2), None);
    }
    assert_eq!(calls.time_left(&uid), Some(seconds(8)), "the failures are not forgotten");
    calls.remove(&uid);
    assert_eq!(calls.last_request(&uid), None);
}
