//! A server in the place of the API server, and the files of a client's configuration.

use std::{
    io::{BufRead as _, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
};

use parking_lot::Mutex;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

use super::ConnectionReloader;
use crate::client::{self, ClientEnvironment, ClientSettings, ClusterConnection};

/// The credentials of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReceivedCredentials {
    /// The Authorization header.
    pub(super) authorization: String,
    /// The client certificate, DER.
    pub(super) certificate: Option<Vec<u8>>,
}

/// Accepts one connection after the other, and one request on each.
pub(super) struct TestServer {
    pub(super) port: u16,
    /// TLS of the next connections; `None` for HTTP.
    tls: Arc<Mutex<Option<Arc<ServerConfig>>>>,
    received: Receiver<ReceivedCredentials>,
}

impl TestServer {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let tls: Arc<Mutex<Option<Arc<ServerConfig>>>> = Arc::default();
        let (sender, received) = channel();
        let current = Arc::clone(&tls);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let tls = current.lock().clone();
                if answer(stream.unwrap(), tls, &sender).is_none() {
                    return;
                }
            }
        });
        Self { port, tls, received }
    }

    /// Uses this configuration for the next connections.
    pub(super) fn use_tls(&self, config: ServerConfig) {
        *self.tls.lock() = Some(Arc::new(config));
    }

    /// The credentials of the next request that was not returned yet.
    pub(super) fn next_credentials(&self) -> ReceivedCredentials {
        self.received.recv().unwrap()
    }
}

/// Answers one request. Returns `None` once nobody receives its credentials.
fn answer(
    stream: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    sender: &Sender<ReceivedCredentials>,
) -> Option<()> {
    let Some(config) = tls else {
        let authorization = exchange(&stream).unwrap();
        return sender.send(ReceivedCredentials { authorization, certificate: None }).ok();
    };
    let mut tls = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    match exchange(&mut tls) {
        Ok(authorization) => {
            let certificates = tls.conn.peer_certificates().unwrap_or_default();
            let certificate = certificates.first().map(|certificate| certificate.to_vec());
            sender.send(ReceivedCredentials { authorization, certificate }).ok()
        }
        Err(_) => {
            // The client reads the alert: a reset, which unread data causes, would discard it.
            let _ = tls.sock.shutdown(Shutdown::Write);
            let _ = std::io::copy(&mut tls.sock, &mut std::io::sink());
            Some(())
        }
    }
}

/// Reads a request and answers it. Returns its Authorization header.
fn exchange(mut stream: impl Read + Write) -> std::io::Result<String> {
    let mut authorization = String::new();
    for line in BufReader::new(&mut stream).lines() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("authorization: ") {
            value.clone_into(&mut authorization);
        }
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")?;
    stream.flush()?;
    Ok(authorization)
}

/// A client with its configuration in a directory, and a server.
pub(super) struct Fixture {
    pub(super) directory: TempDir,
    pub(super) server: TestServer,
    pub(super) connection: ClusterConnection,
}

impl Fixture {
    /// A client of `url`, with `{port}` in place of the server's port, with the further fields of a
    /// kubeconfig's cluster and user; and its reloader.
    pub(super) async fn start(
        directory: TempDir,
        server: TestServer,
        url: &str,
        cluster: &str,
        user: &str,
    ) -> (Self, ConnectionReloader) {
        write_kubeconfig(&directory, &url.replace("{port}", &server.port.to_string()), cluster, user);
        let kubeconfig = Some(directory.path().join("kubeconfig"));
        let settings = ClientSettings { kubeconfig, ..ClientSettings::default() };
        let environment = ClientEnvironment::default();
        let mut reloader = ConnectionReloader::new(settings.clone(), &environment);
        let connection = client::connect_with(&settings, &environment).await.unwrap();
        reloader.add(connection.clone());
        (Self { directory, server, connection }, reloader)
    }

    /// A client over HTTP with the token `first`, and its reloader.
    pub(super) async fn with_token() -> (Self, ConnectionReloader) {
        let server = TestServer::start();
        Self::start(TempDir::new().unwrap(), server, "http://127.0.0.1:{port}", "", "token: first").await
    }

    /// Replaces the kubeconfig by one with this user.
    pub(super) fn write_user(&self, user: &str) {
        write_kubeconfig(&self.directory, &format!("http://127.0.0.1:{}", self.server.port), "", user);
    }

    /// Sends a request, and returns its credentials.
    pub(super) async fn send(&self) -> ReceivedCredentials {
        let request = http::Request::get("/x").body(Vec::new()).unwrap();
        self.connection.client.request_text(request).await.unwrap();
        self.server.next_credentials()
    }
}

/// Writes a kubeconfig. `cluster` and `user` are further fields.
pub(super) fn write_kubeconfig(directory: &TempDir, url: &str, cluster: &str, user: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: '{url}', {cluster}}}}}]\n\
         users: [{{name: u, user: {{{user}}}}}]\n"
    );
    replace_file(directory, "kubeconfig", text.as_bytes());
}

/// Replaces a file as kubelet does: by another one under the same name. Returns its path.
pub(super) fn replace_file(directory: &TempDir, name: &str, content: &[u8]) -> PathBuf {
    let (new, path) = (directory.path().join("new"), directory.path().join(name));
    std::fs::write(&new, content).unwrap();
    std::fs::rename(new, &path).unwrap();
    path
}
