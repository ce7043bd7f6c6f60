//! The report in its three formats.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, also in what its functions share"
)]

mod common;

use std::time::Duration;

use cofferdam_suite::{CaseOutcome, SuiteOptions, SuiteReport, run};
use cofferdam_wasm::ComponentSource;

async fn broken_driver_report() -> SuiteReport {
    let settings = [("broken-rule", "volumes/size-in-range"), ("features", "")];
    common::run_broken(&common::engine(), &settings, &["identity", "volumes/size", "features/volume"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_report_shows_rule_expected_and_found() {
    let report = broken_driver_report().await;
    assert!(!report.is_passed());
    assert_eq!((report.totals(), report.failures()), ((4, 1, 2), vec!["volumes/size-in-range"]));
    let text = report.to_text(false);
    for expected in [
        "seed          0\nbroken.example 1  (broken.wasm)",
        "  interfaces  cloning, restoring, publishing, ",
        "  features    none",
        "\nidentity\n  passed  loads\n",
        "  FAILED  size-in-range\n            rule      A volume has at least the required size and at most \
         the limit.",
        "            called    volumes.create(\"cofferdam-test-00000000-ranged-0\", at least 1048576 bytes, \
         for single-node-writer filesystem) → success: CreatedVolume {",
        "            expected  at least 1048576 bytes, at most 4194304 bytes\n",
        "            found     8388608 bytes\n            rerun     cofferdam backend test --only \
         volumes/size-in-range --seed 0\n",
        "  skipped volume-condition: the driver does not name the feature `volume-condition`\n",
        "\n4 passed, 1 failed, 2 skipped\n",
        "leak detection: unknown",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in\n{text}");
    }
    assert!(!text.contains('\u{1b}'));
    assert!(report.to_text(true).contains("\u{1b}[31mFAILED \u{1b}[0m size-in-range"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_and_junit_reports_agree() {
    let report = broken_driver_report().await;
    let json = report.to_json();
    assert_eq!((&json["passed"], &json["failed"], &json["skipped"]), (&4.into(), &1.into(), &2.into()));
    assert_eq!(json["driver"]["name"], "broken.example");
    let cases = json["cases"].as_array().unwrap();
    let failed = cases.iter().find(|case| case["outcome"] == "failed").unwrap();
    assert_eq!((&failed["id"], &failed["found"]), (&"volumes/size-in-range".into(), &"8388608 bytes".into()));
    let interrupted = SuiteReport { is_interrupted: true, ..report.clone() }.to_junit();
    for expected in
        ["tests=\"8\" failures=\"2\" skipped=\"2\"", "<failure message=\"the run was interrupted\"/>"]
    {
        assert!(interrupted.contains(expected), "{expected:?} is not in\n{interrupted}");
    }
    let seed = format!("<property name=\"seed\" value=\"{}\"/>", report.seed);
    let xml = report.to_junit();
    assert!(!xml.contains("interrupted") && xml.contains(&seed), "{xml}");
    for expected in [
        "<testsuites name=\"broken.wasm\" tests=\"7\" failures=\"1\" skipped=\"2\"",
        "<testsuite name=\"volumes\" tests=\"1\" failures=\"1\" skipped=\"0\">",
        "<testcase classname=\"cofferdam.volumes\" name=\"volumes/size-in-range\" time=\"",
        "found: 8388608 bytes\n",
        "<skipped message=\"the driver does not name the feature `volume-condition`\"/>",
    ] {
        assert!(xml.contains(expected), "{expected:?} is not in\n{xml}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_component_that_fails_to_load_is_one_failure() {
    let report = common::run_broken(&common::engine(), &[("broken-rule", "identity/loads")], &[]).await;
    assert_eq!(report.failures(), ["identity/loads"]);
    let text = report.to_text(false);
    assert!(text.contains("the driver name is \"Not A Name\""), "{text}");
    assert_eq!(report.totals().0, 0, "nothing else was tried");
}

/// Runs a failing case with this seed. Returns the calls of its report.
async fn calls_of_seed(seed: u64) -> serde_json::Value {
    let options = SuiteOptions {
        seed,
        ..common::options(&[("broken-rule", "volumes/size-in-range")], &["volumes/size-in-range"])
    };
    let source =
        ComponentSource::Bytes { name: "broken.wasm".to_owned(), bytes: cofferdam_test_guests::BROKEN };
    run(&common::engine(), source, options).await.unwrap().to_json()["cases"][0]["calls"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_seed_makes_the_same_calls() {
    let first = calls_of_seed(7).await;
    assert!(first[0].as_str().unwrap().starts_with("volumes.create(\"cofferdam-test-00000007-"), "{first}");
    assert_eq!(first, calls_of_seed(7).await);
    assert_ne!(first, calls_of_seed(8).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_storage_skips_the_remaining_cases() {
    let mut options = SuiteOptions { retry_timeout: Duration::from_millis(10), ..SuiteOptions::default() };
    options.config.settings.insert("errors".to_owned(), "create:unavailable:always".to_owned());
    let source = ComponentSource::Bytes { name: "memory.wasm".to_owned(), bytes: cofferdam_carried::MEMORY };
    let report = run(&common::engine(), source, options).await.unwrap();
    assert!(report.failures().contains(&"volumes/create-is-idempotent"));
    let last = report.entries.last().unwrap();
    let reason = "5 calls before did not come to an end: the storage does not answer";
    assert_eq!(last.outcome, CaseOutcome::Skipped(reason.to_owned()));
}
