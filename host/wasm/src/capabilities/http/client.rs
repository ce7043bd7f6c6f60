//! HTTP exchanges: one request and its response, in a task of their own once any part of the request may have
//! been sent.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Body as _;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use super::{
    connect::{self, ConnectionPool, ExchangePermit, HttpConnection, Resolve},
    error::ExchangeError,
    origin::Origin,
    policy::{OriginPolicy, OriginTarget},
};
use crate::{
    bindings::cofferdam::storage::http::{Failure, Response},
    capabilities::secrets::Tenant,
    failure::task_failure,
    limits::Limits,
    metrics::HttpMetrics,
};
use cofferdam_backend::in_flight::OperationPermit;
use cofferdam_domain::{
    term::{Permit, PermitSource as _, Term},
    text::DurationText,
};

/// Sends the requests of one backend.
#[derive(Debug)]
pub(crate) struct HttpClient {
    pub(crate) policy: OriginPolicy,
    resolver: Arc<dyn Resolve>,
    pool: Arc<ConnectionPool>,
    exchange_permits: Arc<Semaphore>,
    limits: HttpLimits,
    metrics: OnceLock<HttpMetrics>,
}

/// Limits of a backend's HTTP requests: their number at a time, the sizes of a request's and a response's
/// body, and the timeout.
#[derive(Clone, Debug)]
pub(crate) struct HttpLimits {
    exchanges: usize,
    pub(crate) request_bytes: usize,
    response_bytes: usize,
    pub(crate) max_timeout: Duration,
}

/// A request whose URL, origin, headers and size are allowed. The server's address is checked when a
/// connection is opened.
#[derive(Debug)]
pub(crate) struct OutgoingRequest {
    pub(crate) target: Arc<OriginTarget>,
    pub(crate) method: Method,
    /// Path and query only.
    pub(crate) path: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) timeout: Duration,
}

/// The call for which an exchange runs: its tenant and its operation.
#[derive(Debug)]
pub(crate) struct ExchangeOwner {
    pub(crate) tenant: Tenant,
    /// The term in which requests may be sent.
    pub(crate) term: Term,
    /// Held until the exchange has ended: until then, calls that conflict with this one on a volume or
    /// snapshot are rejected. `None` for calls that change nothing.
    pub(crate) operation_permit: Option<Arc<OperationPermit>>,
}

/// Resources of an exchange, held until it ends.
#[derive(Debug)]
struct ActiveExchange {
    tenant: Tenant,
    _operation_permit: Option<Arc<OperationPermit>>,
    exchange_permit: ExchangePermit,
    started: Instant,
    is_counted: AtomicBool,
    metrics: Option<HttpMetrics>,
}

impl ActiveExchange {
    fn record_outcome(&self, outcome: &'static str) {
        if !self.is_counted.swap(true, Ordering::AcqRel)
            && let Some(metrics) = &self.metrics
        {
            metrics.observe(outcome, self.started.elapsed());
        }
    }
}

impl Drop for ActiveExchange {
    fn drop(&mut self) {
        self.record_outcome("abandoned");
    }
}

impl HttpClient {
    pub(crate) fn new(policy: OriginPolicy, limits: &Limits, resolver: Arc<dyn Resolve>) -> Self {
        let exchanges = limits.http_exchanges.min(Semaphore::MAX_PERMITS);
        Self {
            policy,
            resolver,
            pool: Arc::new(ConnectionPool::new(exchanges)),
            exchange_permits: Arc::new(Semaphore::new(exchanges)),
            limits: HttpLimits {
                exchanges,
                request_bytes: limits.http_request_bytes,
                response_bytes: limits.http_response_bytes.min(limits.result_bytes),
                max_timeout: Duration::from_millis(limits.http_timeout_ms),
            },
            metrics: OnceLock::new(),
        }
    }

    /// Adds an idle connection, which the next request of the tenant to the origin uses.
    #[cfg(feature = "fuzzing")]
    pub(crate) async fn add_connection(&self, origin: Origin, tenant: Tenant, connection: HttpConnection) {
        self.pool.put(origin, tenant, connection).await;
    }

