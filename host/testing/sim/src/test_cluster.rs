//! Clusters that the scenarios run on. The same table runs on each of them.

mod distant;
mod reversed;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use cofferdam_apiserver::{ApiServer, Options, ServeOptions, ServerHandle};
use cofferdam_cluster::connect;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use parking_lot::Mutex;
use tower::{ServiceExt as _, util::BoxCloneSyncService};

pub use self::distant::{Arrival, DistantCluster};
pub(crate) use self::reversed::reversed_writes;
pub use crate::driver::Clock;
pub use tower::BoxError;

/// The API server, as one client reaches it.
pub type ApiTransport = BoxCloneSyncService<Request<Body>, Response<ResponseBody>, BoxError>;

/// The body of a response: complete, or a watch stream.
pub type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// The result of an operation on a [`TestCluster`].
pub type ClusterFuture<'a> = BoxFuture<'a, Result<(), BoxError>>;

/// 2026-01-01T00:00:00Z, the start of every simulation in paused time.
pub const START_UNIX_SECONDS: i64 = 1_767_225_600;

/// Kind of a [`TestCluster`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvironmentKind {
    /// The embedded API server in the same process, in tokio's paused time.
    InProcess,
    /// The embedded API server over TLS and HTTP, in real time.
    Http,
    /// kube-apiserver and etcd, in real time.
    Kubernetes,
}

impl fmt::Display for EnvironmentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InProcess => "in process",
            Self::Http => "embedded API over HTTP",
            Self::Kubernetes => "kube-apiserver",
        })
    }
}

/// Identity of an API client.
#[derive(Clone, Copy, Debug)]
pub enum TestUser {
    /// The cluster's administrator, who may do everything.
    Admin,
    /// A Cofferdam process. On kube-apiserver, all processes share an account with the permissions of all
    /// roles.
    Process,
}

/// A cluster that scenarios run on.
pub trait TestCluster: Send + Sync + 'static {
    /// The cluster's kind.
    fn environment(&self) -> EnvironmentKind;

    /// The wall clock of the processes and of the API server.
    fn clock(&self) -> Clock;

    /// Connects one more process, or the user. Connections are not shared.
    ///
    /// # Errors
    /// When no client can be created.
    fn connect(&self, who: TestUser) -> Result<ApiTransport, BoxError>;

    /// Compacts the history, so that every watch expires (410 Gone).
    fn compact(&self) -> ClusterFuture<'_>;

    /// Saves the state of the cluster.
    fn backup(&self) -> ClusterFuture<'_>;

    /// Restores the state that the last [`backup`](Self::backup) saved. Fails if there is none. The embedded
    /// API server keeps a backup for one restore only.
    fn restore(&self) -> ClusterFuture<'_>;
}

/// The system's clock.
pub fn wall_clock() -> Clock {
    Arc::new(jiff::Timestamp::now)
}

/// The transport of a kube client.
pub fn client_transport(client: Client) -> ApiTransport {
    ApiTransport::new(tower::service_fn(move |request| {
        let client = client.clone();
        async move { Ok(boxed_response(client.send(request).await?)) }
    }))
}

fn boxed_response<B>(response: Response<B>) -> Response<ResponseBody>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    response.map(|body| body.map_err(Into::into).boxed_unsync())
}

/// Seed of uids. The delays of node-local drivers that compete for a claim are digests of its uid: with this
/// seed, node n2 attempts first in the scenarios of that competition.
const UID_SEED: u64 = 2;

/// The embedded API server in this process, in paused time.
pub struct InProcessCluster {
    api: ApiServer,
    clock: Clock,
    backup: Mutex<Option<cofferdam_apiserver::StateSnapshot>>,
}

impl InProcessCluster {
    /// Creates an empty cluster. Its clock starts at the beginning of 2026 and follows tokio's.
    pub fn new() -> Self {
        Self::with_bookmark_interval(Options::default().bookmark_interval)
    }

    /// Like [`Self::new`], with another [`Options::bookmark_interval`].
    pub(crate) fn with_bookmark_interval(bookmark_interval: Duration) -> Self {
        let started = tokio::time::Instant::now();
        let now = move || {
            let elapsed = i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX);
            let now = (START_UNIX_SECONDS * 1_000).saturating_add(elapsed);
            jiff::Timestamp::from_millisecond(now).unwrap_or(jiff::Timestamp::MAX)
        };
        Self::with_options(Options {
            now: Arc::new(now),
            uid_seed: Some(UID_SEED),
            bookmark_interval,
            ..Options::default()
        })
    }

    pub(crate) fn api(&self) -> ApiTransport {
        let service = self.api.service();
        ApiTransport::new(tower::service_fn(move |request: Request<Body>| {
            let called = service.clone().oneshot(request);
            async move { Ok(boxed_response(called.await?)) }
        }))
    }

    fn with_options(options: Options) -> Self {
        let clock = Arc::clone(&options.now);
        Self { api: ApiServer::new(options), clock, backup: Mutex::default() }
    }
}

impl Default for InProcessCluster {
    fn default() -> Self {
        Self::new()
    }
}

impl TestCluster for InProcessCluster {
    fn environment(&self) -> EnvironmentKind {
        EnvironmentKind::InProcess
    }

    fn clock(&self) -> Clock {
        Arc::clone(&self.clock)
    }

    fn connect(&self, _who: TestUser) -> Result<ApiTransport, BoxError> {
        Ok(self.api())
    }

    fn compact(&self) -> ClusterFuture<'_> {
        self.api.compact();
        Box::pin(std::future::ready(Ok(())))
    }

    fn backup(&self) -> ClusterFuture<'_> {
        *self.backup.lock() = Some(self.api.snapshot());
        Box::pin(std::future::ready(Ok(())))
    }

    fn restore(&self) -> ClusterFuture<'_> {
        let snapshot = self.backup.lock().take();
        let result = snapshot.map(|snapshot| self.api.restore(&snapshot)).ok_or("there is no backup");
        Box::pin(std::future::ready(result.map_err(BoxError::from)))
    }
}

/// The embedded API server on a loopback port, with TLS and a token.
pub struct HttpCluster {
    inner: InProcessCluster,
    serving: ServerHandle,
    config: Config,
}

impl HttpCluster {
    /// Starts the cluster.
    ///
    /// # Errors
    /// When the API server cannot listen on a port.
    pub async fn start() -> Result<Self, BoxError> {
        let inner = InProcessCluster::with_options(Options { now: wall_clock(), ..Options::default() });
        let serving = inner.api.serve(ServeOptions::default()).await?;
        let kubeconfig = Kubeconfig::from_yaml(&serving.kubeconfig())?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        // `cofferdam run` also disables kube's retries. It keeps kube's longer connect timeout.
        config.default_retry = false;
        config.connect_timeout = Some(Duration::from_secs(5));
        Ok(Self { inner, serving, config })
    }

    /// Stops the cluster.
    pub async fn stop(self) {
        self.serving.shutdown().await;
    }
}

impl TestCluster for HttpCluster {
    fn environment(&self) -> EnvironmentKind {
        EnvironmentKind::Http
    }

    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    fn connect(&self, _who: TestUser) -> Result<ApiTransport, BoxError> {
        Ok(client_transport(connect::client(self.config.clone())?))
    }

    fn compact(&self) -> ClusterFuture<'_> {
        self.inner.compact()
    }

    fn backup(&self) -> ClusterFuture<'_> {
        self.inner.backup()
    }

    fn restore(&self) -> ClusterFuture<'_> {
        self.inner.restore()
    }
}
