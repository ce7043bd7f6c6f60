//! An interrupted run deletes what it created.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in what its functions share")]

mod common;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cofferdam_suite::{CaseOutcome, Progress, RunControl, SuiteOptions, SuiteReport, run_with_control};
use cofferdam_wasm::{ComponentSource, Engine, LoadError, StateConfig, WasmBackend};
use tokio::sync::mpsc;

fn options(state: &Path) -> SuiteOptions {
    let mut options = SuiteOptions::default();
    options.config.state = StateConfig { file: Some(state.to_owned()) };
    options
}

fn memory() -> ComponentSource {
    ComponentSource::Bytes { name: "memory.wasm".to_owned(), bytes: cofferdam_carried::MEMORY }
}

/// Loads the driver again. The task of a call that the interrupt dropped may use the state for a moment.
async fn load(engine: &Engine, state: &Path) -> Arc<WasmBackend> {
    let loading = async {
        loop {
            match engine.load(memory(), options(state).config).await {
                Err(LoadError::StateFile { .. }) => tokio::time::sleep(Duration::from_millis(10)).await,
                loaded => return loaded.unwrap(),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), loading).await.unwrap()
}

/// Runs the suite on the memory driver, and interrupts it when this number of cases has ended.
async fn run_interrupted(engine: &Engine, state: &Path, cases: usize) -> SuiteReport {
    let (sender, interrupts) = mpsc::channel(1);
    let ended = AtomicUsize::new(0);
    let observer = |progress: Progress<'_>| {
        if matches!(progress, Progress::CaseEnded(_)) && ended.fetch_add(1, Ordering::Relaxed) + 1 == cases {
            sender.try_send(()).unwrap();
        }
    };
    let control = RunControl { observer: &observer, interrupts };
    run_with_control(engine, memory(), options(state), control).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_run_leaves_nothing() {
    let engine = common::engine();
    for cases in [2, 5, 30] {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        let report = run_interrupted(&engine, &state, cases).await;
        assert!(report.is_interrupted && !report.is_passed(), "{}", report.to_text(false));
        assert_eq!(report.failures(), [""; 0], "{}", report.to_text(false));
        assert_eq!(report.leftovers, [""; 0]);
        let is_skipped =
            |outcome: &CaseOutcome| *outcome == CaseOutcome::Skipped("the run was interrupted".to_owned());
        let skipped = report.entries.iter().filter(|entry| is_skipped(&entry.outcome)).count();
        assert!(skipped > 0 && skipped <= report.entries.len() - cases, "{skipped} skipped after {cases}");
        let left = load(&engine, &state).await;
        let keys: Vec<_> = left.state_keys().into_iter().filter(|key| key.starts_with("volume")).collect();
        assert_eq!(keys, [""; 0], "interrupted after {cases} cases");
    }
}
