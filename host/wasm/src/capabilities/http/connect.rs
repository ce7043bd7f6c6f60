//! From an origin to a connection: resolve, check, dial what was checked, TLS. Nothing of a request is sent here.

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
    Failed,
    policy::{Host, Origin, Target},
};
use crate::{bindings::cofferdam::storage::http::Failure, capabilities::secrets::Tenant};

/// Longest time that a connection may take, with name and TLS.
const CONNECT: Duration = Duration::from_secs(10);
/// Most addresses of a name that are tried.
const MAX_ADDRESSES: usize = 8;
/// How long a connection may lie idle. Servers commonly give them up after 5 seconds; a request that meets that moment would
/// have an open outcome for nothing.
const IDLE: Duration = Duration::from_secs(4);
/// How long a response waits for its connection to be free again; one that takes longer is not worth keeping.
const LAST_TURN: Duration = Duration::from_millis(200);
/// Most bytes of a response's head.
pub(super) const MAX_HEAD: usize = 64 << 10;

/// One of the exchanges that a backend may have under way.
pub(crate) type Place = Arc<OwnedSemaphorePermit>;

/// Finds the addresses of a name.
pub(crate) trait Resolve: fmt::Debug + Send + Sync {
    /// The addresses, at least one. The place is held until the work has ended, also when nobody waits for it any more.
    fn resolve<'a>(&'a self, name: &'a str, place: Place) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// As this machine does it.
#[derive(Debug)]
pub(crate) struct System;

impl Resolve for System {
    fn resolve<'a>(&'a self, name: &'a str, place: Place) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let name = name.to_owned();
        // The system's resolver blocks a thread for as long as it likes. Without the place, a guest that gives up at once and
        // asks again would take all of them.
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
pub(crate) struct Connection {
    pub(crate) sender: SendRequest<Full<Bytes>>,
    /// Whether anything of the present request was handed to it.
    pub(crate) sent: Arc<AtomicBool>,
    /// Whether it has served another request before.
    pub(crate) reused: bool,
    driver: Driver,
}

impl Connection {
    /// Why it is over, once it is: a request that met the end was only told that.
    pub(super) async fn cause(&mut self) -> Option<hyper::Error> {
        (&mut self.driver.0).await.ok().flatten()
    }
}

/// The task that moves a connection's bytes.
#[derive(Debug)]
struct Driver(JoinHandle<Option<hyper::Error>>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Opens a connection to an origin, before a time.
pub(crate) async fn open(
    resolver: &dyn Resolve,
    target: &Target,
    until: Instant,
    place: Place,
) -> Result<Connection, Failed> {
    let begun = Instant::now();
    let until = until.min(begun + CONNECT);
    match timeout_at(until, dial(resolver, target, until, place)).await {
        Ok(connection) => connection,
        Err(_) => Err(too_late(target, until - begun)),
    }
}

fn too_late(target: &Target, waited: Duration) -> Failed {
    Failed::unsent(Failure::Timeout, format!("no connection to {} within {waited:?}", target.origin))
}

async fn dial(
    resolver: &dyn Resolve,
    target: &Target,
    until: Instant,
    place: Place,
) -> Result<Connection, Failed> {
    let (tcp, address) = reach(target, addresses(resolver, target, place).await?, until).await?;
    // Requests are written whole: there is nothing to wait for. Where the system refuses, they only take longer.
    let _ = tcp.set_nodelay(true);
    match &target.tls {
        None => handshake(target, tcp).await,
        Some(tls) => {
            let secured = tls.connector.connect(tls.name.clone(), tcp).await;
            let secured = secured.map_err(|error| {
                Failed::unsent(
                    Failure::Tls,
                    format!("TLS with {} ({address}) failed: {error}", target.origin),
                )
            })?;
            handshake(target, secured).await
        }
    }
}

/// The addresses that may be dialled.
async fn addresses(resolver: &dyn Resolve, target: &Target, place: Place) -> Result<Vec<IpAddr>, Failed> {
    let found = match &target.origin.host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => resolver.resolve(name, place).await.map_err(|error| {
            Failed::unsent(Failure::NameNotFound, format!("{name} has no address: {error}"))
        })?,
    };
    let Some(first) = found.first().copied() else {
        let message = format!("{} has no address", target.origin.host);
        return Err(Failed::unsent(Failure::NameNotFound, message));
    };
    let admitted: Vec<_> =
        found.into_iter().filter(|address| target.admits(*address)).take(MAX_ADDRESSES).collect();
    if admitted.is_empty() {
        let message = format!(
            "{} is at {first}, where requests may not go; expected what `addresses` of the origin allows",
            target.origin.host
        );
        return Err(Failed::unsent(Failure::Forbidden, message).denied("address"));
    }
    Ok(admitted)
}

/// Dials the addresses one after the other; each gets its share of the time that is left.
async fn reach(
    target: &Target,
    addresses: Vec<IpAddr>,
    until: Instant,
) -> Result<(TcpStream, IpAddr), Failed> {
    let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    let mut last = None;
    for address in addresses {
        let share = until.saturating_duration_since(Instant::now()) / left.max(1);
        left = left.saturating_sub(1);
        let port = target.origin.port;
        match timeout(share, TcpStream::connect((address, port))).await {
            Ok(Ok(tcp)) => return Ok((tcp, address)),
            Ok(Err(error)) => {
                let message = format!("no connection to {} ({address}): {error}", target.origin);
                last = Some(Failed::unsent(Failure::Connect, message));
            }
            Err(_) => {
                let message = format!("no connection to {} ({address}) within {share:?}", target.origin);
                last = Some(Failed::unsent(Failure::Timeout, message));
            }
        }
    }
    Err(last.unwrap_or_else(|| too_late(target, Duration::ZERO)))
}

async fn handshake<S>(target: &Target, stream: S) -> Result<Connection, Failed>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let sent = Arc::new(AtomicBool::new(false));
    let watched = Watched { stream: TokioIo::new(stream), sent: Arc::clone(&sent) };
    let (sender, connection) =
        http1::Builder::new().max_buf_size(MAX_HEAD).handshake(watched).await.map_err(|error| {
            Failed::unsent(Failure::Connect, format!("no connection to {}: {error}", target.origin))
        })?;
    let driver = Driver(tokio::spawn(async move { connection.await.err() }));
    Ok(Connection { sender, sent, reused: false, driver })
}

/// A stream that remembers whether it was given something to send.
struct Watched<S> {
    stream: TokioIo<S>,
    sent: Arc<AtomicBool>,
}

impl<S> Watched<S> {
    /// Also a write that failed may have sent a part.
    fn written<T>(&self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.sent.store(true, Ordering::Release);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> hyper::rt::Read for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> hyper::rt::Write for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(written)
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
        self.written(written)
    }
}

/// Connections that wait for their next request. Those of one tenant never serve another: some servers log a connection in.
#[derive(Debug)]
pub(crate) struct Pool {
    most: usize,
    idle: Mutex<VecDeque<Idle>>,
}

#[derive(Debug)]
struct Idle {
    origin: Origin,
    tenant: Tenant,
    since: Instant,
    connection: Connection,
}

impl Pool {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, idle: Mutex::default() }
    }

    /// A connection that can serve at once, the youngest one.
    pub(crate) async fn take(&self, origin: &Origin, tenant: Tenant) -> Option<Connection> {
        loop {
            let mut connection = {
                let mut idle = self.fresh();
                let matches = |idle: &Idle| idle.tenant == tenant && idle.origin == *origin;
                let place = idle.iter().rposition(matches)?;
                idle.remove(place)?.connection
            };
            // A connection that is not ready now was closed, or its server says more than it was asked.
            if connection.sender.is_ready() {
                connection.reused = true;
                connection.sent.store(false, Ordering::Release);
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for a while, from the moment on when this returns: the next request of the same call finds it.
    pub(crate) async fn keep(self: &Arc<Self>, origin: Origin, tenant: Tenant, mut connection: Connection) {
        // The response is there, but the connection's task may have a last turn to do.
        if !matches!(timeout(LAST_TURN, connection.sender.ready()).await, Ok(Ok(()))) {
            return;
        }
        {
            let mut idle = self.fresh();
            if idle.len() >= self.most {
                idle.pop_front();
            }
            idle.push_back(Idle { origin, tenant, since: Instant::now(), connection });
        }
        let pool = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(IDLE).await;
            pool.upgrade().map(|pool| pool.fresh().len());
        });
    }

    /// What has not lain idle too long; the rest is closed.
    fn fresh(&self) -> MutexGuard<'_, VecDeque<Idle>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| idle.since.elapsed() < IDLE);
        idle
    }
}
