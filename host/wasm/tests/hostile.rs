//! A guest that misbehaves on request, through the real engine. A trap, an exceeded limit or an invalid
//! response is a typed error of that call, and the next call works, unless consecutive failures have opened
//! the circuit. A guest with an invalid description is not loaded. Secrets in responses are redacted or
//! rejected. A busy backend does not starve others.
#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;

use std::{sync::Arc, time::Duration};

use cofferdam_backend::{Backend as _, Call};
use cofferdam_domain::{
    GroupSnapshotHandle, SnapshotHandle, VolumeHandle,
    storage::{
        CreateGroupSnapshot, CreateSnapshot, ErrorKind, Finality, PageRequest, Parameters, Readiness, Secret,
        StorageError, ValidateVolume, Validation,
    },
};
use cofferdam_wasm::{BackendConfig, ComponentSource, Limits, WasmBackend};
use common::{call, create, engine, load, request, settings};

/// Default limits, with a circuit breaker that does not open.
fn limits() -> Limits {
    Limits { breaker_failures: 1_000, ..Limits::default() }
}

/// A small limit of CPU time, so that endless loops end soon.
fn small_cpu_budget() -> Limits {
    Limits { cpu_ms: 50, ..limits() }
}

async fn load_hostile(pairs: &[(&str, &str)], limits: Limits) -> Arc<WasmBackend> {
    load(&engine(), cofferdam_test_guests::HOSTILE, pairs, limits).await.unwrap()
}

async fn assert_works(backend: &WasmBackend) {
    assert_eq!(create(backend, "well-behaved", 7).await.unwrap().capacity, Some(7));
}

fn assert_unknown(error: &StorageError, kind: ErrorKind, expected: &str) {
    assert_eq!((error.kind, error.finality), (kind, Finality::Unknown), "{error}");
    assert!(error.message.contains(expected) && !error.message.contains('\n'), "{error}");
}

#[tokio::test]
async fn misbehaving_guest_fails_only_its_call() {
    let backend = load_hostile(&[], limits()).await;
    for (misbehavior, expected) in [
        ("panic", ": the array answered with a fish"),
        ("exhaust-memory", "exceeded 67108864 bytes of memory"),
        ("recurse", "trapped: "),
        ("exit", "ended its program"),
        ("random", "5000 random bytes at once; at most 4096"),
        ("oversized", "a value of more than 4194304 bytes"),
        ("many", "a value of more than 4194304 bytes"),
    ] {
        let error = create(&backend, misbehavior, 1).await.unwrap_err();
        assert_unknown(&error, ErrorKind::Internal, expected);
        assert_works(&backend).await;
    }
    let limited = load_hostile(&[], small_cpu_budget()).await;
    let error = create(&limited, "loop", 1).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Internal, "computed for more than 50ms");
    assert_works(&limited).await;
    for flood in ["flood", "stderr"] {
        // A flood uses the guest's CPU time. Within its limit, lines are dropped and the call succeeds.
        let roomy = load_hostile(&[], Limits { cpu_ms: 60_000, ..limits() }).await;
        assert!(create(&roomy, flood, 1).await.is_ok());
    }
}

#[tokio::test]
async fn a_sleeping_guest_is_stopped_by_its_deadline() {
    let backend = load_hostile(&[], limits()).await;
    let call = Call::with_deadline(Duration::from_millis(50));
    let error = backend.delete_volume(call, VolumeHandle::new("sleep")).await.unwrap_err();
    assert_unknown(&error, ErrorKind::DeadlineExceeded, "did not respond within");
    assert_works(&backend).await;
    // The deadline also applies to the calls at load, which need less time.
    let impatient = load_hostile(&[], Limits { deadline_ms: 2_000, ..limits() }).await;
    let error = create(&impatient, "sleep", 1).await.unwrap_err();
    assert_unknown(&error, ErrorKind::DeadlineExceeded, "did not respond within");
}

