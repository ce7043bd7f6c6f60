//! Health and metrics of a process over HTTP: `/healthz`, `/healthz/driver`, `/healthz/registration`,
//! `/healthz/leader-election`, `/readyz` and `/metrics`.

mod connections;
mod endpoints;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use cofferdam_cluster::journal::LostJournals;
use cofferdam_controllers::StoppedRoles;
use futures::{Stream, StreamExt as _, future::BoxFuture, stream};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use prometheus_client::registry::Registry;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use connections::{ConnectionTable, serve_connection};
pub(crate) use endpoints::{Pages, TelemetryEndpoint, endpoints};

/// Delay after a failed accept, whose usual cause is that there are no free file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Content type of the metrics: the OpenMetrics text format, which the encoder writes.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// An address on which the server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for metrics and health: {source}")]
pub(crate) struct ListenError {
    address: String,
    source: io::Error,
}

/// A failed health check. The text is the response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unhealthy(pub(crate) String);

/// A health check of a role.
pub(crate) type HealthCheck = Arc<dyn Fn() -> BoxFuture<'static, Result<(), Unhealthy>> + Send + Sync>;

/// The checks of `/healthz`. A field is `None` in a process without the role; the check then succeeds.
#[derive(Clone, Default)]
pub(crate) struct HealthChecks {
    /// Checks the driver, for the role `liveness`: the page `/healthz/driver`.
    pub(crate) driver: Option<HealthCheck>,
    /// Checks the registration with kubelet, for the role `registrar`: the page `/healthz/registration`.
    pub(crate) registration: Option<HealthCheck>,
}

impl HealthChecks {
    async fn run_all(&self) -> Result<(), Unhealthy> {
        run(self.driver.as_ref()).await?;
        run(self.registration.as_ref()).await
    }
}

async fn run(check: Option<&HealthCheck>) -> Result<(), Unhealthy> {
    match check {
        Some(check) => check().await,
        None => Ok(()),
    }
}

/// Checks the leader election that `/healthz/leader-election` reports. It fails if this process leads and has
/// not renewed a Lease for too long.
pub(crate) type LeaderElectionHealth = Arc<dyn Fn() -> Result<(), Unhealthy> + Send + Sync>;

/// State that the pages report.
#[derive(Clone)]
pub(crate) struct TelemetryState {
    /// Metrics.
    pub(crate) registry: Arc<Registry>,
    /// Readiness: the caches are synced and the controllers run. Always true in a process without
    /// controllers.
    pub(crate) ready: watch::Receiver<bool>,
    /// Roles that have stopped because another controller does their work; then `/readyz` returns 503.
    pub(crate) stopped_roles: watch::Receiver<StoppedRoles>,
    /// Drivers whose journals other processes have taken, with the names of these processes; then `/readyz`
    /// returns 503.
    pub(crate) lost_journals: watch::Receiver<LostJournals>,
    /// The checks of `/healthz`.
    pub(crate) health: HealthChecks,
    /// The check of `/healthz/leader-election`; without leader election, that page returns 200.
    pub(crate) leader_election: Option<LeaderElectionHealth>,
    /// Cancelled when the process starts to drain; then `/readyz` returns 503.
    pub(crate) stopping: CancellationToken,
}

impl TelemetryState {
    fn check_leader_election(&self) -> Result<(), Unhealthy> {
        self.leader_election.as_ref().map_or(Ok(()), |check| check())
    }
}

/// The running telemetry servers of a process.
#[derive(Debug)]
pub(crate) struct RunningTelemetry {
    servers: JoinSet<()>,
    stop: CancellationToken,
}

impl RunningTelemetry {
    /// Binds the addresses and starts to serve.
    ///
    /// # Errors
    /// [`ListenError`] with the address.
    pub(crate) async fn start(
        endpoints: &[TelemetryEndpoint],
        state: TelemetryState,
    ) -> Result<Self, ListenError> {
        let (mut servers, stop) = (JoinSet::new(), CancellationToken::new());
        for endpoint in endpoints {
            let server = TelemetryServer::bind(endpoint).await?;
            if let Some(address) = server.address() {
                tracing::info!(%address, "serving {}", endpoint.pages);
            }
            servers.spawn(server.serve(state.clone(), stop.clone()));
        }
        Ok(Self { servers, stop })
    }

    /// Stops the servers. The caller does so after the drain, so that the metrics show the progress of the
    /// drain.
    pub(crate) async fn stop(&mut self) {
        self.stop.cancel();
        while let Some(ended) = self.servers.join_next().await {
            if let Err(panicked) = ended {
                tracing::error!(%panicked, "the telemetry task panicked");
            }
        }
    }
}

/// An HTTP server, bound to its address.
#[derive(Debug)]
struct TelemetryServer {
    listener: TcpListener,
    pages: Pages,
}

