//! Connections to an origin: name resolution, check of the addresses, connect and TLS handshake, before any
//! part of a request is sent; and the pool of idle connections.

use std::{
    collections::VecDeque,
    fmt, io,
    net::{IpAddr, ToSocketAddrs as _},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::Full;
use hyper::{
    client::conn::http1::{self, SendRequest},
    rt::ReadBufCursor,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::OwnedSemaphorePermit,
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use super::{
    error::ExchangeError,
    origin::{Origin, UrlHost},
    policy::OriginTarget,
};
use crate::{bindings::cofferdam::storage::http::Failure, capabilities::secrets::Tenant};

/// Maximum time for opening a connection, including name resolution and TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of a name's allowed addresses that are tried.
const MAX_ADDRESSES: usize = 8;
/// Maximum idle time of a connection. Servers commonly close idle connections after 5 s; the result of a
/// request that is sent at that moment would be unknown.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum wait for a connection to become reusable after a response; a slower connection is closed.
const READY_TIMEOUT: Duration = Duration::from_millis(200);
/// Most bytes of a response's head.
pub(super) const MAX_RESPONSE_HEAD: usize = 64 << 10;

/// Permit of one of a backend's concurrent exchanges.
pub(crate) type ExchangePermit = Arc<OwnedSemaphorePermit>;

/// Resolves names to addresses.
pub(crate) trait Resolve: fmt::Debug + Send + Sync {
    /// Returns the addresses of a name. The permit is held until the lookup has ended, also after the caller
    /// has stopped waiting.
    fn resolve<'a>(&'a self, name: &'a str, place: ExchangePermit) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// Resolves names with the system's resolver (`getaddrinfo`).
#[derive(Debug)]
pub(crate) struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, name: &'a str, place: ExchangePermit) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let name = name.to_owned();
        // The system's resolver blocks a thread for an unbounded time. Without the permit, a guest that
        // cancels and repeats lookups would occupy all threads.
        let task = tokio::task::spawn_blocking(move || {
            let found = (name.as_str(), 0).to_socket_addrs();
            drop(place);
            found.map(|found| found.map(|address| address.ip()).collect())
        });
        Box::pin(async move { task.await.map_err(io::Error::other)? })
    }
}

/// An open connection. It is closed when this is dropped.
#[derive(Debug)]
pub(crate) struct HttpConnection {
    pub(crate) sender: SendRequest<Full<Bytes>>,
    /// True once any part of the current request may have been written to the connection.
    pub(crate) is_sent: Arc<AtomicBool>,
    /// True if the connection has served another request before.
    pub(crate) is_reused: bool,
    task: ConnectionTask,
}

impl HttpConnection {
    /// Waits until the connection has closed, and returns the reason: the failed request only reports that it
    /// closed. `None` if it closed without an error.
    pub(super) async fn close_error(&mut self) -> Option<hyper::Error> {
        (&mut self.task.0).await.ok().flatten()
    }
}

/// The task that drives a connection; aborted when this is dropped.
#[derive(Debug)]
struct ConnectionTask(JoinHandle<Option<hyper::Error>>);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Opens a connection to an origin, until `deadline` and within `CONNECT_TIMEOUT`.
pub(crate) async fn open(
    resolver: &dyn Resolve,
    target: &OriginTarget,
    deadline: Instant,
    permit: ExchangePermit,
) -> Result<HttpConnection, ExchangeError> {
    let started = Instant::now();
    let deadline = deadline.min(started + CONNECT_TIMEOUT);
    match timeout_at(deadline, dial(resolver, target, deadline, permit)).await {
        Ok(connection) => connection,
        Err(_) => Err(connect_timeout(target, deadline - started)),
    }
}

fn connect_timeout(target: &OriginTarget, waited: Duration) -> ExchangeError {
    ExchangeError::unsent(Failure::Timeout, format!("no connection to {} within {waited:?}", target.origin))
}

async fn dial(
    resolver: &dyn Resolve,
    target: &OriginTarget,
    deadline: Instant,
    permit: ExchangePermit,
) -> Result<HttpConnection, ExchangeError> {
    let (tcp, address) =
        connect_any(target, allowed_addresses(resolver, target, permit).await?, deadline).await?;
    // Requests are written in one piece, so there is nothing to coalesce. A failure only costs latency.
    let _ = tcp.set_nodelay(true);
    match &target.tls {
        None => handshake(target, tcp).await,
        Some(tls) => {
            let secured = tls.connector.connect(tls.name.clone(), tcp).await;
            let secured = secured.map_err(|error| {
                ExchangeError::unsent(
                    Failure::Tls,
                    format!("TLS with {} ({address}) failed: {error}", target.origin),
                )
            })?;
            handshake(target, secured).await
        }
    }
}

/// Resolves an origin's host to the addresses that the policy allows, at most `MAX_ADDRESSES`.
async fn allowed_addresses(
    resolver: &dyn Resolve,
    target: &OriginTarget,
    permit: ExchangePermit,
) -> Result<Vec<IpAddr>, ExchangeError> {
    let found = match &target.origin.host {
        UrlHost::Address(address) => vec![*address],
        UrlHost::Name(name) => resolver.resolve(name, permit).await.map_err(|error| {
            ExchangeError::unsent(Failure::NameNotFound, format!("{name} has no address: {error}"))
        })?,
    };
    let Some(first) = found.first().copied() else {
        let message = format!("{} has no address", target.origin.host);
        return Err(ExchangeError::unsent(Failure::NameNotFound, message));
    };
    let allowed: Vec<_> =
        found.into_iter().filter(|address| target.is_allowed(*address)).take(MAX_ADDRESSES).collect();
    if allowed.is_empty() {
        let message = format!(
            "{} is at {first}, where requests may not go; expected what `addresses` of the origin allows",
            target.origin.host
        );
        return Err(ExchangeError::unsent(Failure::Forbidden, message).with_denial("address"));
    }
    Ok(allowed)
}

/// Connects to the addresses in turn; each gets an equal share of the remaining time.
async fn connect_any(
    target: &OriginTarget,
    addresses: Vec<IpAddr>,
    deadline: Instant,
) -> Result<(TcpStream, IpAddr), ExchangeError> {
    let mut attempts_left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    let mut last = None;
    for address in addresses {
        let timeout_share = deadline.saturating_duration_since(Instant::now()) / attempts_left.max(1);
        attempts_left = attempts_left.saturating_sub(1);
        let port = target.origin.port;
        match timeout(timeout_share, TcpStream::connect((address, port))).await {
            Ok(Ok(tcp)) => return Ok((tcp, address)),
            Ok(Err(error)) => {
                let message = format!("no connection to {} ({address}): {error}", target.origin);
                last = Some(ExchangeError::unsent(Failure::Connect, message));
            }
            Err(_) => {
                let message =
                    format!("no connection to {} ({address}) within {timeout_share:?}", target.origin);
                last = Some(ExchangeError::unsent(Failure::Timeout, message));
            }
        }
    }
    Err(last.unwrap_or_else(|| connect_timeout(target, Duration::ZERO)))
}

/// Prepares a stream to a server of an origin for requests.
pub(crate) async fn handshake<S>(target: &OriginTarget, stream: S) -> Result<HttpConnection, ExchangeError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let sent = Arc::new(AtomicBool::new(false));
    let watched = SendTracker { stream: TokioIo::new(stream), is_sent: Arc::clone(&sent) };
    let (sender, connection) =
        http1::Builder::new().max_buf_size(MAX_RESPONSE_HEAD).handshake(watched).await.map_err(|error| {
            ExchangeError::unsent(Failure::Connect, format!("no connection to {}: {error}", target.origin))
        })?;
    let driver = ConnectionTask(tokio::spawn(async move { connection.await.err() }));
    Ok(HttpConnection { sender, is_sent: sent, is_reused: false, task: driver })
}

