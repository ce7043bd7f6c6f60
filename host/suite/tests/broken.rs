//! Runs the suite on the test driver `broken`. Its setting `broken-rule` is the id of a case. The driver then
//! breaks the rule of this case, and the case and few others fail. Without the setting no case fails.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in what its functions share")]

mod common;

use std::collections::BTreeSet;

use cofferdam_fake_array::FakeArray;
use cofferdam_suite::{ConformanceCase, cases};
use cofferdam_wasm::Engine;
use futures::{StreamExt as _, future, stream};

/// Concurrent runs. A run mostly waits for its driver.
const CONCURRENT_RUNS: usize = 4;

/// Maximum failed cases per broken rule. With more, the driver would not show that the rule's case detects
/// it.
const MAX_FAILURES: usize = 5;

/// Additional settings that a case requires: a list of features without that of the case, a secret, a limit
/// of volumes per node, or a topology segment.
const EXTRA_SETTINGS: &[(&str, (&str, &str))] = &[
    ("expansion/offline-only", ("features", "publish-readonly published-nodes volume-condition")),
    ("features/published-nodes-unannounced", ("features", "volume-condition")),
    ("features/volume-condition-unannounced", ("features", "published-nodes")),
    ("errors/without-secrets", SECRET),
    ("errors/no-secrets", SECRET),
    ("publishing/node-full", VOLUMES_PER_NODE),
    ("topology/is-met", TOPOLOGY),
    ("topology/known-keys", TOPOLOGY),
    ("topology/unknown-segment", TOPOLOGY),
];

const SECRET: (&str, &str) = ("secret", "token");
const VOLUMES_PER_NODE: (&str, &str) = ("volumes-per-node", "3");
const TOPOLOGY: (&str, &str) = ("topology", "broken.example/zone=a");

/// Starts an HTTP server for the driver `broken`, which sends a request to it in each create. The driver
/// ignores the responses; a lost one is an error. Returns the server's URL and the server.
async fn start_server() -> (String, FakeArray) {
    FakeArray::start(([127, 0, 0, 1], 0).into()).await.unwrap()
}

/// Breaks the rule of a case, and runs the cases of its interface or topic. Returns a description if the case
/// did not fail, or if more than [`MAX_FAILURES`] cases did.
async fn check_broken_rule(engine: &Engine, url: &str, case: &ConformanceCase) -> Option<String> {
    let mut settings = vec![("broken-rule", case.id), ("url", url)];
    settings.extend(EXTRA_SETTINGS.iter().filter(|(id, _)| *id == case.id).map(|(_, setting)| *setting));
    let all = format!("{}/*", case.interface());
    let report = common::run_broken(engine, &settings, &[&all]).await;
    let failures = report.failures();
    let is_detected = failures.contains(&case.id) && failures.len() <= MAX_FAILURES;
    (!is_detected)
        .then(|| format!("--- {} is broken, failed are {failures:?}\n{}", case.id, report.to_text(false)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_fails_for_a_driver_that_breaks_its_rule() {
    let engine = common::engine();
    let (url, _array) = start_server().await;
    let runs = stream::iter(cases()).map(|case| check_broken_rule(&engine, &url, case));
    let undetected: Vec<_> = runs.buffer_unordered(CONCURRENT_RUNS).filter_map(future::ready).collect().await;
    assert!(undetected.is_empty(), "{}", undetected.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_correct_driver_passes_every_case() {
    let engine = common::engine();
    let (url, _array) = start_server().await;
    let full = common::run_broken(&engine, &[("url", &url)], &[]).await;
    assert!(full.is_passed(), "{}", full.to_text(false));
    assert_eq!(full.leftovers, [""; 0]);
    assert_eq!(full.keeps_owners, Some(true));
    let minimal =
        common::run_broken(&engine, &[("features", ""), TOPOLOGY, VOLUMES_PER_NODE, SECRET], &[]).await;
    assert!(minimal.is_passed(), "{}", minimal.to_text(false));
    let tried: BTreeSet<_> = [&full, &minimal]
        .into_iter()
        .flat_map(|report| &report.entries)
        .filter(|entry| matches!(entry.outcome, cofferdam_suite::CaseOutcome::Passed))
        .map(|entry| entry.case.id)
        .collect();
    assert_eq!(tried, cases().map(|case| case.id).collect(), "each case is tried at least once");
}

#[test]
fn ids_are_unique_and_rules_are_sentences() {
    let mut ids = BTreeSet::new();
    for case in cases() {
        assert!(ids.insert(case.id), "{} is there twice", case.id);
        assert!(case.id.contains('/') && case.rule.ends_with('.') && !case.source.is_empty(), "{}", case.id);
    }
    assert!(EXTRA_SETTINGS.iter().all(|(id, _)| ids.contains(id)));
}
