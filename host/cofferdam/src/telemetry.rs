//! `/healthz`, `/readyz` and `/metrics` on one port.

use std::{convert::Infallible, fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::config::HttpEndpoint;

/// Connections at once. Prometheus and a kubelet need two; the rest wait in the kernel's backlog.
const MAX_CONNECTIONS: usize = 32;
/// How long a client may take to send its request's head, so that idle ones do not hold a connection for
/// ever.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept: out of file descriptors, as a rule, and spinning would not bring one back.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// The OpenMetrics text format, which is what the encoder writes.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for metrics and health: {source}")]
pub(crate) struct ListenError {
    address: String,
    source: io::Error,
}

/// Whether what this process serves is healthy; the text says why not.
pub(crate) type HealthCheck = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// What the pages show.
#[derive(Clone)]
pub(crate) struct TelemetryState {
    /// Metrics.
    pub(crate) registry: Arc<Registry>,
    /// Whether the caches are synced and the roles run.
    pub(crate) ready: watch::Receiver<bool>,
    /// What `/healthz` asks; absent where the process' own life is the answer.
    pub(crate) health: Option<HealthCheck>,
    /// Set once the process ends.
    pub(crate) stopping: CancellationToken,
}

/// A bound listener.
#[derive(Debug)]
pub(crate) struct TelemetryServer {
    listener: TcpListener,
}

impl fmt::Display for HttpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host.as_deref().unwrap_or_default(), self.port)
    }
}

impl TelemetryServer {
    /// Listens. Without a host it is every address: both families where the machine has IPv6.
    ///
    /// # Errors
    /// [`ListenError`], which names the address.
    pub(crate) async fn bind(endpoint: &HttpEndpoint) -> Result<Self, ListenError> {
        let bound = match &endpoint.host {
            Some(host) => TcpListener::bind((host.as_str(), endpoint.port)).await,
            None => match TcpListener::bind(("::", endpoint.port)).await {
                Ok(listener) => Ok(listener),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
                Err(_) => TcpListener::bind(("0.0.0.0", endpoint.port)).await,
            },
        };
        let listener = bound.map_err(|source| ListenError { address: endpoint.to_string(), source })?;
        Ok(Self { listener })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves until `stop`. A drain is still to be seen, so this is stopped after it.
    pub(crate) async fn serve(self, state: TelemetryState, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                Some(_) = connections.join_next() => continue,
                accepted = accept(&self.listener, &permits) => accepted,
            };
            let Some((stream, permit)) = accepted else { return };
            let state = state.clone();
            connections.spawn(async move {
                let service = hyper::service::service_fn(|request| {
                    let state = &state;
                    async move { Ok::<_, Infallible>(handle_request(state, &request).await) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADER_READ_TIMEOUT)
                    .serve_connection(TokioIo::new(stream), service);
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a telemetry connection ended early");
                }
                drop(permit);
            });
        }
    }
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> Option<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Some((stream, permit)),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a telemetry connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

async fn handle_request<B>(state: &TelemetryState, request: &Request<B>) -> Response<Full<Bytes>> {
    let is_health_request = request.uri().path() == "/healthz" && *request.method() == Method::GET;
    match state.health.as_ref().filter(|_| is_health_request) {
        None => respond(state, request),
        Some(health) => match health().await {
            Ok(()) => text_response(StatusCode::OK, "ok\n"),
            Err(problem) => text_response(StatusCode::INTERNAL_SERVER_ERROR, &format!("{problem}\n")),
        },
    }
}

fn respond<B>(state: &TelemetryState, request: &Request<B>) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = text_response(StatusCode::METHOD_NOT_ALLOWED, "expected GET\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/healthz" => text_response(StatusCode::OK, "ok\n"),
        "/readyz" if state.stopping.is_cancelled() => {
            text_response(StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
        }
        "/readyz" if *state.ready.borrow() => text_response(StatusCode::OK, "ok\n"),
        "/readyz" => {
            text_response(StatusCode::SERVICE_UNAVAILABLE, "caches: not synced\nroles: not started\n")
        }
        "/metrics" => metrics_response(&state.registry),
        _ => text_response(StatusCode::NOT_FOUND, "expected /healthz, /readyz or /metrics\n"),
    }
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
