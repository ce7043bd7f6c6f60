//! The API as one process sees it: every request is judged by the rules of its roles, effects are counted, and after one of them
//! the process dies.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use cofferdam_controllers::rbac::{Attributes, Rule};
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use kube::client::Body;
use serde_json::json;
use tokio::sync::Notify;
use tower::{BoxError, Service, ServiceExt as _};

use crate::{
    ground::{AnswerBody, Api},
    judge,
    world::World,
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
    pub path: &'static str,
    /// What its body contains.
    pub saying: &'static str,
    /// What goes wrong.
    pub how: Mishap,
}

/// What goes wrong with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// It is carried out, and not answered.
    LostAnswer,
    /// It is neither carried out nor answered.
    LostRequest,
    /// It is not answered, and carried out after this time.
    Late(Duration),
    /// It is refused once, as if it were decided on what is not so any more.
    Conflict,
    /// It is refused, as by a rule or a webhook of the cluster's.
    Forbidden,
}

/// One process' effects. After the one that it shall die by, the process gets no answer any more, to anything.
#[derive(Debug, Default)]
pub struct Effects {
    count: AtomicUsize,
    die_after: Option<usize>,
    dead: AtomicBool,
    deaf: AtomicBool,
    died: Notify,
    log: Mutex<Vec<Effect>>,
    /// Requests to the API and calls of the driver so far, their beginnings and their ends.
    activity: AtomicUsize,
    /// Requests that have no answer yet.
    requests: AtomicUsize,
    /// Calls of the driver that have no answer yet.
    calls: AtomicUsize,
}

/// Something that a process waits for.
pub(crate) struct Busy {
    effects: Arc<Effects>,
    counter: fn(&Effects) -> &AtomicUsize,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.effects.activity.fetch_add(1, Ordering::SeqCst);
        (self.counter)(&self.effects).fetch_sub(1, Ordering::SeqCst);
    }
}

impl Effects {
    /// Effects of a process that dies after the `n`-th, or lives.
    pub fn new(die_after: Option<usize>) -> Arc<Self> {
        Arc::new(Self { die_after, ..Self::default() })
    }

    /// What was done so far.
    pub fn log(&self) -> Vec<Effect> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the process has died.
    pub async fn death(&self) {
        loop {
            let died = self.died.notified();
            if self.dead.load(Ordering::SeqCst) {
                return;
            }
            died.await;
        }
    }

    /// How much the process has asked of the world; absent while it waits for an answer. Calls of the driver may be under way where
    /// one of them is who asks.
    pub(crate) fn activity(&self, in_call: bool) -> Option<usize> {
        let waits = self.requests.load(Ordering::SeqCst) > 0
            || (!in_call && self.calls.load(Ordering::SeqCst) > 0)
            || self.dead.load(Ordering::SeqCst);
        (!waits).then(|| self.activity.load(Ordering::SeqCst))
    }

    /// A call of the driver begins; it ends with the value.
    pub(crate) fn calls(self: &Arc<Self>) -> Busy {
        self.busy(|effects| &effects.calls)
    }

    fn busy(self: &Arc<Self>, counter: fn(&Self) -> &AtomicUsize) -> Busy {
        counter(self).fetch_add(1, Ordering::SeqCst);
        self.activity.fetch_add(1, Ordering::SeqCst);
        Busy { effects: Arc::clone(self), counter }
    }

    /// Notes an effect; whoever did it must not go on when this does not return.
    pub(crate) async fn note(&self, effect: Effect) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(effect);
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        if self.die_after == Some(count) {
            self.kill();
        }
        self.gate().await;
    }

    /// Lets the living pass.
    pub(crate) async fn gate(&self) {
        if self.dead.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    /// Lets no watch begin any more.
    pub(crate) fn deafen(&self) {
        self.deaf.store(true, Ordering::SeqCst);
    }

    /// Ends the process' access to the world.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.died.notify_waiters();
    }
}

/// What the roles of a process may do, and what they did.
#[derive(Debug)]
pub(crate) struct Rbac {
    pub(crate) rules: Vec<Rule>,
    pub(crate) namespace: String,
    asked: Mutex<BTreeSet<String>>,
    refused: Mutex<BTreeSet<String>>,
}

impl Rbac {
    pub(crate) fn new(rules: Vec<Rule>, namespace: String) -> Arc<Self> {
        Arc::new(Self { rules, namespace, asked: Mutex::default(), refused: Mutex::default() })
    }

    /// Requests that no rule allowed, as `verb group/resource namespace/name`.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// What of the rules was used, as `verb group/resource`.
    pub(crate) fn used(&self) -> BTreeSet<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn allows(&self, method: &Method, uri: &Uri) -> bool {
        let Some(Asked { verb, group, resource, namespace, name }) = asked(method, uri) else { return true };
        let request = Attributes {
            verb: &verb,
            group: &group,
            resource: &resource,
            namespace: &namespace,
            name: &name,
        };
        if self.rules.iter().any(|rule| rule.allows(&request, &self.namespace)) {
            let used = format!("{verb} {group}/{resource}");
            self.asked.lock().unwrap_or_else(PoisonError::into_inner).insert(used);
            return true;
        }
        let refused = format!("{verb} {group}/{resource} {namespace}/{name}");
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).insert(refused);
        false
    }
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    verb: String,
    group: String,
    /// With its subresource, and whatever stands behind that.
    resource: String,
    namespace: String,
    name: String,
}

