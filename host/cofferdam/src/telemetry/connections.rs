//! The open connections of a telemetry server: limits of their number and of their duration.

use std::{convert::Infallible, net::IpAddr, pin::pin, time::Duration};

use http::{Request, Response};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

/// Maximum open connections. Prometheus and kubelet need two.
pub(super) const MAX_CONNECTIONS: usize = 32;
/// Timeout of a request's headers, so that idle clients do not keep connections.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection accepts requests for this long, and then ends after its response.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Maximum duration of a connection. Hyper has no timeout of writes, so a client that sends requests and
/// reads no responses would keep its connection forever. It is longer than the Probe of a slow driver.
pub(super) const CONNECTION_DEADLINE: Duration = Duration::from_secs(60);

/// The open connections of one server.
#[derive(Debug, Default)]
pub(super) struct ConnectionTable {
    tasks: JoinSet<()>,
    /// Oldest first. Connections that have ended remain until the next is added.
    open: Vec<OpenConnection>,
}

#[derive(Debug)]
struct OpenConnection {
    peer: IpAddr,
    task: AbortHandle,
}

impl ConnectionTable {
    /// Adds a connection. With [`MAX_CONNECTIONS`] open ones, closes the oldest of the peer that has most: a
    /// new connection never waits, and a peer with many connections closes its own and not kubelet's.
    pub(super) fn add(&mut self, peer: IpAddr, connection: impl Future<Output = ()> + Send + 'static) {
        self.open.retain(|connection| !connection.task.is_finished());
        if self.open.len() >= MAX_CONNECTIONS
            && let Some(index) = self.oldest_of_busiest_peer()
        {
            self.open.remove(index).task.abort();
        }
        let task = self.tasks.spawn(connection);
        self.open.push(OpenConnection { peer, task });
    }

    /// Waits until a connection ends; `None` without connections.
    pub(super) async fn next_end(&mut self) -> Option<()> {
        self.tasks.join_next().await.map(drop)
    }

    fn oldest_of_busiest_peer(&self) -> Option<usize> {
        let connections_of_peer =
            |peer: IpAddr| self.open.iter().filter(|connection| connection.peer == peer).count();
        // The last maximum of the reversed list is the oldest connection.
        let newest_first = self.open.iter().enumerate().rev();
        newest_first
            .max_by_key(|(_, connection)| connections_of_peer(connection.peer))
            .map(|(index, _)| index)
    }
}

/// Serves the requests of one connection, at most until [`CONNECTION_DEADLINE`].
pub(super) async fn serve_connection<S, F>(stream: S, respond: impl Fn(Request<Incoming>) -> F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Response<Full<Bytes>>>,
{
    let service = service_fn(|request| {
        let response = respond(request);
        async { Ok::<_, Infallible>(response.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let served = timeout(CONNECTION_DEADLINE, async {
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = sleep(KEEP_ALIVE) => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    });
    match served.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a telemetry connection ended early"),
        Err(_) => tracing::debug!("closed a telemetry connection after {CONNECTION_DEADLINE:?}"),
    }
}
