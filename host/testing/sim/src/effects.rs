//! The API as one process sees it: every request is judged by the rules of its roles, effects are counted,
//! and after one of them the process dies.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use cofferdam_controllers::rbac::{PolicyRule, ResourceAttributes};
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use kube::client::Body;
use serde_json::json;
use tokio::sync::Notify;
use tower::{BoxError, Service, ServiceExt as _};

use crate::{
    fixture::SimulationFixture,
    invariants,
    test_cluster::{ApiTransport, ResponseBody},
};

/// Something that a process did to the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A write that the API took: verb and path.
    Write(String),
    /// A call that the driver carried out.
    Call(String),
}

/// Something that goes wrong with one write of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiFault {
    /// The write's method.
    pub method: &'static str,
    /// What its path begins with.
    pub path_prefix: &'static str,
    /// What its body contains.
    pub body_contains: &'static str,
    /// What goes wrong.
    pub kind: FaultKind,
}

/// What goes wrong with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It is carried out, and not answered.
    LostResponse,
    /// It is neither carried out nor answered.
    LostRequest,
    /// It is not answered, and carried out after this time.
    Delayed(Duration),
    /// It is refused once, as if it were decided on what is not so any more.
    Conflict,
    /// It is refused, as by a rule or a webhook of the cluster's.
    Forbidden,
}

/// One process' effects. After the one that it shall die by, the process gets no answer any more, to
/// anything.
#[derive(Debug, Default)]
pub struct Effects {
    count: AtomicUsize,
    crash_after: Option<usize>,
    crashed: AtomicBool,
    watches_blocked: AtomicBool,
    crash_notify: Notify,
    log: Mutex<Vec<Effect>>,
    /// Requests to the API and calls of the driver so far, their beginnings and their ends.
    activity: AtomicUsize,
    /// Requests that have no answer yet.
    pending_requests: AtomicUsize,
    /// Calls of the driver that have no answer yet.
    pending_calls: AtomicUsize,
}

/// Something that a process waits for.
pub(crate) struct ActivityGuard {
    effects: Arc<Effects>,
    counter: fn(&Effects) -> &AtomicUsize,
}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        self.effects.activity.fetch_add(1, Ordering::SeqCst);
        (self.counter)(&self.effects).fetch_sub(1, Ordering::SeqCst);
    }
}

impl Effects {
    /// Effects of a process that dies after the `n`-th, or lives.
    pub fn new(crash_after: Option<usize>) -> Arc<Self> {
        Arc::new(Self { crash_after, ..Self::default() })
    }

    /// What was done so far.
    pub fn log(&self) -> Vec<Effect> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the process has died.
    pub async fn wait_for_crash(&self) {
        loop {
            let died = self.crash_notify.notified();
            if self.crashed.load(Ordering::SeqCst) {
                return;
            }
            died.await;
        }
    }

    /// How much the process has asked of the world; absent while it waits for an answer. Calls of the driver
    /// may be under way where one of them is who asks.
    pub(crate) fn activity(&self, in_call: bool) -> Option<usize> {
        let is_pending = self.pending_requests.load(Ordering::SeqCst) > 0
            || (!in_call && self.pending_calls.load(Ordering::SeqCst) > 0)
            || self.crashed.load(Ordering::SeqCst);
        (!is_pending).then(|| self.activity.load(Ordering::SeqCst))
    }

    /// A call of the driver begins; it ends with the value.
    pub(crate) fn start_call(self: &Arc<Self>) -> ActivityGuard {
        self.start_activity(|effects| &effects.pending_calls)
    }

    fn start_activity(self: &Arc<Self>, counter: fn(&Self) -> &AtomicUsize) -> ActivityGuard {
        counter(self).fetch_add(1, Ordering::SeqCst);
        self.activity.fetch_add(1, Ordering::SeqCst);
        ActivityGuard { effects: Arc::clone(self), counter }
    }

