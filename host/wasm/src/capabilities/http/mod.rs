//! `http`: complete requests to the configured origins, sent by the host.

pub(crate) mod client;
pub(crate) mod connect;
pub(crate) mod policy;
mod request;
mod tls;

use std::sync::Arc;

use self::client::ExchangeOwner;
use super::Capabilities;
use crate::{
    bindings::cofferdam::storage::http::{Failure, Host, HttpError, Request, Response},
    metrics::HttpMetrics,
};
use cofferdam_backend::checks::printable;

/// A request without a response, before redaction.
#[derive(Debug)]
pub(crate) struct ExchangeError {
    failure: Failure,
    message: String,
    maybe_sent: bool,
    /// Reason of a denial, as a metric label.
    denial_reason: Option<&'static str>,
}

impl ExchangeError {
    /// No part of the request was sent.
    fn unsent(failure: Failure, message: String) -> Self {
        Self { failure, message, maybe_sent: false, denial_reason: None }
    }

    /// The server may have the request.
    fn sent(failure: Failure, message: String) -> Self {
        Self { maybe_sent: true, ..Self::unsent(failure, message) }
    }

    fn with_denial(self, what: &'static str) -> Self {
        Self { denial_reason: Some(what), ..self }
    }

    /// Name in metrics.
    const fn label(&self) -> &'static str {
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

    fn count_denial(&self, metrics: &HttpMetrics) {
        if let Some(what) = self.denial_reason {
            metrics.count_denial(what);
        }
    }
}

impl Host for Capabilities {
    async fn send(&mut self, request: Request) -> wasmtime::Result<Result<Response, HttpError>> {
        // A rejection consists of the guest's own text and the configuration, and contains no secret. It is
        // not redacted: otherwise a guest could guess secrets by comparing.
        let refused = |failed: ExchangeError| HttpError {
            failure: failed.failure,
            message: printable(&failed.message),
            maybe_sent: failed.maybe_sent,
        };
        let answer = match self.build_request(request)? {
            Ok(order) => {
                let customer = ExchangeOwner {
                    tenant: self.tenant(),
                    operation_permit: self.context.operation_permit.clone(),
                };
                let client = Arc::clone(&self.http);
                let answer = self.faults.wrap(async { Ok(client.exchange(order, customer).await) }).await?;
                if self.faults.is_response_lost() {
                    let lost = "the conformance suite lost the answer".to_owned();
                    Err(ExchangeError::sent(Failure::Broken, lost))
                } else {
                    answer
                }
            }
            Err(failed) => {
                self.http.count_rejection(&failed);
                return Ok(Err(refused(failed)));
            }
        };
        Ok(answer.map_err(|failed| HttpError {
            failure: failed.failure,
            message: printable(&self.context.redactor.redact(&failed.message)),
            maybe_sent: failed.maybe_sent,
        }))
    }
}

#[cfg(test)]
mod tests;
