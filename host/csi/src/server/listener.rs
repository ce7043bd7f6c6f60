//! Accepts connections, and ends in order.

use std::{convert::Infallible, fmt, io, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tonic::{body::Body, server::NamedService};
use tower::Service;

use super::{ServerMetrics, ServerSocket, dispatch::Dispatcher};

/// Connections at once; the rest wait in the kernel. Kubelet makes one for every operation, sidecars keep one
/// each.
const MAX_CONNECTIONS: usize = 256;
/// Calls at once on one connection; the rest wait at the caller.
const MAX_STREAMS_PER_CONNECTION: u32 = 256;
/// Pause after a failed accept: out of file descriptors, as a rule, and spinning would not bring one back.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// What a server is told.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The driver's name, for metrics and the log.
    pub driver: String,
    /// How long a call may take whose caller names no deadline.
    pub default_timeout: Duration,
}

/// A server on a unix socket.
pub struct Server {
    socket: ServerSocket,
    dispatcher: Dispatcher<Incoming>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Server {
    /// A server without services.
    pub fn new(socket: ServerSocket, options: ServerOptions, metrics: &ServerMetrics) -> Self {
        let driver_metrics = metrics.driver_metrics(&options.driver);
        Self { socket, dispatcher: Dispatcher::new(options.driver, options.default_timeout, driver_metrics) }
    }

    /// The same with one more service, as `tonic` generates them: `IdentityServer::new(…)`.
    #[must_use]
    pub fn with_service<S>(mut self, service: S) -> Self
    where
        S: NamedService
            + Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        self.dispatcher.add_service(service);
        self
    }

    /// Serves until `stop`. Then the socket's file goes, nobody else is let in, and the calls that run end.
    /// Whoever does not want to wait for them drops the future: what runs is dropped with it.
    pub async fn serve(self, stop: CancellationToken) {
        let Self { socket, dispatcher } = self;
        let (dispatcher, permits) = (Arc::new(dispatcher), Arc::new(Semaphore::new(MAX_CONNECTIONS)));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = accept(&socket.listener, &permits) => accepted,
            };
            let Some((stream, permit)) = accepted else { break };
            let (dispatcher, stop) = (Arc::clone(&dispatcher), stop.clone());
            connections.spawn(async move {
                serve_connection(stream, dispatcher, stop).await;
                drop(permit);
            });
        }
        drop(socket);
        while connections.join_next().await.is_some() {}
    }
}

/// Serves one connection.
async fn serve_connection(
    stream: UnixStream,
    dispatcher: Arc<Dispatcher<Incoming>>,
    stop: CancellationToken,
) {
    let service = hyper::service::service_fn(move |request| {
        let dispatcher = Arc::clone(&dispatcher);
        async move { Ok::<_, Infallible>(dispatcher.handle(request).await) }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection to a CSI socket ended early");
    }
}

async fn accept(
    listener: &UnixListener,
    permits: &Arc<Semaphore>,
) -> Option<(UnixStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Some((stream, permit)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to a CSI socket");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}