#[tokio::test]
async fn other_calls_go_on_beside_endless_loops() {
    let backend = load_hostile(&[], Limits { cpu_ms: 200, ..limits() }).await;
    let loops = (0..4).map(|_| backend.delete_volume(call(), VolumeHandle::new("loop")));
    let first = backend.delete_volume(call(), VolumeHandle::new("loop"));
    let ((), error) = futures::join!(assert_works(&backend), first);
    assert_unknown(&error.unwrap_err(), ErrorKind::Internal, "computed for more than");
    // One volume has one call at a time.
    let busy: Vec<_> = futures::future::join_all(loops).await.into_iter().map(Result::unwrap_err).collect();
    assert_eq!(busy.iter().filter(|error| error.kind == ErrorKind::Aborted).count(), 3);
    assert!(busy.iter().all(|error| error.finality != Finality::Final));
}

#[tokio::test]
async fn invalid_volumes_from_a_guest_are_rejected() {
    let backend = load_hostile(&[], limits()).await;
    for (lie, expected) in [
        ("no-handle", "the volume handle has 0 bytes"),
        ("long-handle", "the volume handle has 129 bytes"),
        ("inline-handle", "the form of an inline volume's handle"),
        ("control-handle", "has control characters"),
        ("too-large", "the volume's size is 18446744073709551615 bytes"),
        ("large-context", "the context has 5001 bytes"),
        ("repeated-key", "the context has the key \"k\" twice"),
        ("odd-topology", "the topology key is \"not a key\"; expected a label key"),
        ("odd-connection-info", "the connection info's kind is \"Di/rectory\""),
    ] {
        let error = create(&backend, lie, 100).await.unwrap_err();
        assert_unknown(&error, ErrorKind::Internal, expected);
    }
    // Not rejected: the volume exists, and the caller needs its handle to delete it.
    assert_eq!(create(&backend, "too-small", 100).await.unwrap().capacity, Some(1));
    let error = create(&backend, "long-message", 1).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Unavailable, " [31mé é");
    assert!(error.message.len() <= 1_003 && error.message.ends_with('…'));
    assert_works(&backend).await;
}

#[tokio::test]
async fn guest_with_an_invalid_description_is_not_loaded() {
    let engine = engine();
    let error = load(&engine, cofferdam_test_guests::HOSTILE, &[("on-describe", "loop")], small_cpu_budget())
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("identity.describe failed: Internal: the backend computed for more than 50ms")
    );
    for (settings, expected) in [
        (("on-describe", "panic"), "identity.describe failed: Internal: the backend trapped"),
        (("on-describe", "exhaust-memory"), "identity.describe failed: Internal: the backend exceeded"),
        (("on-probe", "exit"), "identity.probe failed: Internal: the backend ended its program"),
        (("name", ""), "the driver name is \"\"; expected a DNS subdomain"),
        (("name", "Has Spaces"), "the driver name is \"Has Spaces\"; expected a DNS subdomain"),
        (("topology-keys", "a,a"), "the topology key \"a\" is given twice"),
        (("features", "Not A Word"), "the feature is \"Not A Word\"; expected a DNS label"),
    ] {
        let error = load(&engine, cofferdam_test_guests::HOSTILE, &[settings], limits())
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("guest.wasm: ") && error.contains(expected) && !error.contains('\n'),
            "{error}"
        );
    }
}

/// Three failures open a circuit for an hour: it is still open at the next call on a slow machine.
fn limits_with_breaker() -> Limits {
    Limits { breaker_failures: 3, breaker_pause_ms: 3_600_000, ..limits() }
}

fn assert_circuit_is_open(error: &StorageError, expected: &str) {
    assert_unknown(error, ErrorKind::Unavailable, expected);
    assert!(error.retry_after_ms.is_some_and(|pause| pause > 3_000_000));
}

