//! The import `http`: requests that a guest sends and responses of a storage array.

mod reference;

use std::sync::LazyLock;

use cofferdam_wasm::{
    HttpConfig, Limits, OriginConfig,
    fuzzing::{
        HttpImport, Origins,
        contract::{Failure, HttpError, Method, Response},
    },
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    runtime::Builder,
    task::yield_now,
    time::Instant,
};

use self::reference::Framing;
use crate::message::assert_printable;

const ORIGIN: &str = "http://array.example:8080";
const AUTHORITY: &str = "array.example:8080";
const PATH: &str = "/api?x=1";
/// The body of a request whose method has one.
const REQUEST_BODY: &[u8] = b"{}";
/// Separates the headers of the request from the first response, and the responses from each other.
const SEPARATOR: &[u8] = b"\n%%\n";
const METHODS: [(Method, &str); 7] = [
    (Method::Get, "GET"),
    (Method::Head, "HEAD"),
    (Method::Post, "POST"),
    (Method::Put, "PUT"),
    (Method::Patch, "PATCH"),
    (Method::Delete, "DELETE"),
    (Method::Options, "OPTIONS"),
];
/// A limit of response bodies that many inputs exceed.
const SMALL_LIMIT: usize = 32;
/// Most bytes of a response's head.
const MAX_HEAD: usize = 64 << 10;
/// Most bytes of a message: a printable text and its ellipsis.
const MAX_MESSAGE_BYTES: usize = 1_003;
/// Bytes that the stream between client and server holds in each direction: an input never fills it.
const STREAM_BYTES: usize = 4 << 20;
/// Turns of the scheduler after which a client that sent nothing waits for the server.
const IDLE_TURNS: u32 = 64;

/// The requests that the server has received.
#[derive(Debug, Default)]
struct ServerLog {
    /// The requests, each with its body.
    requests: Vec<Vec<u8>>,
}

/// The first two bytes select the method, the limit and the sizes of the pieces in which the server sends. The
/// rest is divided by lines `%%`: headers of the guest's request (`name: value`, separated by `|`), the
/// response, and the response to a second request. The server closes the connection at the end.
///
/// - The server sees one request, with the header `Host` of the origin and the headers of the guest, each in
///   one line.
/// - The guest receives the status and body of a well-formed response, and never a byte after its end.
/// - A response is within the limits, and its headers have no line breaks.
/// - A failure says whether the server may have the request, in a printable message.
pub fn http(data: &[u8]) {
    let [options, pieces, rest @ ..] = data else { return };
    let mut sections = split(rest).into_iter();
    let headers = request_headers(sections.next().unwrap_or_default());
    let first = sections.next().unwrap_or_default().to_vec();
    let second = sections.next().map(<[u8]>::to_vec);

    let Some((method, method_name)) = METHODS.into_iter().cycle().nth(usize::from(options & 7)) else {
        return;
    };
    let limit = if options & 8 == 0 { Limits::default().http_response_bytes } else { SMALL_LIMIT };
    let exchange = Exchange {
        method,
        method_name,
        headers,
        limit,
        piece_bytes: match pieces {
            0..=b'0' => usize::MAX,
            size => usize::from(size - b'0'),
        },
    };
    // A runtime of its own: nothing of one input is left for the next one. It has no clock to wait for, since
    // both ends of the stream are in memory.
    let runtime = Builder::new_current_thread().enable_time().build();
    assert!(runtime.is_ok(), "{runtime:?}");
    let Ok(runtime) = runtime else { return };
    runtime.block_on(exchange.run(first, second));
}

/// The parts of an input: at most three, of which the last is the rest.
fn split(mut data: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while parts.len() < 2
        && let Some(at) = data.windows(SEPARATOR.len()).position(|window| window == SEPARATOR)
    {
        let (part, rest) = data.split_at(at);
        parts.push(part);
        data = rest.get(SEPARATOR.len()..).unwrap_or_default();
    }
    parts.push(data);
    parts
}

