//! `http`: requests to the configured origins, sent by the host. Bodies are passed whole, not as streams.

pub(crate) mod client;
pub(crate) mod config;
pub(crate) mod connect;
mod error;
pub(crate) mod origin;
pub(crate) mod policy;
mod request;
mod tls;

use std::{sync::Arc, time::Instant};

use wasmtime::component::{HasData, ResourceTable};

use self::{
    client::{ExchangeOwner, HttpClient, OutgoingRequest},
    error::ExchangeError,
    request::RequestBuilder,
};
use super::secrets::Tenant;
use crate::{
    bindings::cofferdam::storage::http::{Failure, Host, HttpError, Request, Response},
    fault_injection::FaultPlan,
};
use cofferdam_backend::{CallContext, checks::printable};

/// The `http` import of one call.
pub(crate) struct HttpView<'a> {
    pub(crate) context: &'a CallContext,
    /// The guest's handles of secrets.
    pub(crate) handles: &'a mut ResourceTable,
    pub(crate) client: &'a Arc<HttpClient>,
    pub(crate) faults: &'a FaultPlan,
}

impl HasData for HttpView<'static> {
    type Data<'a> = HttpView<'a>;
}

impl Host for HttpView<'_> {
    async fn send(&mut self, request: Request) -> wasmtime::Result<Result<Response, HttpError>> {
        // A rejection consists of the guest's own text and the configuration, and contains no secret. It is
        // not redacted: otherwise a guest could guess secrets by comparing.
        let refused = |failed: ExchangeError| HttpError {
            failure: failed.failure,
            message: printable(&failed.message),
            maybe_sent: failed.maybe_sent,
        };
        // The table is not `Sync`: the builder must not live across an await.
        let built = {
            let redactor = &self.context.redactor;
            RequestBuilder { client: self.client, handles: self.handles, redactor }.build(request)?
        };
        let answer = match built {
            Ok(outgoing) => {
                let started = Instant::now();
                let sent = tracing::enabled!(tracing::Level::DEBUG).then(|| self.describe(&outgoing));
                let owner = ExchangeOwner {
                    tenant: Tenant::from_secrets(&self.context.secrets),
                    term: self.context.term.clone(),
                    operation_permit: self.context.operation_permit.clone(),
                };
                let exchange = async { Ok(self.client.exchange(outgoing, owner).await) };
                let answer = self.faults.wrap(exchange).await?;
                if let Some(sent) = sent {
                    let outcome = match &answer {
                        Ok(response) => response.status.to_string(),
                        Err(failed) => failed.label().to_owned(),
                    };
                    tracing::debug!(outcome, elapsed = ?started.elapsed(), "{sent}");
                }
                if self.faults.is_response_lost() {
                    let lost = "the conformance suite lost the answer".to_owned();
                    Err(ExchangeError::sent(Failure::Broken, lost))
                } else {
                    answer
                }
            }
            Err(failed) => {
                self.client.count_rejection(&failed);
                return Ok(Err(refused(failed)));
            }
        };
        Ok(answer.map_err(|failed| HttpError {
            failure: failed.failure,
            message: self.context.redactor.printable(&failed.message),
            maybe_sent: failed.maybe_sent,
        }))
    }
}

impl HttpView<'_> {
    /// Method, origin and path of a request. It omits the query, which may have a signature.
    fn describe(&self, request: &OutgoingRequest) -> String {
        let path = self.context.redactor.printable(request.path.path());
        format!("{} {}{path}", request.method, request.target.origin)
    }
}

#[cfg(test)]
mod tests;