#[tokio::test]
async fn circuit_opens_after_failures_of_different_volumes() {
    let backend = load_hostile(&[], limits_with_breaker()).await;
    for name in ["panic", "exit", "panic", "exit"] {
        create(&backend, name, 1).await.unwrap_err();
    }
    assert_works(&backend).await;
    for name in ["panic", "exit", "exhaust-memory"] {
        create(&backend, name, 1).await.unwrap_err();
    }
    let error = create(&backend, "well-behaved", 1).await.unwrap_err();
    assert_circuit_is_open(&error, "failed too often and is not called for a while");
}

#[tokio::test]
async fn a_volume_that_always_fails_opens_the_circuit_for_itself_only() {
    let backend = load_hostile(&[], limits_with_breaker()).await;
    for _ in 0..3 {
        create(&backend, "panic", 1).await.unwrap_err();
    }
    assert_works(&backend).await;
    let error = create(&backend, "panic", 1).await.unwrap_err();
    assert_circuit_is_open(&error, "failed too often for this volume, snapshot or method");
    assert_works(&backend).await;
}

#[tokio::test]
async fn calls_over_the_queue_limit_are_rejected_immediately() {
    let limits = Limits { concurrent_calls: 1, queued_calls: 1, deadline_ms: 2_000, ..limits() };
    let backend = load_hostile(&[], limits).await;
    // Sleeping calls for different volumes: the first one occupies the only place.
    let first = create(&backend, "sleep", 1);
    let second = backend.delete_volume(call(), VolumeHandle::new("sleep"));
    let (first, second) = futures::join!(first, second);
    let mut kinds = [first.unwrap_err().kind, second.unwrap_err().kind];
    kinds.sort_by_key(|kind| kind.as_str());
    assert_eq!(kinds, [ErrorKind::DeadlineExceeded, ErrorKind::Unavailable]);
    assert_works(&backend).await;
}

#[tokio::test]
async fn guest_has_no_environment_or_file_access() {
    let backend = load_hostile(&[], limits()).await;
    let found = create(&backend, "environment", 1).await.unwrap().context;
    assert_eq!(found.len(), 6);
    assert!(found.values().all(|count| count == "0"), "{found:?}");
}

#[tokio::test]
async fn oversized_state_requests_are_rejected() {
    let small = Limits { state_bytes: 1 << 20, ..limits() };
    let backend = load_hostile(&[], small).await;
    for (misuse, expected) in [
        ("state-key", "StateError::KeySize(Bound { limit: 512, given: 10240 })"),
        ("state-read-key", "StateError::KeySize(Bound { limit: 512, given: 10240 })"),
        ("state-prefix", "StateError::KeySize(Bound { limit: 512, given: 10240 })"),
        ("state-no-key", "StateError::KeySize(Bound { limit: 512, given: 0 })"),
        ("state-value", "StateError::ValueSize(Bound { limit: 65536, given: 65537 })"),
        ("state-batch", "StateError::BatchSize(Bound { limit: 16, given: 17 })"),
        ("state-none", "StateError::BatchSize(Bound { limit: 16, given: 0 })"),
        ("state-twice", "StateError::RepeatedKey(\"k\")"),
    ] {
        let error = create(&backend, misuse, 1).await.unwrap_err();
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::InvalidArgument, expected), "{misuse}");
    }
    let error = create(&backend, "state-huge-value", 1).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Internal, "a value of more than 4194304 bytes");
    assert_eq!(backend.state_usage(), (0, 0));
    // A GiB does not fit the memory of a call; where the operator allows that much memory, it does not fit an
    // import.
    let error = create(&backend, "state-giant-value", 1).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Internal, "exceeded 67108864 bytes of memory");
    let roomy = load_hostile(&[], Limits { memory_bytes: 3 << 30, cpu_ms: 60_000, ..limits() }).await;
    let error = create(&roomy, "state-giant-value", 1).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Internal, "a value of more than 4194304 bytes");
    assert_eq!(roomy.state_usage(), (0, 0));
    let error = create(&backend, "state-full", 1).await.unwrap_err();
    assert!(error.message.starts_with("StateError::Full(Bound { limit: 1048576, given: "), "{error}");
    assert!(backend.state_usage().1 <= 1 << 20);
    assert_works(&backend).await;
}

