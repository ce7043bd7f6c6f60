//! Reflectors: paged lists, lists of large objects, watches, lists after 410 Gone, restored clusters, and an
//! optional kind that the API server does not serve at first, or for some time.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

mod common;
#[path = "../../controllers/tests/log_collector/mod.rs"]
mod log_collector;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cofferdam_apiserver::ApiServer;
use cofferdam_cluster::{
    EventSink, Lookup, Writer,
    deletion_freeze::RestoreDetected,
    metrics::Metrics,
    reflector::{Scope, run_reflector},
    writer::CachedKind,
};
use cofferdam_domain::{Claim, ClaimKey, VolumeAttributesClass, names};
use common::{FaultyApi, ListRequest, api, call};
use futures::{StreamExt as _, stream};
use http::Method;
use log_collector::LogCollector;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const SETTLE_TIME: Duration = Duration::from_secs(5);

fn claim(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

fn key(name: &str) -> ClaimKey {
    ClaimKey::new("default", name)
}

struct RunningReflector {
    writer: Writer,
    stop: CancellationToken,
    task: JoinHandle<Result<(), RestoreDetected>>,
}

fn start_claim_reflector(wire: &FaultyApi) -> RunningReflector {
    start_reflector::<Claim>(wire)
}

fn start_reflector<K: CachedKind>(wire: &FaultyApi) -> RunningReflector {
    start_reflector_with::<K>(wire.writer())
}

fn start_reflector_with<K: CachedKind>(writer: Writer) -> RunningReflector {
    let (metrics, stop) = (Metrics::default(), CancellationToken::new());
    let clock = Arc::new(|| jiff::Timestamp::from_second(1_767_225_600).unwrap());
    let (events, event_loop) = EventSink::new(&writer, clock, metrics.clone());
    tokio::spawn(event_loop.run(stop.clone()));
    let (reflector_writer, token) = (writer.clone(), stop.clone());
    let task = tokio::spawn(async move {
        run_reflector::<K>(&reflector_writer, &events, &metrics, Scope::default(), token).await
    });
    RunningReflector { writer, stop, task }
}

#[tokio::test(start_paused = true)]
async fn every_list_page_and_watch_event_is_applied() {
    let api = api();
    for n in 0..1203 {
        call(&api, Method::POST, CLAIMS, claim(&format!("c{n}"))).await;
    }
    let reflector = start_claim_reflector(&FaultyApi::new(&api));
    let claims = &reflector.writer.cache().claims;
    claims.wait_synced().await;
    assert_eq!(claims.len(), 1203);
    call(&api, Method::POST, CLAIMS, claim("new")).await;
    let selected_node = json!({"metadata": {"annotations": {names::SELECTED_NODE: "n"}}});
    call(&api, Method::PATCH, &format!("{CLAIMS}/c0"), selected_node).await;
    call(&api, Method::PATCH, &format!("{CLAIMS}/c1"), json!({"metadata": {"finalizers": null}})).await;
    call(&api, Method::DELETE, &format!("{CLAIMS}/c1"), Value::Null).await;
    tokio::time::sleep(SETTLE_TIME).await;
    assert!(matches!(claims.get(&key("new")), Lookup::Found(_)));
    assert_eq!(claims.get(&key("c0")).into_object().unwrap().selected_node(), Some("n"));
    assert!(claims.get(&key("c1")).is_missing());
    reflector.stop.cancel();
    assert_eq!(reflector.task.await.unwrap(), Ok(()));
}

/// A claim with labels of 20 KiB, which `metadata.managedFields` repeats.
fn large_claim(name: &str) -> Value {
    let labels: serde_json::Map<String, Value> =
        (0..64).map(|n| (format!("{}/{n}", "a".repeat(250)), json!("v".repeat(63)))).collect();
    let mut object = claim(name);
    object["metadata"]["labels"] = labels.into();
    object
}

/// A tenant creates claims that together exceed the maximum size of a list page many times. The list gets by
/// with smaller pages, and the cache keeps nothing of the labels.
#[tokio::test(start_paused = true)]
async fn a_list_of_large_objects_is_read_in_smaller_pages() {
    const MAX_PAGE_BYTES: usize = 1 << 20;
    let api = api();
    for n in 0..300 {
        let (code, _) = call(&api, Method::POST, CLAIMS, large_claim(&format!("large-{n:03}"))).await;
        assert!(code.is_success(), "{code}");
    }
    for n in 0..200 {
        call(&api, Method::POST, CLAIMS, claim(&format!("small-{n:03}"))).await;
    }
    let wire = FaultyApi::new(&api);
    let reflector = start_reflector_with::<Claim>(wire.writer().with_max_page_bytes(MAX_PAGE_BYTES));
    let claims = &reflector.writer.cache().claims;
    tokio::time::timeout(Duration::from_secs(60), claims.wait_synced()).await.unwrap();
    assert_eq!(claims.len(), 500);
    assert!(claims.list().iter().all(|claim| claim.meta.labels.is_empty()), "labels are not cached");

    let lists = wire.lists.lock().unwrap().clone();
    let (used, too_large): (Vec<ListRequest>, Vec<ListRequest>) =
        lists.iter().partition(|list| list.bytes <= MAX_PAGE_BYTES);
    let limits = |lists: &[ListRequest]| lists.iter().map(|list| list.limit).collect::<Vec<_>>();
    assert_eq!(limits(&too_large), [500, 250, 125, 62, 31]);
    // 300 large claims in 20 pages, then 200 small ones in pages that grow again.
    assert_eq!(limits(&used), [vec![15; 21], vec![30, 60, 120]].concat());
    assert_eq!(
        limits(lists.get(..5).unwrap()),
        limits(&too_large),
        "the list continues, it does not restart"
    );
    reflector.stop.cancel();
    assert_eq!(reflector.task.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn an_object_above_the_page_limit_is_an_error_until_it_is_deleted() {
    let api = api();
    call(&api, Method::POST, CLAIMS, claim("a")).await;
    call(&api, Method::POST, CLAIMS, large_claim("b")).await;
    let writer = FaultyApi::new(&api).writer().with_max_page_bytes(16 << 10);
    let error = writer.list_scope::<Claim>(&Scope::default()).await.unwrap_err();
    let expected = "invalid response of the API server for PersistentVolumeClaims: \
                    a PersistentVolumeClaim has more than 16384 bytes, the maximum of a list page";
    assert_eq!(error.to_string(), expected);

    let reflector = start_reflector_with::<Claim>(writer);
    let claims = &reflector.writer.cache().claims;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!claims.is_synced());
    call(&api, Method::PATCH, &format!("{CLAIMS}/b"), json!({"metadata": {"finalizers": null}})).await;
    call(&api, Method::DELETE, &format!("{CLAIMS}/b"), Value::Null).await;
    claims.wait_synced().await;
    assert!(matches!(claims.get(&key("a")), Lookup::Found(_)) && claims.len() == 1);
    reflector.stop.cancel();
    assert_eq!(reflector.task.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn the_reflector_relists_after_compaction() {
    let api = api();
    call(&api, Method::POST, CLAIMS, claim("a")).await;
    let reflector = start_claim_reflector(&FaultyApi::new(&api));
    let claims = &reflector.writer.cache().claims;
    claims.wait_synced().await;
    for _ in 0..3 {
        call(
            &api,
            Method::POST,
            CLAIMS,
            json!({"metadata": {"generateName": "x-"}, "spec": claim("x")["spec"]}),
        )
        .await;
        api.compact();
        tokio::time::sleep(SETTLE_TIME).await;
    }
    assert_eq!(claims.len(), 4);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    call(&api, Method::POST, CLAIMS, claim("late")).await;
    tokio::time::sleep(SETTLE_TIME).await;
    assert_eq!(claims.len(), 5, "after an hour and a dozen watches");
}

#[tokio::test(start_paused = true)]
async fn a_restored_cluster_is_detected_and_reported() {
    let api = api();
    let backup = api.snapshot();
    call(&api, Method::POST, CLAIMS, claim("a")).await;
    let reflector = start_claim_reflector(&FaultyApi::new(&api));
    reflector.writer.cache().claims.wait_synced().await;
    call(&api, Method::POST, CLAIMS, claim("b")).await;
    tokio::time::sleep(SETTLE_TIME).await;
    api.restore(&backup);
    let since = Instant::now();
    let restored = reflector.task.await.unwrap().unwrap_err();
    // A watch from a future version opens normally and has no events until it ends.
    assert!(since.elapsed() < Duration::from_secs(60), "{:?} on the paused clock", since.elapsed());
    assert_eq!(restored.kind, "PersistentVolumeClaim");
    assert!(restored.found < restored.highest_seen, "{restored}");
    assert_eq!(
        reflector.writer.cache().restore_detector.reported(),
        Some(restored),
        "the restore is reported to users of the cache"
    );
    assert_eq!(reflector.writer.cache().claims.len(), 2, "the cache is unchanged");
}

/// An API server with the VolumeAttributesClass `fast`.
async fn api_with_attributes_class() -> ApiServer {
    let api = api();
    let class =
        json!({"metadata": {"name": "fast"}, "driverName": "d.example.com", "parameters": {"a": "b"}});
    call(&api, Method::POST, "/apis/storage.k8s.io/v1/volumeattributesclasses", class).await;
    api
}

/// The log of the reflector: levels and texts.
fn reflector_log(log: &LogCollector) -> Vec<String> {
    let text = log.text();
    let lines = text.lines().filter_map(|line| {
        let (head, message) = line.split_once(" message=")?;
        let (level, target) = head.split_once(' ')?;
        let message = message.trim_end_matches(r#" kind="VolumeAttributesClass""#);
        target.starts_with("cofferdam_cluster::reflector").then(|| format!("{level} {message}"))
    });
    lines.collect()
}

#[tokio::test(start_paused = true)]
async fn a_missing_optional_kind_is_retried_and_logged_once() {
    let log = LogCollector::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let wire = FaultyApi::new(&api_with_attributes_class().await);
    *wire.missing_kind.lock().unwrap() = Some("volumeattributesclasses");
    let reflector = start_reflector::<VolumeAttributesClass>(&wire);
    let classes = &reflector.writer.cache().attributes_classes;
    classes.wait_synced().await;
    assert!(classes.is_empty() && !classes.is_served());
    tokio::time::sleep(Duration::from_mins(10)).await;
    let missing = "INFO the API server does not serve the kind in version storage.k8s.io/v1, and other \
                   versions are not used: no object of it is found, and work that needs one waits; checking \
                   every 60s";
    assert_eq!(reflector_log(&log), [missing]);
    *wire.missing_kind.lock().unwrap() = None;
    tokio::time::sleep(Duration::from_secs(65)).await;
    let found = classes.get(&"fast".into()).into_object().unwrap();
    assert_eq!((found.driver.as_str(), found.parameters.len()), ("d.example.com", 1));
    assert_eq!(reflector_log(&log), [missing, "INFO the API server serves the kind now"]);
    reflector.stop.cancel();
    assert_eq!(reflector.task.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn an_optional_kind_that_is_removed_is_cleared_and_read_again() {
    let log = LogCollector::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let wire = FaultyApi::new(&api_with_attributes_class().await);
    let reflector = start_reflector::<VolumeAttributesClass>(&wire);
    let classes = &reflector.writer.cache().attributes_classes;
    classes.wait_synced().await;
    for _ in 0..2 {
        assert!(classes.is_served() && classes.len() == 1);
        *wire.missing_kind.lock().unwrap() = Some("volumeattributesclasses");
        // The open watch ends within its timeout.
        tokio::time::sleep(Duration::from_mins(20)).await;
        assert!(!classes.is_served() && classes.is_empty());
        *wire.missing_kind.lock().unwrap() = None;
        tokio::time::sleep(Duration::from_secs(65)).await;
    }
    assert!(classes.is_served() && matches!(classes.get(&"fast".into()), Lookup::Found(_)));
    let removed = "WARN the API server no longer serves the kind in version storage.k8s.io/v1: no object of \
                   it is found, and work that needs one waits; checking every 60s";
    let served = "INFO the API server serves the kind now";
    assert_eq!(reflector_log(&log), [removed, served, removed, served]);
    reflector.stop.cancel();
    assert_eq!(reflector.task.await.unwrap(), Ok(()));
}

/// Returns the objects as the body of a list at `version`.
fn list_body(version: u64, items: &[Value]) -> String {
    let metadata = json!({"resourceVersion": version.to_string()});
    json!({"kind": "PersistentVolumeClaimList", "metadata": metadata, "items": items}).to_string()
}

fn versioned_claim(name: &str, version: u64) -> Value {
    let mut object = claim(name);
    object["metadata"] = json!({
        "name": name, "namespace": "default", "uid": name, "resourceVersion": version.to_string(),
    });
    object
}

/// An object whose metadata cannot be decoded exists, but under an unknown name: it may be any of the cached
/// objects.
#[tokio::test(start_paused = true)]
async fn a_list_with_an_object_without_a_name_removes_no_object() {
    let mut without_name = versioned_claim("b", 3);
    without_name["metadata"]["name"] = json!(7);
    let lists = [
        list_body(2, &[versioned_claim("a", 1), versioned_claim("b", 2)]),
        list_body(4, &[versioned_claim("c", 4), without_name]),
    ];
    let lists = Arc::new(std::sync::Mutex::new(lists.into_iter().collect::<std::collections::VecDeque<_>>()));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let lists = Arc::clone(&lists);
        async move {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let expired = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}"#;
            let body = match is_watch {
                true if lists.lock().unwrap().is_empty() => std::future::pending().await,
                true => format!("{expired}\n"),
                false => lists.lock().unwrap().pop_front().unwrap(),
            };
            let body = http_body_util::Full::new(bytes::Bytes::from(body));
            Ok::<_, Infallible>(http::Response::new(body))
        }
    });
    let client = kube::Client::new(service, "default");
    let writer = Writer::new(client, Arc::default(), Metrics::default());
    let reflector = start_reflector_with::<Claim>(writer);
    let claims = &reflector.writer.cache().claims;
    tokio::time::sleep(Duration::from_secs(60)).await;
    for name in ["a", "b", "c"] {
        assert!(matches!(claims.get(&key(name)), Lookup::Found(_)), "claim {name}");
    }
    reflector.stop.cancel();
    assert_eq!(reflector.task.await.unwrap(), Ok(()));
}

/// Serves one claim until a watch has sent `bad_events`, and then another claim as well: in lists, and in the
/// next watch.
fn api_with_bad_events(bad_events: &'static [u8]) -> kube::Client {
    let watches = Arc::new(AtomicUsize::new(0));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let watches = Arc::clone(&watches);
        async move {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let ended = watches.fetch_add(usize::from(is_watch), Ordering::Relaxed);
            let (old, new) = (versioned_claim("old", 1), versioned_claim("new", 3));
            let frames: Vec<bytes::Bytes> = match (is_watch, ended) {
                (true, 0) => bad_events.chunks(64 << 10).map(bytes::Bytes::from_static).collect(),
                (true, _) => vec![format!("{}\n", json!({"type": "ADDED", "object": new})).into()],
                (false, 0) => vec![list_body(2, &[old]).into()],
                (false, _) => vec![list_body(4, &[old, new]).into()],
            };
            let frames =
                stream::iter(frames.into_iter().map(hyper::body::Frame::data).map(Ok::<_, Infallible>));
            // The watch after the bad one stays open.
            let rest = if is_watch && ended > 0 {
                stream::pending().left_stream()
            } else {
                stream::empty().right_stream()
            };
            Ok::<_, Infallible>(http::Response::new(http_body_util::StreamBody::new(frames.chain(rest))))
        }
    });
    kube::Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn bad_watch_events_cause_another_watch_or_list_and_lose_no_object() {
    static LARGE: [u8; (8 << 20) + 1] = [b'x'; (8 << 20) + 1];
    let invalid = "invalid response of the API server for persistentvolumeclaims: ";
    #[rustfmt::skip] // one row a case
    let cases: [(&str, &[u8], &str); 6] = [
        ("a truncated event", br#"{"type":"ADDED","object":{"metadata":{"na"#, "it ended immediately"),
        ("a truncated event with a line break", b"{\"type\":\"ADDED\",\"object\":{\n", invalid),
        ("an event without an object", b"{\"type\":\"ADDED\"}\n", invalid),
        ("a text", b"<html>502 Bad Gateway</html>\n", invalid),
        ("a protobuf event", b"\0\0\0\x1a\n\x05ADDED\x12\x11k8s\0\n\x0b\n\x02v1\x12\x05Claim\n", invalid),
        ("an event of more than 8 MiB", &LARGE, "a watch event has 8388609 bytes: expected at most 8388608"),
    ];
    for (case, bad_events, expected) in cases {
        let log = LogCollector::default();
        let _guard = tracing::subscriber::set_default(log.clone());
        let writer = Writer::new(api_with_bad_events(bad_events), Arc::default(), Metrics::default());
        let claims = &writer.cache().claims;
        let deletions = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&deletions);
        claims.subscribe(move |change| {
            counter.fetch_add(usize::from(change.new.is_none()), Ordering::Relaxed);
        });
        let reflector = start_reflector_with::<Claim>(writer.clone());
        claims.wait_synced().await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        for name in ["old", "new"] {
            assert!(matches!(claims.get(&key(name)), Lookup::Found(_)), "{case}: claim {name}");
        }
        assert_eq!(deletions.load(Ordering::Relaxed), 0, "{case}");
        let text = log.text();
        let failure = text.lines().find(|line| line.contains("watch failed")).unwrap_or_default();
        assert!(failure.contains(expected), "{case}: {text}");
        reflector.stop.cancel();
        assert_eq!(reflector.task.await.unwrap(), Ok(()));
    }
}