    pub(crate) fn limits(&self) -> &HttpLimits {
        &self.limits
    }

    /// Sets the metrics, once the driver's name is known. Earlier requests are not counted.
    pub(crate) fn set_metrics(&self, metrics: HttpMetrics) {
        // Set once: a component that is loaded again gets a new client.
        let _ = self.metrics.set(metrics);
    }

    /// Counts a request that was rejected before its exchange started.
    pub(crate) fn count_rejection(&self, failed: &ExchangeError) {
        if let Some(metrics) = self.metrics.get() {
            metrics.count_exchange(failed.label());
            failed.count_denial(metrics);
        }
    }

    /// Sends a request and waits for its response. Dropping the future while it connects ends the exchange.
    /// Once there is a connection, the exchange on it continues after the future is dropped. If an idle
    /// connection was taken that the server had closed, the request is sent on another connection; dropping
    /// the future prevents this second attempt.
    pub(crate) async fn exchange(
        &self,
        request: OutgoingRequest,
        owner: ExchangeOwner,
    ) -> Result<Response, ExchangeError> {
        let Ok(exchange_permit) = Arc::clone(&self.exchange_permits).try_acquire_owned() else {
            let max_exchanges = self.limits.exchanges;
            let message = format!(
                "{max_exchanges} requests of the backend are under way already (limit `http-exchanges`)"
            );
            let failed = ExchangeError::unsent(Failure::Overloaded, message);
            self.count_rejection(&failed);
            return Err(failed);
        };
        let active_exchange = Arc::new(ActiveExchange {
            tenant: owner.tenant,
            _operation_permit: owner.operation_permit,
            exchange_permit: Arc::new(exchange_permit),
            started: Instant::now(),
            is_counted: AtomicBool::new(false),
            metrics: self.metrics.get().cloned(),
        });
        let answer = self.send_with_retry(&request, &owner.term, &active_exchange).await;
        if let Err(failed) = &answer {
            active_exchange.record_outcome(failed.label());
            if let Some(metrics) = self.metrics.get() {
                failed.count_denial(metrics);
            }
        }
        answer
    }

    async fn send_with_retry(
        &self,
        outgoing: &OutgoingRequest,
        term: &Term,
        active_exchange: &Arc<ActiveExchange>,
    ) -> Result<Response, ExchangeError> {
        let deadline = active_exchange.started + outgoing.timeout;
        let begin =
            || term.permit().map_err(|ended| ExchangeError::unsent(Failure::Overloaded, ended.to_string()));
        loop {
            // No connection either.
            begin()?;
            let connection = match self.pool.take(&outgoing.target.origin, active_exchange.tenant).await {
                Some(connection) => connection,
                None => {
                    let place = Arc::clone(&active_exchange.exchange_permit);
                    connect::open(&*self.resolver, &outgoing.target, deadline, place).await?
                }
            };
            let reused = connection.is_reused;
            let sent_exchange = SentExchange {
                target: Arc::clone(&outgoing.target),
                connection,
                deadline,
                timeout: outgoing.timeout,
                is_operators_limit: outgoing.timeout == self.limits.max_timeout,
                max_response_bytes: self.limits.response_bytes,
                pool: Arc::clone(&self.pool),
                exchange: Arc::clone(active_exchange),
            };
            let answer = tokio::spawn(sent_exchange.run(begin()?, outgoing.to_request())).await;
            let answer = answer.unwrap_or_else(|error| {
                let error = task_failure(&error);
                tracing::error!(error, "the host failed while it ran an exchange");
                Err(ExchangeError::sent(
                    Failure::Broken,
                    "the host failed while it ran the exchange".to_owned(),
                ))
            });
            match answer {
                // The server had closed the idle connection and never saw the request: it is safe to send it
                // again.
                Err(failed) if reused && !failed.maybe_sent && failed.failure == Failure::Broken => {}
                answer => return answer,
            }
        }
    }
}

