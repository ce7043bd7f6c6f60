//! The CustomResourceDefinitions of snapshots are removed while a driver lists its snapshots, for a scan or
//! for a requested deletion: the contents of the snapshots are no longer found, but no snapshot is an orphan.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a missing value fails the test")]

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cofferdam_apiserver::{ApiBody, ApiServer, ApiService, Options};
use cofferdam_backend::{Backend, BackendFuture, Call, unimplemented};
use cofferdam_cluster::{Clock, observer::NoopStepObserver};
use cofferdam_controllers::{
    ControllerManager, Dependencies, Settings,
    orphans::report::{DeletionRequest, DeletionResponse, DeletionResult, ScanReport},
    snapshotter,
};
use cofferdam_domain::{
    SnapshotHandle, VolumeHandle,
    storage::{
        Ability, CreateVolume, CreatedVolume, Description, PageRequest, Placement, Readiness, Snapshot,
        SnapshotOwner, SnapshotPage, ValidateVolume, Validation,
    },
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Either};
use kube::client::Body;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

const DRIVER: &str = "array.example.com";
const CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
const REPORT: &str = "/api/v1/namespaces/default/configmaps/cofferdam-orphaned-snapshots-array.example.com";
/// Longer than a watch: the process notices the removal before the listing ends.
const SLOW_PAGE: Duration = Duration::from_mins(10);

/// The definitions of snapshots.
#[derive(Clone, Default)]
struct Definitions {
    /// The next listing removes them between its two pages.
    are_removed_next: Arc<AtomicBool>,
    are_removed: Arc<AtomicBool>,
}

/// An API server that serves the kinds of snapshots while their definitions exist.
#[derive(Clone)]
struct DefinedApi {
    api: ApiService,
    definitions: Definitions,
}

impl tower::Service<Request<Body>> for DefinedApi {
    type Response = Response<Either<ApiBody, Body>>;
    type Error = Infallible;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_snapshot = request.uri().path().starts_with("/apis/snapshot.storage.k8s.io/");
        if is_snapshot && self.definitions.are_removed.load(Ordering::SeqCst) {
            let body = Either::Right(Body::from(b"404 page not found\n".to_vec()));
            let response = Response::builder().status(StatusCode::NOT_FOUND).body(body).unwrap();
            return Box::pin(async move { Ok(response) });
        }
        let api = self.api.clone();
        Box::pin(async move { Ok(api.oneshot(request).await?.map(Either::Left)) })
    }
}

/// A driver with the snapshots `h1` and `h2`, which ListSnapshots returns on two pages.
struct PagedDriver {
    description: Description,
    abilities: BTreeSet<Ability>,
    owner: SnapshotOwner,
    definitions: Definitions,
    deleted: Mutex<Vec<SnapshotHandle>>,
}

impl PagedDriver {
    fn snapshot(&self, handle: &str) -> Snapshot {
        Snapshot {
            handle: handle.into(),
            source: "v".into(),
            size: Some(1 << 30),
            // Long enough ago for an orphan.
            created_at_ms: 1_700_000_000_000,
            ready: true,
            group: None,
            owner: Some(self.owner.clone()),
        }
    }
}

impl Backend for PagedDriver {
    fn description(&self) -> &Description {
        &self.description
    }

    fn abilities(&self) -> &BTreeSet<Ability> {
        &self.abilities
    }

    fn probe(&self, _: Call) -> BackendFuture<'_, Readiness> {
        Box::pin(async { Ok(Readiness::Ready) })
    }

    fn create_volume(&self, _: Call, _: CreateVolume) -> BackendFuture<'_, CreatedVolume> {
        unimplemented(Ability::Snapshots)
    }

    fn delete_volume(&self, _: Call, _: VolumeHandle) -> BackendFuture<'_, ()> {
        unimplemented(Ability::Snapshots)
    }

    fn validate_volume(&self, _: Call, _: ValidateVolume) -> BackendFuture<'_, Validation> {
        unimplemented(Ability::Snapshots)
    }

    fn delete_snapshot(&self, _: Call, handle: SnapshotHandle) -> BackendFuture<'_, ()> {
        self.deleted.lock().push(handle);
        Box::pin(async { Ok(()) })
    }

    fn list_snapshots(
        &self,
        _: Call,
        _: Option<VolumeHandle>,
        page: PageRequest,
    ) -> BackendFuture<'_, SnapshotPage> {
        Box::pin(async move {
            if page.starting_token.is_none() {
                let next_token = Some("2".to_owned());
                return Ok(SnapshotPage { snapshots: vec![self.snapshot("h1")], next_token });
            }
            if self.definitions.are_removed_next.swap(false, Ordering::SeqCst) {
                self.definitions.are_removed.store(true, Ordering::SeqCst);
                tokio::time::sleep(SLOW_PAGE).await;
            }
            Ok(SnapshotPage { snapshots: vec![self.snapshot("h2")], next_token: None })
        })
    }
}

