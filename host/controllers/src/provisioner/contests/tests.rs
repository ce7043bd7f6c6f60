//! Tests of the competition of nodes for claims without a selected node.

use super::*;

#[test]
fn attempt_delays_are_spread_and_double() {
    let seconds = |from: u64, to: u64| Duration::from_secs(from)..=Duration::from_secs(to);
    let mut first = Vec::new();
    for number in 0..200 {
        let deployment = NodeDeployment::new(format!("node-{number}").into());
        let at = |attempt| attempt_delay(&deployment, &"uid".into(), attempt);
        assert!(seconds(0, 20).contains(&at(0)) && seconds(20, 40).contains(&at(1)), "{:?}", (at(0), at(1)));
        for later in [2, 3, 31, u32::MAX] {
            assert!(seconds(40, 60).contains(&at(later)), "{later}: {:?}", at(later));
        }
        assert_eq!(at(0), at(0));
        first.push(at(0));
    }
    first.sort();
    for (part, delay) in [(40, 4), (80, 8), (120, 12), (160, 16)] {
        let found = first[part].as_secs_f64();
        assert!((found - f64::from(delay)).abs() < 2.0, "{part} of 200 delays are below {found} s");
    }
    first.dedup();
    assert!(first.len() > 150, "only {} pauses differ", first.len());
}

#[tokio::test(start_paused = true)]
async fn the_next_attempt_comes_after_a_longer_delay() {
    let deployment = NodeDeployment::new("n1".into());
    let (mut contests, uid) = (ImmediateBindingContests::default(), Uid::from("uid"));
    let first = contests.next_attempt(&deployment, &uid).unwrap();
    assert_eq!(first, attempt_delay(&deployment, &uid, 0));
    tokio::time::advance(first / 2).await;
    assert_eq!(
        contests.next_attempt(&deployment, &uid),
        Some(first - first / 2),
        "an early attempt does not extend the delay"
    );
    tokio::time::advance(first).await;
    assert_eq!(contests.next_attempt(&deployment, &uid), None);
    assert_eq!(contests.time_left(&uid), attempt_delay(&deployment, &uid, 1));
    assert!(contests.warn_once(&uid) && !contests.warn_once(&uid));
    contests.retry_now(&uid);
    assert_eq!(
        contests.next_attempt(&deployment, &uid),
        None,
        "another client has written the claim without selecting a node"
    );
    contests.remove(&uid);
    assert_eq!(contests.next_attempt(&deployment, &uid), Some(first));
}
