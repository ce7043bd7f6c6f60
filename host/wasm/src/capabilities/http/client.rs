//! Exchanges: one request, one response, in a task of their own once something may have been sent.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Body as _;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use super::{
    Failed,
    connect::{self, Connection, Place, Pool, Resolve},
    policy::{Policy, Target},
};
use crate::{
    bindings::cofferdam::storage::http::{Failure, Response},
    capabilities::secrets::Tenant,
    limits::Limits,
    metrics::HttpMetrics,
};
use cofferdam_backend::guard::Guard;

/// Sends the requests of one backend.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) policy: Policy,
    resolver: Arc<dyn Resolve>,
    pool: Arc<Pool>,
    places: Arc<Semaphore>,
    limits: Bounds,
    metrics: OnceLock<HttpMetrics>,
}

/// What one exchange may use.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    exchanges: usize,
    pub(crate) request_bytes: usize,
    response_bytes: usize,
    pub(crate) longest: Duration,
}

/// A request that may be sent.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) target: Arc<Target>,
    pub(crate) method: Method,
    /// Path and query only.
    pub(crate) path: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) timeout: Duration,
}

/// For whom an exchange runs.
#[derive(Debug)]
pub(crate) struct Customer {
    pub(crate) tenant: Tenant,
    /// Keeps the call's volume to it until the exchange has ended.
    pub(crate) guard: Option<Arc<Guard>>,
}

/// What an exchange holds as long as it runs.
#[derive(Debug)]
struct Running {
    tenant: Tenant,
    _guard: Option<Arc<Guard>>,
    place: Place,
    begun: Instant,
    counted: AtomicBool,
    metrics: Option<HttpMetrics>,
}

impl Running {
    fn ended(&self, outcome: &'static str) {
        if !self.counted.swap(true, Ordering::AcqRel)
            && let Some(metrics) = &self.metrics
        {
            metrics.ended(outcome, self.begun.elapsed());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ended("abandoned");
    }
}

impl Client {
    pub(crate) fn new(policy: Policy, limits: &Limits, resolver: Arc<dyn Resolve>) -> Self {
        let exchanges = limits.http_exchanges.min(Semaphore::MAX_PERMITS);
        Self {
            policy,
            resolver,
            pool: Arc::new(Pool::new(exchanges)),
            places: Arc::new(Semaphore::new(exchanges)),
            limits: Bounds {
                exchanges,
                request_bytes: limits.http_request_bytes,
                response_bytes: limits.http_response_bytes.min(limits.result_bytes),
                longest: Duration::from_millis(limits.http_timeout_ms),
            },
            metrics: OnceLock::new(),
        }
    }

    pub(crate) fn bounds(&self) -> &Bounds {
        &self.limits
    }

    /// Says where to count, once the driver's name is known. What happens before is not counted.
    pub(crate) fn count(&self, metrics: HttpMetrics) {
        // A second name would be a second load, which has a client of its own.
        let _ = self.metrics.set(metrics);
    }

    /// Counts a request that was refused before it became an exchange.
    pub(crate) fn refused(&self, failed: &Failed) {
        if let Some(metrics) = self.metrics.get() {
            metrics.refused(failed.label());
            failed.count(metrics);
        }
    }

    /// Sends a request and waits for its response. A caller that goes away before anything was sent ends the exchange; later,
    /// it goes on without the caller.
    pub(crate) async fn exchange(&self, order: Order, customer: Customer) -> Result<Response, Failed> {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            let most = self.limits.exchanges;
            let message =
                format!("{most} requests of the backend are under way already (limit `http-exchanges`)");
            let failed = Failed::unsent(Failure::Overloaded, message);
            self.refused(&failed);
            return Err(failed);
        };
        let running = Arc::new(Running {
            tenant: customer.tenant,
            _guard: customer.guard,
            place: Arc::new(place),
            begun: Instant::now(),
            counted: AtomicBool::new(false),
            metrics: self.metrics.get().cloned(),
        });
        let answer = self.perform(&order, &running).await;
        if let Err(failed) = &answer {
            running.ended(failed.label());
            if let Some(metrics) = self.metrics.get() {
                failed.count(metrics);
            }
        }
        answer
    }

