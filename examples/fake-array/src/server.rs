//! The array's HTTP server.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::Instant};

use crate::{
    array::{Array, ArrayCredentials, ArrayRequest, ArrayResponse},
    fault::{ArrayFault, Faults, InjectedFault},
    model::{ArrayContent, Counters},
};

/// Maximum size of a request body in bytes.
const MAX_BODY: usize = 1 << 20;

/// A running array. It stops when the last clone of this handle is dropped.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use cofferdam_fake_array::{Array, FakeArray, ArrayFault};
///
/// let array = Array::new("admin", "secret");
/// let (url, array) = FakeArray::start_with(([127, 0, 0, 1], 0).into(), array).await.unwrap();
/// array.inject("PUT", "/volumes/", 1, ArrayFault::LostAnswer);
/// // … run a driver with `url` …
/// assert!(array.content().volumes.is_empty());
/// assert_eq!(array.counters().sessions, 0);
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct FakeArray {
    shared: Arc<ArrayServerState>,
    /// Closed when the last handle is dropped, which stops the listener.
    _alive: Arc<watch::Sender<()>>,
}

#[derive(Debug)]
struct ArrayServerState {
    array: Mutex<Array>,
    faults: Mutex<Faults>,
    started: Instant,
    /// The wall clock time at `started`. From there the time follows tokio's clock, which tests can advance.
    started_ms: u128,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeArray {
    /// Starts an empty array with the user `admin` and the password `secret`, and returns its URL. Port 0
    /// selects a free port.
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    pub async fn start(address: SocketAddr) -> io::Result<(String, Self)> {
        Self::start_with(address, Array::new("admin", "secret")).await
    }

    /// Starts an array and returns its URL.
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    pub async fn start_with(address: SocketAddr, array: Array) -> io::Result<(String, Self)> {
        let listener = TcpListener::bind(address).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(ArrayServerState {
            array: Mutex::new(array),
            faults: Mutex::default(),
            started: Instant::now(),
            started_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis()),
        });
        let (close_sender, mut closed) = watch::channel(());
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => if let Ok((socket, _)) = accepted {
                        connections.spawn(serve_connection(Arc::clone(&serving), socket));
                    },
                    Some(_) = connections.join_next() => {}
                    // The channel carries no values: it closes with the last handle. Dropping the set ends
                    // the connections.
                    _ = closed.changed() => break,
                }
            }
        });
        Ok((url, Self { shared, _alive: Arc::new(close_sender) }))
    }

    /// Injects a fault into the next `times` requests with the method and path prefix. Earlier faults take
    /// precedence.
    pub fn inject(&self, method: &str, path_prefix: &str, times: u32, fault: ArrayFault) {
        let injected =
            InjectedFault { method: method.to_owned(), path_prefix: path_prefix.to_owned(), fault, times };
        lock(&self.shared.faults).inject(injected);
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        lock(&self.shared.faults).clear();
    }

    /// The content of the array.
    pub fn content(&self) -> ArrayContent {
        lock(&self.shared.array).content().clone()
    }

    /// The counters of the array.
    pub fn counters(&self) -> Counters {
        lock(&self.shared.array).counters()
    }

    /// Changes the array itself: its capacity, sessions or password.
    pub fn with_array<T>(&self, change: impl FnOnce(&mut Array) -> T) -> T {
        change(&mut lock(&self.shared.array))
    }
}

async fn serve_connection(shared: Arc<ArrayServerState>, socket: tokio::net::TcpStream) {
    let service = hyper::service::service_fn(move |request| handle_request(Arc::clone(&shared), request));
    // A disconnected client is not an error of the array.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
}

async fn handle_request(
    shared: Arc<ArrayServerState>,
    request: Request<Incoming>,
) -> io::Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, MAX_BODY).collect().await.map_err(io::Error::other)?.to_bytes();
    let fault = lock(&shared.faults).next(head.method.as_str(), head.uri.path());
    let connection_error = || io::Error::other("the connection breaks, as it was asked to");
    let answer = match fault {
        None => shared.process(&head, &body),
        Some(ArrayFault::Status(status)) => ArrayResponse::error(status, "as it was asked to"),
        Some(ArrayFault::LostRequest) => return Err(connection_error()),
        Some(ArrayFault::LostAnswer) => {
            shared.process(&head, &body);
            return Err(connection_error());
        }
        Some(ArrayFault::Blocked(barrier)) => {
            // The connection's task ends when the client disconnects. A separate task completes the request,
            // as a real array does.
            let processing = tokio::spawn(async move {
                barrier.wait().await;
                let answer = shared.process(&head, &body);
                barrier.record_processed();
                answer
            });
            processing.await.map_err(io::Error::other)?
        }
    };
    let response = Response::builder().status(answer.status).header(header::CONTENT_TYPE, "application/json");
    response.body(Full::new(Bytes::from(answer.body))).map_err(io::Error::other)
}

impl ArrayServerState {
    fn process(&self, head: &http::request::Parts, body: &[u8]) -> ArrayResponse {
        let now_ms = self.started_ms.saturating_add(self.started.elapsed().as_millis());
        let now_ms = u64::try_from(now_ms).unwrap_or(u64::MAX);
        let header =
            head.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or("");
        let decoded_credentials = header
            .strip_prefix("Basic ")
            .and_then(|encoded| STANDARD.decode(encoded).ok())
            .and_then(|decoded| String::from_utf8(decoded).ok());
        let credentials = match decoded_credentials
            .as_deref()
            .and_then(|decoded_credentials| decoded_credentials.split_once(':'))
        {
            Some((user, password)) => ArrayCredentials::Basic(user, password),
            None => header.strip_prefix("Bearer ").map_or(ArrayCredentials::None, ArrayCredentials::Bearer),
        };
        let path = head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        lock(&self.array)
            .handle(&ArrayRequest { method: head.method.as_str(), path, credentials, body }, now_ms)
    }
}
