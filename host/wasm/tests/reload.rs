//! A component that is loaded in place of a running one.
mod common;

use cofferdam_domain::storage::{ErrorKind, Secret};
use cofferdam_wasm::{BackendConfig, ComponentSource, Grant, Limits, PoolConfig, ReloadError, StateConfig};
use common::{create, engine};

/// The source of a component under the name of the tests' backends.
fn component(bytes: &'static [u8]) -> ComponentSource {
    ComponentSource::Bytes { name: "guest.wasm".to_owned(), bytes }
}

fn named(settings: &[(&str, &str)]) -> BackendConfig {
    BackendConfig { settings: common::settings(settings), ..BackendConfig::default() }
}

#[tokio::test]
async fn a_reloaded_component_serves_the_next_call_and_keeps_the_state() {
    let engine = engine();
    let backend =
        engine.load(component(cofferdam_carried::MEMORY), named(&[("capacity", "10")])).await.unwrap();
    create(&backend, "kept", 7).await.unwrap();
    let error = create(&backend, "large", 7).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error}");
    let reloaded = named(&[("capacity", "20")]);
    engine.reload(&backend, component(cofferdam_carried::MEMORY), reloaded).await.unwrap();
    create(&backend, "large", 7).await.unwrap();
    let error = create(&backend, "larger", 7).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::ResourceExhausted, "the state has both volumes: {error}");
}

#[tokio::test]
async fn an_incompatible_component_does_not_replace_the_running_one() {
    let engine = engine();
    let running = || named(&[("driver-name", "running.example.com")]);
    let backend = engine.load(component(cofferdam_carried::MEMORY), running()).await.unwrap();
    let digest = backend.digest();
    let limited = |limits| BackendConfig { limits, ..running() };
    let file = StateConfig { file: Some("/nowhere".into()) };
    let cut_off = &cofferdam_carried::MEMORY[..6];
    let cases = [
        (
            cofferdam_carried::MEMORY,
            named(&[("driver-name", "other.example.com")]),
            "the driver name is other.example.com; a change from running.example.com needs a restart",
        ),
        (
            cofferdam_carried::MEMORY,
            limited(Limits { queued_calls: 2_000, ..Limits::default() }),
            "a change of `queued-calls` needs a restart",
        ),
        (
            cofferdam_carried::MEMORY,
            BackendConfig { state: file, ..running() },
            "a change of `state` needs a restart",
        ),
        (cofferdam_carried::MEMORY, BackendConfig { grants: [Grant::Log].into(), ..running() }, "grant"),
        (cut_off, running(), "cut off after 6 bytes"),
    ];
    for (bytes, config, expected) in cases {
        let error = engine.reload(&backend, component(bytes), config).await.unwrap_err().to_string();
        assert!(error.starts_with("guest.wasm: ") && error.contains(expected), "{expected}: {error}");
        assert_eq!(backend.digest(), digest);
        create(&backend, expected.split_whitespace().next().unwrap_or("volume"), 1).await.unwrap();
    }
}

#[tokio::test]
async fn running_calls_end_with_the_former_component() {
    let engine = engine();
    let slow = named(&[("latency-ms", "500")]);
    let backend = engine.load(component(cofferdam_carried::MEMORY), slow).await.unwrap();
    let running = create(&backend, "slow", 1);
    let reload = engine.reload(&backend, component(cofferdam_carried::MEMORY), named(&[]));
    let (created, reloaded) = tokio::join!(running, reload);
    reloaded.unwrap();
    created.unwrap();
    // The operation of the first call is over for both components.
    create(&backend, "slow", 1).await.unwrap();
}

#[tokio::test]
async fn reloaded_secrets_belong_to_the_next_call() {
    // The guest repeats the setting `echo` in its error. A secret of the call is redacted in it.
    let with_secret = |secret: &str| BackendConfig {
        secrets: [("password".to_owned(), Secret::new(secret))].into_iter().collect(),
        ..named(&[("echo", "second-password")])
    };
    let engine = engine();
    let hostile = || component(cofferdam_test_guests::HOSTILE);
    let backend = engine.load(hostile(), with_secret("first-password")).await.unwrap();
    let error = create(&backend, "echo-error", 1).await.unwrap_err();
    assert!(error.message.contains("second-password"), "{error}");
    engine.reload(&backend, hostile(), with_secret("second-password")).await.unwrap();
    let error = create(&backend, "echo-error", 1).await.unwrap_err();
    assert!(error.message.contains("[secret]") && !error.message.contains("second-password"), "{error}");
}

#[tokio::test]
async fn a_component_with_fewer_abilities_does_not_replace_the_running_one() {
    let engine = engine();
    let settings = named(&[("driver-name", "hostile.example.com"), ("name", "hostile.example.com")]);
    let backend = engine.load(component(cofferdam_carried::MEMORY), settings.clone()).await.unwrap();
    let error =
        engine.reload(&backend, component(cofferdam_test_guests::HOSTILE), settings).await.unwrap_err();
    assert!(matches!(error, ReloadError::AbilitiesLost { .. }), "{error}");
}

/// Its data would be in this process only, beside a standby that does not have it.
#[tokio::test]
async fn a_component_that_gains_a_state_does_not_replace_the_running_one() {
    let (engine, directory) = (engine(), tempfile::tempdir().unwrap());
    let pool = PoolConfig { directory: directory.path().into(), capacity: None, image_bytes_max: None };
    let config = || BackendConfig { pool: Some(pool.clone()), ..BackendConfig::default() };
    let backend = engine.load(component(cofferdam_test_guests::POOL_TRICKS), config()).await.unwrap();
    let error = engine.reload(&backend, component(cofferdam_carried::MEMORY), config()).await.unwrap_err();
    let expected =
        "guest.wasm: imports `state`, which the running component does not; this change needs a restart";
    assert_eq!(error.to_string(), expected);
}
