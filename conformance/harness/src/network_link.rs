//! A TCP forwarder between one process and kube-apiserver, which can be cut like a network: connections stay
//! open, nothing is forwarded, and new connections get no response. It does not terminate TLS.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use crate::kubeconfig;

/// Size of the buffer of each direction of a connection in bytes.
const BUFFER_BYTES: usize = 16 * 1024;

/// A running forwarder. Its connections are closed when it is dropped.
pub(crate) struct NetworkLink {
    is_cut: watch::Sender<bool>,
    listener: JoinHandle<()>,
    kubeconfig: PathBuf,
}

impl Drop for NetworkLink {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl NetworkLink {
    /// Starts a forwarder to the API server of a kubeconfig, and writes a copy of the kubeconfig that
    /// connects to the forwarder. The API server's certificate has to be valid for 127.0.0.1.
    ///
    /// # Errors
    /// If the kubeconfig cannot be read or names no address of a server, or the forwarder cannot listen.
    pub(crate) async fn start(kubeconfig: &Path) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let (path, uri) = kubeconfig::redirect(kubeconfig, "linked", listener.local_addr()?)?;
        let upstream: SocketAddr = uri
            .authority()
            .and_then(|authority| authority.as_str().parse().ok())
            .with_context(|| format!("the server {uri}: expected an IP address and a port"))?;
        let is_cut = watch::Sender::new(false);
        let listener = tokio::spawn(accept(listener, upstream, is_cut.subscribe()));
        Ok(Self { is_cut, listener, kubeconfig: path })
    }

    /// The kubeconfig that connects to the forwarder.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Stops forwarding. Bytes that were sent meanwhile are forwarded after [`restore`](Self::restore), as
    /// after a retransmission.
    pub(crate) fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    /// Continues forwarding.
    pub(crate) fn restore(&self) {
        self.is_cut.send_replace(false);
    }
}

async fn accept(listener: TcpListener, upstream: SocketAddr, is_cut: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let is_cut = is_cut.clone();
        // An error closes the connection.
        connections.spawn(async move { drop(serve(stream, upstream, is_cut).await) });
    }
}

async fn serve(client: TcpStream, upstream: SocketAddr, mut is_cut: watch::Receiver<bool>) -> io::Result<()> {
    is_cut.wait_for(|is_cut| !is_cut).await.map_err(io::Error::other)?;
    let server = TcpStream::connect(upstream).await?;
    // Do not delay small messages.
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = forward(from_client, to_server, is_cut.clone());
    let responses = forward(from_server, to_client, is_cut);
    tokio::try_join!(requests, responses).map(drop)
}

/// Forwards one direction of a connection until its end, except while the link is cut.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut is_cut: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = from.read(&mut buffer).await?;
        // The link may have been cut while this direction waited for bytes.
        is_cut.wait_for(|is_cut| !is_cut).await.map_err(io::Error::other)?;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(buffer.get(..length).unwrap_or_default()).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use serde_json::{Value, json};
    use tokio::time::timeout;

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
}