/// The secret of the tests. It is as long as real secrets, and has a character that is escaped in quoted
/// texts.
const SECRET: &str = "hunter2\"hunter2";

fn secret_call() -> Call {
    Call { secrets: [("password".to_owned(), Secret::new(SECRET))].into_iter().collect(), ..call() }
}

#[tokio::test]
async fn secrets_in_guest_answers_are_redacted_or_rejected() {
    let backend = load_hostile(&[("echo", SECRET), ("on-probe", "echo")], limits()).await;
    for (echo, expected) in [
        ("echo-handle", "the volume handle contains a secret of the call"),
        ("echo-context", "the context has a secret of the call under the key \"password\""),
        ("echo-key", "the context has the key \"[secret]\" twice"),
        ("echo-connection-info", "the connection info has a secret of the call under the key \"path\""),
        ("echo-kind", "the connection info's kind is \"the array says: [secret].\""),
        ("echo-topology", "the topology key is \"the array says: [secret].\"; expected a label key"),
        ("echo-error", "the array says: [secret]."),
    ] {
        let error = backend.create_volume(secret_call(), request(echo, 1)).await.unwrap_err();
        assert!(error.message.contains(expected) && !error.message.contains("hunter2"), "{error}");
    }
    let asked = ValidateVolume {
        handle: VolumeHandle::new("v"),
        context: Parameters::new(),
        capabilities: Vec::new(),
        parameters: [("echo".to_owned(), SECRET.to_owned())].into(),
        mutable_parameters: Parameters::new(),
    };
    let answer = backend.validate_volume(secret_call(), asked).await.unwrap();
    assert_eq!(answer, Validation::Refused("the array knows [secret] already".to_owned()));
    let answer = backend.probe(secret_call()).await.unwrap();
    assert_eq!(answer, Readiness::NotReady("the array says: [secret].".to_owned()));
    let status = backend.get_volume(secret_call(), VolumeHandle::new("echo")).await.unwrap();
    assert_eq!(status.condition.unwrap().message, "the array says: [secret].");
    for (echo, expected) in [
        ("echo-handle", "the snapshot handle contains a secret of the call"),
        ("echo-group", "the group's handle contains a secret of the call"),
        ("echo-owner", "the owner's content contains a secret of the call"),
    ] {
        let asked = CreateSnapshot {
            name: echo.to_owned(),
            source: VolumeHandle::new(echo),
            parameters: Parameters::new(),
            owner: None,
        };
        let error = backend.create_snapshot(secret_call(), asked).await.unwrap_err();
        assert_unknown(&error, ErrorKind::Internal, expected);
    }
    let error = backend.list_snapshots(secret_call(), None, page_after("echo-owner")).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Internal, "the owner's cluster contains a secret of the call");
    let asked = CreateGroupSnapshot {
        name: "echo-member".to_owned(),
        sources: [VolumeHandle::new("a")].into(),
        parameters: Parameters::new(),
        owner: None,
    };
    let error = backend.create_group_snapshot(secret_call(), asked).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Internal, "the snapshot handle contains a secret of the call");
}

