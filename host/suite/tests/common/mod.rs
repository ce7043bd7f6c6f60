//! Shared by the tests.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

use std::time::Duration;

use cofferdam_domain::storage::Secret;
use cofferdam_suite::{SuiteOptions, SuiteReport, run};
use cofferdam_wasm::{
    BackendConfig, CompiledCache, ComponentSource, Engine, EngineOptions, Grant, HttpConfig, OriginConfig,
};

/// An engine with its compilation cache in the build directory.
pub(crate) fn engine() -> Engine {
    let cache = CompiledCache::Directory(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled"));
    Engine::new(EngineOptions { cache, ..EngineOptions::default() }).unwrap()
}

/// Options of a run on the test driver `broken`. The settings `url`, `secret` and `topology` also set the
/// origin of HTTP requests, the secret of the calls, and the topology segment.
pub(crate) fn options(settings: &[(&str, &str)], only: &[&str]) -> SuiteOptions {
    let setting = |wanted: &str| settings.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value);
    let topology = setting("topology").and_then(|place| place.split_once('='));
    let topology = topology.map(|(key, value)| [(key.to_owned(), value.to_owned())].into());
    let origins = setting("url").into_iter().map(|url| OriginConfig {
        origin: url.to_owned(),
        addresses: Some(vec!["127.0.0.1".to_owned()]),
        ..OriginConfig::default()
    });
    // With a broken rule, calls may be repeated until the timeout, so it is short. Otherwise it is reached on
    // busy machines only.
    let patience = Duration::from_millis(if setting("broken-rule").is_some() { 500 } else { 10_000 });
    let http = HttpConfig { origins: origins.collect() };
    let mut grants = BackendConfig::default().grants;
    grants.insert(Grant::Http);
    let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    SuiteOptions {
        config: BackendConfig { settings, http, grants, class_secrets: true, ..BackendConfig::default() },
        other_parameters: [("label".to_owned(), "b".to_owned())].into(),
        mutable_parameters: [("iops".to_owned(), "100".to_owned())].into(),
        retry_timeout: patience,
        secrets: setting("secret")
            .map(|name| (name.to_owned(), Secret::new("token-of-broken")))
            .into_iter()
            .collect(),
        topology,
        only: only.iter().map(|id| (*id).to_owned()).collect(),
        ..SuiteOptions::default()
    }
}

/// Runs the suite on the test driver `broken`, see [`options`].
pub(crate) async fn run_broken(engine: &Engine, settings: &[(&str, &str)], only: &[&str]) -> SuiteReport {
    let source =
        ComponentSource::Bytes { name: "broken.wasm".to_owned(), bytes: cofferdam_test_guests::BROKEN };
    run(engine, source, options(settings, only)).await.unwrap()
}
