//! The array on a socket.

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
    array::{Answer, Array, Ask, Credentials},
    fault::{Fault, Faults, Injected},
    model::{Content, Counters},
};

/// Longest body of a request, in bytes.
const MAX_BODY: usize = 1 << 20;

/// An array that listens. It ends with its last handle.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use cofferdam_fake_array::{Array, FakeArray, Fault};
///
/// let (url, array) = FakeArray::start_with(([127, 0, 0, 1], 0).into(), Array::new("admin", "secret")).await.unwrap();
/// array.inject("PUT", "/volumes/", 1, Fault::LostAnswer);
/// // … let a driver use `url` …
/// assert!(array.content().volumes.is_empty());
/// assert_eq!(array.counters().logins, 0);
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct FakeArray {
    shared: Arc<Shared>,
    /// Closed with the last handle: the listener hears it.
    _alive: Arc<watch::Sender<()>>,
}

#[derive(Debug)]
struct Shared {
    array: Mutex<Array>,
    faults: Mutex<Faults>,
    begun: Instant,
    /// The wall clock's time at `begun`; time goes on with tokio's clock, which tests can move.
    begun_ms: u128,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeArray {
    /// Starts an empty array with the user `admin` and the password `secret`, and returns its URL. Port 0 takes a free one.
    ///
    /// # Errors
    ///
    /// When the address cannot be listened at.
    pub async fn start(address: SocketAddr) -> io::Result<(String, Self)> {
        Self::start_with(address, Array::new("admin", "secret")).await
    }

    /// Starts an array.
    ///
    /// # Errors
    ///
    /// When the address cannot be listened at.
    pub async fn start_with(address: SocketAddr, array: Array) -> io::Result<(String, Self)> {
        let listener = TcpListener::bind(address).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared {
            array: Mutex::new(array),
            faults: Mutex::default(),
            begun: Instant::now(),
            begun_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis()),
        });
        let (alive, mut ended) = watch::channel(());
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => if let Ok((socket, _)) = accepted {
                        connections.spawn(connection(Arc::clone(&serving), socket));
                    },
                    Some(_) = connections.join_next() => {}
                    // Nothing is ever sent: this is the end of the last handle. The connections end with the set.
                    _ = ended.changed() => break,
                }
            }
        });
        Ok((url, Self { shared, _alive: Arc::new(alive) }))
    }

    /// Lets the next requests of a method to paths with a prefix go wrong, before others that were injected later.
    pub fn inject(&self, method: &str, path_prefix: &str, times: u32, fault: Fault) {
        let injected =
            Injected { method: method.to_owned(), path_prefix: path_prefix.to_owned(), fault, times };
        locked(&self.shared.faults).inject(injected);
    }

    /// Takes all faults back.
    pub fn heal(&self) {
        locked(&self.shared.faults).clear();
    }

    /// What the array holds.
    pub fn content(&self) -> Content {
        locked(&self.shared.array).content().clone()
    }

    /// What the array has done.
    pub fn counters(&self) -> Counters {
        locked(&self.shared.array).counters()
    }

    /// Changes the array itself: its room, its sessions, its password.
    pub fn change<T>(&self, change: impl FnOnce(&mut Array) -> T) -> T {
        change(&mut locked(&self.shared.array))
    }
}

async fn connection(shared: Arc<Shared>, socket: tokio::net::TcpStream) {
    let service = hyper::service::service_fn(move |request| answer(Arc::clone(&shared), request));
    // A client that goes away is no matter of the array's.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, MAX_BODY).collect().await.map_err(io::Error::other)?.to_bytes();
    let fault = locked(&shared.faults).next(head.method.as_str(), head.uri.path());
    let broken = || io::Error::other("the connection breaks, as it was asked to");
    let answer = match fault {
        None => shared.process(&head, &body),
        Some(Fault::Status(status)) => Answer::error(status, "as it was asked to"),
        Some(Fault::LostRequest) => return Err(broken()),
        Some(Fault::LostAnswer) => {
            shared.process(&head, &body);
            return Err(broken());
        }
        Some(Fault::Held(hold)) => {
            // A task of its own: the connection's ends with its client, and an array goes on with what it has begun.
            let held = tokio::spawn(async move {
                hold.wait().await;
                let answer = shared.process(&head, &body);
                hold.note_processed();
                answer
            });
            held.await.map_err(io::Error::other)?
        }
    };
    let response = Response::builder().status(answer.status).header(header::CONTENT_TYPE, "application/json");
    response.body(Full::new(Bytes::from(answer.body))).map_err(io::Error::other)
}

impl Shared {
    fn process(&self, head: &http::request::Parts, body: &[u8]) -> Answer {
        let now_ms = self.begun_ms.saturating_add(self.begun.elapsed().as_millis());
        let now_ms = u64::try_from(now_ms).unwrap_or(u64::MAX);
        let header =
            head.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or("");
        let opened = header
            .strip_prefix("Basic ")
            .and_then(|encoded| STANDARD.decode(encoded).ok())
            .and_then(|decoded| String::from_utf8(decoded).ok());
        let credentials = match opened.as_deref().and_then(|opened| opened.split_once(':')) {
            Some((user, password)) => Credentials::Basic(user, password),
            None => header.strip_prefix("Bearer ").map_or(Credentials::None, Credentials::Bearer),
        };
        let path = head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        locked(&self.array).answer(&Ask { method: head.method.as_str(), path, credentials, body }, now_ms)
    }
}
