//! A fault-injecting proxy between `cofferdam` and kube-apiserver: it closes connections, rejects requests
//! and replaces responses. It terminates TLS with a certificate of the cluster's authority.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::Result;
use bytes::Bytes;
use cofferdam_cluster::connect;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use kube::{Client, Config, client::Body};
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use crate::{control_plane::ControlPlane, kubeconfig};

type ProxyBody = UnsyncBoxBody<Bytes, io::Error>;

/// Treatment of every request by the proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyMode {
    /// Requests are forwarded.
    #[default]
    Forward,
    /// Requests are rejected with this status, and not forwarded.
    Reject(StatusCode),
    /// Requests are forwarded. The response to every write (a method other than GET, HEAD, OPTIONS and TRACE)
    /// is replaced by 500: the API server has accepted or rejected the write, and `cofferdam` does not learn
    /// which.
    ErrorAfterWrite,
}

/// A running proxy.
pub struct Proxy {
    state: Arc<ProxyState>,
    listener: JoinHandle<()>,
    kubeconfig: PathBuf,
}

/// State that the proxy's connections share.
struct ProxyState {
    api: Client,
    mode: Mutex<ProxyMode>,
    /// Number of error responses that the proxy itself created since its start, in the modes `Reject` and
    /// `ErrorAfterWrite`. Errors of the API server that it forwarded do not count.
    failed_responses: AtomicUsize,
    disconnect: watch::Sender<()>,
    /// Number of connections that [`Proxy::close_connections`] has closed since the start.
    closed_connections: AtomicUsize,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
        self.close_connections();
    }
}

impl Proxy {
    /// Starts a proxy to the API server, and writes a copy of the kubeconfig that connects to the proxy. Its
    /// user needs a token: the proxy forwards headers, but no client certificate.
    ///
    /// # Errors
    /// If the kubeconfig cannot be read, or the proxy cannot listen.
    pub async fn start(plane: &ControlPlane, kubeconfig: &Path) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let (path, upstream) = kubeconfig::redirect(kubeconfig, "proxied", listener.local_addr()?)?;

        // The client has no credentials: it forwards those of each request.
        let mut config = Config::new(upstream);
        config.root_cert = Some(vec![plane.authority().der()]);
        config.default_retry = false;
        let state = ProxyState {
            api: connect::client(config)?,
            mode: Mutex::default(),
            failed_responses: AtomicUsize::new(0),
            disconnect: watch::Sender::default(),
            closed_connections: AtomicUsize::new(0),
        };
        let state = Arc::new(state);
        let listener = tokio::spawn(accept(listener, tls(plane)?, Arc::clone(&state)));
        Ok(Self { state, listener, kubeconfig: path })
    }

    /// The kubeconfig that connects to the proxy.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Sets the mode for further requests.
    pub fn set_mode(&self, mode: ProxyMode) {
        *self.state.mode.lock() = mode;
    }

    /// Number of error responses that the proxy itself created since its start, in the modes `Reject` and
    /// `ErrorAfterWrite`. Errors of the API server that it forwarded do not count.
    #[must_use]
    pub fn failed_responses(&self) -> usize {
        self.state.failed_responses.load(Ordering::SeqCst)
    }

    /// Number of connections that [`close_connections`](Self::close_connections) has closed so far.
    #[must_use]
    pub fn closed_connections(&self) -> usize {
        self.state.closed_connections.load(Ordering::SeqCst)
    }

    /// Closes every connection of a client to the proxy, also during requests.
    pub fn close_connections(&self) {
        self.state.disconnect.send_replace(());
    }
}

fn tls(plane: &ControlPlane) -> Result<TlsAcceptor> {
    let pair = plane.authority().server("proxy", &[])?;
    let chain = CertificateDer::pem_file_iter(&pair.certificate)?.collect::<Result<Vec<_>, _>>()?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(&pair.key)?)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, state: Arc<ProxyState>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, state) = (tls.clone(), Arc::clone(&state));
        let mut disconnect = state.disconnect.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                () = serve_connection(stream, tls, Arc::clone(&state)) => {}
                _ = disconnect.changed() => {
                    state.closed_connections.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
    }
}

/// Serves one connection until it is closed or fails.
async fn serve_connection(stream: TcpStream, tls: TlsAcceptor, state: Arc<ProxyState>) {
    // Do not delay small responses.
    let _ = stream.set_nodelay(true);
    let Ok(stream) = tls.accept(stream).await else { return };
    let service = service_fn(move |request| {
        let state = Arc::clone(&state);
        async move { state.forward(request).await }
    });
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

impl ProxyState {
    async fn forward(&self, request: Request<Incoming>) -> io::Result<Response<ProxyBody>> {
        let mode = *self.mode.lock();
        if let ProxyMode::Reject(status) = mode {
            return Ok(self.error_response(status));
        }
        let is_write = !request.method().is_safe();
        let (mut parts, body) = request.into_parts();
        // Headers that the client sets for its own connection.
        for hop in [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH] {
            parts.headers.remove(hop);
        }
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let request = Request::from_parts(parts, Body::from(body.to_vec()));
        // An error closes the connection, as if the API server had done so.
        let response = self.api.send(request).await.map_err(io::Error::other)?;
        if mode == ProxyMode::ErrorAfterWrite && is_write {
            return Ok(self.error_response(StatusCode::INTERNAL_SERVER_ERROR));
        }
        let (mut parts, body) = response.into_parts();
        for hop in [header::CONNECTION, header::TRANSFER_ENCODING] {
            parts.headers.remove(hop);
        }
        Ok(Response::from_parts(parts, body.map_err(io::Error::other).boxed_unsync()))
    }

    /// A response with this HTTP status and a Kubernetes `Status` object, as of an overloaded or failing API
    /// server.
    fn error_response(&self, status: StatusCode) -> Response<ProxyBody> {
        self.failed_responses.fetch_add(1, Ordering::SeqCst);
        let reason = match status {
            StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
            _ => "InternalError",
        };
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason,
            "message": "the proxy says so", "code": status.as_u16(),
        });
        let body = Full::from(body.to_string().into_bytes()).map_err(|never| match never {}).boxed_unsync();
        let mut response = Response::new(body);
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
