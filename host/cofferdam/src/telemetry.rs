//! `/healthz`, `/readyz` and `/metrics` on one port.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

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

/// Maximum concurrent connections. Prometheus and kubelet need two; further ones wait in the kernel's
/// backlog.
const MAX_CONNECTIONS: usize = 32;
/// Timeout of a request's headers, so that idle clients do not keep connections.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after a failed accept, whose usual cause is that there are no free file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Content type of `/metrics`: the OpenMetrics text format, which the encoder writes.
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

/// A failed health check. The text is the response of `/healthz`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unhealthy(pub(crate) String);

/// Checks the health that `/healthz` reports. In a process with the role `registrar` it checks the registrar,
/// and with the role `liveness` the driver; with neither role it succeeds.
pub(crate) type HealthCheck = Arc<dyn Fn() -> BoxFuture<'static, Result<(), Unhealthy>> + Send + Sync>;

/// State that the endpoints report.
#[derive(Clone)]
pub(crate) struct TelemetryState {
    /// Metrics.
    pub(crate) registry: Arc<Registry>,
    /// Readiness: the caches are synced and the controllers run. Always true in a process without
    /// controllers.
    pub(crate) ready: watch::Receiver<bool>,
    /// The check of `GET /healthz`; without a check, `GET /healthz` returns 200. `HEAD /healthz` always
    /// returns 200 and runs no check.
    pub(crate) health: Option<HealthCheck>,
    /// Cancelled when the process starts to drain; then `/readyz` returns 503.
    pub(crate) stopping: CancellationToken,
}

/// The HTTP server of the endpoints, bound to its address.
#[derive(Debug)]
pub(crate) struct TelemetryServer {
    listener: TcpListener,
}

impl TelemetryServer {
    /// Binds the address of the endpoint. An endpoint without a host means every address of the machine: of
    /// IPv4 and, if the machine has it, of IPv6.
    ///
    /// # Errors
    /// [`ListenError`] with the address.
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

    /// The bound address.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves until `stop` is cancelled. The caller cancels `stop` after the drain, so that `/metrics` shows
    /// the progress of the drain.
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
