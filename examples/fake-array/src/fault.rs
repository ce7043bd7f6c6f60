//! Fault injection.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// A fault of a request.
#[derive(Clone, Debug)]
pub enum ArrayFault {
    /// The array responds with a status and does not process the request.
    Status(u16),
    /// The array processes the request, but the connection breaks before the response.
    LostAnswer,
    /// The connection breaks before the array processes the request.
    LostRequest,
    /// The request is blocked until the barrier is released. It is then processed even if the client has
    /// disconnected.
    Blocked(RequestBarrier),
}

/// Blocks requests until it is released.
#[derive(Clone, Debug, Default)]
pub struct RequestBarrier(Arc<BarrierState>);

#[derive(Debug, Default)]
struct BarrierState {
    blocked: watch::Sender<usize>,
    open: watch::Sender<bool>,
    done: Notify,
}

impl RequestBarrier {
    /// A barrier that blocks every request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until this number of requests in total have reached the barrier. Requests after the release
    /// count too.
    pub async fn wait_for_blocked(&self, requests: usize) {
        let mut waiting = self.0.blocked.subscribe();
        // The sender is not dropped before `self`.
        let _ = waiting.wait_for(|waiting| *waiting >= requests).await;
    }

    /// Releases the blocked requests and all later ones.
    pub fn release(&self) {
        self.0.open.send_replace(true);
    }

    /// Waits until a request that reached the barrier has been processed. Requests that are processed while
    /// no task waits here end only one later wait.
    pub async fn wait_for_processed(&self) {
        self.0.done.notified().await;
    }

    pub(crate) async fn wait(&self) {
        self.0.blocked.send_modify(|waiting| *waiting = waiting.saturating_add(1));
        let mut open = self.0.open.subscribe();
        let _ = open.wait_for(|open| *open).await;
    }

    pub(crate) fn record_processed(&self) {
        self.0.done.notify_one();
    }
}

/// A fault for matching requests.
#[derive(Debug)]
pub(crate) struct InjectedFault {
    pub(crate) method: String,
    pub(crate) path_prefix: String,
    pub(crate) fault: ArrayFault,
    pub(crate) times: u32,
}

/// The injected faults in the order of their injection. The first match with a `times` above 0 applies to a
/// request.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<InjectedFault>);

impl Faults {
    pub(crate) fn inject(&mut self, injected: InjectedFault) {
        self.0.push(injected);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn next(&mut self, method: &str, path: &str) -> Option<ArrayFault> {
        let found = self.0.iter_mut().find(|injected| {
            injected.times > 0 && injected.method == method && path.starts_with(&injected.path_prefix)
        })?;
        found.times = found.times.saturating_sub(1);
        Some(found.fault.clone())
    }
}
