//! Restores of the cluster from a backup: no volume is deleted between a restore and its detection, nor while
//! the restore marker exists. A process that detects a restore writes the marker, also during its
//! shutdown, and continues with a new cache unless it was asked to stop.
#![allow(clippy::unwrap_used, reason = "a missing value fails the test")]

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cofferdam_apiserver::{ApiServer, ApiService, Options};
use cofferdam_cluster::{deletion_freeze::RestoreDetected, observer::NoopStepObserver};
use cofferdam_controllers::{
    ControllerManager, ControllerManagerError, Dependencies, Role, Settings, protection,
};
use cofferdam_domain::ResourceVersion;
use cofferdam_sim::{
    DriverFault, Simulation,
    UserAction::{Backup, Create, Delete, Restore, Settle, Wait},
    objects::{claim, class, restore_marker},
};
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";
const RESTORE_MARKER: &str = "/api/v1/namespaces/default/configmaps/cofferdam-restored";

#[tokio::test(start_paused = true)]
async fn an_unclaimed_volume_is_kept_until_the_restore_marker_is_deleted() {
    let simulation = Simulation::new(&Role::ALL, vec![DriverFault::ConcurrentAction(Delete(CLAIM))], vec![]);
    // Between two retries, whose delay is five minutes by then.
    let marker_deleted_after = Duration::from_secs(3700);
    let actions = [
        Create(restore_marker()),
        Create(class("gold")),
        Create(claim("a", "gold")),
        Wait(marker_deleted_after),
        Delete(RESTORE_MARKER),
    ];
    let second = Duration::from_secs(1);
    let count_volumes = async {
        tokio::time::sleep(marker_deleted_after - second).await;
        let before = simulation.driver().volumes().len();
        tokio::time::sleep(2 * second).await;
        (before, simulation.driver().volumes().len())
    };
    let ((outcome, _), volumes) = tokio::join!(simulation.run(&actions, None), count_volumes);
    assert_eq!(volumes, (1, 0), "{:?}", outcome.calls);
    assert_eq!(outcome.calls.iter().filter(|call| *call == "delete gone").count(), 1, "{:?}", outcome.calls);
    assert!(outcome.violations.is_empty() && outcome.intents == 0, "{outcome:?}");
}

/// The cluster is restored during a CreateVolume call and while no watch is open. The backup has no claim for
/// the volume, which only a live read shows. The PersistentVolume becomes Released, and the volume is kept.
#[tokio::test(start_paused = true)]
async fn no_released_volume_is_deleted_before_a_restore_is_detected() {
    let faults = vec![
        DriverFault::Slow(Duration::ZERO),
        DriverFault::StaleWatchesThen(Box::new(DriverFault::ConcurrentAction(Restore))),
    ];
    let simulation = Simulation::new(&Role::ALL, faults, vec![]);
    let actions =
        [Create(class("gold")), Create(claim("b", "gold")), Settle, Backup, Create(claim("a", "gold"))];
    let (outcome, _) = simulation.run(&actions, None).await;
    assert_eq!(outcome.claims, ["b Bound of-b"]);
    assert_eq!(outcome.volumes, ["of-b Bound b", "of-gone Released a"]);
    assert_eq!(outcome.array_owners, ["b", "gone"], "{:?}", outcome.calls);
    assert!(
        simulation.object(RESTORE_MARKER).await.is_some() && outcome.violations.is_empty(),
        "{:?}",
        outcome.violations
    );
}

/// The cluster is restored during a CreateVolume call and while no watch is open. The created volume is too
/// small, so the provisioner creates no PersistentVolume: no write shows the restore. The backup has no claim
/// for the volume, and the volume is kept.
#[tokio::test(start_paused = true)]
async fn no_unclaimed_volume_is_deleted_before_a_restore_is_detected() {
    let small = DriverFault::ConcurrentActionThen(Restore, Box::new(DriverFault::WrongSize(1 << 20)));
    let faults = vec![DriverFault::Slow(Duration::ZERO), DriverFault::StaleWatchesThen(Box::new(small))];
    let simulation = Simulation::new(&Role::ALL, faults, vec![]);
    let actions =
        [Create(class("gold")), Create(claim("b", "gold")), Settle, Backup, Create(claim("a", "gold"))];
    let (outcome, _) = simulation.run(&actions, None).await;
    assert_eq!(
        (outcome.volumes, outcome.array_owners),
        (vec!["of-b Bound b".to_owned()], vec!["b".to_owned(), "gone".to_owned()])
    );
    assert_eq!(outcome.calls, ["create b", "create gone"]);
    assert!(simulation.object(RESTORE_MARKER).await.is_some(), "{:?}", outcome.violations);
}

