//! The API server as one process sees it: requests are checked against the RBAC rules of its roles and
//! against the invariants, faults are injected, effects are counted, and the process may crash after one of
//! them.

use std::{
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use kube::client::Body;
use serde_json::json;
use tower::{BoxError, Service, ServiceExt as _};

use crate::{
    effects::{Effect, Effects, FaultKind},
    fixture::SimulationFixture,
    invariants,
    rbac::{Rbac, is_watch},
    remaining_work::WorkLog,
    secret_values::has_secret_value,
    test_cluster::{ApiTransport, ResponseBody},
};

/// The API server as one process sees it.
#[derive(Clone)]
pub(crate) struct CrashingApi {
    pub(crate) api: ApiTransport,
    pub(crate) effects: Arc<Effects>,
    pub(crate) rbac: Arc<Rbac>,
    pub(crate) fixture: Arc<SimulationFixture>,
    pub(crate) log: Arc<WorkLog>,
}

/// Code, reason and message of an error response.
type ErrorStatus = (StatusCode, &'static str, &'static str);

const FORBIDDEN: ErrorStatus = (StatusCode::FORBIDDEN, "Forbidden", "forbidden by the rules of the roles");
const UNAVAILABLE: ErrorStatus =
    (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "injected: the API server is unavailable");
const CONFLICT: ErrorStatus = (StatusCode::CONFLICT, "Conflict", "the object has been modified");

fn status_response((code, reason, message): ErrorStatus) -> Response<ResponseBody> {
    let body = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code.as_u16(),
    });
    let body = Full::from(body.to_string()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response
}

/// The response of an API server that is unavailable.
pub fn unavailable_response() -> Response<ResponseBody> {
    status_response(UNAVAILABLE)
}

impl Service<Request<Body>> for CrashingApi {
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let api = self.clone();
        let allowed = self.rbac.is_allowed(request.method(), request.uri());
        Box::pin(async move {
            api.effects.wait_if_crashed().await;
            if !allowed {
                return Ok(status_response(FORBIDDEN));
            }
            if is_watch(request.uri()) && api.effects.watches_blocked.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            if request.method() != Method::GET && api.effects.has_term_ended() {
                let text = format!("{} {} begins after the end of the term", request.method(), request.uri());
                api.fixture.report_violation(text);
            }
            invariants::check_request(&api.fixture, request.method(), request.uri().path()).await;
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            if has_secret_value(&parts.uri.to_string()) || has_secret_value(&String::from_utf8_lossy(&body)) {
                let (method, path) = (&parts.method, parts.uri.path());
                api.fixture.report_violation(format!("{method} {path} has the value of a Secret"));
            }
            api.log.record_request(&parts.method, &parts.uri, &body);
            let fault = api.fixture.take_api_fault(&parts, &body);
            if fault.is_some() {
                // The process will retry: it is not idle.
                drop(api.effects.start_activity(|effects| &effects.pending_requests));
            }
            let request = Request::from_parts(parts, Body::from(body));
            match fault {
                None => api.send(request).await,
                Some(FaultKind::LostResponse) => api.send(request).await.map(|_| unavailable_response()),
                Some(FaultKind::LostRequest | FaultKind::LostRequestAlways) => Ok(unavailable_response()),
                Some(FaultKind::Delayed(after)) => {
                    tokio::spawn(async move {
                        tokio::time::sleep(after).await;
                        // The caller already has a response.
                        let _ = api.send(request).await;
                    });
                    Ok(unavailable_response())
                }
                Some(FaultKind::LateWatch(after)) => {
                    tokio::time::sleep(after).await;
                    api.send(request).await
                }
                Some(FaultKind::Conflict) => Ok(status_response(CONFLICT)),
                Some(FaultKind::ForeignPhase(phase)) => {
                    api.fixture.set_phase(request.uri().path(), phase).await;
                    api.send(request).await
                }
                Some(FaultKind::Forbidden | FaultKind::ForbiddenAlways) => Ok(status_response(FORBIDDEN)),
            }
        })
    }
}

impl CrashingApi {
    async fn send(mut self, request: Request<Body>) -> Result<Response<ResponseBody>, BoxError> {
        let Self { api, effects, fixture, .. } = &mut self;
        let write = (request.method() != Method::GET)
            .then(|| format!("{} {}", request.method(), request.uri().path()));
        let activity = effects.start_activity(|effects| &effects.pending_requests);
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let response = api.ready().await?.call(request).await;
        drop(activity);
        effects.wait_if_crashed().await;
        let response = response?;
        let response =
            if invariants::is_response_checked(fixture, &method, &path) && response.status().is_success() {
                let (head, body) = response.into_parts();
                let body = body.collect().await?.to_bytes();
                if let Ok(created) = serde_json::from_slice(&body) {
                    invariants::check_created_attachment(fixture, &created).await;
                }
                Response::from_parts(head, Full::from(body).map_err(|never| match never {}).boxed_unsync())
            } else {
                response
            };
        if let Some(write) = write.filter(|_| response.status().is_success()) {
            effects.record(Effect::Write(write)).await;
        }
        effects.wait_if_crashed().await;
        Ok(response)
    }
}
