//! Guests that misbehave, through the real engine: each gets a typed error, and the next call works.
#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;

use std::{sync::Arc, time::Duration};

use cofferdam_backend::{Backend as _, Call, Limits, WasmBackend};
use cofferdam_domain::{
    VolumeHandle,
    storage::{ErrorKind, Finality, StorageError},
};
use common::{call, create, engine, load};

/// A breaker that stays out of the way.
fn limits() -> Limits {
    Limits { breaker_failures: 1_000, ..Limits::default() }
}

/// A small budget, so that endless loops end soon.
fn hasty() -> Limits {
    Limits { cpu_ms: 50, ..limits() }
}

async fn hostile(pairs: &[(&str, &str)], limits: Limits) -> Arc<WasmBackend> {
    load(&engine(), cofferdam_guests::HOSTILE, pairs, limits).await.unwrap()
}

async fn works(backend: &WasmBackend) {
    assert_eq!(create(backend, "well-behaved", 7).await.unwrap().capacity, Some(7));
}

fn assert_unknown(error: &StorageError, kind: ErrorKind, expected: &str) {
    assert_eq!((error.kind, error.finality), (kind, Finality::Unknown), "{error}");
    assert!(error.message.contains(expected) && !error.message.contains('\n'), "{error}");
}

#[tokio::test]
async fn each_misdeed_is_a_typed_error_and_the_next_call_works() {
    let backend = hostile(&[], limits()).await;
    for (misdeed, expected) in [
        ("panic", "trapped: wasm `unreachable` instruction executed"),
        ("hoard", "wanted more than 67108864 bytes of memory"),
        ("recurse", "trapped: "),
        ("exit", "ended its program"),
        ("random", "5000 random bytes at once; at most 4096"),
        ("oversized", "a value of more than 4194304 bytes"),
        ("many", "a value of more than 4194304 bytes"),
    ] {
        let error = create(&backend, misdeed, 1).await.unwrap_err();
        assert_unknown(&error, ErrorKind::Internal, expected);
        works(&backend).await;
    }
    let hasty = hostile(&[], hasty()).await;
    let error = create(&hasty, "loop", 1).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Internal, "computed for more than 50ms");
    works(&hasty).await;
    for flood in ["flood", "stderr"] {
        // A flood costs the guest its own time; within it, only lines are lost.
        let roomy = hostile(&[], Limits { cpu_ms: 60_000, ..limits() }).await;
        assert!(create(&roomy, flood, 1).await.is_ok());
    }
}

#[tokio::test]
async fn a_sleeping_guest_is_stopped_by_its_deadline() {
    let backend = hostile(&[], limits()).await;
    let call = Call::within(Duration::from_millis(50));
    let error = backend.delete_volume(call, VolumeHandle::new("sleep")).await.unwrap_err();
    assert_unknown(&error, ErrorKind::DeadlineExceeded, "has not answered within");
    works(&backend).await;
    let impatient = hostile(&[], Limits { deadline_ms: 50, ..limits() }).await;
    let error = create(&impatient, "sleep", 1).await.unwrap_err();
    assert_unknown(&error, ErrorKind::DeadlineExceeded, "has not answered within");
}

#[tokio::test]
async fn other_calls_go_on_beside_endless_loops() {
    let backend = hostile(&[], Limits { cpu_ms: 200, ..limits() }).await;
    let loops = (0..4).map(|_| backend.delete_volume(call(), VolumeHandle::new("loop")));
    let first = backend.delete_volume(call(), VolumeHandle::new("loop"));
    let ((), error) = futures::join!(works(&backend), first);
    assert_unknown(&error.unwrap_err(), ErrorKind::Internal, "computed for more than");
    // One volume has one call at a time.
    let busy: Vec<_> = futures::future::join_all(loops).await.into_iter().map(Result::unwrap_err).collect();
    assert_eq!(busy.iter().filter(|error| error.kind == ErrorKind::Aborted).count(), 3);
    assert!(busy.iter().all(|error| error.finality != Finality::Final));
}