    /// Notes an effect; whoever did it must not go on when this does not return.
    pub(crate) async fn record(&self, effect: Effect) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(effect);
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        if self.crash_after == Some(count) {
            self.kill();
        }
        self.wait_if_crashed().await;
    }

    /// Lets the living pass.
    pub(crate) async fn wait_if_crashed(&self) {
        if self.crashed.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    /// Lets no watch begin any more.
    pub(crate) fn block_watches(&self) {
        self.watches_blocked.store(true, Ordering::SeqCst);
    }

    /// Ends the process' access to the world.
    pub fn kill(&self) {
        self.crashed.store(true, Ordering::SeqCst);
        self.crash_notify.notify_waiters();
    }
}

/// What the roles of a process may do, and what they did.
#[derive(Debug)]
pub(crate) struct Rbac {
    pub(crate) rules: Vec<PolicyRule>,
    pub(crate) namespace: String,
    used: Mutex<BTreeSet<String>>,
    denied: Mutex<BTreeSet<String>>,
}

impl Rbac {
    pub(crate) fn new(rules: Vec<PolicyRule>, namespace: String) -> Arc<Self> {
        Arc::new(Self { rules, namespace, used: Mutex::default(), denied: Mutex::default() })
    }

    /// Requests that no rule allowed, as `verb group/resource namespace/name`.
    pub(crate) fn denied(&self) -> Vec<String> {
        self.denied.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// What of the rules was used, as `verb group/resource`.
    pub(crate) fn used(&self) -> BTreeSet<String> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_allowed(&self, method: &Method, uri: &Uri) -> bool {
        let Some(RequestInfo { verb, group, resource, namespace, name }) = request_info(method, uri) else {
            return true;
        };
        let request = ResourceAttributes {
            verb: &verb,
            group: &group,
            resource: &resource,
            namespace: &namespace,
            name: &name,
        };
        if self.rules.iter().any(|rule| rule.allows(&request, &self.namespace)) {
            let used = format!("{verb} {group}/{resource}");
            self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(used);
            return true;
        }
        let denied = format!("{verb} {group}/{resource} {namespace}/{name}");
        self.denied.lock().unwrap_or_else(PoisonError::into_inner).insert(denied);
        false
    }
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
struct RequestInfo {
    verb: String,
    group: String,
    /// With its subresource, and whatever stands behind that.
    resource: String,
    namespace: String,
    name: String,
}

/// What a request asks for, as the API server reads it from the path; absent for what is no resource, such as
/// discovery. What nobody knows is asked for by the name that it has: no rule allows it.
fn request_info(method: &Method, uri: &Uri) -> Option<RequestInfo> {
    let mut segments = uri.path().strip_prefix('/')?.split('/');
    let group = match segments.next()? {
        "api" => "",
        "apis" => segments.next()?,
        _ => return None,
    };
    let _version = segments.next()?;
    let rest: Vec<&str> = segments.collect();
    let (namespace, rest) = match rest.as_slice() {
        // What stands below a namespace, but for its own subresources.
        ["namespaces", namespace, rest @ ..] if !matches!(rest, [] | ["status" | "finalize"]) => {
            (*namespace, rest)
        }
        rest => ("", rest),
    };
    let (resource, name) = match rest {
        [] => return None,
        [resource] => ((*resource).to_owned(), ""),
        [resource, name] => ((*resource).to_owned(), *name),
        [resource, name, subresource @ ..] => (format!("{resource}/{}", subresource.join("/")), *name),
    };
    let is_watch = uri.query().is_some_and(|query| query.contains("watch=true"));
    let verb = match *method {
        Method::GET | Method::HEAD if is_watch => "watch".to_owned(),
        Method::GET | Method::HEAD if name.is_empty() => "list".to_owned(),
        Method::GET | Method::HEAD => "get".to_owned(),
        Method::POST => "create".to_owned(),
        Method::PUT => "update".to_owned(),
        Method::PATCH => "patch".to_owned(),
        Method::DELETE if name.is_empty() => "deletecollection".to_owned(),
        Method::DELETE => "delete".to_owned(),
        _ => method.as_str().to_lowercase(),
    };
    let (group, namespace, name) = (group.to_owned(), namespace.to_owned(), name.to_owned());
    Some(RequestInfo { verb, group, resource, namespace, name })
}

/// The API as one process sees it.
#[derive(Clone)]
pub(crate) struct CrashingApi {
    pub(crate) api: ApiTransport,
    pub(crate) effects: Arc<Effects>,
    pub(crate) rbac: Arc<Rbac>,
    pub(crate) fixture: Arc<SimulationFixture>,
}

/// What an API server says of a request that it does not carry out: code, reason, message.
type ErrorStatus = (StatusCode, &'static str, &'static str);

const FORBIDDEN: ErrorStatus = (StatusCode::FORBIDDEN, "Forbidden", "forbidden by the rules of the roles");
const UNAVAILABLE: ErrorStatus =
    (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "the API is not there");
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
            let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            if watches && api.effects.watches_blocked.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            invariants::check_request(&api.fixture, request.method(), request.uri().path()).await;
            let (request, fault) = api.fixture.take_api_fault(request).await?;
            match fault {
                None => api.send(request).await,
                Some(FaultKind::LostResponse) => {
                    api.send(request).await.map(|_| status_response(UNAVAILABLE))
                }
                Some(FaultKind::LostRequest) => Ok(status_response(UNAVAILABLE)),
                Some(FaultKind::Delayed(after)) => {
                    tokio::spawn(async move {
                        tokio::time::sleep(after).await;
                        // Who asked has an answer, and hears nothing of this.
                        let _ = api.send(request).await;
                    });
                    Ok(status_response(UNAVAILABLE))
                }
                Some(FaultKind::Conflict) => Ok(status_response(CONFLICT)),
                Some(FaultKind::Forbidden) => Ok(status_response(FORBIDDEN)),
            }
        })
    }
}

