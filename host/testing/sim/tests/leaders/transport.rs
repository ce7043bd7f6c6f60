//! The API server as one process reaches it. A request that has begun goes on if its process is stopped or
//! dies; the response waits until the process runs again.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use cofferdam_domain::term::BootClock;
use cofferdam_sim::{test_cluster::ResponseBody, unavailable_response};
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::client::Body;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tower::{BoxError, Service, ServiceExt as _};

use crate::world::{ProcessId, World};

type Reply = oneshot::Sender<Result<Response<ResponseBody>, BoxError>>;

/// Longest time that a request or a response takes.
const MAX_LATENCY: Duration = Duration::from_millis(15);

/// A connection of a process to the API server.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) world: Arc<World>,
    pub(crate) process: ProcessId,
    pub(crate) boot_clock: BootClock,
    /// True for the connection of the leader election, whose requests need no term.
    pub(crate) is_for_leases: bool,
}

/// A request for a Lease.
struct LeaseRequest {
    /// The time of the boot clock before the attempt of a write.
    attempt: Option<Duration>,
}

impl Service<Request<Body>> for Connection {
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let connection = self.clone();
        if !self.is_for_leases && request.method() != Method::GET {
            let effect = format!("{} {}", request.method(), request.uri().path());
            self.world.begin_effect(self.process, (self.boot_clock)(), &effect);
        }
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect().await?.to_bytes();
            let lease = connection.lease_request(&parts, &bytes);
            let request = Request::from_parts(parts, bytes);
            let (reply, response) = oneshot::channel();
            let Connection { world, process, .. } = connection;
            let handle = world.handle.clone();
            handle.spawn(carry_out(world, process, request, lease, reply));
            response.await.unwrap_or_else(|_| Err("the connection was closed".into()))
        })
    }
}

impl Connection {
    fn lease_request(&self, parts: &http::request::Parts, bytes: &Bytes) -> Option<LeaseRequest> {
        let (collection, rest) = parts.uri.path().split_once("/leases")?;
        if !collection.starts_with("/apis/coordination.k8s.io/") {
            return None;
        }
        let body: Value = serde_json::from_slice(bytes).unwrap_or(Value::Null);
        let name = match rest.strip_prefix('/') {
            Some(name) => name,
            None => body["metadata"]["name"].as_str().unwrap_or_default(),
        };
        self.world.begin_lease_request(self.process, (self.boot_clock)(), &parts.method, name, &body);
        let attempt = self.world.attempt(self.process, name);
        Some(LeaseRequest { attempt: attempt.filter(|_| parts.method != Method::GET) })
    }
}

/// Carries a request out, in the runtime of the API server. The result goes nowhere if the process has
/// dropped the request or died.
async fn carry_out(
    world: Arc<World>,
    process: ProcessId,
    request: Request<Bytes>,
    lease: Option<LeaseRequest>,
    reply: Reply,
) {
    tokio::time::sleep(world.random_time(MAX_LATENCY)).await;
    if !world.is_reachable(process) {
        if world.is_fault(0.5) {
            return drop(reply.send(Err("connection refused".into())));
        }
        // The request is in a buffer, and may arrive late.
        world.wait_reachable(process).await;
    }
    if reply.is_closed() && world.is_fault(0.5) {
        return;
    }
    let is_write = request.method() != Method::GET;
    if is_write && world.is_fault(0.01) {
        return drop(reply.send(Ok(unavailable_response())));
    }
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let line = format!("{} {}", request.method(), request.uri().path());
    let service = world.api.service();
    let response = service.oneshot(request.map(Full::new)).await.unwrap();
    let (head, body) = response.into_parts();
    if is_write {
        world.trace(&format!("process {process} has written {line}: {}", head.status.as_u16()));
    }
    if is_watch && head.status.is_success() {
        let (frames, receiver) = mpsc::unbounded_channel();
        let stream = futures::stream::unfold(receiver, |mut receiver| async move {
            let bytes: Bytes = receiver.recv().await?;
            Some((Ok::<_, BoxError>(Frame::data(bytes)), receiver))
        });
        world.wait_reachable(process).await;
        let response = Response::from_parts(head, StreamBody::new(stream).boxed_unsync());
        if reply.send(Ok(response)).is_ok() {
            world.watches.add(process, body, frames);
        }
        return;
    }
    let bytes = body.collect().await.unwrap().to_bytes();
    if let Some(lease) = lease.filter(|_| is_write && head.status.is_success()) {
        world.lease_written(process, lease.attempt, &serde_json::from_slice(&bytes).unwrap());
    }
    tokio::time::sleep(world.random_time(MAX_LATENCY)).await;
    world.wait_reachable(process).await;
    let lost = is_write && world.is_fault(0.01);
    let body = Full::new(bytes).map_err(|never| match never {}).boxed_unsync();
    let response = if lost { unavailable_response() } else { Response::from_parts(head, body) };
    // The process may have dropped the request.
    let _ = reply.send(Ok(response));
}
