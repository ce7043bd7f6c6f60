//! State that a driver committed survives a `kill -9`, and only one backend at a time can open a state file.
#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use cofferdam_backend::Backend as _;
use cofferdam_domain::storage::PageRequest;
use cofferdam_wasm::{BackendConfig, ComponentSource, Engine, LoadError, StateConfig, WasmBackend};
use common::{call, create, engine};
use futures::future::try_join_all;

/// Environment variable that is set in the child process, which will be killed: the state file to write.
const CHILD_FILE: &str = "COFFERDAM_TEST_CHILD_FILE";
const ITERATIONS: usize = 5;
/// Number of volumes that a child process reports before it is killed; it may create more.
const VOLUMES_PER_ITERATION: usize = 25;

async fn open(engine: &Engine, file: &Path) -> Result<Arc<WasmBackend>, LoadError> {
    let source = ComponentSource::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
    let state = StateConfig { file: Some(file.to_owned()) };
    engine.load(source, BackendConfig { state, ..BackendConfig::default() }).await
}

async fn volumes(backend: &WasmBackend) -> BTreeSet<String> {
    let page = backend.list_volumes(call(), PageRequest::default()).await.unwrap();
    assert!(page.next_token.is_none());
    page.volumes.iter().map(|status| status.volume.handle.as_str().to_owned()).collect()
}

/// Creates volumes and prints the handle of each after its response, until the process is killed.
async fn write_until_killed(file: PathBuf) {
    let backend = open(&engine(), &file).await.unwrap();
    let mut output = std::io::stdout();
    for number in volumes(&backend).await.len().. {
        let volume = create(&backend, &format!("v{number}"), 1).await.unwrap();
        // The harness has written the beginning of a line already.
        writeln!(output, "\n{}", volume.handle).unwrap();
        output.flush().unwrap();
    }
}

#[tokio::test]
async fn committed_state_survives_a_kill_and_has_one_owner() {
    if let Some(file) = std::env::var_os(CHILD_FILE) {
        return write_until_killed(file.into()).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state.db");
    let engine = engine();
    let mut answered = BTreeSet::new();
    for iteration in 0..ITERATIONS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "committed_state_survives_a_kill_and_has_one_owner", "--nocapture"])
            .env(CHILD_FILE, &file)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let handles: Vec<_> =
            lines.by_ref().filter(|line| line.starts_with("mem-")).take(VOLUMES_PER_ITERATION).collect();
        assert_eq!(
            handles.len(),
            VOLUMES_PER_ITERATION,
            "round {iteration}: the victim ended before it was killed"
        );
        let refused = open(&engine, &file).await.unwrap_err().to_string();
        assert!(
            refused.contains("state.db")
                && refused.contains(&format!("is in use by the process {}", child.id())),
            "{refused}"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        drop(lines);
        answered.extend(handles);
        let backend = open(&engine, &file).await.unwrap();
        let found = volumes(&backend).await;
        assert!(found.is_superset(&answered), "round {iteration}: lost {:?}", answered.difference(&found));
        let again = open(&engine, &file).await.unwrap_err().to_string();
        assert!(again.contains("is in use by another backend of this process"), "{again}");
        // Volumes that the child created and did not report count from now on.
        answered = found;
    }
    assert!(answered.len() >= ITERATIONS * VOLUMES_PER_ITERATION);
}

#[tokio::test]
async fn concurrent_calls_of_one_driver_do_not_reject_each_other() {
    const VOLUMES: usize = 200;
    let directory = tempfile::tempdir().unwrap();
    let backend = open(&engine(), &directory.path().join("state.redb")).await.unwrap();
    let names: Vec<_> = (0..VOLUMES).map(|number| format!("v{number}")).collect();
    let created = try_join_all(names.iter().map(|name| create(&backend, name, 1))).await.unwrap();
    assert_eq!(volumes(&backend).await.len(), VOLUMES);
    try_join_all(created.into_iter().map(|volume| backend.delete_volume(call(), volume.handle)))
        .await
        .unwrap();
    assert!(volumes(&backend).await.is_empty());
}
