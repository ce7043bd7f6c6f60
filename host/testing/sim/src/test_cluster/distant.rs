//! The embedded API server at a distance from the processes, in paused time: requests, responses and watch
//! events take time, and the arrivals of requests are recorded.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, StreamExt as _, future::BoxFuture, stream};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};
use tower::{BoxError, ServiceExt as _};

use super::{
    ApiTransport, Clock, ClusterFuture, EnvironmentKind, InProcessCluster, ResponseBody, TestCluster,
    TestUser,
};
use crate::rbac::is_watch;

/// Arrival of a request at the API server of a [`DistantCluster`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Time since the start of the cluster.
    pub at: Duration,
    /// True for a request of the user, false for one of a process.
    pub is_user: bool,
    /// The method.
    pub method: Method,
    /// The path, without the query.
    pub path: String,
    /// The query; empty without one.
    pub query: String,
}

/// An [`InProcessCluster`] at a distance from the processes, but not from the user. Watches are not recorded.
pub struct DistantCluster {
    inner: InProcessCluster,
    one_way: Duration,
    started: Instant,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
}

impl DistantCluster {
    /// Creates an empty cluster. A request, a response and a watch event take `one_way` each.
    pub fn new(one_way: Duration) -> Self {
        let arrivals = Arc::default();
        Self { inner: InProcessCluster::new(), one_way, started: Instant::now(), arrivals }
    }

    /// The arrivals of requests so far, by time.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().clone()
    }
}

impl TestCluster for DistantCluster {
    fn environment(&self) -> EnvironmentKind {
        self.inner.environment()
    }

    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    fn connect(&self, who: TestUser) -> Result<ApiTransport, BoxError> {
        let is_user = matches!(who, TestUser::Admin);
        let one_way = if is_user { Duration::ZERO } else { self.one_way };
        let (api, started, arrivals) = (self.inner.connect(who)?, self.started, Arc::clone(&self.arrivals));
        Ok(ApiTransport::new(tower::service_fn(move |request: Request<Body>| {
            let (api, arrivals) = (api.clone(), Arc::clone(&arrivals));
            let send: BoxFuture<'static, _> = Box::pin(async move {
                sleep(one_way).await;
                let uri = request.uri();
                let is_watch = is_watch(uri);
                if !is_watch {
                    arrivals.lock().push(Arrival {
                        at: started.elapsed(),
                        is_user,
                        method: request.method().clone(),
                        path: uri.path().to_owned(),
                        query: uri.query().unwrap_or_default().to_owned(),
                    });
                }
                let response = api.oneshot(request).await?;
                let (head, body) = response.into_parts();
                let body = if is_watch {
                    StreamBody::new(delayed(body.into_data_stream(), one_way)).boxed_unsync()
                } else {
                    let bytes = body.collect().await?.to_bytes();
                    Full::from(bytes).map_err(|never| match never {}).boxed_unsync()
                };
                sleep(one_way).await;
                Ok::<Response<ResponseBody>, BoxError>(Response::from_parts(head, body))
            });
            send
        })))
    }

    fn compact(&self) -> ClusterFuture<'_> {
        self.inner.compact()
    }

    fn backup(&self) -> ClusterFuture<'_> {
        self.inner.backup()
    }

    fn restore(&self) -> ClusterFuture<'_> {
        self.inner.restore()
    }
}

/// Delays each item by `delay`, without an effect on the times between items.
fn delayed<S>(items: S, delay: Duration) -> impl Stream<Item = Result<Frame<Bytes>, BoxError>> + Send
where
    S: Stream<Item = Result<Bytes, BoxError>> + Send + Unpin + 'static,
{
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut items = items;
        loop {
            let item = tokio::select! {
                () = sender.closed() => return,
                item = items.next() => item,
            };
            let is_end = item.is_none();
            if sender.send((Instant::now() + delay, item)).is_err() || is_end {
                return;
            }
        }
    });
    stream::unfold(receiver, async |mut receiver| {
        let (due, item) = receiver.recv().await?;
        sleep_until(due).await;
        Some((item?.map(Frame::data), receiver))
    })
}