/// The guest's headers: texts of UTF-8, as the engine lifts them.
fn request_headers(section: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(section);
    let headers = text.split('|').filter_map(|line| line.split_once(": "));
    headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

struct Exchange {
    method: Method,
    method_name: &'static str,
    headers: Vec<(String, String)>,
    limit: usize,
    /// Bytes that the server sends at once.
    piece_bytes: usize,
}

impl Exchange {
    async fn run(&self, first: Vec<u8>, second: Option<Vec<u8>>) {
        static CONFIG: LazyLock<HttpConfig> = LazyLock::new(|| HttpConfig {
            origins: vec![OriginConfig { origin: ORIGIN.to_owned(), ..OriginConfig::default() }],
        });
        let limits = Limits { http_response_bytes: self.limit, ..Limits::default() };
        let deadline = Instant::now() + limits.deadline();
        let url = format!("{ORIGIN}{PATH}");
        let allowed = Origins::new(&CONFIG).ok().and_then(|origins| origins.find(&url));
        let import = HttpImport::new(&CONFIG, &limits, deadline).ok();
        assert!(allowed.is_some() && import.is_some(), "the origin of this target is invalid");
        let (Some(allowed), Some(import)) = (allowed, import) else { return };
        let (client, server) = tokio::io::duplex(STREAM_BYTES);
        import.connect(&allowed, client).await;

        let responses = [Some(first.clone()), second.clone()];
        let served = tokio::spawn(serve(server, responses.into_iter().flatten().collect(), self.piece_bytes));
        let answer = self.send(&import, &url).await;
        let again = match &second {
            Some(_) => Some(self.send(&import, &url).await),
            None => None,
        };
        drop(import);
        let log = served.await.unwrap_or_default();

        self.check_requests(&log);
        let reached = log.requests.len();
        let framing = Framing::of(&first, self.method_name);
        self.check_answer(answer.as_ref(), &framing, reached > 0);
        if let (Some(again), Some(second)) = (again, second) {
            if reached > 1 {
                assert!(
                    !matches!(framing, Framing::Complete { surplus: 1.., .. }),
                    "a connection with {framing:?} is used again"
                );
                self.check_answer(again.as_ref(), &Framing::of(&second, self.method_name), true);
            } else {
                assert!(again.is_err(), "a second response without a second request");
            }
        }
    }

    async fn send(&self, import: &HttpImport, url: &str) -> Result<Response, HttpError> {
        let has_body = matches!(self.method, Method::Post | Method::Put | Method::Patch);
        let body = has_body.then(|| REQUEST_BODY.to_vec());
        let sent = import.send(self.method, url.to_owned(), self.headers.clone(), body).await;
        let trapped = sent.as_ref().err().map(ToString::to_string);
        assert_eq!(trapped, None, "the guest's call ends");
        sent.unwrap_or_else(|_| {
            Err(HttpError { failure: Failure::Broken, message: String::new(), maybe_sent: true })
        })
    }

    /// The server sees whole requests with the expected head.
    fn check_requests(&self, log: &ServerLog) {
        let mut expected: Vec<(String, &str)> =
            self.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.as_str())).collect();
        expected.sort_unstable();
        for request in &log.requests {
            let text = String::from_utf8_lossy(request);
            let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
            assert!(body.is_empty() || body.as_bytes() == REQUEST_BODY, "{text}");
            let mut lines = head.split("\r\n");
            let start = format!("{} {PATH} HTTP/1.", self.method_name);
            let version = lines.next().and_then(|line| line.strip_prefix(&start));
            assert!(matches!(version, Some("1" | "0")), "{text}");
            let headers: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(": ")).collect();
            let hosts = headers.iter().filter(|(name, _)| *name == "host");
            assert!(hosts.eq([&("host", AUTHORITY)]), "{text}");
            // The second request to a server of HTTP/1.0 has its version and asks for the connection.
            let is_own = |(name, value): &(&str, &str)| {
                matches!(*name, "host" | "content-length")
                    || version == Some("0") && (*name, *value) == ("connection", "keep-alive")
            };
            let guests = headers.into_iter().filter(|header| !is_own(header));
            let mut found: Vec<(String, &str)> =
                guests.map(|(name, value)| (name.to_owned(), value)).collect();
            found.sort_unstable();
            assert_eq!(found, expected, "the headers of {text}");
        }
    }

    fn check_answer(&self, answer: Result<&Response, &HttpError>, framing: &Framing, reached: bool) {
        match answer {
            Ok(response) => {
                assert!(reached, "a response without a request");
                self.check_response(response, framing);
            }
            Err(error) => {
                assert_printable(&error.message, MAX_MESSAGE_BYTES);
                assert_eq!(error.maybe_sent, reached, "{error:?}");
                let expected = match error.failure {
                    Failure::Broken | Failure::TooLarge => true,
                    // The host rejects the guest's headers, or has no other connection.
                    Failure::Invalid | Failure::NameNotFound => !reached,
                    Failure::Forbidden
                    | Failure::Connect
                    | Failure::Tls
                    | Failure::Timeout
                    | Failure::Overloaded => false,
                };
                assert!(expected, "{error:?}");
                if reached && let Framing::Complete { body, .. } = framing {
                    assert!(body.len() > self.limit, "{framing:?} is {error:?}");
                }
            }
        }
    }

    fn check_response(&self, response: &Response, framing: &Framing) {
        let head: usize = response.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!(head <= MAX_HEAD, "a head of {head} bytes");
        assert!(response.body.len() <= self.limit, "a body of {} bytes", response.body.len());
        assert!((101..1_000).contains(&response.status), "the status {}", response.status);
        for (name, value) in &response.headers {
            assert!(!name.is_empty() && *name == name.to_ascii_lowercase(), "{name:?}");
            assert!(!name.contains(|c: char| c.is_ascii_control() || c == ' ' || c == ':'), "{name:?}");
            assert!(!value.contains(['\r', '\n', '\0']), "{value:?}");
        }
        assert_ne!(*framing, Framing::Cut, "{response:?}");
        match framing {
            Framing::Complete { status, body, .. } => {
                assert_eq!((response.status, &response.body), (*status, body), "{framing:?}");
            }
            Framing::Cut | Framing::Other => {}
        }
    }
}

/// Sends the responses, each after a whole request, and closes the connection.
async fn serve(mut stream: DuplexStream, responses: Vec<Vec<u8>>, piece_bytes: usize) -> ServerLog {
    let mut log = ServerLog::default();
    for response in responses {
        let Some(request) = read_request(&mut stream).await else { break };
        log.requests.push(request);
        for piece in response.chunks(piece_bytes.min(response.len()).max(1)) {
            if stream.write_all(piece).await.is_err() {
                return log;
            }
            yield_now().await;
        }
    }
    log
}

/// Reads a request; `None` if the client sends no whole request before it closes the connection or waits.
async fn read_request(stream: &mut DuplexStream) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    let mut turns = 0;
    let mut buffer = [0; 4096];
    loop {
        if is_whole(&request) {
            return Some(request);
        }
        tokio::select! {
            biased;
            read = stream.read(&mut buffer) => {
                let bytes = read.ok().filter(|bytes| *bytes > 0)?;
                request.extend_from_slice(buffer.get(..bytes)?);
                turns = 0;
            }
            () = yield_now() => turns += 1,
        }
        if turns > IDLE_TURNS {
            return None;
        }
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let has_body = head.contains("\r\ncontent-length: ");
    !has_body || head.contains("\r\ncontent-length: 0") || body.len() >= REQUEST_BODY.len()
}