async fn send(api: &ApiServer, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
    let content_type =
        if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let response = api.service().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// A process with the role `snapshotter`, whose driver's snapshots have contents.
struct TestProcess {
    api: ApiServer,
    definitions: Definitions,
    driver: Arc<PagedDriver>,
    now: Clock,
    _stop: tokio_util::sync::DropGuard,
}

impl TestProcess {
    async fn start() -> Self {
        let started = tokio::time::Instant::now();
        let now: Clock =
            Arc::new(move || jiff::Timestamp::from_second(1_767_225_600).unwrap() + started.elapsed());
        let api = ApiServer::new(Options { now: Arc::clone(&now), uid_seed: Some(7), ..Options::default() });
        for (name, handle) in [("c1", "h1"), ("c2", "h2")] {
            let content = json!({
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
                "metadata": {"name": name},
                "spec": {
                    "deletionPolicy": "Delete", "driver": DRIVER, "source": {"snapshotHandle": handle},
                    "volumeSnapshotRef": {"namespace": "default", "name": name},
                },
            });
            assert_eq!(send(&api, Method::POST, CONTENTS, &content).await.0, StatusCode::CREATED);
        }
        let kube_system = send(&api, Method::GET, "/api/v1/namespaces/kube-system", &Value::Null).await.1;
        let definitions = Definitions::default();
        let driver = Arc::new(PagedDriver {
            description: Description {
                name: DRIVER.into(),
                version: "1".to_owned(),
                topology_keys: Vec::new(),
                placement: Placement::Central,
                volumes_per_node: None,
                features: Vec::new(),
            },
            abilities: BTreeSet::from([Ability::Snapshots]),
            owner: SnapshotOwner {
                cluster_id: kube_system["metadata"]["uid"].as_str().unwrap().into(),
                snapshot_uid: "uid-of-a-snapshot".into(),
                content_name: "snapcontent-uid-of-a-snapshot".to_owned(),
                retain: false,
            },
            definitions: definitions.clone(),
            deleted: Mutex::default(),
        });
        let defined = DefinedApi { api: api.service(), definitions: definitions.clone() };
        let dependencies = Dependencies {
            client: kube::Client::new(defined, "default"),
            backends: vec![Arc::clone(&driver) as Arc<dyn Backend>],
            clock: Arc::clone(&now),
            observer: Arc::new(NoopStepObserver),
        };
        let settings = Settings { roles: BTreeSet::from([snapshotter::ROLE]), ..Settings::default() };
        let manager =
            Arc::new(ControllerManager::new(settings, dependencies, &mut Registry::default()).unwrap());
        let stop = CancellationToken::new();
        let (running, token) = (Arc::clone(&manager), stop.clone());
        tokio::spawn(async move { running.run(token).await });
        manager.ready().wait_for(|ready| *ready).await.unwrap();
        tokio::time::sleep(Duration::from_mins(1)).await;
        Self { api, definitions, driver, now, _stop: stop.drop_guard() }
    }

    fn are_removed(&self) -> bool {
        self.definitions.are_removed.load(Ordering::SeqCst)
    }

    /// A value of the report's ConfigMap.
    async fn data<T: serde::de::DeserializeOwned>(&self, key: &str) -> Option<T> {
        let map = send(&self.api, Method::GET, REPORT, &Value::Null).await.1;
        Some(serde_json::from_str(map["data"].get(key)?.as_str()?).unwrap())
    }

    async fn report(&self) -> ScanReport {
        self.data("report").await.unwrap()
    }

    async fn assert_no_orphan(&self) {
        let report = self.report().await;
        assert!(report.orphans.is_empty() && report.within_grace_period.is_empty(), "{report:?}");
        assert_eq!(report.counts.referenced, 2, "{report:?}");
        let events = send(&self.api, Method::GET, "/api/v1/events", &Value::Null).await.1;
        assert!(!events.to_string().contains("Orphan"), "{events}");
        assert!(self.driver.deleted.lock().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn no_snapshot_is_an_orphan_if_the_kinds_are_removed_during_the_scan() {
    let process = TestProcess::start().await;
    process.assert_no_orphan().await;
    process.definitions.are_removed_next.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_mins(90)).await;
    assert!(process.are_removed());
    process.assert_no_orphan().await;
    let failure = process.report().await.failure.unwrap();
    assert!(failure.message.starts_with("the API server does not serve VolumeSnapshot"), "{failure:?}");

    process.definitions.are_removed.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_mins(10)).await;
    process.assert_no_orphan().await;
    assert_eq!(process.report().await.failure, None);
}

#[tokio::test(start_paused = true)]
async fn no_snapshot_is_deleted_if_the_kinds_are_removed_during_the_listing() {
    let process = TestProcess::start().await;
    process.definitions.are_removed_next.store(true, Ordering::SeqCst);
    let request = DeletionRequest {
        handle: "h2".into(),
        requested_at: (process.now)(),
        requested_by: "tester".to_owned(),
    };
    assert_eq!(send(&process.api, Method::PATCH, REPORT, &request.patch()).await.0, StatusCode::OK);
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert!(process.are_removed());
    process.assert_no_orphan().await;
    assert_eq!(process.data::<DeletionResponse>("response").await, None);
    assert_eq!(process.data("delete").await, Some(request), "the request waits");

    process.definitions.are_removed.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_mins(10)).await;
    let response: DeletionResponse = process.data("response").await.unwrap();
    assert_eq!(response.result, DeletionResult::Refused);
    assert_eq!(response.message, "VolumeSnapshotContent c2 references it");
    process.assert_no_orphan().await;
}
