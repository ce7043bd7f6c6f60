//! What every call passes on its way to a service: its deadline, a wall around defects, and the metrics.

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
    metrics::{DriverServerMetrics, go_code_name, method_label},
};

/// What callers hear of a defect: the panic itself is in the log.
const PANIC_RESPONSE: &str = "a defect of this program ended the call: its log says more";

/// How much of a service's name is repeated to who asked for it.
const MAX_SERVICE_NAME: usize = 100;

/// The services behind one socket. `B` is the body of a request.
pub(super) struct Dispatcher<B> {
    services: BTreeMap<&'static str, BoxCloneSyncService<Request<B>, Response<Body>, Infallible>>,
    driver: String,
    default_timeout: Duration,
    metrics: DriverServerMetrics,
}

/// A call that is counted when it has ended, also when nobody waits for it any more.
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
        tracing::debug!(driver, method, code, ?elapsed, "answered a CSI call");
    }
}

impl<B: Send + 'static> Dispatcher<B> {
    /// A gate with nothing behind it. Callers who name no deadline wait for `patience`.
    pub(super) fn new(driver: String, default_timeout: Duration, metrics: DriverServerMetrics) -> Self {
        Self { services: BTreeMap::new(), driver, default_timeout, metrics }
    }

    /// Puts a service behind it.
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

    /// Answers one call.
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
            Ok(Ok(Ok(answer))) => Ok(answer),
            Ok(Ok(Err(never))) => match never {},
            Ok(Err(panic)) => {
                tracing::error!(
                    driver = self.driver,
                    panic = panic_message(&*panic),
                    "a defect ended a CSI call"
                );
                Err(Status::internal(PANIC_RESPONSE))
            }
            Err(_) => Err(Status::deadline_exceeded("the call did not end within its deadline")),
        }
    }
}

/// What a panic says, as far as it is known when the program is built. A text that was made while it ran may
/// hold what must not be logged.
fn panic_message(panic: &(dyn Any + Send)) -> &'static str {
    panic.downcast_ref::<&'static str>().copied().unwrap_or("(a text that is not shown)")
}

#[cfg(test)]
#[path = "dispatch_tests.rs"]
mod tests;
