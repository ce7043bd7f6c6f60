//! HTTP requests with complete bodies (no streaming).
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
//!     .on(http::Method::Put, "http://array/v1/volumes/a%20b", |_| {
//!         Ok(http::Response::new(201).with_body(r#"{"id": "7"}"#))
//!     })
//!     .on(http::Method::Put, "http://array/v1/volumes/taken", |_| Ok(http::Response::new(412)))
//!     .install();
//! assert_eq!(create("http://array/", "a b").unwrap().id, "7");
//! assert_eq!(create("http://array/", "taken").unwrap_err().kind, ErrorKind::AlreadyExists);
//! ```
//!
//! # Finality of errors
//!
//! An error that results from a request never claims more than is known. `?` on an [`HttpError`] returns a
//! final error only if the request changed nothing *and* this call cannot have changed anything before
//! ([`has_changed`](crate::has_changed)).
//!
//! A request has changed nothing if it was never sent or is read-only. GET, HEAD and OPTIONS are read-only.
//! The backend marks other requests that change nothing, such as a search by POST or a login, with
//! [`Request::read_only`].
//!
//! The errors of [`Response::error`] and [`Response::json`] follow the same rule. [`Response::error`] also
//! takes a status that means a refusal, such as 404, as proof that the request changed nothing. An error that
//! a backend returns from the function given to [`Response::ok_or`] keeps its finality.

use std::{fmt, time::Duration};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Serialize, de::DeserializeOwned};

pub use crate::bindings::cofferdam::storage::http::{Failure, Method};
use crate::{Finality, Result, StorageError, host, secrets::Secret};

/// Percent-encoding set: every character except the unreserved characters of RFC 3986.
const ESCAPED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Maximum characters of an unexpected response that an error message quotes.
const MAX_QUOTED_CHARS: usize = 200;

/// Joins a base URL and path segments. Segments may contain any character and are percent-encoded.
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
/// - [`invalid_argument`](StorageError::invalid_argument) if a segment is empty, `.` or `..`. Many servers
///   resolve such a segment to another resource even if it is encoded, so a delete could remove more than
///   intended.
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

/// An HTTP request under construction.
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

/// Credentials that the host adds to a request.
#[derive(Debug)]
pub(crate) enum Authorization<'a> {
    Basic { user: UserName<'a>, password: &'a Secret },
    Bearer(&'a Secret),
    Header { name: String, value: &'a Secret },
}

/// A user name: plain text or a secret.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "the contract has these two")]
pub enum UserName<'a> {
    /// Plain text.
    Plain(String),
    /// A secret.
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
    /// A request with any method to an absolute URL.
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

    /// A GET request.
    pub fn get(url: impl Into<String>) -> Self {
        Self::new(Method::Get, url)
    }

    /// A HEAD request.
    pub fn head(url: impl Into<String>) -> Self {
        Self::new(Method::Head, url)
    }

    /// A POST request.
    pub fn post(url: impl Into<String>) -> Self {
        Self::new(Method::Post, url)
    }

    /// A PUT request.
    pub fn put(url: impl Into<String>) -> Self {
        Self::new(Method::Put, url)
    }

    /// A PATCH request.
    pub fn patch(url: impl Into<String>) -> Self {
        Self::new(Method::Patch, url)
    }

    /// A DELETE request.
    pub fn delete(url: impl Into<String>) -> Self {
        Self::new(Method::Delete, url)
    }

    /// Adds a query parameter. Key and value may contain any character and are percent-encoded.
    pub fn query(mut self, key: &str, value: &str) -> Self {
        self.url.push(if self.url.contains('?') { '&' } else { '?' });
        self.url.extend(utf8_percent_encode(key, &ESCAPED));
        self.url.push('=');
        self.url.extend(utf8_percent_encode(value, &ESCAPED));
        self
    }

    /// Adds a header. The host sets `host`, `connection` and other headers that frame the message; a request
    /// with one of them fails with [`Failure::Invalid`].
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// Sets a JSON body and its content type.
    ///
    /// # Errors
    ///
    /// - [`internal`](StorageError::internal) if the value cannot be encoded as JSON. Nothing was sent.
    pub fn json(self, value: &impl Serialize) -> Result<Self> {
        let body = serde_json::to_vec(value).map_err(|error| {
            StorageError::internal(format!("the body for {} cannot be written: {error}", self.url))
                .without_effect()
                .final_unless_changed()
        })?;
        Ok(self.header("content-type", "application/json").body(body))
    }

    /// Authenticates with `Authorization: Basic`. The host inserts the password; the backend never sees it.
    pub fn basic(mut self, user: impl Into<UserName<'a>>, password: &'a Secret) -> Self {
        self.authorization = Some(Authorization::Basic { user: user.into(), password });
        self
    }

    /// Authenticates with `Authorization: Bearer` and a secret that the host inserts.
    pub fn bearer(mut self, token: &'a Secret) -> Self {
        self.authorization = Some(Authorization::Bearer(token));
        self
    }

    /// Authenticates with a secret in another header, inserted by the host.
    pub fn secret_header(mut self, name: &str, value: &'a Secret) -> Self {
        self.authorization = Some(Authorization::Header { name: name.to_owned(), value });
        self
    }

    /// Authenticates with `Authorization: Bearer` and a token that the backend received from a login.
    pub fn token(self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }

    /// Sets the time limit from the start of the connection to the end of the response. The operator's limit
    /// is the default and the maximum.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout_ms = Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Marks the request as changing nothing in the storage, regardless of its method. A missing response
    /// then counts like a request that was never sent.
    pub fn read_only(mut self) -> Self {
        self.may_change = false;
        self
    }

    /// Sends the request and waits for the response. A response of any status is `Ok`.
    ///
    /// # Errors
    ///
    /// There was no response.
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
    /// Why there is no response.
    pub failure: Failure,
    /// A description for people.
    pub message: String,
    /// True if the server may have received the request.
    pub maybe_sent: bool,
    /// True if the request may have changed something on the server.
    pub maybe_changed: bool,
}