#[tokio::test]
async fn encoded_secrets_in_guest_answers_are_redacted_or_rejected() {
    // hunter2"hunter2 in base64 after `u:`, percent-encoded, as JSON, and in hexadecimal.
    for (echo, shown) in [
        ("dTpodW50ZXIyImh1bnRlcjI=", "dT[secret]="),
        ("hunter2%22hunter2", "[secret]"),
        ("hunter2\\u0022hunter2", "[secret]"),
        ("68756E746572322268756E74657232", "[secret]"),
    ] {
        let backend = load_hostile(&[("echo", echo), ("on-probe", "echo")], limits()).await;
        let error = backend.create_volume(secret_call(), request("echo-error", 1)).await.unwrap_err();
        assert_eq!(error.message, format!("the array says: {shown}."));
        let answer = backend.probe(secret_call()).await.unwrap();
        assert_eq!(answer, Readiness::NotReady(format!("the array says: {shown}.")));
        for (name, expected) in [
            ("echo-handle", "the volume handle contains a secret of the call"),
            ("echo-context", "the context has a secret of the call under the key \"password\""),
            ("echo-connection-info", "the connection info has a secret of the call under the key \"path\""),
        ] {
            let error = backend.create_volume(secret_call(), request(name, 1)).await.unwrap_err();
            assert_unknown(&error, ErrorKind::Internal, expected);
        }
    }
}

#[tokio::test]
async fn secrets_in_listed_volumes_are_rejected() {
    let backend = load_hostile(&[("echo", SECRET)], limits()).await;
    for (handle, expected) in [
        (SECRET, "the volume handle contains a secret of the call"),
        ("echo-context", "the context has a secret of the call under the key \"password\""),
        ("echo-node", "the node id contains a secret of the call"),
        ("echo-owner", "the owner's cluster contains a secret of the call"),
    ] {
        let error = backend.get_volume(secret_call(), VolumeHandle::new(handle)).await.unwrap_err();
        assert_unknown(&error, ErrorKind::Internal, expected);
        assert!(!error.message.contains("hunter2"), "{error}");
    }
    let error = backend.list_volumes(secret_call(), page_after("echo-entry")).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Internal, "the volume handle contains a secret of the call");
}

#[tokio::test]
async fn secrets_in_a_description_are_rejected_at_load() {
    for (setting, expected) in [
        ("name", "the driver name contains a secret of the call"),
        ("version", "the version contains a secret of the call"),
        ("topology-keys", "the topology key contains a secret of the call"),
        ("features", "the feature contains a secret of the call"),
    ] {
        let text = format!("v{SECRET}");
        let source =
            ComponentSource::Bytes { name: "guest.wasm".to_owned(), bytes: cofferdam_test_guests::HOSTILE };
        let config = BackendConfig {
            settings: settings(&[(setting, &text)]),
            secrets: secret_call().secrets,
            limits: limits(),
            ..BackendConfig::default()
        };
        let error = engine().load(source, config).await.unwrap_err().to_string();
        assert_eq!(error, format!("guest.wasm: has an invalid description: {expected}"));
    }
}

fn page_after(after: &str) -> PageRequest {
    PageRequest { starting_token: Some(after.to_owned()), max_entries: Some(3) }
}

#[tokio::test]
async fn invalid_list_pages_are_rejected() {
    let backend = load_hostile(&[], limits()).await;
    let source = || Some(VolumeHandle::new("v"));
    for (lie, expected) in [
        ("same", "the page's next token is the token of the request"),
        ("no-next", "the page's next token has 0 bytes; expected 1 to 4096"),
        ("long-next", "the page's next token has 10240 bytes; expected 1 to 4096"),
        ("too-many", "the page has 4 entries; expected 0 to 3"),
    ] {
        let error = backend.list_snapshots(call(), source(), page_after(lie)).await.unwrap_err();
        assert_unknown(&error, ErrorKind::Internal, expected);
        let error = backend.list_volumes(call(), page_after(lie)).await.unwrap_err();
        assert_unknown(&error, ErrorKind::Internal, expected);
    }
    let error = backend.list_snapshots(call(), source(), page_after("foreign-source")).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Internal, "is a snapshot of another volume");
    let error = backend.list_volumes(call(), page_after("bad-entry")).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Internal, "the volume handle has 0 bytes");
    assert_eq!(
        backend.list_snapshots(call(), source(), page_after("good")).await.unwrap().snapshots.len(),
        3
    );
    assert_eq!(
        backend.list_volumes(call(), page_after("good")).await.unwrap().next_token.as_deref(),
        Some("end")
    );
}