impl CrashingApi {
    async fn send(mut self, request: Request<Body>) -> Result<Response<ResponseBody>, BoxError> {
        let Self { api, effects, fixture: world, .. } = &mut self;
        let write = (request.method() != Method::GET)
            .then(|| format!("{} {}", request.method(), request.uri().path()));
        let activity = effects.start_activity(|effects| &effects.pending_requests);
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let answer = api.ready().await?.call(request).await;
        drop(activity);
        effects.wait_if_crashed().await;
        let response = answer?;
        let response =
            if invariants::is_response_checked(world, &method, &path) && response.status().is_success() {
                let (head, body) = response.into_parts();
                let body = body.collect().await?.to_bytes();
                if let Ok(created) = serde_json::from_slice(&body) {
                    invariants::check_created_attachment(world, &created).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_checked_against_rbac_rules() {
        let rules = cofferdam_controllers::rbac::rules(
            &cofferdam_controllers::Role::ALL.into(),
            cofferdam_controllers::rbac::DriverPlacement::ClusterWide,
        );
        let rbac = Rbac::new(rules, "storage".to_owned());
        let allowed = |method: &str, path: &'static str| {
            rbac.is_allowed(&method.parse().unwrap(), &Uri::from_static(path))
        };
        assert!(allowed("GET", "/version") && allowed("GET", "/api/v1"));
        assert!(allowed("GET", "/api/v1/namespaces/kube-system"));
        assert!(allowed("PATCH", "/api/v1/persistentvolumes/v/status"));
        assert!(allowed("PATCH", "/api/v1/namespaces/a/persistentvolumeclaims/c/status"));
        assert_eq!(rbac.denied(), Vec::<String>::new());
        #[rustfmt::skip] // one row a request
        let table = [
            ("POST",    "/api/v1/namespaces/a/pods/p/eviction",         "create /pods/eviction a/p"),
            ("GET",     "/api/v1/namespaces/a/pods/p/proxy/x",          "get /pods/proxy/x a/p"),
            ("PUT",     "/api/v1/namespaces/a/finalize",                "update /namespaces/finalize /a"),
            ("GET",     "/apis/apps/v1/namespaces/a/deployments/d/scale", "get apps/deployments/scale a/d"),
            ("OPTIONS", "/api/v1/persistentvolumes/v",                  "options /persistentvolumes /v"),
            ("HEAD",    "/api/v1/namespaces/a/secrets",                 "list /secrets a/"),
        ];
        for (method, path, expected) in table {
            assert!(!allowed(method, path), "{method} {path}");
            assert!(rbac.denied().contains(&expected.to_owned()), "{expected}: {:?}", rbac.denied());
        }
    }
}
