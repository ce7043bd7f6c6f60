//! Common handling of all calls: choice of the service, deadline, panic handling, metrics and a debug log
//! line.

use std::{
    any::Any, cell::Cell, collections::BTreeMap, convert::Infallible, panic::AssertUnwindSafe, time::Duration,
};

use futures::FutureExt as _;
use http::{Request, Response};
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status, body::Body, server::NamedService};
use tower::{Service, ServiceExt as _, util::BoxCloneSyncService};

use super::{
    Deadline,
    metrics::{DriverServerMetrics, method_label},
};
use crate::status::go_code_name;

/// Message of the `INTERNAL` status of a call that panicked.
pub const PANIC_RESPONSE: &str = "a bug in this program ended the call; see its log";

/// Maximum length of a service name in an error message, in characters.
const MAX_SERVICE_NAME: usize = 100;

/// The services of one socket. `B` is the request body.
pub(super) struct Dispatcher<B> {
    services: BTreeMap<&'static str, BoxCloneSyncService<Request<B>, Response<Body>, Infallible>>,
    driver: String,
    default_timeout: Duration,
    metrics: DriverServerMetrics,
}

/// Records a call's metrics on drop, so that cancelled calls are counted too.
struct ServerCallGuard<'a> {
    driver: &'a str,
    metrics: &'a DriverServerMetrics,
    method: &'static str,
    started: Instant,
    code: Cell<Code>,
}

impl Drop for ServerCallGuard<'_> {
    fn drop(&mut self) {
        let (code, elapsed) = (self.code.get(), self.started.elapsed());
        self.metrics.call_finished(self.method, code, elapsed);
        let (driver, method, code) = (self.driver, self.method, go_code_name(code));
        tracing::debug!(driver, method, code, ?elapsed, "CSI call finished");
    }
}

impl<B: Send + 'static> Dispatcher<B> {
    /// Creates a dispatcher without services. Calls without a deadline get `default_timeout`.
    pub(super) fn new(driver: String, default_timeout: Duration, metrics: DriverServerMetrics) -> Self {
        Self { services: BTreeMap::new(), driver, default_timeout, metrics }
    }

    /// Adds a service.
    pub(super) fn add_service<S>(&mut self, service: S)
    where
        S: NamedService
            + Service<Request<B>, Response = Response<Body>, Error = Infallible, Future: Send>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        self.services.insert(S::NAME, BoxCloneSyncService::new(service));
    }

    /// Handles one call. An error becomes a response with a gRPC status.
    pub(super) async fn handle(&self, request: Request<B>) -> Response<Body> {
        self.metrics.call_started();
        let call_guard = ServerCallGuard {
            driver: &self.driver,
            metrics: &self.metrics,
            method: method_label(request.uri().path()),
            started: Instant::now(),
            code: Cell::new(Code::Cancelled),
        };
        let response = self.dispatch(request).await.unwrap_or_else(Status::into_http);
        let status = Status::from_header_map(response.headers());
        call_guard.code.set(status.map_or(Code::Ok, |status| status.code()));
        response
    }

    async fn dispatch(&self, mut request: Request<B>) -> Result<Response<Body>, Status> {
        let deadline = Deadline::from_headers(request.headers(), self.default_timeout)?;
        let path = request.uri().path();
        let name = path.strip_prefix('/').and_then(|path| path.split_once('/')).map(|(name, _)| name);
        let Some(service) = name.and_then(|name| self.services.get(name)) else {
            let name = name.unwrap_or(path).chars().take(MAX_SERVICE_NAME).collect::<String>();
            return Err(Status::unimplemented(format!("this socket does not serve {name:?}")));
        };
        request.extensions_mut().insert(deadline);
        let handler = AssertUnwindSafe(service.clone().oneshot(request)).catch_unwind();
        match timeout_at(deadline.instant(), handler).await {
            Ok(Ok(Ok(response))) => Ok(response),
            Ok(Ok(Err(never))) => match never {},
            Ok(Err(panic)) => {
                tracing::error!(driver = self.driver, panic = panic_message(&*panic), "a CSI call panicked");
                Err(Status::internal(PANIC_RESPONSE))
            }
            Err(_) => Err(Status::deadline_exceeded("the deadline of the call is exceeded")),
        }
    }
}

/// Returns a static panic message. A formatted message may contain values that must not be logged.
fn panic_message(panic: &(dyn Any + Send)) -> &'static str {
    panic.downcast_ref::<&'static str>().copied().unwrap_or("(message withheld)")
}

#[cfg(test)]
#[path = "dispatch_tests.rs"]
mod tests;
