//! Guests that run when the term of their call ends: a guest that computes, and one that waits, is stopped. A
//! commit of `state` that is under way is written completely or not at all.
#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;
mod net;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cofferdam_backend::{Backend as _, Call};
use cofferdam_domain::{
    VolumeHandle,
    storage::{ErrorKind, Finality, PageRequest, StorageError},
    term::Term,
};
use cofferdam_wasm::{BackendConfig, ComponentSource, Engine, Limits, StateConfig, WasmBackend};
use common::{call, create, engine, load, request};
use net::{TEST_TIMEOUT, TestServer, get, origin, run_script};
use serde_json::json;
use tokio::sync::watch;

/// The message of a call whose guest was stopped.
const STOPPED: &str =
    "the backend was stopped: the term of this process has ended, and another process may lead";
/// The message of a call that was not started.
const NOT_STARTED: &str = "this process does not lead: its term has ended";
/// A read of a term's clock at which the guest runs: a call reads it before it begins, and whenever its guest
/// may continue.
const READ_OF_RUNNING_GUEST: u64 = 10;

/// A circuit breaker that opens after the first failure.
fn limits() -> Limits {
    Limits { breaker_failures: 1, ..Limits::default() }
}

fn call_in(term: &Term) -> Call {
    Call { term: term.clone(), ..call() }
}

/// A term that ends at this read of its clock, counted from 1. No test has to guess how long a guest takes.
fn term_until_read(last: u64) -> Term {
    let reads = AtomicU64::new(0);
    let clock = move || Duration::from_secs(u64::from(reads.fetch_add(1, Ordering::SeqCst) + 1 >= last));
    Term::until(Duration::from_secs(1), Arc::new(clock))
}

#[track_caller]
fn assert_stopped(error: &StorageError) {
    assert_eq!((error.kind, error.finality), (ErrorKind::Unavailable, Finality::Unknown), "{error}");
    assert_eq!(error.message, STOPPED);
}

async fn assert_works(backend: &WasmBackend) {
    assert_eq!(create(backend, "well-behaved", 7).await.unwrap().capacity, Some(7));
}

#[tokio::test]
async fn a_computing_guest_is_stopped_at_the_end_of_its_term() {
    let backend = load(&engine(), cofferdam_test_guests::HOSTILE, &[], limits()).await.unwrap();
    // Later calls start on the threads for CPU-bound calls.
    for number in 0..20 {
        let term = term_until_read(READ_OF_RUNNING_GUEST);
        let error = backend.create_volume(call_in(&term), request("loop", 1)).await.unwrap_err();
        assert_stopped(&error);
        assert!(backend.last_usage().memory_bytes > 0, "call {number}: the guest ran");
    }
    // The instances of stopped guests are not reused, and their failures are not the backend's.
    assert_works(&backend).await;
}

#[tokio::test]
async fn a_sleeping_guest_is_stopped_at_the_end_of_its_term() {
    let backend = load(&engine(), cofferdam_test_guests::HOSTILE, &[], limits()).await.unwrap();
    let term = term_until_read(READ_OF_RUNNING_GUEST);
    let error = backend.delete_volume(call_in(&term), VolumeHandle::new("sleep")).await.unwrap_err();
    assert_stopped(&error);
    assert!(backend.last_usage().memory_bytes > 0, "the guest ran");
    assert_works(&backend).await;
}

