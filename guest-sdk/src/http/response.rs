//! Responses, and the errors that they become.

use std::{fmt, time::Duration};

use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::{Finality, Result, StorageError, time::parse_http_date};

/// Maximum characters of an unexpected response that an error message quotes.
const MAX_QUOTED_CHARS: usize = 200;
/// Difference of the clocks up to which no error message names it. Storage that checks the time of a signature
/// allows some minutes.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(60);

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
    pub(super) of_read_only_request: bool,
    /// Method and path of the request. The mock's responses have none.
    pub(super) request: Option<String>,
    /// The difference of the clocks, if the request was signed and it is large.
    pub(super) clock_difference: Option<ClockDifference>,
}

/// A difference between the storage's clock and that of this host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ClockDifference {
    /// The storage's clock is ahead.
    Ahead(Duration),
    /// The storage's clock is behind.
    Behind(Duration),
}

impl ClockDifference {
    /// The difference by the header `date` of a response. `None` without a readable header, and if the
    /// difference is at most [`MAX_CLOCK_DIFFERENCE`].
    pub(super) fn of_response(response: &Response, now: Duration) -> Option<Self> {
        let date = parse_http_date(response.header("date")?).ok()?;
        if date > now.saturating_add(MAX_CLOCK_DIFFERENCE) {
            return Some(Self::Ahead(date.saturating_sub(now)));
        }
        let is_behind = now > date.saturating_add(MAX_CLOCK_DIFFERENCE);
        is_behind.then(|| Self::Behind(now.saturating_sub(date)))
    }
}

impl fmt::Display for ClockDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (difference, direction) = match self {
            Self::Ahead(difference) => (difference, "ahead of"),
            Self::Behind(difference) => (difference, "behind"),
        };
        let seconds = difference.as_secs();
        write!(
            f,
            "the storage's clock is {seconds} s {direction} this host's, and signatures depend on the time"
        )
    }
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
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
            of_read_only_request: false,
            request: None,
            clock_difference: None,
        }
    }

    /// A response from the parts that the host returned.
    #[cfg(target_family = "wasm")]
    pub(crate) fn received(status: u16, headers: Vec<(String, String)>, body: Vec<u8>) -> Self {
        Self { headers, body, ..Self::new(status) }
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
        // The message of serde_json quotes a value, which may be the token of a login.
        serde_json::from_slice(&self.body).map_err(|error| {
            let problem = match error.classify() {
                Category::Data => "the JSON has another structure",
                Category::Eof => "the JSON is incomplete",
                Category::Io | Category::Syntax => "it is no JSON",
            };
            self.unreadable(&format!("{problem}, line {} column {}", error.line(), error.column()))
        })
    }

    /// The error of a response whose body cannot be read, for drivers that decode it themselves. Its kind and
    /// finality are those of the errors of [`json`](Self::json).
    ///
    /// ```
    /// use cofferdam_guest::{ErrorKind, Result, http::Response};
    ///
    /// fn free_bytes(response: &Response) -> Result<u64> {
    ///     response.text().trim().parse().map_err(|error| response.unreadable(&error))
    /// }
    ///
    /// let error = free_bytes(&Response::new(200).with_body("many")).unwrap_err();
    /// assert_eq!(error.kind, ErrorKind::Internal);
    /// assert!(error.message.ends_with("is not readable: invalid digit found in string"));
    /// ```
    pub fn unreadable(&self, reason: &dyn fmt::Display) -> StorageError {
        let kind = self.header("content-type").map_or_else(String::new, |kind| format!(" and type {kind}"));
        // A successful answer may contain the token of a login, which the host does not know yet: the message
        // does not quote it.
        let (status, html) = (self.status, self.html(&self.text()));
        let request = self.request.as_ref().map_or_else(String::new, |request| format!(" to {request}"));
        let text = format!(
            "the storage's answer{request}, of status {status}{kind}, is not readable: {reason}{html}"
        );
        self.with_known_finality(StorageError::internal(text))
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
    pub(super) fn with_known_finality(&self, error: StorageError) -> StorageError {
        let error = if self.of_read_only_request && error.finality == Finality::Unknown {
            error.without_effect()
        } else {
            error
        };
        error.final_unless_changed()
    }

    /// Returns true if the status means that the server did nothing.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.status, 400..=407 | 409..=499 | 501 | 505 | 507)
    }

    /// The status, what explains it, and the start of the response body, on one line.
    fn error_message(&self) -> String {
        let redirect = match self.header("location") {
            Some(location) if (300..400).contains(&self.status) => {
                let location = one_line(&without_credentials(location));
                format!(
                    " and refers to {location}, and redirects are not followed: expected the URL of the API"
                )
            }
            Some(_) | None => String::new(),
        };
        let clock = match self.clock_difference.filter(|_| matches!(self.status, 400 | 401 | 403)) {
            Some(difference) => format!("; {difference}"),
            None => String::new(),
        };
        let request = self.request.as_ref().map_or_else(String::new, |request| format!(" {request}"));
        let (status, excerpt) = (self.status, self.excerpt());
        format!("the storage answered{request} with status {status}{redirect}{excerpt}{clock}")
    }

    /// A colon and the start of the body, on one line, or what [`html`](Self::html) says. Empty if there is no
    /// text.
    fn excerpt(&self) -> String {
        let text = self.text();
        let html = self.html(&text);
        let excerpt = if html.is_empty() { one_line(&text) } else { return html };
        if excerpt.is_empty() { excerpt } else { format!(": {excerpt}") }
    }

    /// A colon and the title of an HTML page, which is rarely from an API. Empty for another body.
    fn html(&self, text: &str) -> String {
        if !self.is_html(text) {
            return String::new();
        }
        let title = html_title(text).map(one_line).filter(|title| !title.is_empty());
        let title = title.map_or_else(String::new, |title| format!(" {title:?}"));
        format!(": an HTML page{title}, perhaps of a proxy in place of the API")
    }

    fn is_html(&self, text: &str) -> bool {
        let start: String = text.trim_start().chars().take(14).collect::<String>().to_ascii_lowercase();
        // Some servers give XML the type of HTML.
        let has_type =
            self.header("content-type").is_some_and(|kind| kind.trim_start().starts_with("text/html"));
        has_type && !start.starts_with("<?xml")
            || start.starts_with("<!doctype html")
            || start.starts_with("<html")
    }
}

/// The start of a text, without line ends.
fn one_line(text: &str) -> String {
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    printable.take(MAX_QUOTED_CHARS).collect::<String>().trim().to_owned()
}

/// A URL without its query, and without its user, either of which may be a secret.
fn without_credentials(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{path}")
        }
        None => url.to_owned(),
    }
}

/// The text of the element `title`.
fn html_title(page: &str) -> Option<&str> {
    let lower = page.to_ascii_lowercase();
    let begin = lower.find("<title>")? + "<title>".len();
    let end = begin + lower.get(begin..)?.find("</title>")?;
    page.get(begin..end)
}
