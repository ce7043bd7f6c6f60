//! A test server on loopback, certificates for it, and a guest that sends it the requests of a script.
#![allow(dead_code, reason = "each suite uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of tests fails as a test does")]

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use cofferdam_backend::{Backend as _, Call};
use cofferdam_domain::storage::{CreateVolume, Secret, Secrets, StorageError};
use cofferdam_wasm::{
    BackendConfig, ComponentSource, Engine, Grant, HttpConfig, Limits, LoadError, OriginConfig, WasmBackend,
};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc},
};
use tokio_rustls::TlsAcceptor;

/// Timeout of each wait in these tests. It expires only if something hangs.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A test server. The path of a request selects the response.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    state: Arc<ServerState>,
    /// Requests that have arrived, as `METHOD URI BODY` with the first 100 bytes of the body.
    requests: tokio::sync::Mutex<mpsc::UnboundedReceiver<String>>,
}

struct ServerState {
    request_count: AtomicUsize,
    connection_count: AtomicUsize,
    /// Answers to `/gate` wait for a permit.
    gate: Semaphore,
    request_sender: mpsc::UnboundedSender<String>,
    headers: Mutex<HeaderMap>,
}

impl TestServer {
    pub(crate) async fn start(tls: Option<ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, arrived) = mpsc::unbounded_channel();
        let state = Arc::new(ServerState {
            request_count: AtomicUsize::new(0),
            connection_count: AtomicUsize::new(0),
            gate: Semaphore::new(0),
            request_sender: sender,
            headers: Mutex::default(),
        });
        let acceptor = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        tokio::spawn(accept(listener, acceptor, Arc::clone(&state)));
        Self { address, state, requests: tokio::sync::Mutex::new(arrived) }
    }

    pub(crate) fn http(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn https(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.address.port())
    }

    /// Number of requests received.
    pub(crate) fn request_count(&self) -> usize {
        self.state.request_count.load(Ordering::Acquire)
    }

    /// Number of connections accepted.
    pub(crate) fn connection_count(&self) -> usize {
        self.state.connection_count.load(Ordering::Acquire)
    }

    /// The headers of the latest request.
    pub(crate) fn headers(&self) -> HeaderMap {
        self.state.headers.lock().unwrap().clone()
    }

    /// Waits for the next request that was not returned yet, as `METHOD URI BODY`.
    pub(crate) async fn next_request(&self) -> String {
        tokio::time::timeout(TEST_TIMEOUT, self.requests.lock().await.recv()).await.unwrap().unwrap()
    }

    /// Lets this number of requests to `/gate` be answered.
    pub(crate) fn release_gate(&self, requests: usize) {
        self.state.gate.add_permits(requests);
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, state: Arc<ServerState>) {
    loop {
        let Ok((tcp, _)) = listener.accept().await else { return };
        state.connection_count.fetch_add(1, Ordering::AcqRel);
        let (tls, state) = (tls.clone(), Arc::clone(&state));
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&state), request));
            let http = hyper::server::conn::http1::Builder::new();
            // The client's own error is what the test asserts.
            match tls {
                None => drop(http.serve_connection(TokioIo::new(tcp), service).await),
                Some(tls) => {
                    if let Ok(tls) = tls.accept(tcp).await {
                        drop(http.serve_connection(TokioIo::new(tls), service).await);
                    }
                }
            }
        });
    }
}

async fn answer(
    state: Arc<ServerState>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    state.request_count.fetch_add(1, Ordering::AcqRel);
    *state.headers.lock().unwrap() = head.headers.clone();
    let shown = body.iter().take(100).map(|byte| char::from(*byte)).collect::<String>();
    let _ = state.request_sender.send(format!("{} {} {shown}", head.method, head.uri));
    let mut response = Response::builder();
    let header = |name: &str| {
        head.headers.get(name).cloned().map(|value| Bytes::from_owner(value.as_bytes().to_vec()))
    };
    let body = match head.uri.path() {
        "/echo" => Bytes::from(format!("{} {} {}", head.method, head.uri, body.len())),
        "/authorization" => header("authorization").unwrap_or_default(),
        "/api-key" => header("x-api-key").unwrap_or_default(),
        // A login: the token names the password, as the tokens of no real server do.
        "/login" => {
            let password = header("authorization").unwrap_or_default();
            Bytes::from(format!("token-for-{}", String::from_utf8_lossy(&password).replace("Bearer ", "")))
        }
        "/token" => header("x-auth-token").unwrap_or_default(),
        "/redirect" => {
            response = response.status(StatusCode::FOUND).header("location", "http://169.254.169.254/latest");
            Bytes::new()
        }
        "/missing" => {
            response = response.status(StatusCode::NOT_FOUND).header("x-reason", "none");
            Bytes::from_static(b"no such thing")
        }
        "/large" => Bytes::from(vec![b'x'; head.uri.query().unwrap().parse().unwrap()]),
        "/long-head" => {
            response = response.header("x-long", "x".repeat(100_000));
            Bytes::new()
        }
        "/gate" => {
            state.gate.acquire().await.unwrap().forget();
            Bytes::from_static(b"passed")
        }
        path => panic!("the server has no {path}"),
    };
    Ok(response.body(Full::new(body)).unwrap())
}

