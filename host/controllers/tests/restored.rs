//! What becomes of volumes when the cluster is put back to an older state, and of the process that finds it so.
#![allow(clippy::unwrap_used, reason = "what cannot be is a failed test")]

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
use cofferdam_cluster::hold::Restored;
use cofferdam_controllers::{Parts, Process, ProcessError, Role, Settings, Silent};
use cofferdam_domain::ResourceVersion;
use cofferdam_sim::{
    Fault, Simulation,
    UserAction::{Backup, Create, Delete, Restore, Settle, Wait},
    objects::{claim, class, restore_mark},
};
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";
const MARK: &str = "/api/v1/namespaces/default/configmaps/cofferdam-restored";

#[tokio::test(start_paused = true)]
async fn a_volume_whose_claim_is_gone_waits_until_the_operator_has_looked() {
    let simulation = Simulation::new(&Role::ALL, vec![Fault::Meanwhile(Delete(CLAIM))], vec![]);
    // In the middle of two tries, which are five minutes apart by then.
    let looks_at = Duration::from_secs(3700);
    let user = [
        Create(restore_mark()),
        Create(class("gold")),
        Create(claim("a", "gold")),
        Wait(looks_at),
        Delete(MARK),
    ];
    let second = Duration::from_secs(1);
    let look = async {
        tokio::time::sleep(looks_at - second).await;
        let before = simulation.array().volumes().len();
        tokio::time::sleep(2 * second).await;
        (before, simulation.array().volumes().len())
    };
    let ((outcome, _), volumes) = tokio::join!(simulation.play(&user, None), look);
    assert_eq!(volumes, (1, 0), "{:?}", outcome.calls);
    assert_eq!(outcome.calls.iter().filter(|call| *call == "delete gone").count(), 1, "{:?}", outcome.calls);
    assert!(outcome.faults.is_empty() && outcome.intents == 0, "{outcome:?}");
}

/// Restored while the driver works and while no watch of the process lives: what it reads itself says that the claim is gone.
#[tokio::test(start_paused = true)]
async fn nothing_is_deleted_before_the_restore_is_noticed() {
    let faults = vec![Fault::Slow(Duration::ZERO), Fault::Unseen(Box::new(Fault::Meanwhile(Restore)))];
    let simulation = Simulation::new(&Role::ALL, faults, vec![]);
    let user =
        [Create(class("gold")), Create(claim("b", "gold")), Settle, Backup, Create(claim("a", "gold"))];
    let (outcome, _) = simulation.play(&user, None).await;
    assert_eq!(outcome.claims, ["b Bound of-b"]);
    assert_eq!(outcome.volumes, ["of-b Bound b", "of-gone Released a"]);
    assert_eq!(outcome.array, ["b", "gone"], "{:?}", outcome.calls);
    assert!(simulation.object(MARK).await.is_some() && outcome.faults.is_empty(), "{:?}", outcome.faults);
}

/// The same where nothing is written in between: the volume is too small, and its claim is gone.
#[tokio::test(start_paused = true)]
async fn nothing_is_undone_before_the_restore_is_noticed() {
    let small = Fault::MeanwhileThen(Restore, Box::new(Fault::Size(1 << 20)));
    let faults = vec![Fault::Slow(Duration::ZERO), Fault::Unseen(Box::new(small))];
    let simulation = Simulation::new(&Role::ALL, faults, vec![]);
    let user =
        [Create(class("gold")), Create(claim("b", "gold")), Settle, Backup, Create(claim("a", "gold"))];
    let (outcome, _) = simulation.play(&user, None).await;
    assert_eq!(
        (outcome.volumes, outcome.array),
        (vec!["of-b Bound b".to_owned()], vec!["b".to_owned(), "gone".to_owned()])
    );
    assert_eq!(outcome.calls, ["create b", "create gone"]);
    assert!(simulation.object(MARK).await.is_some(), "{:?}", outcome.faults);
}

