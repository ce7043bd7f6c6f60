//! HTTP requests, whole.
//!
//! ```
//! use cofferdam_guest::{ErrorKind, Result, StorageError, http, mock};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize)]
//! struct New<'a> {
//!     name: &'a str,
//!     bytes: u64,
//! }
//!
//! #[derive(Debug, Deserialize)]
//! struct Volume {
//!     id: String,
//! }
//!
//! fn create(base: &str, name: &str) -> Result<Volume> {
//!     let url = http::url(base, &["v1", "volumes", name])?;
//!     http::Request::put(url)
//!         .header("if-none-match", "*")
//!         .json(&New { name, bytes: 1 << 30 })?
//!         .send()?
//!         .ok_or(|response| match response.status {
//!             412 => Some(StorageError::already_exists(format!("the volume {name:?} exists"))),
//!             _ => None,
//!         })?
//!         .json()
//! }
//!
//! let _host = mock::MockHost::new()
//!     .on(http::Method::Put, "http://array/v1/volumes/a%20b", |_| Ok(http::Response::new(201).with_body(r#"{"id": "7"}"#)))
//!     .on(http::Method::Put, "http://array/v1/volumes/taken", |_| Ok(http::Response::new(412)))
//!     .install();
//! assert_eq!(create("http://array/", "a b").unwrap().id, "7");
//! assert_eq!(create("http://array/", "taken").unwrap_err().kind, ErrorKind::AlreadyExists);
//! ```
//!
//! # What a failure says
//!
//! An error that comes of a request never claims more than is known. `?` on an [`HttpError`] gives a final
//! error only when the request has changed nothing *and* nothing that this call sent before may have had an
//! effect ([`changed`](crate::changed)). A request has changed nothing when it was never sent, or when it is
//! one that changes nothing: GET, HEAD and OPTIONS, and those that say so with [`Request::changes_nothing`],
//! such as a search by POST or a login. The same holds for [`Response::ok_or`] and [`Response::json`].

use std::{fmt, time::Duration};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Serialize, de::DeserializeOwned};

pub use crate::bindings::cofferdam::storage::http::{Failure, Method};
use crate::{Finality, Result, StorageError, host, secrets::Secret};

/// What stands in a URL as it is: RFC 3986's unreserved characters.
const ESCAPED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// How much of an answer that is not understood an error shows, in characters.
const MAX_QUOTED_CHARS: usize = 200;

/// A URL of a base and a path, whose segments may hold any character.
///
/// ```
/// use cofferdam_guest::http;
///
/// let url = http::url("https://array.example/api/", &["volumes", "a/b"]).unwrap();
/// assert_eq!(url, "https://array.example/api/volumes/a%2Fb");
/// assert_eq!(
///     http::url("https://array.example/api", &["volumes", "..", "exports"]).unwrap_err().message,
///     r#"".." cannot stand in a path; expected a name other than "", "." and "..""#
/// );
/// ```
///
/// # Errors
///
/// [`invalid_argument`](StorageError::invalid_argument) for a segment that is empty, `.` or `..`: however it
/// is written, to many servers it means another resource, so that the deletion of one thing would be that of
/// all.
pub fn url(base: &str, path: &[&str]) -> Result<String> {
    let mut url = base.trim_end_matches('/').to_owned();
    for segment in path {
        if matches!(*segment, "" | "." | "..") {
            return Err(StorageError::invalid_argument(format!(
                r#"{segment:?} cannot stand in a path; expected a name other than "", "." and "..""#
            ))
            .final_unless_changed());
        }
        url.push('/');
        url.extend(utf8_percent_encode(segment, &ESCAPED));
    }
    Ok(url)
}

/// A request that is being written.
#[derive(Debug)]
#[must_use = "a request does nothing until it is sent"]
pub struct Request<'a> {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) authorization: Option<Authorization<'a>>,
    pub(crate) timeout_ms: Option<u64>,
    may_change: bool,
}

/// How the host proves who asks.
#[derive(Debug)]
pub(crate) enum Authorization<'a> {
    Basic { user: UserName<'a>, password: &'a Secret },
    Bearer(&'a Secret),
    Header { name: String, value: &'a Secret },
}

/// A user's name: a text, or a secret.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "the contract has these two")]
pub enum UserName<'a> {
    /// Not secret.
    Plain(String),
    /// Secret.
    Secret(&'a Secret),
}

impl From<&str> for UserName<'_> {
    fn from(name: &str) -> Self {
        Self::Plain(name.to_owned())
    }
}

impl From<String> for UserName<'_> {
    fn from(name: String) -> Self {
        Self::Plain(name)
    }
}

impl<'a> From<&'a Secret> for UserName<'a> {
    fn from(name: &'a Secret) -> Self {
        Self::Secret(name)
    }
}

