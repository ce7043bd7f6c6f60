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
//!
//! # XML
//!
//! The SDK does not read XML. For storage that answers in XML, such as EC2 and S3, use the crate `quick-xml`
//! with its feature `serialize`. It reads XML into types of serde, is widely used, builds for components, and
//! needs no grant. It adds 100 to 260 kB to a driver, by the number of types.
//!
//! ```toml
//! [dependencies]
//! quick-xml = { version = "0.42", default-features = false, features = ["serialize"] }
//! ```
//!
//! A type that is not in the response is an error as in [`Response::json`]: final after a read-only request.
//!
//! ```
//! use cofferdam_guest::{Result, StorageError, http::{Method, Request, Response}, mock};
//! use serde::{Deserialize, de::DeserializeOwned};
//!
//! #[derive(Deserialize)]
//! #[serde(rename_all = "camelCase")]
//! struct DescribeVolumes {
//!     #[serde(default)]
//!     volume_set: Set<Volume>,
//!     next_token: Option<String>,
//! }
//!
//! /// A list in the XML of EC2: `<volumeSet><item>...</item><item>...</item></volumeSet>`.
//! #[derive(Deserialize)]
//! struct Set<T> {
//!     #[serde(default = "Vec::new")]
//!     item: Vec<T>,
//! }
//!
//! impl<T> Default for Set<T> {
//!     fn default() -> Self {
//!         Self { item: Vec::new() }
//!     }
//! }
//!
//! #[derive(Deserialize)]
//! #[serde(rename_all = "camelCase")]
//! struct Volume {
//!     volume_id: String,
//!     size: u64,
//! }
//!
//! fn xml<T: DeserializeOwned>(response: &Response) -> Result<T> {
//!     quick_xml::de::from_str(&response.text()).map_err(|error| response.unreadable(&error))
//! }
//!
//! fn volumes() -> Result<Vec<Volume>> {
//!     let request = Request::post("http://ec2/").form(&[("Action", "DescribeVolumes")]).read_only();
//!     let described: DescribeVolumes = xml(&request.send()?.ok_or(|_| None)?)?;
//!     assert!(described.next_token.is_none(), "a driver reads the next page here");
//!     Ok(described.volume_set.item)
//! }
//!
//! let _host = mock::MockHost::new()
//!     .on(Method::Post, "http://ec2/", |_| {
//!         Ok(Response::new(200).with_body(
//!             "<DescribeVolumesResponse><volumeSet><item><volumeId>vol-0a</volumeId><size>8</size></item>\
//!              </volumeSet></DescribeVolumesResponse>",
//!         ))
//!     })
//!     .install();
//! let volumes = volumes().unwrap();
//! assert_eq!((volumes[0].volume_id.as_str(), volumes[0].size), ("vol-0a", 8));
//! ```

#[cfg(feature = "http")]
mod bridge;
pub(crate) mod encoding;
mod response;
mod signing;

use std::{fmt, time::Duration};

use serde::Serialize;

use self::signing::{HookError, Signer};
pub use self::{
    encoding::{decode, encode},
    response::Response,
    signing::FinishedRequest,
};
pub use crate::bindings::cofferdam::storage::http::{Failure, Method};
use crate::{Result, StorageError, host, secrets::Secret};

/// Maximum characters of a path that an error message quotes.
const MAX_DESCRIBED_PATH: usize = 100;

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
        url.push_str(&encode(segment));
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
    signer: Option<Signer<'a>>,
    refusals: Option<Refusals<'a>>,
    may_change: bool,
}

/// A function that finds responses by which the server did nothing.
struct Refusals<'a>(Box<dyn Fn(&Response) -> bool + 'a>);

