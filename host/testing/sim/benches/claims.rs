//! Claims from creation to Bound: all of Cofferdam's controllers and its memory driver, a WebAssembly
//! component, on the embedded API server in the same process.
//!
//! Prints throughput, latency and the number of API writes per claim for each round, then the target values.
#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed measurement panics, and the result is printed to the terminal"
)]

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use cofferdam_apiserver::{ApiBody, ApiServer, ApiService};
use cofferdam_backend::Backend;
use cofferdam_cluster::observer::NoopStepObserver;
use cofferdam_controllers::{ControllerManager, Dependencies, Role, Settings};
use cofferdam_domain::ClaimPhase;
use cofferdam_wasm::{BackendConfig, ComponentSource, Engine, EngineOptions};
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::client::Body;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Claims per round.
const CLAIMS: usize = 5_000;
/// Concurrent clients that create claims.
const CLIENTS: usize = 50;

#[derive(Default)]
struct WriteCounts {
    objects: AtomicU64,
    journal: AtomicU64,
    events: AtomicU64,
}

/// The API server as the controllers reach it. It counts their writes.
#[derive(Clone)]
struct CountingApi {
    api: ApiService,
    writes: Arc<WriteCounts>,
}

impl tower::Service<Request<Body>> for CountingApi {
    type Response = Response<ApiBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.method() != Method::GET {
            let path = request.uri().path();
            let counter = if path.contains("/configmaps") {
                &self.writes.journal
            } else if path.contains("/events") {
                &self.writes.events
            } else {
                &self.writes.objects
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let mut api = self.api.clone();
        Box::pin(async move { tower::Service::call(&mut api, request).await })
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime starts").block_on(run());
}

/// Creates an object as a user.
async fn post(api: &ApiService, path: &str, object: &serde_json::Value) {
    let request = Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Body::from(object.to_string().into_bytes()))
        .expect("path and body are a valid request");
    let Ok(response) = tower::Service::call(&mut api.clone(), request).await;
    assert!(response.status().is_success(), "{path}: {}", response.status());
}

async fn run() {
    let api = ApiServer::new(cofferdam_apiserver::Options::default());
    let writes = Arc::new(WriteCounts::default());
    let client =
        kube::Client::new(CountingApi { api: api.service(), writes: Arc::clone(&writes) }, "default");
    let mut registry = Registry::default();
    let engine = Engine::new(EngineOptions::default()).expect("the engine starts");
    let source = ComponentSource::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
    let backend = engine.load(source, BackendConfig::default()).await.expect("the memory backend loads");
    let driver = backend.description().name.clone();
    let parts = Dependencies {
        client,
        backends: vec![backend as Arc<dyn Backend>],
        clock: Arc::new(jiff::Timestamp::now),
        observer: Arc::new(NoopStepObserver),
    };
    let settings = Settings { roles: Role::ALL.into(), ..Settings::default() };
    let process =
        Arc::new(ControllerManager::new(settings, parts, &mut registry).expect("the settings are valid"));
    let stop = CancellationToken::new();
    let running = Arc::clone(&process);
    let token = stop.clone();
    let task = tokio::spawn(async move { running.run(token).await });
    process.ready().wait_for(|ready| *ready).await.expect("the process runs");

    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "bench"},
        "provisioner": driver.as_str(),
    });
    post(&api.service(), "/apis/storage.k8s.io/v1/storageclasses", &class).await;

    // A claim counts as Bound when the cache of the roles shows it, which is also updated by the responses of
    // their writes.
    let (bound, mut bound_claims) = tokio::sync::mpsc::unbounded_channel::<(Arc<str>, Instant)>();
    process.cache().claims.subscribe(move |change| {
        let phase = |claim: &Option<Arc<cofferdam_domain::Claim>>| claim.as_ref().map(|claim| claim.phase);
        if phase(&change.new) == Some(ClaimPhase::Bound) && phase(&change.old) != Some(ClaimPhase::Bound) {
            let _ = bound.send((change.key.name.clone(), Instant::now()));
        }
    });
    println!("{CLAIMS} claims by {CLIENTS} clients, {} on 2 threads", driver.as_str());
    println!(
        "{:<8}{:>12}{:>12}{:>12}{:>14}{:>15}{:>14}",
        "round", "claims/s", "p50 ms", "p99 ms", "objects/claim", "journal/claim", "events/claim"
    );
    for round in 0..3 {
        let before = [&writes.objects, &writes.journal, &writes.events].map(|c| c.load(Ordering::Relaxed));
        let started = Instant::now();
        let clients = (0..CLIENTS).map(|client| {
            let api = api.service();
            tokio::spawn(async move {
                let mut created = Vec::new();
                for n in 0..CLAIMS / CLIENTS {
                    let name = format!("claim-{round}-{client}-{n}");
                    let claim = json!({
                        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                        "metadata": {"name": name, "namespace": "default"},
                        "spec": {
                            "storageClassName": "bench", "accessModes": ["ReadWriteOnce"],
                            "resources": {"requests": {"storage": "1Mi"}},
                        },
                    });
                    let path = "/api/v1/namespaces/default/persistentvolumeclaims";
                    created.push((name, Instant::now()));
                    post(&api, path, &claim).await;
                    tokio::task::yield_now().await;
                }
                created
            })
        });
        let clients: Vec<_> = clients.collect();
        let mut bound_at = HashMap::new();
        while bound_at.len() < CLAIMS {
            let next_bound = tokio::time::timeout(Duration::from_secs(60), bound_claims.recv()).await;
            let (name, at) =
                next_bound.expect("the next claim is Bound within a minute").expect("the process runs");
            bound_at.insert(name, at);
        }
        let took = started.elapsed();
        let mut latencies = Vec::new();
        for client in clients {
            for (name, at) in client.await.expect("the client does not panic") {
                latencies.push(bound_at[&*name].saturating_duration_since(at));
            }
        }
        latencies.sort();
        // Wait for events and for the last removals from the journal.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let after = [&writes.objects, &writes.journal, &writes.events].map(|c| c.load(Ordering::Relaxed));
        let per_claim = |n: usize| (after[n] - before[n]) as f64 / CLAIMS as f64;
        let percentile = |p: usize| latencies[latencies.len() * p / 100].as_secs_f64() * 1e3;
        println!(
            "{round:<8}{:>12.0}{:>12.2}{:>12.2}{:>14.2}{:>15.3}{:>14.2}",
            CLAIMS as f64 / took.as_secs_f64(),
            percentile(50),
            percentile(99),
            per_claim(0),
            per_claim(1),
            per_claim(2),
        );
    }
    println!("{:<8}{:>12}{:>12}{:>12}{:>14}{:>15}{:>14}", "target", ">= 2000", "", "", "<= 4", "<= 0.5", "1");
    stop.cancel();
    task.await.expect("the process does not panic").expect("the process stops without an error");
}