impl<'a> Request<'a> {
    /// A request of any method to an absolute URL.
    pub fn new(method: Method, url: impl Into<String>) -> Self {
        let may_change = !matches!(method, Method::Get | Method::Head | Method::Options);
        Self {
            method,
            url: url.into(),
            headers: Vec::new(),
            body: None,
            authorization: None,
            timeout_ms: None,
            may_change,
        }
    }

    /// Reads.
    pub fn get(url: impl Into<String>) -> Self {
        Self::new(Method::Get, url)
    }

    /// Asks whether something is there.
    pub fn head(url: impl Into<String>) -> Self {
        Self::new(Method::Head, url)
    }

    /// Adds, or does.
    pub fn post(url: impl Into<String>) -> Self {
        Self::new(Method::Post, url)
    }

    /// Sets.
    pub fn put(url: impl Into<String>) -> Self {
        Self::new(Method::Put, url)
    }

    /// Changes a part.
    pub fn patch(url: impl Into<String>) -> Self {
        Self::new(Method::Patch, url)
    }

    /// Removes.
    pub fn delete(url: impl Into<String>) -> Self {
        Self::new(Method::Delete, url)
    }

    /// Adds a parameter to the URL's query; key and value may hold any character.
    pub fn query(mut self, key: &str, value: &str) -> Self {
        self.url.push(if self.url.contains('?') { '&' } else { '?' });
        self.url.extend(utf8_percent_encode(key, &ESCAPED));
        self.url.push('=');
        self.url.extend(utf8_percent_encode(value, &ESCAPED));
        self
    }

    /// Adds a header. Those that frame the message are the host's.
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// Sets the body to JSON, with its content type.
    ///
    /// # Errors
    ///
    /// [`internal`](StorageError::internal) for a value that cannot be written as JSON: nothing was sent.
    pub fn json(self, value: &impl Serialize) -> Result<Self> {
        let body = serde_json::to_vec(value).map_err(|error| {
            StorageError::internal(format!("the body for {} cannot be written: {error}", self.url))
                .without_effect()
                .final_unless_changed()
        })?;
        Ok(self.header("content-type", "application/json").body(body))
    }

    /// Proves who asks by `Authorization: Basic`. The host does it: the backend never sees the password.
    pub fn basic(mut self, user: impl Into<UserName<'a>>, password: &'a Secret) -> Self {
        self.authorization = Some(Authorization::Basic { user: user.into(), password });
        self
    }

    /// Proves who asks by `Authorization: Bearer` with a secret, unseen.
    pub fn bearer(mut self, token: &'a Secret) -> Self {
        self.authorization = Some(Authorization::Bearer(token));
        self
    }

    /// Proves who asks by a secret in any other header, unseen.
    pub fn secret_header(mut self, name: &str, value: &'a Secret) -> Self {
        self.authorization = Some(Authorization::Header { name: name.to_owned(), value });
        self
    }

    /// Proves who asks by `Authorization: Bearer` with a token that the backend has got by logging in.
    pub fn token(self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }

    /// How long the exchange may take in all; the operator's bound is the longest and the default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout_ms = Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Says that this request changes nothing at the storage, whatever its method. Without an answer it is as
    /// if it was never sent.
    pub fn read_only(mut self) -> Self {
        self.may_change = false;
        self
    }

    /// Sends the request and waits for its response, of whatever status.
    ///
    /// # Errors
    ///
    /// When there is no response.
    pub fn send(self) -> std::result::Result<Response, HttpError> {
        let may_change = self.may_change;
        let mut result = host::send(self);
        let may_have_changed = match &mut result {
            Ok(response) => {
                response.of_read_only_request = !may_change;
                !response.is_refusal()
            }
            Err(error) => {
                error.maybe_changed = may_change && error.maybe_sent;
                error.maybe_sent
            }
        };
        if may_change && may_have_changed {
            host::set_changed(true);
        }
        result
    }
}

/// A request without a response.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpError {
    /// What went wrong.
    pub failure: Failure,
    /// What happened, for people.
    pub message: String,
    /// Whether the server may have got the request.
    pub maybe_sent: bool,
    /// Whether the server may have changed something because of it.
    pub maybe_changed: bool,
}

impl HttpError {
    /// A request that never left, for scripted servers.
    pub fn unsent(failure: Failure, message: impl Into<String>) -> Self {
        Self { failure, message: message.into(), maybe_sent: false, maybe_changed: false }
    }

    /// A request that the server may have got, and answered in vain, for scripted servers.
    pub fn lost(failure: Failure, message: impl Into<String>) -> Self {
        Self { failure, message: message.into(), maybe_sent: true, maybe_changed: true }
    }
}

/// A response of whatever status.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    /// Status, such as 200.
    pub status: u16,
    /// Headers in their order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
    /// Whether the request was one that changes nothing, so that no answer leaves a doubt.
    of_read_only_request: bool,
}

