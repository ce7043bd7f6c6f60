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

use super::{ServerMetrics, Socket, gate::Gate};

/// Connections at once; the rest wait in the kernel. Kubelet makes one for every operation, sidecars keep one
/// each.
const CONNECTIONS: usize = 256;
/// Calls at once on one connection; the rest wait at the caller.
const CALLS: u32 = 256;
/// Pause after a failed accept: out of file descriptors, as a rule, and spinning would not bring one back.
const PAUSE: Duration = Duration::from_millis(100);

/// What a server is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// The driver's name, for metrics and the log.
    pub driver: String,
    /// How long a call may take whose caller names no deadline.
    pub patience: Duration,
}

/// A server on a unix socket.
pub struct Server {
    socket: Socket,
    gate: Gate<Incoming>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Server {
    /// A server without services.
    pub fn new(socket: Socket, options: Options, metrics: &ServerMetrics) -> Self {
        let counted = metrics.of(&options.driver);
        Self { socket, gate: Gate::new(options.driver, options.patience, counted) }
    }

    /// The same with one more service, as `tonic` generates them: `IdentityServer::new(…)`.
    #[must_use]
    pub fn with<S>(mut self, service: S) -> Self
    where
        S: NamedService
            + Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        self.gate.add(service);
        self
    }

    /// Serves until `stop`. Then the socket's file goes, nobody else is let in, and the calls that run end.
    /// Whoever does not want to wait for them drops the future: what runs is dropped with it.
    pub async fn serve(self, stop: CancellationToken) {
        let Self { socket, gate } = self;
        let (gate, permits) = (Arc::new(gate), Arc::new(Semaphore::new(CONNECTIONS)));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = accept(&socket.listener, &permits) => accepted,
            };
            let Some((stream, permit)) = accepted else { break };
            let (gate, stop) = (Arc::clone(&gate), stop.clone());
            connections.spawn(async move {
                converse(stream, gate, stop).await;
                drop(permit);
            });
        }
        drop(socket);
        while connections.join_next().await.is_some() {}
    }
}

/// Serves one connection.
async fn converse(stream: UnixStream, gate: Arc<Gate<Incoming>>, stop: CancellationToken) {
    let service = hyper::service::service_fn(move |request| {
        let gate = Arc::clone(&gate);
        async move { Ok::<_, Infallible>(gate.answer(request).await) }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(CALLS)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
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
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