#[tokio::test]
async fn answers_about_another_object_are_rejected() {
    let backend = load_hostile(&[], limits()).await;
    let error = backend.get_volume(call(), VolumeHandle::new("other")).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Internal, "the response is about another volume than other");
    let error = backend.get_snapshot(call(), SnapshotHandle::new("other")).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Internal, "the response is about another snapshot than other");
    let group = GroupSnapshotHandle::new("other");
    let error = backend.get_group_snapshot(call(), group, [].into()).await.unwrap_err();
    assert_unknown(&error, ErrorKind::Internal, "the response is about another group snapshot than other");
    for (lie, expected) in [
        ("long-node", "the node id has 10240 bytes; expected 1 to 256"),
        ("control-node", "the node id \"a b\" has control characters"),
        ("many-nodes", "the volume has 10001 published nodes"),
        ("long-owner", "the owner's cluster has 10240 bytes; expected 0 to 253"),
    ] {
        let error = backend.get_volume(call(), VolumeHandle::new(lie)).await.unwrap_err();
        assert_unknown(&error, ErrorKind::Internal, expected);
    }
}

#[tokio::test]
async fn invalid_snapshots_and_groups_are_rejected() {
    let backend = load_hostile(&[], limits()).await;
    let (source, parameters) = (VolumeHandle::new("v"), Parameters::new());
    for (lie, expected) in [
        ("no-handle", "the snapshot handle has 0 bytes"),
        ("too-large", "18446744073709551615 bytes"),
        ("late", "the snapshot's creation time is 18446744073709551615 ms"),
        ("long-group", "the group's handle has 129 bytes"),
    ] {
        let (name, source, parameters) = (lie.to_owned(), source.clone(), parameters.clone());
        let error = backend
            .create_snapshot(call(), CreateSnapshot { name, source, parameters, owner: None })
            .await
            .unwrap_err();
        assert_unknown(&error, ErrorKind::Internal, expected);
    }
    let group = |name: &str| CreateGroupSnapshot {
        name: name.to_owned(),
        sources: [VolumeHandle::new("a"), VolumeHandle::new("b")].into(),
        parameters: Parameters::new(),
        owner: None,
    };
    let members = "the group does not have exactly one snapshot of each requested volume";
    for (lie, expected) in [
        ("fewer", members),
        ("twice", members),
        ("foreign-source", members),
        ("no-member", "the member \"a\" does not name the group as its group"),
        ("not-ready", "the group is ready and one of its members is not"),
    ] {
        let error = backend.create_group_snapshot(call(), group(lie)).await.unwrap_err();
        assert_unknown(&error, ErrorKind::Internal, expected);
    }
    assert_eq!(backend.create_group_snapshot(call(), group("good")).await.unwrap().snapshots.len(), 2);
}

#[tokio::test]
async fn noisy_backend_does_not_starve_others() {
    let engine = engine();
    let noisy = load(&engine, cofferdam_test_guests::HOSTILE, &[], limits()).await.unwrap();
    let quiet = load(&engine, cofferdam_carried::MEMORY, &[], Limits::default()).await.unwrap();
    for misbehavior in ["loop", "exhaust-memory", "flood"] {
        let ask = || {
            let asked = ValidateVolume {
                handle: VolumeHandle::new("v"),
                context: Parameters::new(),
                capabilities: Vec::new(),
                parameters: [("misbehavior".to_owned(), misbehavior.to_owned())].into(),
                mutable_parameters: Parameters::new(),
            };
            let noisy = Arc::clone(&noisy);
            tokio::spawn(async move { noisy.validate_volume(call(), asked).await })
        };
        let noise: Vec<_> = (0..Limits::default().concurrent_calls).map(|_| ask()).collect();
        for number in 0..200 {
            create(&quiet, &format!("{misbehavior}-{number}"), 7).await.unwrap();
        }
        noise.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