impl fmt::Debug for Refusals<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refusals")
    }
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
            signer: None,
            refusals: None,
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
        encoding::push_query(&mut self.url, key, value);
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

    /// Sets a JSON body and its content type, which replaces one that was set before. For another content
    /// type, use [`body`](Self::body) and [`header`](Self::header).
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
        Ok(self.typed_body("application/json", body))
    }

    /// Sets a form as body, and the content type `application/x-www-form-urlencoded`, which replaces one that
    /// was set before. Keys and values may contain any character and are percent-encoded. A space becomes
    /// `%20`, as in a query, which every decoder of forms reads; `+` stands for a space in forms only.
    ///
    /// ```
    /// use cofferdam_guest::{http::{Method, Request, Response}, mock};
    ///
    /// let host = mock::MockHost::new().on(Method::Post, "http://ec2/", |_| Ok(Response::new(200))).install();
    /// let size = 8.to_string();
    /// let pairs = [("Action", "CreateVolume"), ("Size", &size), ("Tag.1.Value", "a b&c")];
    /// Request::post("http://ec2/").form(&pairs).send().unwrap();
    /// let sent = &host.requests()[0];
    /// assert_eq!(sent.body, b"Action=CreateVolume&Size=8&Tag.1.Value=a%20b%26c");
    /// assert_eq!(sent.header("content-type"), Some("application/x-www-form-urlencoded"));
    /// ```
    pub fn form<K: AsRef<str>, V: AsRef<str>>(self, pairs: &[(K, V)]) -> Self {
        let body = encoding::encode_pairs(pairs);
        self.typed_body("application/x-www-form-urlencoded", body)
    }

    /// Sets a body and its content type. A request has one content type, so an earlier one is removed.
    fn typed_body(mut self, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        self.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("content-type"));
        self.header("content-type", content_type).body(body)
    }

    /// Runs a hook on the finished request right before it is sent, for example to sign it. The hook sees the
    /// result of all functions of the request, including those that are called after this one, and can add
    /// headers and query parameters. A second hook replaces the first.
    ///
    /// If the hook fails, nothing is sent, and [`send`](Self::send) returns an [`HttpError`] of
    /// [`Failure::Invalid`]. As a [`StorageError`] it has the kind, the message and the delay of the hook's
    /// error, and is final unless this call [has changed](crate::has_changed) something. An error of the hook
    /// that is in progress remains so.
    ///
    /// This driver signs with AWS Signature Version 4. It needs the grants `sign` and `ambient`, and never sees
    /// the secret.
    ///
    /// ```
    /// use cofferdam_guest::{
    ///     Result, ambient, digest, http::{FinishedRequest, Method, Request, Response}, mock, secrets, settings,
    ///     sign::{Algorithm, Key}, time,
    /// };
    ///
    /// fn sign(request: &mut FinishedRequest<'_>) -> Result<()> {
    ///     let now = ambient::now();
    ///     request.set_header("x-amz-date", time::to_iso_basic(now));
    ///     let headers = request.canonical_headers();
    ///     let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    ///     let names = headers.into_keys().collect::<Vec<_>>().join(";");
    ///     let canonical = [
    ///         request.method_name(),
    ///         request.path(),
    ///         &request.canonical_query(),
    ///         &lines,
    ///         &names,
    ///         &request.body_sha256_hex(),
    ///     ];
    ///     let canonical = digest::sha256_hex(canonical.join("\n"));
    ///     let scope = [&time::to_iso_basic_date(now), "us-east-1", "service", "aws4_request"];
    ///     let (date, path) = (time::to_iso_basic(now), scope.join("/"));
    ///     let text = ["AWS4-HMAC-SHA256", &date, &path, &canonical].join("\n");
    ///
    ///     let secret = secrets::require("secret-key")?;
    ///     let chain = [scope[0], scope[1], scope[2], scope[3], &text];
    ///     let signature = digest::hex(Key::new(&secret).prefix("AWS4").hmac(Algorithm::Sha256, &chain)?);
    ///     let credential = format!("{}/{path}", settings::get("access-key").unwrap_or_default());
    ///     request.set_header(
    ///         "authorization",
    ///         format!(
    ///             "AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    ///         ),
    ///     );
    ///     Ok(())
    /// }
    ///
    /// // The request `get-vanilla-query-order-key-case` of the test suite that AWS publishes.
    /// let host = mock::MockHost::new()
    ///     .start_time(1_440_938_160_000)
    ///     .setting("access-key", "AKIDEXAMPLE")
    ///     .secret("secret-key", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    ///     .on(Method::Get, "https://example.amazonaws.com/", |_| Ok(Response::new(200)))
    ///     .install();
    /// let request = Request::get("https://example.amazonaws.com/").sign_with(sign);
    /// request.query("Param2", "value2").query("Param1", "value1").send().unwrap();
    /// assert!(host.requests()[0].header("authorization").unwrap().ends_with(
    ///     "SignedHeaders=host;x-amz-date, \
    ///      Signature=b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"
    /// ));
    /// ```
    pub fn sign_with(mut self, hook: impl FnOnce(&mut FinishedRequest<'_>) -> Result<()> + 'a) -> Self {
        self.signer = Some(Signer::new(hook));
        self
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

    /// Finds further responses by which the server did nothing, such as an error code with the status 503. A
    /// response with the status 400 to 407, 409 to 499, 501, 505 or 507 is one by itself. After such a
    /// response, an error of this call may be final.
    ///
    /// ```
    /// use cofferdam_guest::{ErrorKind, Finality, StorageError, http::{Method, Request, Response}, mock};
    ///
    /// let host = mock::MockHost::new()
    ///     .on(Method::Post, "http://a/", |_| Ok(Response::new(503).with_body("NoCapacity")))
    ///     .install();
    /// let create = |request: Request<'_>| {
    ///     let answer = request.send().unwrap();
    ///     assert_eq!(answer.text(), "NoCapacity");
    ///     StorageError::resource_exhausted("no capacity").final_unless_changed()
    /// };
    /// let is_refusal = |response: &Response| response.text() == "NoCapacity";
    /// let error = host.call(|| create(Request::post("http://a/").refused_if(is_refusal)));
    /// assert_eq!((error.kind, error.finality), (ErrorKind::ResourceExhausted, Finality::Final));
    /// let error = host.call(|| create(Request::post("http://a/")));
    /// assert_eq!(error.finality, Finality::Unknown);
    /// ```
    pub fn refused_if(mut self, is_refusal: impl Fn(&Response) -> bool + 'a) -> Self {
        self.refusals = Some(Refusals(Box::new(is_refusal)));
        self
    }

    /// Sends the request and waits for the response. A response of any status is `Ok`.
    ///
    /// # Errors
    ///
    /// There was no response, or the hook of [`sign_with`](Self::sign_with) failed.
    pub fn send(mut self) -> Result<Response, HttpError> {
        let mut compare_clocks = None;
        if let Some(signer) = self.signer.take() {
            compare_clocks = Some(signer.sign(&mut FinishedRequest {
                method: self.method,
                url: &mut self.url,
                headers: &mut self.headers,
                body: self.body.as_deref().unwrap_or_default(),
            })?);
        }
        let may_change = self.may_change;
        let described = describe(self.method, &self.url);
        let refusals = self.refusals.take();
        let mut result = host::send(self);
        let may_have_changed = match &mut result {
            Ok(response) => {
                response.of_read_only_request = !may_change;
                response.request = Some(described);
                response.clock_difference = compare_clocks.and_then(|compare| compare(response));
                let is_refusal = refusals.is_some_and(|Refusals(is_refusal)| is_refusal(response));
                !response.is_refusal() && !is_refusal
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

/// Method and path of a request. The query is omitted: it may have a signature.
fn describe(method: Method, url: &str) -> String {
    let path = url.split_once("://").map_or(url, |(_, rest)| rest);
    let path = path.split_once('/').map_or("", |(_, path)| path);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let path: String = path.chars().take(MAX_DESCRIBED_PATH).collect();
    format!("{} /{path}", method_name(method))
}

/// The name of a method, such as `GET`.
pub(crate) const fn method_name(method: Method) -> &'static str {
    match method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Patch => "PATCH",
        Method::Delete => "DELETE",
        Method::Options => "OPTIONS",
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
    /// The error of the hook of [`Request::sign_with`]; `None` for other failures.
    hook_error: Option<HookError>,
}

impl HttpError {
    /// The error of a request that was never sent. Mock servers return it, too.
    pub fn unsent(failure: Failure, message: impl Into<String>) -> Self {
        Self { failure, message: message.into(), maybe_sent: false, maybe_changed: false, hook_error: None }
    }

    /// The error of a request that the server may have received, and whose response was lost. Mock servers
    /// return it, too.
    pub fn lost(failure: Failure, message: impl Into<String>) -> Self {
        Self { failure, message: message.into(), maybe_sent: true, maybe_changed: true, hook_error: None }
    }
}

impl From<HttpError> for StorageError {
    /// The error is final only if neither the request nor anything earlier in this call may have changed
    /// something; see the [module](crate::http).
    fn from(error: HttpError) -> Self {
        let HttpError { failure, message, maybe_sent: _, maybe_changed, hook_error } = error;
        if let Some(hook_error) = hook_error {
            return hook_error.into_storage_error(message);
        }
        let converted = match failure {
            Failure::Invalid => Self::failed_precondition(format!("the request cannot be sent: {message}")),
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
            Failure::Broken => Self::unavailable(format!(
                "the storage or a proxy ended the exchange before its answer was complete: {message}"
            )),
            Failure::Connect | Failure::Overloaded => {
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
