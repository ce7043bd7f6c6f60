//! Following a kind: lists in pages, watches, 410, objects that cannot be read, restored clusters.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what cannot be is a failed test")]

mod common;

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{
    EventSink, Seen, Writer,
    hold::Restored,
    metrics::Metrics,
    watch::{Scope, follow},
    writer::Cached,
};
use cofferdam_domain::{AttributesClass, Claim, ClaimKey};
use common::{Wire, api, call};
use http::Method;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const A_WHILE: Duration = Duration::from_secs(5);

fn claim(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

fn key(name: &str) -> ClaimKey {
    ClaimKey::new("default", name)
}

struct Followed {
    writer: Writer,
    stop: CancellationToken,
    task: JoinHandle<Result<(), Restored>>,
}

fn start(wire: &Wire) -> Followed {
    start_on::<Claim>(wire)
}

fn start_on<K: Cached>(wire: &Wire) -> Followed {
    let (writer, metrics, stop) = (wire.writer(), Metrics::default(), CancellationToken::new());
    let clock = Arc::new(|| jiff::Timestamp::from_second(1_767_225_600).unwrap());
    let (events, event_loop) = EventSink::new(writer.clone(), clock, metrics.clone());
    tokio::spawn(event_loop.run(stop.clone()));
    let (following, token) = (writer.clone(), stop.clone());
    let task =
        tokio::spawn(
            async move { follow::<K>(&following, &events, &metrics, Scope::default(), token).await },
        );
    Followed { writer, stop, task }
}

#[tokio::test(start_paused = true)]
async fn lists_every_page_and_hears_of_every_change() {
    let api = api();
    for n in 0..1203 {
        call(&api, Method::POST, CLAIMS, claim(&format!("c{n}"))).await;
    }
    let followed = start(&Wire::new(&api));
    let claims = &followed.writer.cache().claims;
    claims.synced().await;
    assert_eq!(claims.len(), 1203);
    call(&api, Method::POST, CLAIMS, claim("new")).await;
    call(&api, Method::PATCH, &format!("{CLAIMS}/c0"), json!({"metadata": {"labels": {"a": "b"}}})).await;
    call(&api, Method::PATCH, &format!("{CLAIMS}/c1"), json!({"metadata": {"finalizers": null}})).await;
    call(&api, Method::DELETE, &format!("{CLAIMS}/c1"), Value::Null).await;
    tokio::time::sleep(A_WHILE).await;
    assert!(matches!(claims.get(&key("new")), Seen::Known(_)));
    assert_eq!(claims.get(&key("c0")).known().unwrap().meta.labels.len(), 1);
    assert!(claims.get(&key("c1")).is_absent());
    followed.stop.cancel();
    assert_eq!(followed.task.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn lists_anew_when_the_history_is_gone() {
    let api = api();
    call(&api, Method::POST, CLAIMS, claim("a")).await;
    let followed = start(&Wire::new(&api));
    let claims = &followed.writer.cache().claims;
    claims.synced().await;
    for _ in 0..3 {
        call(
            &api,
            Method::POST,
            CLAIMS,
            json!({"metadata": {"generateName": "x-"}, "spec": claim("x")["spec"]}),
        )
        .await;
        api.compact();
        tokio::time::sleep(A_WHILE).await;
    }
    assert_eq!(claims.len(), 4);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    call(&api, Method::POST, CLAIMS, claim("late")).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(claims.len(), 5, "an hour and a dozen watches later");
}

#[tokio::test(start_paused = true)]
async fn a_restored_cluster_is_told_from_a_lagging_list() {
    let api = api();
    let backup = api.snapshot();
    call(&api, Method::POST, CLAIMS, claim("a")).await;
    let followed = start(&Wire::new(&api));
    followed.writer.cache().claims.synced().await;
    call(&api, Method::POST, CLAIMS, claim("b")).await;
    tokio::time::sleep(A_WHILE).await;
    api.restore(&backup);
    let since = Instant::now();
    let restored = followed.task.await.unwrap().unwrap_err();
    // A watch from a version that is not there yet opens as any other, and is silent until it ends.
    assert!(since.elapsed() < Duration::from_secs(60), "{:?} on the paused clock", since.elapsed());
    assert_eq!(restored.kind, "PersistentVolumeClaim");
    assert!(restored.found < restored.seen, "{restored}");
    assert_eq!(
        followed.writer.cache().restoration.told(),
        Some(restored),
        "whoever works with the cache knows"
    );
    assert_eq!(followed.writer.cache().claims.len(), 2, "the cache is left for whoever drops it");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_clusters_may_lack_is_looked_for_again() {
    let api = api();
    let class =
        json!({"metadata": {"name": "fast"}, "driverName": "d.example.com", "parameters": {"a": "b"}});
    call(&api, Method::POST, "/apis/storage.k8s.io/v1/volumeattributesclasses", class).await;
    let wire = Wire::new(&api);
    *wire.lacks.lock().unwrap() = Some("volumeattributesclasses");
    let followed = start_on::<AttributesClass>(&wire);
    let classes = &followed.writer.cache().attributes_classes;
    classes.synced().await;
    assert!(classes.is_empty());
    *wire.lacks.lock().unwrap() = None;
    tokio::time::sleep(Duration::from_secs(65)).await;
    let found = classes.get(&"fast".into()).known().unwrap();
    assert_eq!((found.driver.as_str(), found.parameters.len()), ("d.example.com", 1));
    followed.stop.cancel();
    assert_eq!(followed.task.await.unwrap(), Ok(()));
}
