//! Runs the suite on the drivers of this repository.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in what its functions share")]

mod common;

use std::time::Duration;

use cofferdam_domain::storage::{AccessType, Secret};
use cofferdam_fake_array::FakeArray;
use cofferdam_suite::{CaseOutcome, SuiteOptions, SuiteReport, TestNode, run};
use cofferdam_wasm::{
    BackendConfig, ComponentSource, Grant, HttpConfig, OriginConfig, PoolConfig, StateConfig,
};

fn string_map<const N: usize>(pairs: [(&str, &str); N]) -> std::collections::BTreeMap<String, String> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn options_with_settings<const N: usize>(pairs: [(&str, &str); N]) -> SuiteOptions {
    SuiteOptions {
        config: BackendConfig { settings: string_map(pairs), ..BackendConfig::default() },
        ..SuiteOptions::default()
    }
}

/// Runs every case. Expects no failure, no leftover, and a passed case of each of these interfaces.
async fn assert_passes(
    name: &str,
    bytes: &'static [u8],
    options: SuiteOptions,
    required_interfaces: &[&str],
) -> SuiteReport {
    let source = ComponentSource::Bytes { name: name.to_owned(), bytes };
    let report = run(&common::engine(), source, options).await.unwrap();
    assert!(report.is_passed(), "{}", report.to_text(false));
    assert_eq!(report.leftovers, [""; 0]);
    for interface in required_interfaces {
        let passed = report.entries.iter().any(|entry| {
            entry.case.interface() == *interface && matches!(entry.outcome, CaseOutcome::Passed)
        });
        assert!(passed, "{interface}:\n{}", report.to_text(false));
    }
    report
}

const ALL_INTERFACES: [&str; 10] = [
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
async fn memory_driver_passes() {
    let options =
        SuiteOptions { mutable_parameters: string_map([("iops", "100")]), ..SuiteOptions::default() };
    assert_passes("memory.wasm", cofferdam_carried::MEMORY, options, &ALL_INTERFACES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_driver_passes_without_features() {
    let report = assert_passes(
        "memory.wasm",
        cofferdam_carried::MEMORY,
        options_with_settings([("features", "")]),
        &["expansion"],
    )
    .await;
    assert_eq!(report.driver.unwrap().features, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_driver_passes_with_slow_snapshots() {
    let options = options_with_settings([("snapshot-ready-after", "2"), ("latency-ms", "1")]);
    assert_passes("memory.wasm", cofferdam_carried::MEMORY, options, &["snapshots", "group-snapshots"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_driver_passes_with_topology_and_known_nodes() {
    let mut options = options_with_settings([
        ("topology", "topology.example/zone=a,b"),
        ("capacity", "a=1Gi,b=1Gi"),
        ("nodes", "n1,n2"),
        ("volumes-per-node", "10"),
    ]);
    options.topology = Some(string_map([("topology.example/zone", "a")]));
    options.nodes = ["n1", "n2"].map(TestNode::new);
    assert_passes("memory.wasm", cofferdam_carried::MEMORY, options, &["topology", "publishing", "capacity"])
        .await;
}

/// A driver may return errors whose outcome is unknown or whose operation is in progress: they break no rule.
/// The case `cleanup/nothing-is-left` fails only because the driver counts the injected errors in its state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_driver_passes_when_calls_end_with_unknown_outcome() {
    let errors = "create:unavailable:2,create:deadline-exceeded:2:after,\
                  delete:aborted:2:in-progress,publish:unavailable:1:after";
    let source = ComponentSource::Bytes { name: "memory.wasm".to_owned(), bytes: cofferdam_carried::MEMORY };
    let report = run(&common::engine(), source, options_with_settings([("errors", errors)])).await.unwrap();
    // The driver stores a count of the errors it has injected in its state, which is never deleted.
    assert_eq!(report.failures(), ["cleanup/nothing-is-left"], "{}", report.to_text(false));
    assert_eq!(report.leftovers, [""; 0]);
}

/// Options of a run on the pool driver.
fn pool_options(directory: &std::path::Path) -> SuiteOptions {
    let mut options = options_with_settings([("node", "n1")]);
    let pool = PoolConfig { directory: directory.to_owned(), capacity: Some(1 << 30), image_bytes_max: None };
    options.config.pool = Some(pool);
    options.topology = Some(string_map([("topology.cofferdam.dev/node", "n1")]));
    options
}

/// File names in a pool's directory, without the host's `.lock`.
fn pool_entries(directory: &std::path::Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).filter(|name| name != ".lock").collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_driver_passes_with_directories() {
    let directory = tempfile::tempdir().unwrap();
    let required_interfaces =
        ["volumes", "cloning", "restoring", "snapshots", "listing", "capacity", "crashes"];
    assert_passes("pool.wasm", cofferdam_carried::POOL, pool_options(directory.path()), &required_interfaces)
        .await;
    assert_eq!(pool_entries(directory.path()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_driver_passes_with_images() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = pool_options(directory.path());
    options.capability.access_type = AccessType::Block;
    // Images are copied if the file system has no reflinks. The driver allows this with `consistency: none`
    // only.
    for parameters in [&mut options.parameters, &mut options.snapshot_parameters] {
        parameters.insert("consistency".to_owned(), "none".to_owned());
    }
    assert_passes("pool.wasm", cofferdam_carried::POOL, options, &["expansion", "crashes"]).await;
    assert_eq!(pool_entries(directory.path()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starter_driver_passes() {
    assert_passes(
        "starter.wasm",
        cofferdam_test_guests::STARTER,
        SuiteOptions::default(),
        &["volumes", "listing", "crashes"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starter_driver_passes_with_file_state() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = SuiteOptions::default();
    options.config.state = StateConfig { file: Some(directory.path().join("state")) };
    assert_passes("starter.wasm", cofferdam_test_guests::STARTER, options, &["concurrency", "crashes"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn array_driver_passes() {
    let (url, array) = FakeArray::start(([127, 0, 0, 1], 0).into()).await.unwrap();
    let mut options = options_with_settings([("url", &url)]);
    let origin = OriginConfig {
        origin: url,
        addresses: Some(vec!["127.0.0.1".to_owned()]),
        ..OriginConfig::default()
    };
    options.config.http = HttpConfig { origins: vec![origin] };
    options.config.grants.extend([Grant::Secrets, Grant::Session]);
    options.config.class_secrets = true;
    let secrets = [("user", "admin"), ("password", "secret")];
    options.secrets =
        secrets.map(|(name, value)| (name.to_owned(), Secret::new(value.to_owned()))).into_iter().collect();
    options.nodes = ["n1", "n2"].map(TestNode::new);
    options.retry_timeout = Duration::from_secs(20);
    let required_interfaces =
        ["volumes", "cloning", "restoring", "publishing", "snapshots", "listing", "inspection", "crashes"];
    assert_passes("array.wasm", cofferdam_test_guests::ARRAY, options, &required_interfaces).await;
    let content = array.content();
    assert!(content.volumes.is_empty() && content.snapshots.is_empty(), "{content:?}");
}