impl OutgoingRequest {
    fn to_request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.path.clone();
        *request.headers_mut() = self.headers.clone();
        // hyper omits it without a body. Servers may require it (RFC 9110, section 8.6).
        let has_content = [Method::POST, Method::PUT, Method::PATCH].contains(&self.method);
        if has_content && self.body.is_empty() {
            request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        request
    }
}

/// An exchange that has a connection: from now on, parts of the request may have been sent.
struct SentExchange {
    target: Arc<OriginTarget>,
    connection: HttpConnection,
    deadline: Instant,
    timeout: Duration,
    /// True if `timeout` is the limit of the operator.
    is_operators_limit: bool,
    max_response_bytes: usize,
    pool: Arc<ConnectionPool>,
    exchange: Arc<ActiveExchange>,
}

impl SentExchange {
    async fn run(mut self, _: Permit, request: Request<Full<Bytes>>) -> Result<Response, ExchangeError> {
        let answer = timeout_at(self.deadline, self.transfer(request)).await.unwrap_or_else(|_| {
            let limit = if self.is_operators_limit { " (limit `http-timeout-ms`)" } else { "" };
            let timeout = DurationText(self.timeout);
            let message = format!("{} did not respond within {timeout}{limit}", self.target.origin);
            Err(ExchangeError::sent(Failure::Timeout, message))
        });
        let maybe_sent = self.connection.is_sent.load(Ordering::Acquire);
        match answer {
            Ok(response) => {
                self.exchange.record_outcome(status_class(response.status));
                // After 101 the connection uses another protocol.
                if response.status >= 200 {
                    let tenant = self.exchange.tenant;
                    self.pool.put(self.target.origin.clone(), tenant, self.connection).await;
                }
                Ok(response)
            }
            Err(failed) => {
                let failed = failed.with_maybe_sent(maybe_sent);
                if maybe_sent {
                    self.exchange.record_outcome(failed.label());
                }
                Err(failed)
            }
        }
    }

    async fn transfer(&mut self, request: Request<Full<Bytes>>) -> Result<Response, ExchangeError> {
        let origin = &self.target.origin;
        let response = self.connection.sender.try_send_request(request).await;
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                let error = error.into_error();
                let cause = if error.is_canceled() { self.connection.close_error().await } else { None };
                return Err(exchange_error(origin, cause.unwrap_or(error)));
            }
        };
        let (head, body) = response.into_parts();
        // hyper checks its limit only while the head is incomplete: a head that one more read completes can
        // be larger.
        let bytes = head.headers.iter().map(|(name, value)| name.as_str().len().saturating_add(value.len()));
        if bytes.fold(0, usize::saturating_add) > connect::MAX_RESPONSE_HEAD {
            let message = format!(
                "the response of {origin} has a head of more than {} bytes",
                connect::MAX_RESPONSE_HEAD
            );
            return Err(ExchangeError::sent(Failure::TooLarge, message));
        }
        let too_large = || {
            let message = format!(
                "the response of {origin} has more than {} bytes \
                 (limits `http-response-bytes`, `result-bytes`)",
                self.max_response_bytes
            );
            ExchangeError::sent(Failure::TooLarge, message)
        };
        if body.size_hint().lower() > u64::try_from(self.max_response_bytes).unwrap_or(u64::MAX) {
            return Err(too_large());
        }
        let body = Limited::new(body, self.max_response_bytes).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return too_large();
            }
            match error.downcast::<hyper::Error>() {
                Ok(error) => exchange_error(origin, *error),
                Err(error) => ExchangeError::sent(
                    Failure::Broken,
                    format!("the response of {origin} broke off: {error}"),
                ),
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

/// Classifies and describes a failed exchange.
fn exchange_error(origin: &Origin, error: hyper::Error) -> ExchangeError {
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
    ExchangeError::sent(failure, format!("the exchange with {origin} broke: {}", causes.join(": ")))
}

/// A status' class, as metrics name it.
const fn status_class(status: u16) -> &'static str {
    match status {
        ..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        500.. => "5xx",
    }
}
