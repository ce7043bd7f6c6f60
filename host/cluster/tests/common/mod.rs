//! An in-process API server behind a connection that delays writes, fails them or loses their responses, and
//! that can hide a kind.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part; tests fail by panicking")]

pub(crate) mod journal;

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use cofferdam_apiserver::{ApiBody, ApiServer, ApiService, Options};
use cofferdam_cluster::{Cache, Writer, api::RequestBody, metrics::Metrics};
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use serde_json::Value;
use tower::ServiceExt as _;

/// A fault of a write.
#[derive(Clone, Debug)]
pub(crate) enum WriteFault {
    /// The request is not forwarded. Returns this status.
    Refused(StatusCode),
    /// The request is forwarded. Returns 503.
    ResponseLost,
    /// Returns 503 at once. The request is forwarded after this time.
    Late(Duration),
}

/// A request for a list page, and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListRequest {
    /// The query's `limit`.
    pub(crate) limit: u32,
    /// Size of the response's body.
    pub(crate) bytes: usize,
}

/// The API server behind a slow or lossy connection. `delay` and `faults` apply to writes only; each write
/// takes one fault from the front.
#[derive(Clone)]
pub(crate) struct FaultyApi {
    pub(crate) api: ApiService,
    pub(crate) delay: Duration,
    pub(crate) faults: Arc<Mutex<VecDeque<WriteFault>>>,
    /// Plural name of a kind that the API server does not serve.
    pub(crate) missing_kind: Arc<Mutex<Option<&'static str>>>,
    /// The list requests with a `limit`, in order.
    pub(crate) lists: Arc<Mutex<Vec<ListRequest>>>,
    /// Number of GET requests without a `limit`.
    pub(crate) gets: Arc<Mutex<usize>>,
    /// Fields that replace those of `spec` in the responses to these requests.
    pub(crate) read_spec: Arc<Mutex<Option<Value>>>,
}

impl FaultyApi {
    pub(crate) fn new(api: &ApiServer) -> Self {
        Self {
            api: api.service(),
            delay: Duration::ZERO,
            faults: Arc::default(),
            missing_kind: Arc::default(),
            lists: Arc::default(),
            gets: Arc::default(),
            read_spec: Arc::default(),
        }
    }

    pub(crate) fn client(&self) -> kube::Client {
        kube::Client::new(self.clone(), "default")
    }

    pub(crate) fn writer(&self) -> Writer {
        Writer::new(self.client(), Arc::new(Cache::default()), Metrics::default())
    }
}

/// The `limit` of a request for a list page; `None` for other requests.
fn limit_of(request: &Request<Body>) -> Option<u32> {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').find_map(|parameter| parameter.strip_prefix("limit=")?.parse().ok())
}

fn error_response(code: StatusCode) -> Response<Full<Bytes>> {
    let body =
        serde_json::json!({"kind": "Status", "message": "in trouble", "reason": "", "code": code.as_u16()});
    Response::builder().status(code).body(Full::new(Bytes::from(body.to_string()))).unwrap()
}

impl tower::Service<Request<Body>> for FaultyApi {
    type Response = Response<http_body_util::Either<ApiBody, Full<Bytes>>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let wire = self.clone();
        Box::pin(async move {
            let lacks = *wire.missing_kind.lock().unwrap();
            if lacks.is_some_and(|kind| request.uri().path().contains(kind)) {
                return Ok(error_response(StatusCode::NOT_FOUND).map(http_body_util::Either::Right));
            }
            if let Some(limit) = limit_of(&request) {
                let (head, body) = wire.api.oneshot(request).await?.into_parts();
                let body = body.collect().await?.to_bytes();
                wire.lists.lock().unwrap().push(ListRequest { limit, bytes: body.len() });
                return Ok(Response::from_parts(head, http_body_util::Either::Right(Full::new(body))));
            }
            if request.method() == Method::GET {
                *wire.gets.lock().unwrap() += 1;
                let read_spec = wire.read_spec.lock().unwrap().clone();
                if let Some(Value::Object(fields)) = read_spec {
                    let (_, body) = wire.api.oneshot(request).await?.into_parts();
                    let mut object: Value =
                        serde_json::from_slice(&body.collect().await?.to_bytes()).unwrap();
                    object.get_mut("spec").and_then(Value::as_object_mut).unwrap().extend(fields);
                    let body = Full::new(Bytes::from(object.to_string()));
                    return Ok(Response::new(http_body_util::Either::Right(body)));
                }
                return Ok(wire.api.oneshot(request).await?.map(http_body_util::Either::Left));
            }
            tokio::time::sleep(wire.delay).await;
            let request = RequestBody::of_request(request);
            let trouble = wire.faults.lock().unwrap().pop_front();
            match trouble {
                Some(WriteFault::Refused(code)) => {
                    Ok(error_response(code).map(http_body_util::Either::Right))
                }
                Some(WriteFault::ResponseLost) => {
                    wire.api.oneshot(request).await?;
                    Ok(error_response(StatusCode::SERVICE_UNAVAILABLE).map(http_body_util::Either::Right))
                }
                Some(WriteFault::Late(delay)) => {
                    tokio::spawn(async move {
                        tokio::time::sleep(delay).await;
                        wire.api.oneshot(request).await
                    });
                    Ok(error_response(StatusCode::SERVICE_UNAVAILABLE).map(http_body_util::Either::Right))
                }
                None => Ok(wire.api.oneshot(request).await?.map(http_body_util::Either::Left)),
            }
        })
    }
}

pub(crate) fn api() -> ApiServer {
    let started = tokio::time::Instant::now();
    let now = move || {
        let passed = i64::try_from(started.elapsed().as_secs()).unwrap();
        jiff::Timestamp::from_second(1_767_225_600 + passed).unwrap()
    };
    ApiServer::new(Options { now: Arc::new(now), uid_seed: Some(7), ..Options::default() })
}

/// Sends one request.
pub(crate) async fn call(api: &ApiServer, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
    let content_type =
        if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    let response = api.service().oneshot(request).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

pub(crate) async fn get(api: &ApiServer, path: &str) -> Value {
    call(api, Method::GET, path, Value::Null).await.1
}