impl HttpError {
    /// The error of a request that was never sent. Mock servers return it, too.
    pub fn unsent(failure: Failure, message: impl Into<String>) -> Self {
        Self { failure, message: message.into(), maybe_sent: false, maybe_changed: false }
    }

    /// The error of a request that the server may have received, and whose response was lost. Mock servers
    /// return it, too.
    pub fn lost(failure: Failure, message: impl Into<String>) -> Self {
        Self { failure, message: message.into(), maybe_sent: true, maybe_changed: true }
    }
}

/// A response of any status.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code, such as 200.
    pub status: u16,
    /// The headers, with lower-case names. Several values of one name are in order of arrival.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// True if the request was read-only. An error made from this response then has an unknown outcome only
    /// if this call has changed something before.
    of_read_only_request: bool,
}

/// Omits header values and the body because they may contain credentials.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl Response {
    /// A response without headers and body, for mock servers.
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), of_read_only_request: false }
    }

    /// A response from the parts that the host returned.
    #[cfg(target_family = "wasm")]
    pub(crate) fn received(status: u16, headers: Vec<(String, String)>, body: Vec<u8>) -> Self {
        Self { status, headers, body, of_read_only_request: false }
    }

    /// The same response with one more header.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_ascii_lowercase(), value.to_owned()));
        self
    }

    /// The same response with a body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// The value of the first header with the name, compared case-insensitively. `None` if there is no such
    /// header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Returns true if the status is 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body as text. Invalid UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Decodes the body from JSON.
    ///
    /// # Errors
    ///
    /// - [`internal`](StorageError::internal) if the body is not the JSON of a `T`. It is final if the
    ///   request was read-only and this call has changed nothing before. Otherwise the outcome is unknown.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body).map_err(|error| {
            self.with_known_finality(StorageError::internal(format!(
                "the storage's answer, of status {}, is not readable: {error}",
                self.status
            )))
        })
    }

    /// Returns the response if its status is 2xx, and otherwise the error from `map`, or
    /// [`error`](Self::error) if `map` returns `None`. An error from `map` is returned unchanged.
    ///
    /// # Errors
    ///
    /// The status is not 2xx.
    pub fn ok_or(self, map: impl FnOnce(&Self) -> Option<StorageError>) -> Result<Self> {
        if self.is_success() {
            return Ok(self);
        }
        Err(map(&self).unwrap_or_else(|| self.error()))
    }

    /// The default error for the status. A `retry-after` header in seconds sets the retry delay.
    ///
    /// - 400, 401, 403 to 406, 409 to 417, 422, 428, 429, 501 and 507 are final unless this call has changed
    ///   something before. After 429, the storage is overloaded and did nothing.
    /// - 423 and 425 are in progress: the storage is processing this operation.
    /// - Every other status leaves the outcome unknown. After a read-only request it is final instead, unless
    ///   this call has changed something before.
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

    /// Makes an unknown outcome final after a read-only request, and a final one unknown if this call has
    /// changed something before.
    fn with_known_finality(&self, error: StorageError) -> StorageError {
        let error = if self.of_read_only_request && error.finality == Finality::Unknown {
            error.without_effect()
        } else {
            error
        };
        error.final_unless_changed()
    }

    /// Returns true if the status means that the server did nothing.
    fn is_refusal(&self) -> bool {
        matches!(self.status, 400..=407 | 409..=499 | 501 | 505 | 507)
    }

    /// The status and the start of the response body, on one line.
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
    /// The error is final only if neither the request nor anything earlier in this call may have changed
    /// something; see the [module](crate::http).
    fn from(error: HttpError) -> Self {
        let HttpError { failure, message, maybe_sent: _, maybe_changed } = error;
        let converted = match failure {
            Failure::Invalid => Self::failed_precondition(format!(
                "the request cannot be sent: {message}; its URL starts with a value of the backend's \
                 configuration"
            )),
            Failure::Forbidden => Self::failed_precondition(format!(
                "requests to the storage are not allowed: {message}; the operator allows origins in the \
                 backend's configuration"
            )),
            Failure::NameNotFound => Self::unavailable(format!(
                "the storage's name has no address: {message}; the backend's configuration names the \
                 storage"
            )),
            Failure::Tls => Self::unavailable(format!(
                "the TLS connection to the storage failed: {message}; the operator sets the authorities of \
                 the origin"
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
