//! The import `session` through a guest: many calls with the same secrets share one login, calls with other
//! secrets do not, and a call that ends without a value does not block the others.
#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;
mod net;

use std::{sync::Arc, time::Duration};

use cofferdam_backend::Call;
use cofferdam_domain::storage::ErrorKind;
use cofferdam_wasm::{Limits, WasmBackend};
use common::{call, engine};
use net::{TestServer, backend_for_server, get, load, run_script, secrets};
use serde_json::{Value, json};

async fn run_step(backend: &WasmBackend, step: Value) -> String {
    run_script(backend, "v", call(), json!([step])).await.unwrap().remove(0)
}

#[tokio::test]
async fn concurrent_calls_share_one_login() {
    let server = TestServer::start(None).await;
    let backend = backend_for_server(&server).await;
    let login = json!([{ "login": ["array", get(&server.http("/gate"))] }]);
    let calls: Vec<_> = (0..10)
        .map(|number| {
            let (backend, login) = (Arc::clone(&backend), login.clone());
            tokio::spawn(
                async move { run_script(&backend, &number.to_string(), call(), login).await.unwrap() },
            )
        })
        .collect();
    assert_eq!(server.next_request().await, "GET /gate ");
    server.release_gate(10);
    let mut results = Vec::new();
    for call in calls {
        results.push(call.await.unwrap().remove(0));
    }
    results.sort();
    let mut expected = vec!["found passed"; 9];
    expected.push("made passed");
    assert_eq!(results, expected);
    assert_eq!(server.request_count(), 1);
}

#[tokio::test]
async fn ended_call_releases_the_session_lock() {
    let server = TestServer::start(None).await;
    let backend = backend_for_server(&server).await;
    for end in ["trap", "an error", "success"] {
        let last = match end {
            "trap" => json!("trap"),
            "an error" => json!({ "fail-with-body": get(&server.http("/missing")) }),
            _ => json!({ "release": "another key" }),
        };
        let script = json!([{ "acquire": "k" }, { "send": get(&server.http("/gate")) }, last]);
        let holder = {
            let backend = Arc::clone(&backend);
            tokio::spawn(async move { run_script(&backend, end, call(), script).await })
        };
        assert_eq!(server.next_request().await, "GET /gate ", "the turn is taken");
        let waiter = {
            let backend = Arc::clone(&backend);
            tokio::spawn(async move { run_step(&backend, json!({ "acquire": "k" })).await })
        };
        server.release_gate(1);
        assert_eq!(holder.await.unwrap().is_ok(), end == "success");
        assert_eq!(waiter.await.unwrap(), "locked", "{end}");
        if end == "an error" {
            assert_eq!(server.next_request().await, "GET /missing ");
        }
    }
}

#[tokio::test]
async fn timed_out_call_releases_the_session_lock() {
    let server = TestServer::start(None).await;
    let backend = backend_for_server(&server).await;
    let begun = json!([{ "acquire": "k" }, { "send": get(&server.http("/gate")) }]);
    let short_call = Call { deadline: Duration::from_secs(3), ..call() };
    let (holder, arrived) =
        tokio::join!(run_script(&backend, "holder", short_call, begun), server.next_request());
    assert_eq!(arrived, "GET /gate ", "the turn was taken");
    assert_eq!(holder.unwrap_err().kind, ErrorKind::DeadlineExceeded);
    assert_eq!(run_step(&backend, json!({ "acquire": "k" })).await, "locked");
}

#[tokio::test]
async fn sessions_are_isolated_by_secrets() {
    let backend = load(&engine(), Vec::new(), Limits::default()).await.unwrap_err().to_string();
    assert!(
        backend.contains("[[backend.NAME.http.origins]]"),
        "the guest imports it, and no origin grants it: {backend}"
    );
    let server = TestServer::start(None).await;
    let backend = backend_for_server(&server).await;
    let of = |password: &str| Call { secrets: secrets(&[("password", password)]), ..call() };
    let script = |value: &str| json!([{ "acquire": "k" }, { "put": ["k", value, 60_000] }]);
    assert_eq!(run_script(&backend, "a", of("one"), script("A")).await.unwrap(), ["locked", "generation 1"]);
    assert_eq!(run_script(&backend, "b", of("two"), script("B")).await.unwrap(), ["locked", "generation 2"]);
    let lookup = json!([{ "acquire": "k" }, { "invalidate": ["k", 1] }, { "acquire": "k" }]);
    assert_eq!(
        run_script(&backend, "c", of("two"), lookup.clone()).await.unwrap(),
        ["found B", "invalidated", "found B"]
    );
    assert_eq!(
        run_script(&backend, "d", of("one"), lookup).await.unwrap(),
        ["found A", "invalidated", "locked"]
    );
    assert_eq!(run_step(&backend, json!({ "acquire": "k" })).await, "locked");
    let too_much = json!([{ "acquire": "" }, { "put": ["k", "x".repeat(8193), 1] }]);
    let [key, value] = run_script(&backend, "e", of("one"), too_much).await.unwrap().try_into().unwrap();
    assert!(key.contains("KeySize") && key.contains("128"), "{key}");
    assert!(value.contains("ValueSize") && value.contains("8192"), "{value}");
}