/// A stream that records in `is_sent` that bytes may have been sent.
struct SendTracker<S> {
    stream: TokioIo<S>,
    is_sent: Arc<AtomicBool>,
}

impl<S> SendTracker<S> {
    /// Records a finished write, also a failed one: it may have sent a part.
    fn mark_sent<T>(&self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_sent.store(true, Ordering::Release);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> hyper::rt::Read for SendTracker<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> hyper::rt::Write for SendTracker<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.mark_sent(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.mark_sent(written)
    }
}

/// Connections that wait for their next request. Those of one tenant never serve another: some servers
/// authenticate the connection, not each request.
#[derive(Debug)]
pub(crate) struct ConnectionPool {
    max_idle: usize,
    idle: Mutex<VecDeque<IdleConnection>>,
}

#[derive(Debug)]
struct IdleConnection {
    origin: Origin,
    tenant: Tenant,
    since: Instant,
    connection: HttpConnection,
}

impl ConnectionPool {
    pub(crate) fn new(most: usize) -> Self {
        Self { max_idle: most, idle: Mutex::default() }
    }

    /// Removes and returns the most recently used connection of an origin and tenant that is ready.
    pub(crate) async fn take(&self, origin: &Origin, tenant: Tenant) -> Option<HttpConnection> {
        loop {
            let mut connection = {
                let mut idle = self.unexpired();
                let matches = |idle: &IdleConnection| idle.tenant == tenant && idle.origin == *origin;
                let position = idle.iter().rposition(matches)?;
                idle.remove(position)?.connection
            };
            // A connection that is not ready was closed, or its server sent unrequested data.
            if connection.sender.is_ready() {
                connection.is_reused = true;
                connection.is_sent.store(false, Ordering::Release);
                return Some(connection);
            }
        }
    }

    /// Stores an idle connection, or closes it if it does not become ready in time. If the pool is full,
    /// closes the connection that has been idle the longest. When this returns, the next request of the same
    /// call can use the stored connection.
    pub(crate) async fn put(
        self: &Arc<Self>,
        origin: Origin,
        tenant: Tenant,
        mut connection: HttpConnection,
    ) {
        // The response is complete, but the connection's task may still have to run.
        if !matches!(timeout(READY_TIMEOUT, connection.sender.ready()).await, Ok(Ok(()))) {
            return;
        }
        {
            let mut idle = self.unexpired();
            if idle.len() >= self.max_idle {
                idle.pop_front();
            }
            idle.push_back(IdleConnection { origin, tenant, since: Instant::now(), connection });
        }
        let pool = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(IDLE_TIMEOUT).await;
            pool.upgrade().map(|pool| pool.unexpired().len());
        });
    }

    /// The idle connections; closes those that were idle for too long.
    fn unexpired(&self) -> MutexGuard<'_, VecDeque<IdleConnection>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| idle.since.elapsed() < IDLE_TIMEOUT);
        idle
    }
}
