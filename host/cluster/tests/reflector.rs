//! Reflectors: paged lists, watches, lists after 410 Gone, restored clusters, and an optional kind that the
//! API server does not serve at first.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

mod common;

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{
    EventSink, Lookup, Writer,
    deletion_freeze::RestoreDetected,
    metrics::Metrics,
    reflector::{Scope, run_reflector},
    writer::CachedKind,
};
use cofferdam_domain::{Claim, ClaimKey, VolumeAttributesClass};
use common::{FaultyApi, api, call};
use http::Method;
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
    let (writer, metrics, stop) = (wire.writer(), Metrics::default(), CancellationToken::new());
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
    call(&api, Method::PATCH, &format!("{CLAIMS}/c0"), json!({"metadata": {"labels": {"a": "b"}}})).await;
    call(&api, Method::PATCH, &format!("{CLAIMS}/c1"), json!({"metadata": {"finalizers": null}})).await;
    call(&api, Method::DELETE, &format!("{CLAIMS}/c1"), Value::Null).await;
    tokio::time::sleep(SETTLE_TIME).await;
    assert!(matches!(claims.get(&key("new")), Lookup::Found(_)));
    assert_eq!(claims.get(&key("c0")).into_object().unwrap().meta.labels.len(), 1);
    assert!(claims.get(&key("c1")).is_missing());
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

#[tokio::test(start_paused = true)]
async fn a_missing_optional_kind_is_retried() {
    let api = api();
    let class =
        json!({"metadata": {"name": "fast"}, "driverName": "d.example.com", "parameters": {"a": "b"}});
    call(&api, Method::POST, "/apis/storage.k8s.io/v1/volumeattributesclasses", class).await;
    let wire = FaultyApi::new(&api);
    *wire.missing_kind.lock().unwrap() = Some("volumeattributesclasses");
    let reflector = start_reflector::<VolumeAttributesClass>(&wire);
    let classes = &reflector.writer.cache().attributes_classes;
    classes.wait_synced().await;
    assert!(classes.is_empty());
    *wire.missing_kind.lock().unwrap() = None;
    tokio::time::sleep(Duration::from_secs(65)).await;
    let found = classes.get(&"fast".into()).into_object().unwrap();
    assert_eq!((found.driver.as_str(), found.parameters.len()), ("d.example.com", 1));
    reflector.stop.cancel();
    assert_eq!(reflector.task.await.unwrap(), Ok(()));
}
