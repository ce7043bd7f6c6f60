//! A TCP forwarder between one process and kube-apiserver, which delays like a distance and can be cut like a
//! network. It does not terminate TLS and does not limit the throughput.
//!
//! Each direction delays every byte by half of the round trip, however many others are under way. A
//! connection is forwarded one round trip after it was accepted, the time of a TCP handshake.
//!
//! While the link is cut, connections stay open, nothing is forwarded, and new connections get no response.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::Instant,
};

use crate::{
    kubeconfig,
    precise_timer::{PreciseTimer, Timer},
};

/// Maximum size of a chunk in bytes.
const CHUNK_BYTES: usize = 16 * 1024;
/// Maximum chunks under way in one direction of a connection. At the largest size these are 64 MiB: a round
/// trip of 100 ms allows more than 1 GB/s.
const MAX_CHUNKS: usize = 4096;

/// A running forwarder. Its connections are closed when it is dropped.
pub(crate) struct NetworkLink {
    state: watch::Sender<LinkState>,
    listener: JoinHandle<()>,
    kubeconfig: PathBuf,
}

/// State that the connections of a link share.
#[derive(Clone, Copy, Debug, Default)]
struct LinkState {
    is_cut: bool,
    round_trip: Duration,
}

/// Bytes that were read together. No bytes are the end of the direction.
struct Chunk {
    due: Instant,
    bytes: Bytes,
}

impl Drop for NetworkLink {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl NetworkLink {
    /// Starts a forwarder without delay to the API server of a kubeconfig, and writes a copy of the
    /// kubeconfig that connects to the forwarder. The API server's certificate has to be valid for 127.0.0.1.
    ///
    /// # Errors
    /// If the kubeconfig cannot be read or names no address of a server, or the forwarder cannot listen or
    /// start its timer.
    pub(crate) async fn start(kubeconfig: &Path) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let (path, uri) = kubeconfig::redirect(kubeconfig, "linked", listener.local_addr()?)?;
        let upstream: SocketAddr = uri
            .authority()
            .and_then(|authority| authority.as_str().parse().ok())
            .with_context(|| format!("the server {uri}: expected an IP address and a port"))?;
        let state = watch::Sender::new(LinkState::default());
        let timer = PreciseTimer::start()?;
        let listener = tokio::spawn(accept(listener, upstream, state.subscribe(), timer));
        Ok(Self { state, listener, kubeconfig: path })
    }

    /// The kubeconfig that connects to the forwarder.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Sets the delay for bytes that arrive from now on, and for new connections.
    pub(crate) fn set_round_trip(&self, round_trip: Duration) {
        self.state.send_modify(|state| state.round_trip = round_trip);
    }

    /// Stops forwarding. Bytes that were sent meanwhile are forwarded after [`restore`](Self::restore), as
    /// after a retransmission.
    pub(crate) fn cut(&self) {
        self.state.send_modify(|state| state.is_cut = true);
    }

    /// Continues forwarding.
    pub(crate) fn restore(&self) {
        self.state.send_modify(|state| state.is_cut = false);
    }
}

async fn accept(
    listener: TcpListener,
    upstream: SocketAddr,
    state: watch::Receiver<LinkState>,
    timer: PreciseTimer,
) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let (state, timer) = (state.clone(), timer.clone());
        // Do not delay small messages.
        let _ = client.set_nodelay(true);
        let connect = async move {
            let server = TcpStream::connect(upstream).await?;
            server.set_nodelay(true)?;
            Ok(server)
        };
        // An error closes the connection.
        connections.spawn(async move { drop(serve(client, connect, state, timer).await) });
    }
}

/// Connects to the server one round trip later, and forwards both directions until their ends.
async fn serve<S: AsyncRead + AsyncWrite>(
    client: impl AsyncRead + AsyncWrite,
    connect: impl Future<Output = io::Result<S>>,
    mut state: watch::Receiver<LinkState>,
    timer: impl Timer,
) -> io::Result<()> {
    let round_trip = state.borrow().round_trip;
    timer.wait_until(Instant::now() + round_trip).await;
    wait_until_forwarding(&mut state).await?;
    let server = connect.await?;
    let (from_client, to_client) = tokio::io::split(client);
    let (from_server, to_server) = tokio::io::split(server);
    let requests = forward(from_client, to_server, state.clone(), timer.clone());
    let responses = forward(from_server, to_client, state, timer);
    tokio::try_join!(requests, responses).map(drop)
}

/// Forwards one direction of a connection until its end, except while the link is cut.
async fn forward(
    from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
    state: watch::Receiver<LinkState>,
    timer: impl Timer,
) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel(MAX_CHUNKS);
    tokio::try_join!(read(from, sender, state.clone()), write(to, receiver, state, timer)).map(drop)
}

async fn read(
    mut from: impl AsyncRead + Unpin,
    chunks: mpsc::Sender<Chunk>,
    state: watch::Receiver<LinkState>,
) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(CHUNK_BYTES);
        let length = from.read_buf(&mut buffer).await?;
        let due = Instant::now() + state.borrow().round_trip / 2;
        // `write` drops its receiver only if it fails.
        let is_sent = chunks.send(Chunk { due, bytes: buffer.split().freeze() }).await.is_ok();
        if length == 0 || !is_sent {
            return Ok(());
        }
    }
}