impl TelemetryServer {
    /// Binds the address of the endpoint. An address without a host means every address of the machine: of
    /// IPv4 and, if the machine has it, of IPv6.
    ///
    /// # Errors
    /// [`ListenError`] with the address.
    async fn bind(endpoint: &TelemetryEndpoint) -> Result<Self, ListenError> {
        let TelemetryEndpoint { address, pages } = endpoint;
        let bound = match &address.host {
            Some(host) => TcpListener::bind((host.as_str(), address.port)).await,
            None => match TcpListener::bind(("::", address.port)).await {
                Ok(listener) => Ok(listener),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
                Err(_) => TcpListener::bind(("0.0.0.0", address.port)).await,
            },
        };
        let listener = bound.map_err(|source| ListenError { address: address.to_string(), source })?;
        Ok(Self { listener, pages: pages.clone() })
    }

    /// The bound address.
    fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves until `stop` is cancelled.
    async fn serve(self, state: TelemetryState, stop: CancellationToken) {
        let Self { listener, pages } = self;
        let incoming =
            stream::unfold(listener, |listener| async move { Some((accept(&listener).await, listener)) });
        serve_connections(incoming, pages, state, stop).await;
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, IpAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return (stream, peer.ip()),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a telemetry connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

/// Serves connections, each with the address of its peer, until `stop` is cancelled.
async fn serve_connections<S>(
    incoming: impl Stream<Item = (S, IpAddr)>,
    pages: Pages,
    state: TelemetryState,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut incoming = pin!(incoming);
    let mut connections = ConnectionTable::default();
    loop {
        let (stream, peer) = tokio::select! {
            () = stop.cancelled() => return,
            Some(()) = connections.next_end() => continue,
            Some(accepted) = incoming.next() => accepted,
        };
        let (pages, state) = (pages.clone(), state.clone());
        connections.add(peer, async move {
            serve_connection(stream, |request| {
                let (pages, state) = (&pages, &state);
                async move { respond(pages, state, &request).await }
            })
            .await;
        });
    }
}

async fn respond<B>(pages: &Pages, state: &TelemetryState, request: &Request<B>) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = text_response(StatusCode::METHOD_NOT_ALLOWED, "expected GET\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    // Hyper omits the body of a response to HEAD.
    match request.uri().path() {
        "/healthz" if pages.has_health() => health_response(state.health.run_all().await),
        "/healthz/driver" if pages.has_health() => health_response(run(state.health.driver.as_ref()).await),
        "/healthz/registration" if pages.has_health() => {
            health_response(run(state.health.registration.as_ref()).await)
        }
        "/healthz/leader-election" if pages.has_health() => health_response(state.check_leader_election()),
        "/readyz" if pages.has_health() => readiness_response(state),
        path if pages.has_metrics_at(path) => metrics_response(&state.registry),
        _ => text_response(StatusCode::NOT_FOUND, &format!("no such page: expected {pages}\n")),
    }
}

fn health_response(checked: Result<(), Unhealthy>) -> Response<Full<Bytes>> {
    match checked {
        Ok(()) => text_response(StatusCode::OK, "ok\n"),
        Err(problem) => text_response(StatusCode::INTERNAL_SERVER_ERROR, &format!("{problem}\n")),
    }
}

fn readiness_response(state: &TelemetryState) -> Response<Full<Bytes>> {
    if state.stopping.is_cancelled() {
        text_response(StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
    } else if let Some(lines) = stopped_work(state) {
        text_response(StatusCode::SERVICE_UNAVAILABLE, &lines)
    } else if *state.ready.borrow() {
        text_response(StatusCode::OK, "ok\n")
    } else {
        text_response(StatusCode::SERVICE_UNAVAILABLE, "caches: not synced\nroles: not started\n")
    }
}

/// One line for each role and for each driver whose work another controller or process does; `None` if there
/// is none.
fn stopped_work(state: &TelemetryState) -> Option<String> {
    let (roles, journals) = (state.stopped_roles.borrow(), state.lost_journals.borrow());
    let roles = roles.iter().map(|(role, reason)| format!("{role}: {reason}\n"));
    let journals = journals.iter().map(|(driver, loss)| format!("provisioner: {loss} of driver {driver}\n"));
    let lines: String = roles.chain(journals).collect();
    (!lines.is_empty()).then_some(lines)
}

fn metrics_response(registry: &Registry) -> Response<Full<Bytes>> {
    let mut body = String::new();
    match prometheus_client::encoding::text::encode(&mut body, registry) {
        Ok(()) => build_response(StatusCode::OK, OPEN_METRICS, body),
        Err(error) => {
            text_response(StatusCode::INTERNAL_SERVER_ERROR, &format!("cannot encode metrics: {error}\n"))
        }
    }
}

fn text_response(status: StatusCode, body: &str) -> Response<Full<Bytes>> {
    build_response(status, PLAIN_TEXT, body.to_owned())
}

fn build_response(status: StatusCode, content_type: HeaderValue, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
#[path = "telemetry_tests.rs"]
mod tests;