/// Without header values and body: they may hold a login.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl Response {
    /// A response without headers and body, for scripted servers.
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), of_read_only_request: false }
    }

    /// What the host has received.
    #[cfg(target_family = "wasm")]
    pub(crate) fn received(status: u16, headers: Vec<(String, String)>, body: Vec<u8>) -> Self {
        Self { status, headers, body, of_read_only_request: false }
    }

    /// The same with a header.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_ascii_lowercase(), value.to_owned()));
        self
    }

    /// The same with a body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// A header by its name, in whatever case; the first of several.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Whether the status is 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body as text; what is not UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Errors
    ///
    /// [`internal`](StorageError::internal) when it is not the JSON of a `T`; the outcome is unknown then,
    /// unless the request was one that changes nothing.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body).map_err(|error| {
            self.with_known_finality(StorageError::internal(format!(
                "the storage's answer, of status {}, is not readable: {error}",
                self.status
            )))
        })
    }

    /// The response when it is a success, and otherwise the error that `map` finds for it, or
    /// [`error`](Self::error) when it finds none. An error that `map` makes is the backend's own word and
    /// stays as it is.
    ///
    /// # Errors
    ///
    /// A status other than 2xx.
    pub fn ok_or(self, map: impl FnOnce(&Self) -> Option<StorageError>) -> Result<Self> {
        if self.is_success() {
            return Ok(self);
        }
        Err(map(&self).unwrap_or_else(|| self.error()))
    }

    /// The error that a status means by itself, with the pause that a `retry-after` in seconds asks for.
    ///
    /// A refusal (4xx) is final unless this call has changed something before. So is 429: the storage has too
    /// much to do and did nothing, and the same call later may succeed. 423 and 425 say that it is at work on
    /// this very thing. After 408 and most of 5xx nobody knows what it did, unless the request was one that
    /// changes nothing.
    pub fn error(&self) -> StorageError {
        let message = self.error_message();
        let error = match self.status {
            400 | 405 | 406 | 410..=411 | 413..=417 | 422 => StorageError::invalid_argument(message),
            401 => StorageError::unauthenticated(message),
            403 => StorageError::permission_denied(message),
            404 => StorageError::not_found(message),
            409 | 412 | 428 => StorageError::failed_precondition(message),
            423 | 425 => StorageError::in_progress(message),
            429 => StorageError::unavailable(message).without_effect(),
            408 | 504 => StorageError::deadline_exceeded(message),
            501 => StorageError::unimplemented(message),
            502 | 503 => StorageError::unavailable(message),
            507 => StorageError::resource_exhausted(message),
            _ => StorageError::internal(message),
        };
        let error = self.with_known_finality(error);
        match self.header("retry-after").and_then(|seconds| seconds.trim().parse().ok()) {
            Some(seconds) => error.retry_after(Duration::from_secs(seconds)),
            None => error,
        }
    }

    /// The failure with what is known of its outcome.
    fn with_known_finality(&self, error: StorageError) -> StorageError {
        let error = if self.of_read_only_request && error.finality == Finality::Unknown {
            error.without_effect()
        } else {
            error
        };
        error.final_unless_changed()
    }

    /// Whether the status says that nothing was done.
    fn is_refusal(&self) -> bool {
        matches!(self.status, 400..=407 | 409..=499 | 501 | 505 | 507)
    }

    /// What the storage said, cut, on one line.
    fn error_message(&self) -> String {
        let text = self.text();
        let excerpt: String =
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_QUOTED_CHARS).collect();
        if excerpt.trim().is_empty() {
            format!("the storage answered with status {}", self.status)
        } else {
            format!("the storage answered with status {}: {}", self.status, excerpt.trim())
        }
    }
}

impl From<HttpError> for StorageError {
    /// Final only when the request has changed nothing, and this call nothing before: see the
    /// [module](crate::http).
    fn from(error: HttpError) -> Self {
        let HttpError { failure, message, maybe_sent: _, maybe_changed } = error;
        let converted = match failure {
            Failure::Invalid => Self::failed_precondition(format!(
                "the request cannot be sent: {message}; its URL begins in the backend's configuration"
            )),
            Failure::Forbidden => Self::failed_precondition(format!(
                "the storage may not be asked: {message}; the operator allows origins in the backend's configuration"
            )),
            Failure::NameNotFound => Self::unavailable(format!(
                "the storage's name has no address: {message}; the backend's configuration names the storage"
            )),
            Failure::Tls => Self::unavailable(format!(
                "the storage is not who it should be: {message}; the operator sets the authorities of the origin"
            )),
            Failure::Timeout => Self::deadline_exceeded(format!("the storage has not answered: {message}")),
            Failure::TooLarge => {
                Self::internal(format!("the exchange with the storage is too large: {message}"))
            }
            Failure::Connect | Failure::Broken | Failure::Overloaded => {
                Self::unavailable(format!("the storage cannot be reached: {message}"))
            }
        };
        if maybe_changed {
            converted.after_change()
        } else {
            converted.without_effect().final_unless_changed()
        }
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
