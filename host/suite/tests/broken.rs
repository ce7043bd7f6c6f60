//! The suite is proved by drivers that break one rule each: no case that cannot fail, and none that fails for another's sake.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in what its functions share")]

mod common;

use std::collections::BTreeSet;

use cofferdam_fake_array::FakeArray;
use cofferdam_suite::{Case, cases};
use cofferdam_wasm::Engine;
use futures::{StreamExt as _, future, stream};

/// Runs at once: a run mostly waits for its driver's turns.
const AT_ONCE: usize = 4;

/// Most cases of one interface that a breakage may fail: one that fails everything proves nothing of one rule.
const MOST: usize = 5;

/// What a driver must be told beside its breakage for a case to be tried: features that it lacks, a place.
const TOLD: &[(&str, (&str, &str))] = &[
    ("expansion/offline-only", ("features", "publish-readonly published-nodes volume-condition")),
    ("features/published-nodes-unannounced", ("features", "volume-condition")),
    ("features/volume-condition-unannounced", ("features", "published-nodes")),
    ("errors/without-secrets", SECRET),
    ("publishing/node-full", FEW),
    ("topology/is-met", PLACE),
    ("topology/known-keys", PLACE),
    ("topology/nowhere", PLACE),
];

const SECRET: (&str, &str) = ("secret", "token");
const FEW: (&str, &str) = ("per-node", "3");
const PLACE: (&str, &str) = ("topology", "broken.example/zone=a");

/// A server for drivers that ask one. What it answers does not matter to them.
async fn server() -> (String, FakeArray) {
    FakeArray::start(([127, 0, 0, 1], 0).into()).await.unwrap()
}

/// Breaks the rule of a case, and runs the cases of its interface. Tells what is wrong with what the suite saw.
async fn see(engine: &Engine, url: &str, case: &Case) -> Option<String> {
    let mut settings = vec![("break", case.id), ("url", url)];
    settings.extend(TOLD.iter().filter(|(id, _)| *id == case.id).map(|(_, told)| *told));
    let all = format!("{}/*", case.interface());
    let report = common::broken(engine, &settings, &[&all]).await;
    let failures = report.failures();
    let seen = failures.contains(&case.id) && failures.len() <= MOST;
    (!seen).then(|| format!("--- {} is broken, failed are {failures:?}\n{}", case.id, report.to_text(false)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_can_be_broken_and_the_suite_sees_which() {
    let engine = common::engine();
    let (url, _array) = server().await;
    let runs = stream::iter(cases()).map(|case| see(&engine, &url, case));
    let wrong: Vec<_> = runs.buffer_unordered(AT_ONCE).filter_map(future::ready).collect().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_does_all_right_passes_every_case() {
    let engine = common::engine();
    let (url, _array) = server().await;
    let all = common::broken(&engine, &[("url", &url)], &[]).await;
    assert!(all.passed(), "{}", all.to_text(false));
    assert_eq!(all.left, [""; 0]);
    assert_eq!(all.keeps_owners, Some(true));
    let few = common::broken(&engine, &[("features", ""), PLACE, FEW, SECRET], &[]).await;
    assert!(few.passed(), "{}", few.to_text(false));
    let tried: BTreeSet<_> = [&all, &few]
        .into_iter()
        .flat_map(|report| &report.entries)
        .filter(|entry| matches!(entry.verdict, cofferdam_suite::Verdict::Passed))
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
    assert!(TOLD.iter().all(|(id, _)| ids.contains(id)));
}
