//! Counting effects, and dying after one of them.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use cofferdam_apiserver::{ApiBody, ApiService};
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::client::Body;
use tokio::sync::Notify;

/// Something that a process did to the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A write that the API took: verb and path.
    Write(String),
    /// A call that the driver carried out.
    Call(String),
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

/// The API as one process sees it.
#[derive(Clone)]
pub(crate) struct MortalApi {
    pub(crate) api: ApiService,
    pub(crate) effects: Arc<Effects>,
}

impl tower::Service<Request<Body>> for MortalApi {
    type Response = Response<ApiBody>;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut api = self.api.clone();
        let effects = Arc::clone(&self.effects);
        Box::pin(async move {
            effects.gate().await;
            let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            if watches && effects.deaf.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            let write = (request.method() != Method::GET)
                .then(|| format!("{} {}", request.method(), request.uri().path()));
            let response = tower::Service::call(&mut api, request).await?;
            if let Some(write) = write.filter(|_| response.status().is_success()) {
                effects.note(Effect::Write(write)).await;
            }
            effects.gate().await;
            Ok(response)
        })
    }
}
