//! Responses, and the errors that they become.

use std::{fmt, time::Duration};

use serde::de::DeserializeOwned;

use crate::{Finality, Result, StorageError};

/// Maximum characters of an unexpected response that an error message quotes.
const MAX_QUOTED_CHARS: usize = 200;

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
        serde_json::from_slice(&self.body).map_err(|error| self.unreadable(&error))
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
        self.with_known_finality(StorageError::internal(format!(
            "the storage's answer, of status {}, is not readable: {reason}",
            self.status
        )))
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