    async fn perform(&self, order: &Order, running: &Arc<Running>) -> Result<Response, Failed> {
        let until = running.begun + order.timeout;
        loop {
            let connection = match self.pool.take(&order.target.origin, running.tenant).await {
                Some(connection) => connection,
                None => {
                    let place = Arc::clone(&running.place);
                    connect::open(&*self.resolver, &order.target, until, place).await?
                }
            };
            let reused = connection.reused;
            let begun = Begun {
                target: Arc::clone(&order.target),
                connection,
                until,
                timeout: order.timeout,
                most: self.limits.response_bytes,
                pool: Arc::clone(&self.pool),
                running: Arc::clone(running),
            };
            let answer = tokio::spawn(begun.run(order.request())).await;
            let answer = answer.unwrap_or_else(|error| {
                tracing::error!(%error, "the host failed while it ran an exchange");
                Err(Failed::sent(Failure::Broken, "the host failed while it ran the exchange".to_owned()))
            });
            match answer {
                // The server had given the connection up and never saw the request: a new connection costs nothing.
                Err(failed) if reused && !failed.maybe_sent && failed.failure == Failure::Broken => {}
                answer => return answer,
            }
        }
    }
}

impl Order {
    fn request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.path.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// An exchange from the moment on when something may have been sent.
struct Begun {
    target: Arc<Target>,
    connection: Connection,
    until: Instant,
    timeout: Duration,
    most: usize,
    pool: Arc<Pool>,
    running: Arc<Running>,
}

impl Begun {
    async fn run(mut self, request: Request<Full<Bytes>>) -> Result<Response, Failed> {
        let answer = timeout_at(self.until, self.transfer(request)).await.unwrap_or_else(|_| {
            let message = format!("{} has not answered within {:?}", self.target.origin, self.timeout);
            Err(Failed::sent(Failure::Timeout, message))
        });
        let maybe_sent = self.connection.sent.load(Ordering::Acquire);
        match answer {
            Ok(response) => {
                self.running.ended(class(response.status));
                // After 101 the connection speaks something else.
                if response.status >= 200 {
                    let tenant = self.running.tenant;
                    self.pool.keep(self.target.origin.clone(), tenant, self.connection).await;
                }
                Ok(response)
            }
            Err(failed) => {
                let failed = Failed { maybe_sent, ..failed };
                if maybe_sent {
                    self.running.ended(failed.label());
                }
                Err(failed)
            }
        }
    }

    async fn transfer(&mut self, request: Request<Full<Bytes>>) -> Result<Response, Failed> {
        let origin = &self.target.origin;
        let response = self.connection.sender.try_send_request(request).await;
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                let error = error.into_error();
                let cause = if error.is_canceled() { self.connection.cause().await } else { None };
                return Err(broken(origin, cause.unwrap_or(error)));
            }
        };
        let (head, body) = response.into_parts();
        // The library bounds what it buffers, which is more than what it has read of a head at once.
        let bytes = head.headers.iter().map(|(name, value)| name.as_str().len().saturating_add(value.len()));
        if bytes.fold(0, usize::saturating_add) > connect::MAX_HEAD {
            let message =
                format!("the response of {origin} has a head of more than {} bytes", connect::MAX_HEAD);
            return Err(Failed::sent(Failure::TooLarge, message));
        }
        let too_large = || {
            let message = format!(
                "the response of {origin} has more than {} bytes (limits `http-response-bytes`, `result-bytes`)",
                self.most
            );
            Failed::sent(Failure::TooLarge, message)
        };
        if body.size_hint().lower() > u64::try_from(self.most).unwrap_or(u64::MAX) {
            return Err(too_large());
        }
        let body = Limited::new(body, self.most).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return too_large();
            }
            match error.downcast::<hyper::Error>() {
                Ok(error) => broken(origin, *error),
                Err(error) => {
                    Failed::sent(Failure::Broken, format!("the response of {origin} broke off: {error}"))
                }
            }
        })?;
        let text = |value: &http::HeaderValue| std::str::from_utf8(value.as_bytes()).map(str::to_owned).ok();
        let header = |(name, value): (&http::HeaderName, _)| Some((name.as_str().to_owned(), text(value)?));
        Ok(Response {
            status: head.status.as_u16(),
            headers: head.headers.iter().filter_map(header).collect(),
            body: body.to_bytes().into(),
        })
    }
}

/// What broke an exchange.
fn broken(origin: &super::policy::Origin, error: hyper::Error) -> Failed {
    let mut causes = vec![error.to_string()];
    let mut tls = false;
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        causes.push(inner.to_string());
        let wrapped = inner.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        tls |= inner.is::<rustls::Error>() || wrapped.is_some_and(|wrapped| wrapped.is::<rustls::Error>());
        cause = inner.source();
    }
    let failure = if tls {
        Failure::Tls
    } else if error.is_parse_too_large() {
        Failure::TooLarge
    } else {
        Failure::Broken
    };
    Failed::sent(failure, format!("the exchange with {origin} broke: {}", causes.join(": ")))
}

/// A status' class, as metrics name it.
const fn class(status: u16) -> &'static str {
    match status {
        ..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        500.. => "5xx",
    }
}