#[tokio::test]
async fn a_guest_that_waits_for_a_response_is_stopped_at_the_end_of_its_term() {
    let server = TestServer::start(None).await;
    let backend = net::load(&engine(), vec![origin(&server.http(""))], limits()).await.unwrap();
    let term = Term::until(Duration::from_secs(1), Arc::new(|| Duration::ZERO));
    let script = json!([{ "send": get(&server.http("/gate")) }, { "send": get(&server.http("/echo")) }]);
    let end_term = async {
        assert_eq!(server.next_request().await, "GET /gate ");
        term.end();
    };
    let (result, ()) = tokio::join!(run_script(&backend, "v", call_in(&term), script.clone()), end_term);
    assert_stopped(&result.unwrap_err());
    let error = run_script(&backend, "w", call_in(&term), script).await.unwrap_err();
    assert_eq!(error.message, NOT_STARTED);
    assert_eq!(server.request_count(), 1, "the guest does not continue");
    // The storage still processes the request.
    let error = run_script(&backend, "v", call(), json!([])).await.unwrap_err();
    assert_eq!(error.message, "another call for this volume is running");
    assert_eq!(run_script(&backend, "other", call(), json!([])).await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_guest_whose_term_is_renewed_is_not_disturbed() {
    let server = TestServer::start(None).await;
    let backend = net::load(&engine(), vec![origin(&server.http(""))], limits()).await.unwrap();
    let (reads, mut read_count) = watch::channel(0);
    let seconds = Arc::new(AtomicU64::new(0));
    let term = {
        let seconds = Arc::clone(&seconds);
        let clock = move || {
            reads.send_modify(|count| *count += 1);
            Duration::from_secs(seconds.load(Ordering::SeqCst))
        };
        Term::until(Duration::from_secs(1), Arc::new(clock))
    };
    let renew = async {
        assert_eq!(server.next_request().await, "GET /gate ");
        term.extend(Duration::from_secs(10));
        seconds.store(9, Ordering::SeqCst);
        // The call checks its term again while the guest waits.
        let later = *read_count.borrow() + READ_OF_RUNNING_GUEST;
        let checks = tokio::time::timeout(TEST_TIMEOUT, read_count.wait_for(|count| *count >= later)).await;
        drop(checks.unwrap().unwrap());
        server.release_gate(1);
    };
    let script = json!([{ "send": get(&server.http("/gate")) }]);
    let (result, ()) = tokio::join!(run_script(&backend, "v", call_in(&term), script), renew);
    assert_eq!(result.unwrap(), ["200 passed"]);
}

/// Loads the memory backend with a state file.
async fn load_with_state_file(engine: &Engine, directory: &tempfile::TempDir) -> Arc<WasmBackend> {
    let source = ComponentSource::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
    let state = StateConfig { file: Some(directory.path().join("state.redb")) };
    engine.load(source, BackendConfig { state, limits: limits(), ..BackendConfig::default() }).await.unwrap()
}

/// Creates a volume as soon as no access to the state that outlived an earlier call runs.
async fn create_when_unlocked(backend: &WasmBackend, name: &str) {
    let unlocked = async {
        while let Err(error) = create(backend, name, 7).await {
            assert_eq!(error.message, "another call for this volume is running");
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, unlocked).await.unwrap();
}

/// The term ends at each point at which a creation can be stopped, one after the other.
#[tokio::test]
async fn a_commit_at_the_end_of_a_term_is_written_completely_or_not_at_all() {
    let engine = engine();
    let (directory, control_directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let backend = load_with_state_file(&engine, &directory).await;
    let control = load_with_state_file(&engine, &control_directory).await;
    let mut stopped = 0;
    for last_read in 1.. {
        let name = format!("v{last_read}");
        let term = term_until_read(last_read);
        let result = backend.create_volume(call_in(&term), request(&name, 7)).await;
        // A guest that has responded is not stopped.
        let is_complete = result.is_ok();
        if let Err(error) = result
            && error.message != NOT_STARTED
        {
            assert_stopped(&error);
            stopped += 1;
        }
        create_when_unlocked(&backend, &name).await;
        create(&control, &name, 7).await.unwrap();
        assert_eq!(backend.state_usage(), control.state_usage(), "after {name}");
        if is_complete {
            break;
        }
    }
    assert!(stopped >= 2, "before the guest and during its accesses to the state: {stopped}");
    let page = backend.list_volumes(call(), PageRequest::default()).await.unwrap();
    let control_page = control.list_volumes(call(), PageRequest::default()).await.unwrap();
    assert_eq!(page.volumes.len(), control_page.volumes.len());
}