#[tokio::test]
async fn lies_are_refused() {
    let backend = hostile(&[], limits()).await;
    for (lie, expected) in [
        ("no-handle", "the volume handle has 0 bytes"),
        ("long-handle", "the volume handle has 129 bytes"),
        ("inline-handle", "the shape of an inline volume's"),
        ("control-handle", "has control characters"),
        ("too-large", "the volume has 18446744073709551615 bytes"),
        ("large-context", "the context has 5001 bytes"),
        ("repeated-key", "the context has the key \"k\" twice"),
        ("odd-topology", "the topology key \"not a key\" is not a label's key"),
        ("odd-attachment", "the attachment's kind is \"Di/rectory\""),
    ] {
        let error = create(&backend, lie, 100).await.unwrap_err();
        assert_unknown(&error, ErrorKind::Internal, expected);
    }
    // Not refused: the volume exists, and only who hears of its id can delete it again.
    assert_eq!(create(&backend, "too-small", 100).await.unwrap().capacity, Some(1));
    let error = create(&backend, "long-message", 1).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Unavailable, " [31mé é");
    assert!(error.message.len() <= 1_003 && error.message.ends_with('…'));
    works(&backend).await;
}

#[tokio::test]
async fn what_describes_itself_wrongly_is_not_loaded() {
    let engine = engine();
    let error =
        load(&engine, cofferdam_guests::HOSTILE, &[("on-describe", "loop")], hasty()).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("identity.describe failed: Internal: the backend computed for more than 50ms")
    );
    for (settings, expected) in [
        (("on-describe", "panic"), "identity.describe failed: Internal: the backend trapped"),
        (("on-describe", "hoard"), "identity.describe failed: Internal: the backend wanted more than"),
        (("on-probe", "exit"), "identity.probe failed: Internal: the backend ended its program"),
        (("name", ""), "the driver name is \"\"; expected a DNS subdomain"),
        (("name", "Has Spaces"), "the driver name is \"Has Spaces\"; expected a DNS subdomain"),
        (("topology-keys", "a,a"), "the topology key \"a\" is given twice"),
        (("features", "Not A Word"), "the feature \"Not A Word\" is not valid"),
    ] {
        let error =
            load(&engine, cofferdam_guests::HOSTILE, &[settings], limits()).await.unwrap_err().to_string();
        assert!(
            error.starts_with("guest.wasm: ") && error.contains(expected) && !error.contains('\n'),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_backend_that_only_fails_is_left_alone() {
    // The pause is long, so the second call meets it however slow the machine is.
    let limits = Limits { breaker_failures: 3, breaker_pause_ms: 3_600_000, ..limits() };
    let backend = hostile(&[], limits).await;
    for _ in 0..2 {
        create(&backend, "panic", 1).await.unwrap_err();
    }
    works(&backend).await;
    for _ in 0..3 {
        create(&backend, "panic", 1).await.unwrap_err();
    }
    let error = create(&backend, "well-behaved", 1).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Unavailable, "failed too often and is left alone");
    assert!(error.retry_after_ms.is_some_and(|pause| pause > 3_000_000));
}

#[tokio::test]
async fn too_many_calls_are_refused_at_once() {
    let limits = Limits { concurrent_calls: 1, queued_calls: 2, deadline_ms: 300, ..limits() };
    let backend = hostile(&[], limits).await;
    // Sleepers of different volumes, as far as the guard can tell; the name of one is a misdeed.
    let first = create(&backend, "sleep", 1);
    let second = backend.delete_volume(call(), VolumeHandle::new("sleep"));
    let third = create(&backend, "third", 1);
    let (first, second, third) = futures::join!(first, second, third);
    let errors: Vec<_> =
        [first.map(drop), second, third.map(drop)].into_iter().filter_map(Result::err).collect();
    assert!(errors.iter().any(|error| error.kind == ErrorKind::Unavailable), "{errors:?}");
    assert!(errors.iter().all(|error| error.finality == Finality::Unknown));
    works(&backend).await;
}
