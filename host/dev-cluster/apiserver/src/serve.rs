//! Serves the API on a loopback socket for `kubectl`, with TLS, a self-signed certificate authority and a
//! token.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::ApiServer;
use crate::base64;
use crate::random;
use crate::service::{ApiBody, ApiService, error_response, is_public};
use crate::status::Status;

/// Maximum number of connections. Further ones wait. A client uses one or two.
const MAX_CONNECTIONS: usize = 512;

/// Timeout of TLS handshakes.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Grace period of a shutdown. Connections with watches are open until its end.
const SHUTDOWN_GRACE_PERIOD: Duration = Duration::from_secs(1);

/// Delay after a failed accept, such as for lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Options of a listener.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// A loopback address. Port 0 selects a free port.
    pub addr: SocketAddr,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self { addr: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0) }
    }
}

/// Error of [`ApiServer::serve`].
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is not loopback. The server does not authorize requests, so it must not be reachable from
    /// other machines.
    #[error("the embedded API listens on loopback only, not on {0}: use 127.0.0.1 or ::1")]
    NotLoopback(SocketAddr),
    /// The server cannot bind or listen on the address, or cannot read the selected port.
    #[error("cannot listen on {addr}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The certificate cannot be created.
    #[error("cannot make the server's certificate")]
    Certificate(#[from] rcgen::Error),
    /// TLS cannot be configured, or the random token cannot be created.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
}

/// A running listener. Dropping the handle stops the listener and closes its connections immediately;
/// [`ServerHandle::shutdown`] lets requests finish.
pub struct ServerHandle {
    address: SocketAddr,
    ca_pem: String,
    token: String,
    stop: CancellationToken,
    connections: TaskTracker,
    abort: CancellationToken,
    listener: JoinHandle<()>,
}

impl std::fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token is not printed.
        f.debug_struct("ServerHandle").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.stop.cancel();
        self.abort.cancel();
        self.listener.abort();
    }
}

impl ServerHandle {
    /// The listen address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The certificate authority in PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The bearer token, 32 random bytes in hexadecimal digits. Every request requires it, except requests
    /// for health checks and `/version`.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// A kubeconfig with the context `cofferdam` and the namespace `default`. It contains the token.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: cofferdam\nclusters:\n- name: cofferdam\n\
             \x20\x20cluster:\n    server: https://{}\n    certificate-authority-data: {}\n\
             users:\n- name: cofferdam\n  user:\n    token: {}\n\
             contexts:\n- name: cofferdam\n  context:\n    cluster: cofferdam\n    user: cofferdam\n    \
             namespace: default\n",
            self.address,
            base64::encode(self.ca_pem.as_bytes()),
            self.token
        )
    }

    /// Stops listening, waits for open requests up to a grace period, then closes the remaining connections.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.connections.close();
        if tokio::time::timeout(SHUTDOWN_GRACE_PERIOD, self.connections.wait()).await.is_err() {
            self.abort.cancel();
            self.connections.wait().await;
        }
    }
}

impl ApiServer {
    /// Listens with TLS on a loopback address.
    ///
    /// # Errors
    /// [`ServeError`] if the address is not loopback or cannot be bound, or the certificate or token cannot
    /// be created.
    pub async fn serve(&self, options: ServeOptions) -> Result<ServerHandle, ServeError> {
        let addr = options.addr;
        if !addr.ip().is_loopback() {
            return Err(ServeError::NotLoopback(addr));
        }
        let mut secret = [0; 32];
        random::fill(&mut secret)?;
        let token = random::hex(&secret);
        let (tls, ca_pem) = tls_config()?;
        let bind = |source| ServeError::Bind { addr, source };
        let listener = TcpListener::bind(addr).await.map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let (stop, kill, connections) =
            (CancellationToken::new(), CancellationToken::new(), TaskTracker::new());
        let front = ConnectionHandler {
            service: self.service(),
            tls: TlsAcceptor::from(tls),
            token: Arc::from(token.as_str()),
            stop: stop.clone(),
            abort: kill.clone(),
        };
        let listener = tokio::spawn(accept_connections(listener, front, connections.clone()));
        Ok(ServerHandle { address, ca_pem, token, stop, connections, abort: kill, listener })
    }
}

fn tls_config() -> Result<(Arc<rustls::ServerConfig>, String), ServeError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "cofferdam");
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let names = ["localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default.svc"];
    let mut params = CertificateParams::new(names.map(str::to_owned).to_vec())?;
    params.distinguished_name.push(DnType::CommonName, "cofferdam-apiserver");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let leaf = params.signed_by(&key, &issuer)?;
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], private)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((Arc::new(config), issuer.pem()))
}

#[derive(Clone)]
struct ConnectionHandler {
    service: ApiService,
    tls: TlsAcceptor,
    token: Arc<str>,
    stop: CancellationToken,
    abort: CancellationToken,
}

async fn accept_connections(listener: TcpListener, handler: ConnectionHandler, connections: TaskTracker) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let accepted = tokio::select! {
            () = handler.stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let handler = handler.clone();
                connections.spawn(async move {
                    let kill = handler.abort.clone();
                    tokio::select! {
                        () = handler.serve_connection(stream) => {}
                        () = kill.cancelled() => {}
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

impl ConnectionHandler {
    async fn serve_connection(self, stream: TcpStream) {
        // Sends small responses without delay.
        let _ = stream.set_nodelay(true);
        let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, self.tls.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a TLS handshake failed");
                return;
            }
            Err(_) => {
                tracing::debug!("a TLS handshake took too long");
                return;
            }
        };
        let stop = self.stop.clone();
        let service = hyper::service::service_fn(move |request| self.clone().authenticate_and_call(request));
        let builder = auto::Builder::new(TokioExecutor::new());
        let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended early");
        }
    }

    async fn authenticate_and_call(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<ApiBody>, Infallible> {
        let authorization = request.headers().get(header::AUTHORIZATION);
        let token = authorization.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        let is_authenticated =
            token.is_some_and(|token| is_equal_constant_time(token, self.token.as_bytes()));
        if !is_authenticated && !is_public(request.uri().path()) {
            return Ok(error_response(&Status::unauthorized()));
        }
        self.service.oneshot(request).await
    }
}

/// Constant-time comparison: the time depends on the lengths only.
fn is_equal_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}