async fn write(
    mut to: impl AsyncWrite + Unpin,
    mut chunks: mpsc::Receiver<Chunk>,
    mut state: watch::Receiver<LinkState>,
    timer: impl Timer,
) -> io::Result<()> {
    while let Some(Chunk { due, bytes }) = chunks.recv().await {
        timer.wait_until(due).await;
        wait_until_forwarding(&mut state).await?;
        if bytes.is_empty() {
            return to.shutdown().await;
        }
        to.write_all(&bytes).await?;
    }
    Ok(())
}

/// Waits while the link is cut.
async fn wait_until_forwarding(state: &mut watch::Receiver<LinkState>) -> io::Result<()> {
    state.wait_for(|state| !state.is_cut).await.map(drop).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};
    use tokio::time::{sleep, sleep_until, timeout};

    use super::*;

    #[tokio::test]
    async fn a_cut_link_forwards_nothing_until_it_is_restored() {
        let directory = tempfile::tempdir().unwrap();
        let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        let url = format!("https://{}", server.local_addr().unwrap());
        fs::write(&kubeconfig, json!({ "clusters": [{ "cluster": { "server": url } }] }).to_string())
            .unwrap();
        let link = NetworkLink::start(&kubeconfig).await.unwrap();
        let linked: Value = serde_json::from_slice(&fs::read(link.kubeconfig()).unwrap()).unwrap();
        let address = linked.pointer("/clusters/0/cluster/server").unwrap().as_str().unwrap();
        let address = address.strip_prefix("https://").unwrap();

        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut accepted, _) = server.accept().await.unwrap();
        client.write_all(b"a").await.unwrap();
        assert_eq!(accepted.read_u8().await.unwrap(), b'a');
        link.cut();
        client.write_all(b"b").await.unwrap();
        let mut new_client = TcpStream::connect(address).await.unwrap();
        new_client.write_all(b"c").await.unwrap();
        let wait = Duration::from_millis(100);
        assert!(timeout(wait, accepted.read_u8()).await.is_err(), "an open connection");
        assert!(timeout(wait, server.accept()).await.is_err(), "a new connection");
        link.restore();
        assert_eq!(accepted.read_u8().await.unwrap(), b'b');
        let (mut accepted, _) = server.accept().await.unwrap();
        assert_eq!(accepted.read_u8().await.unwrap(), b'c');
        drop(new_client);
        assert_eq!(accepted.read(&mut [0]).await.unwrap(), 0, "the end of a connection is forwarded");
    }

    /// The paused time of a test.
    #[derive(Clone)]
    struct PausedTime;

    impl Timer for PausedTime {
        async fn wait_until(&self, due: Instant) {
            sleep_until(due).await;
        }
    }

    const ROUND_TRIP: Duration = Duration::from_millis(20);

    /// The state of a link with this round trip.
    fn distant(round_trip: Duration) -> watch::Sender<LinkState> {
        watch::Sender::new(LinkState { is_cut: false, round_trip })
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_takes_one_round_trip_and_a_request_another_one() {
        let state = distant(ROUND_TRIP);
        let (mut client, accepted) = tokio::io::duplex(1024);
        let (connected, mut server) = tokio::io::duplex(1024);
        tokio::spawn(serve(accepted, async { Ok(connected) }, state.subscribe(), PausedTime));
        let started = Instant::now();
        client.write_u8(b'a').await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'a');
        assert_eq!(started.elapsed(), ROUND_TRIP * 3 / 2, "handshake and request");
        server.write_u8(b'b').await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'b');
        assert_eq!(started.elapsed(), ROUND_TRIP * 2, "response");
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_delayed_and_not_throttled() {
        const LENGTH: usize = 8 * 1024 * 1024;
        let state = distant(ROUND_TRIP);
        let ((mut sender, from), (to, mut receiver)) =
            (tokio::io::duplex(CHUNK_BYTES), tokio::io::duplex(CHUNK_BYTES));
        tokio::spawn(forward(from, to, state.subscribe(), PausedTime));
        let started = Instant::now();
        let send = async {
            sender.write_all(&vec![1; LENGTH]).await.unwrap();
            assert_eq!(started.elapsed(), Duration::ZERO, "the sender does not wait for the receiver");
            sleep(Duration::from_millis(3)).await;
            sender.write_u8(2).await.unwrap();
        };
        let receive = async {
            receiver.read_exact(&mut vec![0; LENGTH]).await.unwrap();
            assert_eq!(started.elapsed(), ROUND_TRIP / 2, "all bytes that were sent at once");
            assert_eq!(receiver.read_u8().await.unwrap(), 2);
            assert_eq!(started.elapsed(), ROUND_TRIP / 2 + Duration::from_millis(3), "a later byte");
        };
        tokio::join!(send, receive);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shorter_distance_keeps_the_order_of_the_bytes() {
        let state = distant(ROUND_TRIP);
        let ((mut sender, from), (to, mut receiver)) = (tokio::io::duplex(1024), tokio::io::duplex(1024));
        tokio::spawn(forward(from, to, state.subscribe(), PausedTime));
        let started = Instant::now();
        sender.write_u8(1).await.unwrap();
        sleep(Duration::from_millis(1)).await;
        state.send_modify(|state| state.round_trip = Duration::ZERO);
        sender.write_u8(2).await.unwrap();
        assert_eq!((receiver.read_u8().await.unwrap(), receiver.read_u8().await.unwrap()), (1, 2));
        assert_eq!(started.elapsed(), ROUND_TRIP / 2);
        sender.write_u8(3).await.unwrap();
        assert_eq!(receiver.read_u8().await.unwrap(), 3);
        assert_eq!(started.elapsed(), ROUND_TRIP / 2, "no delay is left");
    }
}