/// An API server that responds with 503 to requests with the method and the part of the path in
/// `failing_request`, while `failures_left` is above 0. Each such response decrements `failures_left`.
#[derive(Clone)]
struct FailingApi {
    api: ApiService,
    failing_request: (Method, &'static str),
    failures_left: Arc<AtomicUsize>,
}

impl tower::Service<Request<Body>> for FailingApi {
    type Response = Response<http_body_util::Either<cofferdam_apiserver::ApiBody, Body>>;
    type Error = Infallible;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (method, path) = &self.failing_request;
        let is_failing_request = request.method() == *method && request.uri().path().contains(path);
        let decrement = |left: usize| left.checked_sub(1);
        if is_failing_request
            && self.failures_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, decrement).is_ok()
        {
            let response =
                Response::builder().status(StatusCode::SERVICE_UNAVAILABLE).body(Body::empty()).unwrap();
            return Box::pin(async move { Ok(response.map(http_body_util::Either::Right)) });
        }
        let api = self.api.clone();
        Box::pin(async move { Ok(api.oneshot(request).await?.map(http_body_util::Either::Left)) })
    }
}

struct TestProcess {
    api: ApiServer,
    process: Arc<ControllerManager>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ControllerManagerError>>,
    failures_left: Arc<AtomicUsize>,
}

/// Starts a process with the role `protection`, and waits until the process is ready. Afterwards, the caller
/// sets `failures_left`: the number of times that the API server responds to `failing_request` with 503.
async fn start_process(failing_request: (Method, &'static str)) -> TestProcess {
    let api = ApiServer::new(Options { uid_seed: Some(7), ..Options::default() });
    let failures_left = Arc::new(AtomicUsize::new(0));
    let client = kube::Client::new(
        FailingApi { api: api.service(), failing_request, failures_left: Arc::clone(&failures_left) },
        "default",
    );
    let clock = Arc::new(|| jiff::Timestamp::from_second(1_767_225_600).unwrap());
    let parts = Dependencies { client, backends: Vec::new(), clock, observer: Arc::new(NoopStepObserver) };
    let settings = Settings { roles: BTreeSet::from([protection::ROLE]), ..Settings::default() };
    let process = Arc::new(ControllerManager::new(settings, parts, &mut Registry::default()).unwrap());
    let stop = CancellationToken::new();
    let (running, token) = (Arc::clone(&process), stop.clone());
    let task = tokio::spawn(async move { running.run(token).await });
    process.ready().wait_for(|ready| *ready).await.unwrap();
    TestProcess { api, process, stop, task, failures_left }
}

impl TestProcess {
    fn report_restore(&self) {
        let (observed, found) = (ResourceVersion(9), ResourceVersion(8));
        self.process.cache().restore_detector.report(RestoreDetected {
            kind: "PersistentVolume",
            highest_seen: observed,
            found,
        });
    }
}

async fn has_restore_marker(api: &ApiServer) -> bool {
    let request = Request::get(RESTORE_MARKER).body(Body::empty()).unwrap();
    api.service().oneshot(request).await.unwrap().status().is_success()
}

#[tokio::test(start_paused = true)]
async fn a_restore_detected_at_shutdown_is_marked_despite_api_errors() {
    let process = start_process((Method::POST, "configmaps")).await;
    process.failures_left.store(5, Ordering::SeqCst);
    process.stop.cancel();
    process.report_restore();
    let TestProcess { api, task, .. } = process;
    task.await.unwrap().unwrap();
    assert!(has_restore_marker(&api).await);
}

#[tokio::test(start_paused = true)]
async fn the_cache_is_rebuilt_after_a_restore_once_the_api_responds() {
    let process = start_process((Method::GET, "namespaces/kube-system")).await;
    process.failures_left.store(3, Ordering::SeqCst);
    let before = process.process.cache();
    process.report_restore();
    let deletions_frozen = || process.process.metrics().deletions_frozen.get();
    let mut ready = process.process.ready();
    ready.wait_for(|ready| !*ready).await.unwrap();
    assert_eq!(deletions_frozen(), 1);
    ready.wait_for(|ready| *ready).await.unwrap();
    // A process without the provisioner deletes no volumes and does not watch the restore marker.
    assert_eq!(deletions_frozen(), 0);
    assert_eq!(process.failures_left.load(Ordering::SeqCst), 0, "three failures");
    assert!(has_restore_marker(&process.api).await && !Arc::ptr_eq(&before, &process.process.cache()));
    process.stop.cancel();
    process.task.await.unwrap().unwrap();
}