/// What a request asks for, as the API server reads it from the path; absent for what is no resource, such as discovery. What
/// nobody knows is asked for by the name that it has: no rule allows it.
fn asked(method: &Method, uri: &Uri) -> Option<Asked> {
    let mut parts = uri.path().strip_prefix('/')?.split('/');
    let group = match parts.next()? {
        "api" => "",
        "apis" => parts.next()?,
        _ => return None,
    };
    let _version = parts.next()?;
    let rest: Vec<&str> = parts.collect();
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
        [resource, name, below @ ..] => (format!("{resource}/{}", below.join("/")), *name),
    };
    let watches = uri.query().is_some_and(|query| query.contains("watch=true"));
    let verb = match *method {
        Method::GET | Method::HEAD if watches => "watch".to_owned(),
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
    Some(Asked { verb, group, resource, namespace, name })
}

/// The API as one process sees it.
#[derive(Clone)]
pub(crate) struct MortalApi {
    pub(crate) api: Api,
    pub(crate) effects: Arc<Effects>,
    pub(crate) rbac: Arc<Rbac>,
    pub(crate) world: Arc<World>,
}

/// What an API server says of a request that it does not carry out: code, reason, message.
type Refusal = (StatusCode, &'static str, &'static str);

const FORBIDDEN: Refusal = (StatusCode::FORBIDDEN, "Forbidden", "forbidden by the rules of the roles");
const UNAVAILABLE: Refusal = (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "the API is not there");
const CONFLICT: Refusal = (StatusCode::CONFLICT, "Conflict", "the object has been modified");

fn status((code, reason, message): Refusal) -> Response<AnswerBody> {
    let body = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code.as_u16(),
    });
    let body = Full::from(body.to_string()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response
}

impl Service<Request<Body>> for MortalApi {
    type Response = Response<AnswerBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let me = self.clone();
        let allowed = self.rbac.allows(request.method(), request.uri());
        Box::pin(async move {
            me.effects.gate().await;
            if !allowed {
                return Ok(status(FORBIDDEN));
            }
            let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            if watches && me.effects.deaf.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            judge::before(&me.world, request.method(), request.uri().path()).await;
            let (request, mishap) = me.world.mishap(request).await?;
            match mishap {
                None => me.carry_out(request).await,
                Some(Mishap::LostAnswer) => me.carry_out(request).await.map(|_| status(UNAVAILABLE)),
                Some(Mishap::LostRequest) => Ok(status(UNAVAILABLE)),
                Some(Mishap::Late(after)) => {
                    tokio::spawn(async move {
                        tokio::time::sleep(after).await;
                        // Who asked has an answer, and hears nothing of this.
                        let _ = me.carry_out(request).await;
                    });
                    Ok(status(UNAVAILABLE))
                }
                Some(Mishap::Conflict) => Ok(status(CONFLICT)),
                Some(Mishap::Forbidden) => Ok(status(FORBIDDEN)),
            }
        })
    }
}

impl MortalApi {
    async fn carry_out(mut self, request: Request<Body>) -> Result<Response<AnswerBody>, BoxError> {
        let Self { api, effects, world, .. } = &mut self;
        let write = (request.method() != Method::GET)
            .then(|| format!("{} {}", request.method(), request.uri().path()));
        let busy = effects.busy(|effects| &effects.requests);
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let answer = api.ready().await?.call(request).await;
        drop(busy);
        effects.gate().await;
        let response = answer?;
        let response = if judge::is_judged(world, &method, &path) && response.status().is_success() {
            let (head, body) = response.into_parts();
            let body = body.collect().await?.to_bytes();
            if let Ok(made) = serde_json::from_slice(&body) {
                judge::made(world, &made).await;
            }
            Response::from_parts(head, Full::from(body).map_err(|never| match never {}).boxed_unsync())
        } else {
            response
        };
        if let Some(write) = write.filter(|_| response.status().is_success()) {
            effects.note(Effect::Write(write)).await;
        }
        effects.gate().await;
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_judged() {
        let rules = cofferdam_controllers::rbac::rules(
            &cofferdam_controllers::Role::ALL.into(),
            cofferdam_controllers::rbac::Drivers::Anywhere,
        );
        let rbac = Rbac::new(rules, "storage".to_owned());
        let allowed =
            |method: &str, path: &'static str| rbac.allows(&method.parse().unwrap(), &Uri::from_static(path));
        assert!(allowed("GET", "/version") && allowed("GET", "/api/v1"));
        assert!(allowed("GET", "/api/v1/namespaces/kube-system"));
        assert!(allowed("PATCH", "/api/v1/persistentvolumes/v/status"));
        assert!(allowed("PATCH", "/api/v1/namespaces/a/persistentvolumeclaims/c/status"));
        assert_eq!(rbac.refused(), Vec::<String>::new());
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
            assert!(rbac.refused().contains(&expected.to_owned()), "{expected}: {:?}", rbac.refused());
        }
    }
}
