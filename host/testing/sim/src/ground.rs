//! Grounds: what scenarios are played on. The same table runs on each of them.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use cofferdam_apiserver::{ApiServer, Options, ServeOptions, Serving};
use cofferdam_cluster::connect;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use tower::{ServiceExt as _, util::BoxCloneSyncService};

pub use crate::driver::Clock;
pub use tower::BoxError;

/// The API as somebody reaches it.
pub type Api = BoxCloneSyncService<Request<Body>, Response<AnswerBody>, BoxError>;

/// The body of an answer: all of it at once, or a watch.
pub type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

/// What an operation on a ground comes to.
pub type Done<'a> = BoxFuture<'a, Result<(), BoxError>>;

/// 2026-01-01T00:00:00Z, when every simulation on paused time begins.
const EPOCH: i64 = 1_767_225_600;

/// The grounds that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The embedded API in the same process, on tokio's paused time.
    InProcess,
    /// The embedded API behind TLS and HTTP, on real time.
    Http,
    /// kube-apiserver and etcd, on real time.
    Kubernetes,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InProcess => "in process",
            Self::Http => "embedded API over HTTP",
            Self::Kubernetes => "kube-apiserver",
        })
    }
}

/// Who calls the API.
#[derive(Clone, Copy, Debug)]
pub enum Who {
    /// The user of the cluster, who may do everything.
    User,
    /// A process of ours: it may do what its roles need, where the ground has accounts.
    Process,
}

/// A cluster to play on, and what may happen to it as a whole.
pub trait Ground: Send + Sync + 'static {
    /// Which one it is.
    fn place(&self) -> Place;

    /// The wall clock of who works here.
    fn clock(&self) -> Clock;

    /// The API for one more process, or for the user, with connections of its own.
    ///
    /// # Errors
    /// When no client can be made.
    fn connect(&self, who: Who) -> Result<Api, BoxError>;

    /// Makes every watch fall behind: its version is too old.
    fn compact(&self) -> Done<'_>;

    /// Remembers the state of the cluster.
    fn backup(&self) -> Done<'_>;

    /// Puts the cluster back to the remembered state.
    fn restore(&self) -> Done<'_>;
}

/// The clock on the wall.
pub fn wall_clock() -> Clock {
    Arc::new(jiff::Timestamp::now)
}

/// A kube client as the API that it reaches.
pub fn through(client: Client) -> Api {
    Api::new(tower::service_fn(move |request| {
        let client = client.clone();
        async move { Ok(answer(client.send(request).await?)) }
    }))
}

fn answer<B>(response: Response<B>) -> Response<AnswerBody>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    response.map(|body| body.map_err(Into::into).boxed_unsync())
}

/// The embedded API in this process, on paused time.
pub struct InProcess {
    api: ApiServer,
    clock: Clock,
    backup: Mutex<Option<cofferdam_apiserver::Snapshot>>,
}

impl InProcess {
    /// A fresh cluster, whose clock stands at the beginning of 2026 and follows tokio's.
    pub fn new() -> Self {
        let started = tokio::time::Instant::now();
        let now = move || {
            let passed = i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX);
            let now = (EPOCH * 1_000).saturating_add(passed);
            jiff::Timestamp::from_millisecond(now).unwrap_or(jiff::Timestamp::MAX)
        };
        Self::at(Arc::new(now), Some(1))
    }

    pub(crate) fn api(&self) -> Api {
        let service = self.api.service();
        Api::new(tower::service_fn(move |request: Request<Body>| {
            let called = service.clone().oneshot(request);
            async move { Ok(answer(called.await?)) }
        }))
    }

    fn at(clock: Clock, uid_seed: Option<u64>) -> Self {
        let options = Options { now: Arc::clone(&clock), uid_seed, ..Options::default() };
        Self { api: ApiServer::new(options), clock, backup: Mutex::default() }
    }
}

impl Default for InProcess {
    fn default() -> Self {
        Self::new()
    }
}

impl Ground for InProcess {
    fn place(&self) -> Place {
        Place::InProcess
    }

    fn clock(&self) -> Clock {
        Arc::clone(&self.clock)
    }

    fn connect(&self, _who: Who) -> Result<Api, BoxError> {
        Ok(self.api())
    }

    fn compact(&self) -> Done<'_> {
        self.api.compact();
        Box::pin(std::future::ready(Ok(())))
    }

    fn backup(&self) -> Done<'_> {
        *self.backup.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.api.snapshot());
        Box::pin(std::future::ready(Ok(())))
    }

    fn restore(&self) -> Done<'_> {
        let snapshot = self.backup.lock().unwrap_or_else(PoisonError::into_inner).take();
        let done = snapshot.map(|snapshot| self.api.restore(&snapshot)).ok_or("there is no backup");
        Box::pin(std::future::ready(done.map_err(BoxError::from)))
    }
}

/// The embedded API on a port of loopback, with TLS and a token.
pub struct OverHttp {
    inner: InProcess,
    serving: Serving,
    config: Config,
}

impl OverHttp {
    /// Starts one.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start() -> Result<Self, BoxError> {
        let inner = InProcess::at(wall_clock(), None);
        let serving = inner.api.serve(ServeOptions::default()).await?;
        let kubeconfig = Kubeconfig::from_yaml(&serving.kubeconfig())?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        // As our program has it.
        config.default_retry = false;
        config.connect_timeout = Some(Duration::from_secs(5));
        Ok(Self { inner, serving, config })
    }

    /// Ends it.
    pub async fn stop(self) {
        self.serving.shutdown().await;
    }
}

impl Ground for OverHttp {
    fn place(&self) -> Place {
        Place::Http
    }

    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    fn connect(&self, _who: Who) -> Result<Api, BoxError> {
        Ok(through(connect::client(self.config.clone())?))
    }

    fn compact(&self) -> Done<'_> {
        self.inner.compact()
    }

    fn backup(&self) -> Done<'_> {
        self.inner.backup()
    }

    fn restore(&self) -> Done<'_> {
        self.inner.restore()
    }
}
