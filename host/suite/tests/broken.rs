//! The suite is proved by drivers that break one rule each: no case that cannot fail, and none that fails for another's sake.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_suite::cases;
use futures::{StreamExt as _, stream};

/// Runs at once: a run mostly waits for its driver's turns.
const AT_ONCE: usize = 4;

/// What else fails with a breakage, because nobody can break the one without the other.
const ALSO: &[(&str, &[&str])] = &[
    // The host refuses these answers itself, and that is a defect of the driver.
    ("capacity/sane", &["errors/no-defects", "capacity/maximum-is-true"]),
    ("listing/limit", &["errors/no-defects", "listing/each-once"]),
    ("snapshots/list-filter", &["errors/no-defects"]),
    // What listing and inspection say differs from what the creation said, and so from one another.
    ("listing/equals-create", &["inspection/agrees-with-listing"]),
    ("inspection/equals-create", &["inspection/agrees-with-listing"]),
    // What is not deleted is left.
    ("volumes/delete-deletes", &["cleanup/nothing-is-left"]),
    ("snapshots/delete-deletes", &["cleanup/nothing-is-left"]),
    ("listing/forgets-deleted", &["cleanup/nothing-is-left"]),
    // What a call that died has begun is left.
    ("deadlines/hurried-create", &["cleanup/nothing-is-left"]),
    ("crashes/create", &["cleanup/nothing-is-left"]),
    ("crashes/delete", &["cleanup/nothing-is-left"]),
    ("crashes/clone", &["cleanup/nothing-is-left"]),
    ("crashes/snapshot", &["cleanup/nothing-is-left"]),
    ("crashes/expand", &["cleanup/nothing-is-left"]),
    // An error that is not final where it should be is no refusal either.
    ("errors/final-kinds-are-final", &["volumes/validate-missing"]),
];

/// Features of a driver for the cases that are about lacking one.
const WITHOUT: &[(&str, &str)] =
    &[("expansion/offline-only", "publish-readonly published-nodes volume-condition single-node-multi-writer")];

fn of<'a, T: Copy>(table: &[(&str, T)], id: &'a str) -> Option<T> {
    table.iter().find(|(key, _)| *key == id).map(|(_, value)| *value)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_can_be_broken_and_the_suite_sees_which() {
    let engine = common::engine();
    let runs = stream::iter(cases()).map(|case| {
        let engine = &engine;
        async move {
            let mut settings = vec![("break", case.id)];
            settings.extend(of(WITHOUT, case.id).map(|features| ("features", features)));
            (case.id, common::broken(engine, &settings, &[]).await)
        }
    });
    let reports: Vec<_> = runs.buffer_unordered(AT_ONCE).collect().await;
    let mut wrong = BTreeMap::new();
    for (id, report) in &reports {
        let also = of(ALSO, id).unwrap_or_default();
        let expected: BTreeSet<_> = also.iter().copied().chain([*id]).collect();
        let failures: BTreeSet<_> = report.failures().into_iter().collect();
        if failures != expected {
            wrong.insert(*id, (expected, failures, report.to_text(false)));
        }
    }
    for (id, (expected, failures, text)) in &wrong {
        println!("--- {id}: expected {expected:?}, found {failures:?}\n{text}");
    }
    let summary: Vec<_> = wrong.iter().map(|(id, (_, failures, _))| format!("{id}: {failures:?}")).collect();
    assert!(wrong.is_empty(), "{}", summary.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_does_all_right_passes_every_case() {
    let engine = common::engine();
    let all = common::broken(&engine, &[], &[]).await;
    assert!(all.passed(), "{}", all.to_text(false));
    assert_eq!(all.left, [""; 0]);
    assert_eq!(all.keeps_owners, Some(true));
    let few = common::broken(&engine, &[("features", "")], &[]).await;
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
    for (id, also) in ALSO {
        assert!(ids.contains(id) && also.iter().all(|other| ids.contains(other)), "{id}: {also:?}");
    }
}
