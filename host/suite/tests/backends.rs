//! The drivers of this repository pass.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in what its functions share")]

mod common;

use std::time::Duration;

use cofferdam_domain::{
    NodeId,
    storage::{AccessType, Secret},
};
use cofferdam_fake_array::FakeArray;
use cofferdam_suite::{Options, Report, Verdict, run};
use cofferdam_wasm::{
    BackendConfig, ComponentSource, Grant, HttpConfig, OriginConfig, PoolConfig, StateConfig,
};

fn map<const N: usize>(pairs: [(&str, &str); N]) -> std::collections::BTreeMap<String, String> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn settings<const N: usize>(pairs: [(&str, &str); N]) -> Options {
    Options {
        config: BackendConfig { settings: map(pairs), ..BackendConfig::default() },
        ..Options::default()
    }
}

/// Runs everything, and expects that nothing is broken, nothing is left, and these interfaces were tried.
async fn passes(name: &str, bytes: &'static [u8], options: Options, tried: &[&str]) -> Report {
    let source = ComponentSource::Bytes { name: name.to_owned(), bytes };
    let report = run(&common::engine(), source, options).await.unwrap();
    assert!(report.passed(), "{}", report.to_text(false));
    assert_eq!(report.left, [""; 0]);
    for interface in tried {
        let passed = report
            .entries
            .iter()
            .any(|entry| entry.case.interface() == *interface && matches!(entry.verdict, Verdict::Passed));
        assert!(passed, "{interface}:\n{}", report.to_text(false));
    }
    report
}

const EVERYTHING: [&str; 10] = [
    "volumes",
    "publishing",
    "expansion",
    "snapshots",
    "listing",
    "inspection",
    "capacity",
    "concurrency",
    "deadlines",
    "crashes",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_passes() {
    let options = Options { mutable_parameters: map([("iops", "100")]), ..Options::default() };
    passes("memory.wasm", cofferdam_carried::MEMORY, options, &EVERYTHING).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_passes_without_features() {
    let report =
        passes("memory.wasm", cofferdam_carried::MEMORY, settings([("features", "")]), &["expansion"]).await;
    assert_eq!(report.driver.unwrap().features, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_passes_when_snapshots_take_their_time() {
    let options = settings([("snapshot-ready-after", "2"), ("latency-ms", "1")]);
    passes("memory.wasm", cofferdam_carried::MEMORY, options, &["snapshots", "group-snapshots"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_passes_in_a_place_and_for_known_nodes() {
    let mut options = settings([
        ("topology", "topology.example/zone=a,b"),
        ("capacity", "a=1Gi,b=1Gi"),
        ("nodes", "n1,n2"),
        ("volumes-per-node", "10"),
    ]);
    options.topology = Some(map([("topology.example/zone", "a")]));
    options.nodes = ["n1", "n2"].map(NodeId::new);
    passes("memory.wasm", cofferdam_carried::MEMORY, options, &["topology", "publishing", "capacity"]).await;
}

/// A driver that has bad days of its own breaks no rule by that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_passes_when_calls_fail_with_an_open_outcome() {
    let errors = "create:unavailable:2,create:deadline-exceeded:2:after,delete:aborted:2:in-progress,publish:unavailable:1:after";
    let source = ComponentSource::Bytes { name: "memory.wasm".to_owned(), bytes: cofferdam_carried::MEMORY };
    let report = run(&common::engine(), source, settings([("errors", errors)])).await.unwrap();
    // It counts its failures in its state.
    assert_eq!(report.failures(), ["cleanup/nothing-is-left"], "{}", report.to_text(false));
    assert_eq!(report.left, [""; 0]);
}

/// The options of a run over the pool driver.
fn pool(directory: &std::path::Path) -> Options {
    let mut options = settings([("node", "n1")]);
    let pool = PoolConfig { directory: directory.to_owned(), capacity: Some(1 << 30), image_bytes_max: None };
    options.config.pool = Some(pool);
    options.topology = Some(map([("topology.cofferdam.dev/node", "n1")]));
    options
}

/// What is in a pool, without the host's lock.
fn items(directory: &std::path::Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).filter(|name| name != ".lock").collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_passes_with_directories() {
    let directory = tempfile::tempdir().unwrap();
    let tried = ["volumes", "cloning", "restoring", "snapshots", "listing", "capacity", "crashes"];
    passes("pool.wasm", cofferdam_carried::POOL, pool(directory.path()), &tried).await;
    assert_eq!(items(directory.path()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_passes_with_images() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = pool(directory.path());
    options.capability.access_type = AccessType::Block;
    // The disk of whoever runs this may not share what is equal, and then images are copied as they are read.
    for parameters in [&mut options.parameters, &mut options.snapshot_parameters] {
        parameters.insert("consistency".to_owned(), "none".to_owned());
    }
    passes("pool.wasm", cofferdam_carried::POOL, options, &["expansion", "crashes"]).await;
    assert_eq!(items(directory.path()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_starter_passes() {
    passes(
        "starter.wasm",
        cofferdam_test_guests::STARTER,
        Options::default(),
        &["volumes", "listing", "crashes"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_starter_passes_over_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    options.config.state = StateConfig { file: Some(directory.path().join("state")) };
    passes("starter.wasm", cofferdam_test_guests::STARTER, options, &["concurrency", "crashes"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_array_driver_passes() {
    let (url, array) = FakeArray::start(([127, 0, 0, 1], 0).into()).await.unwrap();
    let mut options = settings([("url", &url)]);
    let origin = OriginConfig {
        origin: url,
        addresses: Some(vec!["127.0.0.1".to_owned()]),
        ..OriginConfig::default()
    };
    options.config.http = HttpConfig { origins: vec![origin] };
    options.config.grants.extend([Grant::Secrets, Grant::Session]);
    let secrets = [("user", "admin"), ("password", "secret")];
    options.secrets =
        secrets.map(|(name, value)| (name.to_owned(), Secret::new(value.to_owned()))).into_iter().collect();
    options.nodes = [NodeId::new("n1"), NodeId::new("n2")];
    options.patience = Duration::from_secs(20);
    let tried =
        ["volumes", "cloning", "restoring", "publishing", "snapshots", "listing", "inspection", "crashes"];
    passes("array.wasm", cofferdam_test_guests::ARRAY, options, &tried).await;
    let content = array.content();
    assert!(content.volumes.is_empty() && content.snapshots.is_empty(), "{content:?}");
}
