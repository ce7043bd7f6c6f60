//! Failed requests.

use crate::{bindings::cofferdam::storage::http::Failure, metrics::HttpMetrics};

/// A failed request. Its message is not redacted yet.
#[derive(Debug)]
pub(crate) struct ExchangeError {
    pub(super) failure: Failure,
    pub(super) message: String,
    pub(super) maybe_sent: bool,
    /// The metric label `origin` or `address` if the request was denied because of it; otherwise `None`.
    denial_reason: Option<&'static str>,
}

impl ExchangeError {
    /// A failure before any part of the request was sent.
    pub(super) fn unsent(failure: Failure, message: String) -> Self {
        Self { failure, message, maybe_sent: false, denial_reason: None }
    }

    /// A failure after which the server may have the request.
    pub(super) fn sent(failure: Failure, message: String) -> Self {
        Self { maybe_sent: true, ..Self::unsent(failure, message) }
    }

    /// The same failure, with `maybe_sent` as observed on the connection.
    pub(super) fn with_maybe_sent(self, maybe_sent: bool) -> Self {
        Self { maybe_sent, ..self }
    }

    pub(super) fn with_denial(self, what: &'static str) -> Self {
        Self { denial_reason: Some(what), ..self }
    }

    /// The failure as a metric label.
    pub(super) const fn label(&self) -> &'static str {
        match self.failure {
            Failure::Invalid => "invalid",
            Failure::Forbidden => "forbidden",
            Failure::NameNotFound => "name-not-found",
            Failure::Connect => "connect",
            Failure::Tls => "tls",
            Failure::Timeout => "timeout",
            Failure::TooLarge => "too-large",
            Failure::Broken => "broken",
            Failure::Overloaded => "overloaded",
        }
    }

    pub(super) fn count_denial(&self, metrics: &HttpMetrics) {
        if let Some(what) = self.denial_reason {
            metrics.count_denial(what);
        }
    }
}
