//! The import `session` through a guest: one login for many calls, whatever becomes of the one that makes it.
#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;
mod net;

use std::{sync::Arc, time::Duration};

use cofferdam_backend::Call;
use cofferdam_domain::storage::ErrorKind;
use cofferdam_wasm::{Limits, WasmBackend};
use common::{call, engine};
use net::{Server, asking, get, load, perform, secrets};
use serde_json::{Value, json};

async fn one(backend: &WasmBackend, step: Value) -> String {
    perform(backend, "v", call(), json!([step])).await.unwrap().remove(0)
}

#[tokio::test]
async fn ten_calls_at_once_log_in_once() {
    let server = Server::start(None).await;
    let backend = asking(&server).await;
    let login = json!([{ "login": ["array", get(&server.http("/gate"))] }]);
    let calls: Vec<_> = (0..10)
        .map(|number| {
            let (backend, login) = (Arc::clone(&backend), login.clone());
            tokio::spawn(async move { perform(&backend, &number.to_string(), call(), login).await.unwrap() })
        })
        .collect();
    assert_eq!(server.arrived().await, "GET /gate ");
    server.open(10);
    let mut results = Vec::new();
    for call in calls {
        results.push(call.await.unwrap().remove(0));
    }
    results.sort();
    let mut expected = vec!["held passed"; 9];
    expected.push("made passed");
    assert_eq!(results, expected);
    assert_eq!(server.hits(), 1);
}

#[tokio::test]
async fn a_call_that_ends_in_whatever_way_gives_its_turn_back() {
    let server = Server::start(None).await;
    let backend = asking(&server).await;
    for end in ["trap", "an error", "success"] {
        let last = match end {
            "trap" => json!("trap"),
            "an error" => json!({ "repeat": get(&server.http("/missing")) }),
            _ => json!({ "release": "another key" }),
        };
        let script = json!([{ "acquire": "k" }, { "send": get(&server.http("/gate")) }, last]);
        let holder = {
            let backend = Arc::clone(&backend);
            tokio::spawn(async move { perform(&backend, end, call(), script).await })
        };
        assert_eq!(server.arrived().await, "GET /gate ", "the turn is taken");
        let waiter = {
            let backend = Arc::clone(&backend);
            tokio::spawn(async move { one(&backend, json!({ "acquire": "k" })).await })
        };
        server.open(1);
        assert_eq!(holder.await.unwrap().is_ok(), end == "success");
        assert_eq!(waiter.await.unwrap(), "vacant", "{end}");
        if end == "an error" {
            assert_eq!(server.arrived().await, "GET /missing ");
        }
    }
}

#[tokio::test]
async fn a_call_that_runs_out_of_time_gives_its_turn_back() {
    let server = Server::start(None).await;
    let backend = asking(&server).await;
    let begun = json!([{ "acquire": "k" }, { "send": get(&server.http("/gate")) }]);
    let hurried = Call { deadline: Duration::from_secs(3), ..call() };
    let (holder, arrived) = tokio::join!(perform(&backend, "holder", hurried, begun), server.arrived());
    assert_eq!(arrived, "GET /gate ", "the turn was taken");
    assert_eq!(holder.unwrap_err().kind, ErrorKind::DeadlineExceeded);
    assert_eq!(one(&backend, json!({ "acquire": "k" })).await, "vacant");
}

#[tokio::test]
async fn logins_are_apart_for_every_set_of_secrets() {
    let backend = load(&engine(), Vec::new(), Limits::default()).await.unwrap_err().to_string();
    assert!(
        backend.contains("[[backend.NAME.http.origins]]"),
        "the guest imports it, and no origin grants it: {backend}"
    );
    let server = Server::start(None).await;
    let backend = asking(&server).await;
    let of = |password: &str| Call { secrets: secrets(&[("password", password)]), ..call() };
    let script = |value: &str| json!([{ "acquire": "k" }, { "put": ["k", value, 60_000] }]);
    assert_eq!(perform(&backend, "a", of("one"), script("A")).await.unwrap(), ["vacant", "generation 1"]);
    assert_eq!(perform(&backend, "b", of("two"), script("B")).await.unwrap(), ["vacant", "generation 2"]);
    let look = json!([{ "acquire": "k" }, { "invalidate": ["k", 1] }, { "acquire": "k" }]);
    assert_eq!(
        perform(&backend, "c", of("two"), look.clone()).await.unwrap(),
        ["held B", "invalidated", "held B"]
    );
    assert_eq!(perform(&backend, "d", of("one"), look).await.unwrap(), ["held A", "invalidated", "vacant"]);
    assert_eq!(one(&backend, json!({ "acquire": "k" })).await, "vacant");
    let too_much = json!([{ "acquire": "" }, { "put": ["k", "x".repeat(8193), 1] }]);
    let [key, value] = perform(&backend, "e", of("one"), too_much).await.unwrap().try_into().unwrap();
    assert!(key.contains("KeySize") && key.contains("128"), "{key}");
    assert!(value.contains("ValueSize") && value.contains("8192"), "{value}");
}
