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
    metrics::{Counted, method, spelling},
};

/// What callers hear of a defect: the panic itself is in the log.
const DEFECT: &str = "a defect of this program ended the call: its log says more";

/// How much of a service's name is repeated to who asked for it.
const MAX_NAME: usize = 100;

/// The services behind one socket. `B` is the body of a request.
pub(super) struct Gate<B> {
    services: BTreeMap<&'static str, BoxCloneSyncService<Request<B>, Response<Body>, Infallible>>,
    driver: String,
    patience: Duration,
    counted: Counted,
}

/// A call that is counted when it has ended, also when nobody waits for it any more.
struct Running<'a> {
    driver: &'a str,
    counted: &'a Counted,
    method: &'static str,
    begun: Instant,
    code: Cell<Code>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let (code, took) = (self.code.get(), self.begun.elapsed());
        self.counted.ended(self.method, code, took);
        let (driver, method, code) = (self.driver, self.method, spelling(code));
        tracing::debug!(driver, method, code, ?took, "answered a CSI call");
    }
}

impl<B: Send + 'static> Gate<B> {
    /// A gate with nothing behind it. Callers who name no deadline wait for `patience`.
    pub(super) fn new(driver: String, patience: Duration, counted: Counted) -> Self {
        Self { services: BTreeMap::new(), driver, patience, counted }
    }

    /// Puts a service behind it.
    pub(super) fn add<S>(&mut self, service: S)
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
    pub(super) async fn answer(&self, request: Request<B>) -> Response<Body> {
        self.counted.began();
        let running = Running {
            driver: &self.driver,
            counted: &self.counted,
            method: method(request.uri().path()),
            begun: Instant::now(),
            code: Cell::new(Code::Cancelled),
        };
        let answer = self.pass(request).await.unwrap_or_else(Status::into_http);
        let status = Status::from_header_map(answer.headers());
        running.code.set(status.map_or(Code::Ok, |status| status.code()));
        answer
    }

    async fn pass(&self, mut request: Request<B>) -> Result<Response<Body>, Status> {
        let deadline = Deadline::of(request.headers(), self.patience)?;
        let path = request.uri().path();
        let name = path.strip_prefix('/').and_then(|path| path.split_once('/')).map(|(name, _)| name);
        let Some(service) = name.and_then(|name| self.services.get(name)) else {
            let name = name.unwrap_or(path).chars().take(MAX_NAME).collect::<String>();
            return Err(Status::unimplemented(format!("this socket does not serve {name:?}")));
        };
        request.extensions_mut().insert(deadline);
        let work = AssertUnwindSafe(service.clone().oneshot(request)).catch_unwind();
        match timeout_at(deadline.instant(), work).await {
            Ok(Ok(Ok(answer))) => Ok(answer),
            Ok(Ok(Err(never))) => match never {},
            Ok(Err(panic)) => {
                tracing::error!(driver = self.driver, panic = said(&*panic), "a defect ended a CSI call");
                Err(Status::internal(DEFECT))
            }
            Err(_) => Err(Status::deadline_exceeded("the call did not end within its deadline")),
        }
    }
}

/// What a panic says, as far as it is known when the program is built. A text that was made while it ran may
/// hold what must not be logged.
fn said(panic: &(dyn Any + Send)) -> &'static str {
    panic.downcast_ref::<&'static str>().copied().unwrap_or("(a text that is not shown)")
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