/// A certificate authority.
pub(crate) struct TestAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate with its key.
pub(crate) struct TestCertificate {
    pub(crate) certificate: CertificateDer<'static>,
    certificate_pem: String,
    key: KeyPair,
}

impl TestAuthority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    pub(crate) fn sign(&self, name: &str, usage: rcgen::ExtendedKeyUsagePurpose) -> TestCertificate {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        TestCertificate { certificate: certificate.der().clone(), certificate_pem: certificate.pem(), key }
    }

    pub(crate) fn server_certificate(&self, name: &str) -> TestCertificate {
        self.sign(name, rcgen::ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Writes the authority's certificate to a file and returns its path.
    pub(crate) fn certificate_file(&self, name: &str) -> PathBuf {
        write_temp_file(name, &self.issuer.pem())
    }
}

impl TestCertificate {
    /// Writes certificate and key to files and returns their paths.
    pub(crate) fn files(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = self.key.serialize_pem();
        (
            write_temp_file(&format!("{name}.crt"), &self.certificate_pem),
            write_temp_file(&format!("{name}.key"), &key),
        )
    }

    pub(crate) fn pin(&self) -> String {
        use sha2::Digest as _;
        sha2::Sha256::digest(&self.certificate).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// TLS configuration of a server with this certificate. `clients` is the authority whose client
    /// certificates the server requires; `None` if it requires none.
    pub(crate) fn server_config(&self, clients: Option<&TestAuthority>) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.issuer.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        builder.with_single_cert(vec![self.certificate.clone()], key).unwrap()
    }
}

fn write_temp_file(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

/// The configuration of an origin on 127.0.0.1.
pub(crate) fn origin(url: &str) -> OriginConfig {
    OriginConfig {
        origin: url.to_owned(),
        addresses: Some(vec!["127.0.0.1".to_owned()]),
        ..OriginConfig::default()
    }
}

pub(crate) async fn load(
    engine: &Engine,
    origins: Vec<OriginConfig>,
    limits: Limits,
) -> Result<Arc<WasmBackend>, LoadError> {
    let source = ComponentSource::Bytes { name: "net.wasm".to_owned(), bytes: cofferdam_test_guests::NET };
    let grants = Grant::DEFAULT.into_iter().chain([Grant::Reveal, Grant::Sign]).collect();
    let http = HttpConfig { origins };
    let config = BackendConfig { http, limits, grants, class_secrets: true, ..BackendConfig::default() };
    engine.load(source, config).await
}

/// A backend whose only allowed origin is this server.
pub(crate) async fn backend_for_server(server: &TestServer) -> Arc<WasmBackend> {
    load(&super::common::engine(), vec![origin(&server.http(""))], Limits::default()).await.unwrap()
}

pub(crate) fn secrets(pairs: &[(&str, &str)]) -> Secrets {
    pairs.iter().map(|(name, text)| ((*name).to_owned(), Secret::new(*text))).collect()
}

/// Makes the guest run a script in one CreateVolume call for the volume `name`: a JSON list of steps, most of
/// which call an import. Returns the result of each step.
pub(crate) async fn run_script(
    backend: &WasmBackend,
    name: &str,
    call: Call,
    script: Value,
) -> Result<Vec<String>, StorageError> {
    let parameters = BTreeMap::from([("script".to_owned(), script.to_string())]);
    let request = CreateVolume { parameters, ..super::common::request(name, 1) };
    let volume = backend.create_volume(call, request).await?;
    let mut results: Vec<_> = volume.context.into_iter().collect();
    results.sort_by_key(|(number, _)| number.parse::<usize>().unwrap());
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Sends one request in a call without secrets. Returns its result as text.
pub(crate) async fn send(backend: &WasmBackend, request: Value) -> String {
    let script = json!([{ "send": request }]);
    run_script(backend, "v", super::common::call(), script).await.unwrap().remove(0)
}

pub(crate) fn get(url: &str) -> Value {
    json!({ "method": "GET", "url": url })
}
