//! Errors of requests to the API server.

use std::{error::Error, fmt};

use http::StatusCode;
use kube::core::Status;

/// A failed request to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The object changed after it was read: 409 Conflict, or a JSON patch that cannot be applied, because a
    /// test fails or a path is missing. This is normal under concurrent writers: read the object and decide
    /// again, without an event or an error log.
    #[error("{0} was changed by another writer")]
    Conflict(String),
    /// The object or its namespace does not exist (404).
    #[error("{0} does not exist")]
    NotFound(String),
    /// The API server does not serve the kind. The object may exist.
    #[error("{0}: the API server does not serve this kind")]
    NotServed(String),
    /// An object of that name exists.
    #[error("{0} already exists")]
    AlreadyExists(String),
    /// The API server rejects the request, for example as forbidden, invalid or too large, or because the
    /// requested version has expired (410 Gone). Also a request that cannot be built. The same request fails
    /// again, unless the cluster changes, such as a quota or an RBAC rule.
    #[error("the API server rejected the request for {target}: {message} ({code})")]
    Refused {
        /// The object or collection of the request.
        target: String,
        /// HTTP status; 0 if the request could not be built.
        code: u16,
        /// Message of the API server, or the reason why the request could not be built.
        message: String,
    },
    /// The request is a write, and this process does not lead. The request was not sent.
    #[error("{0} is not written: this process does not lead")]
    TermEnded(String),
    /// No response, an incomplete or too large one, a response or an ERROR event of a watch with status 408,
    /// 429 or 5xx, or a watch that does not end in time. The request may have taken effect. Also a request of
    /// a reflector that cannot be built.
    #[error("the API server is unavailable for {target}: {message}")]
    Unavailable {
        /// The object or collection of the request.
        target: String,
        /// The transport error, the exceeded timeout, or the message of the API server.
        message: String,
    },
    /// A successful response or a watch event cannot be decoded or has a value that cannot be used, or a
    /// watch event is too large. If the request was a write, it took effect.
    #[error("invalid response of the API server for {target}: {message}")]
    InvalidResponse {
        /// The object or collection of the request.
        target: String,
        /// The decoding error, or the value that cannot be used.
        message: String,
    },
}

impl ApiError {
    /// An [`ApiError::InvalidResponse`].
    pub fn invalid_response(target: &str, cause: impl fmt::Display) -> Self {
        Self::InvalidResponse { target: target.to_owned(), message: cause.to_string() }
    }

    /// An [`ApiError::Unavailable`] with all causes of `error`, on one line.
    pub(crate) fn unavailable(target: &str, error: &dyn Error) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            let cause = error.to_string();
            if !message.contains(&cause) {
                message = format!("{message}: {cause}");
            }
            source = error.source();
        }
        Self::Unavailable { target: target.to_owned(), message }
    }

    /// The error of a response with an error status.
    pub(crate) fn from_response(status: StatusCode, body: &[u8], target: &str, is_json_patch: bool) -> Self {
        Self::from_status(status, serde_json::from_slice(body).unwrap_or_default(), target, is_json_patch)
    }

    /// The error of an ERROR event of a watch.
    pub(crate) fn from_watch_event(status: Status, target: &str) -> Self {
        let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::from_status(code, status, target, false)
    }

    fn from_status(code: StatusCode, status: Status, target: &str, is_json_patch: bool) -> Self {
        let Status { message, reason, details, .. } = status;
        let target = target.to_owned();
        match (code, reason.as_str()) {
            (StatusCode::CONFLICT, "AlreadyExists") => Self::AlreadyExists(target),
            (StatusCode::CONFLICT, _) => Self::Conflict(target),
            // A JSON patch that cannot be applied names no field; a validation error names at least one.
            (StatusCode::UNPROCESSABLE_ENTITY, _)
                if is_json_patch
                    && details
                        .iter()
                        .flat_map(|details| &details.causes)
                        .all(|cause| cause.field.is_empty()) =>
            {
                Self::Conflict(target)
            }
            // The details name the object that does not exist, which is another one if the namespace of a new
            // object does not.
            (StatusCode::NOT_FOUND, _) => match details {
                Some(details) if details.kind == "namespaces" && !target.starts_with("Namespace ") => {
                    Self::NotFound(format!("namespace {} of {target}", details.name))
                }
                Some(details) if !details.name.is_empty() => Self::NotFound(target),
                // The API server does not serve the kind: it names no object, or returns a text.
                Some(_) | None => Self::NotServed(target),
            },
            (StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS, _) => {
                Self::Unavailable { target, message }
            }
            (code, _) if code.is_server_error() => Self::Unavailable { target, message },
            (code, _) => Self::Refused { target, code: code.as_u16(), message },
        }
    }

    /// Returns `true` if the request may have taken effect, or may still do so.
    pub const fn is_result_unknown(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::InvalidResponse { .. })
    }

    /// Returns `true` if the requested version or page is no longer available (410 Gone).
    pub(crate) const fn is_expired(&self) -> bool {
        matches!(self, Self::Refused { code: 410, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_missing_namespace_names_it() {
        for (kind, name, target, expected) in [
            ("namespaces", "gone", "Lease gone/leader", "namespace gone of Lease gone/leader does not exist"),
            ("namespaces", "gone", "Namespace gone", "Namespace gone does not exist"),
            ("leases", "leader", "Lease ns/leader", "Lease ns/leader does not exist"),
        ] {
            let body = format!(r#"{{"reason":"NotFound","details":{{"kind":"{kind}","name":"{name}"}}}}"#);
            let error = ApiError::from_response(StatusCode::NOT_FOUND, body.as_bytes(), target, false);
            assert!(matches!(error, ApiError::NotFound(_)));
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn a_kind_that_is_not_served_is_no_missing_object() {
        for body in [
            "404 page not found\n",
            r#"{"reason":"NotFound","message":"the server could not find the requested resource","details":{}}"#,
            r#"{"reason":"NotFound"}"#,
        ] {
            let target = "VolumeSnapshot ns/s";
            let error = ApiError::from_response(StatusCode::NOT_FOUND, body.as_bytes(), target, false);
            assert!(matches!(error, ApiError::NotServed(_)), "{body}: {error}");
        }
    }
}