/// An API that refuses what it is told to, so often.
#[derive(Clone)]
struct Moody {
    api: ApiService,
    refuses: (Method, &'static str),
    left: Arc<AtomicUsize>,
}

impl tower::Service<Request<Body>> for Moody {
    type Response = Response<http_body_util::Either<cofferdam_apiserver::ApiBody, Body>>;
    type Error = Infallible;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (method, path) = &self.refuses;
        let meant = request.method() == *method && request.uri().path().contains(path);
        let take = |left: usize| left.checked_sub(1);
        if meant && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            let answer =
                Response::builder().status(StatusCode::SERVICE_UNAVAILABLE).body(Body::empty()).unwrap();
            return Box::pin(async move { Ok(answer.map(http_body_util::Either::Right)) });
        }
        let api = self.api.clone();
        Box::pin(async move { Ok(api.oneshot(request).await?.map(http_body_util::Either::Left)) })
    }
}

struct Life {
    api: ApiServer,
    process: Arc<Process>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ProcessError>>,
    left: Arc<AtomicUsize>,
}

/// A process that is ready, before an API that will refuse what `refuses` says as often as `left` says.
async fn begin(refuses: (Method, &'static str)) -> Life {
    let api = ApiServer::new(Options { uid_seed: Some(7), ..Options::default() });
    let left = Arc::new(AtomicUsize::new(0));
    let client = kube::Client::new(Moody { api: api.service(), refuses, left: Arc::clone(&left) }, "default");
    let clock = Arc::new(|| jiff::Timestamp::from_second(1_767_225_600).unwrap());
    let parts = Parts { client, backends: Vec::new(), clock, observer: Arc::new(Silent) };
    let settings = Settings { roles: BTreeSet::from([Role::Protection]), ..Settings::default() };
    let process = Arc::new(Process::new(settings, parts, &mut Registry::default()).unwrap());
    let stop = CancellationToken::new();
    let (running, token) = (Arc::clone(&process), stop.clone());
    let task = tokio::spawn(async move { running.run(token).await });
    process.ready().wait_for(|ready| *ready).await.unwrap();
    Life { api, process, stop, task, left }
}

impl Life {
    fn tell(&self) {
        let (seen, found) = (ResourceVersion(9), ResourceVersion(8));
        self.process.cache().restoration.tell(Restored { kind: "PersistentVolume", seen, found });
    }
}

async fn is_marked(api: &ApiServer) -> bool {
    let request = Request::get(MARK).body(Body::empty()).unwrap();
    api.service().oneshot(request).await.unwrap().status().is_success()
}

#[tokio::test(start_paused = true)]
async fn news_that_comes_with_the_stop_is_marked_although_the_api_refuses_at_first() {
    let life = begin((Method::POST, "configmaps")).await;
    life.left.store(5, Ordering::SeqCst);
    life.stop.cancel();
    life.tell();
    let Life { api, task, .. } = life;
    task.await.unwrap().unwrap();
    assert!(is_marked(&api).await);
}

#[tokio::test(start_paused = true)]
async fn the_next_life_begins_when_the_api_lets_it() {
    let life = begin((Method::GET, "namespaces/kube-system")).await;
    life.left.store(3, Ordering::SeqCst);
    let before = life.process.cache();
    life.tell();
    let held = || life.process.metrics().deletions_held.get();
    let mut ready = life.process.ready();
    ready.wait_for(|ready| !*ready).await.unwrap();
    assert_eq!(held(), 1);
    ready.wait_for(|ready| *ready).await.unwrap();
    // A process without the provisioner has no deletions, and follows no mark.
    assert_eq!(held(), 0);
    assert_eq!(life.left.load(Ordering::SeqCst), 0, "refused three times");
    assert!(is_marked(&life.api).await && !Arc::ptr_eq(&before, &life.process.cache()));
    life.stop.cancel();
    life.task.await.unwrap().unwrap();
}
