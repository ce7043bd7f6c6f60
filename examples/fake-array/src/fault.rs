//! Faults on demand.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// What goes wrong with a request.
#[derive(Clone, Debug)]
pub enum ArrayFault {
    /// It is answered with a status and not processed.
    Status(u16),
    /// It is processed, and then the connection breaks: the answer is lost.
    LostAnswer,
    /// The connection breaks, and it is not processed.
    LostRequest,
    /// It waits until it is let go, and is then processed, also when nobody waits for the answer any more.
    Blocked(RequestBarrier),
}

/// Holds requests until they are let go.
#[derive(Clone, Debug, Default)]
pub struct RequestBarrier(Arc<BarrierState>);

#[derive(Debug, Default)]
struct BarrierState {
    blocked: watch::Sender<usize>,
    open: watch::Sender<bool>,
    done: Notify,
}

impl RequestBarrier {
    /// Holds whatever meets it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until this many requests have been held in all.
    pub async fn wait_for_blocked(&self, requests: usize) {
        let mut waiting = self.0.blocked.subscribe();
        // The sender lives as long as `self`.
        let _ = waiting.wait_for(|waiting| *waiting >= requests).await;
    }

    /// Lets the requests go, those that wait and those that come.
    pub fn release(&self) {
        self.0.open.send_replace(true);
    }

    /// Waits until a request that was held has been processed. One call for each such request.
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

/// A fault that waits for its requests.
#[derive(Debug)]
pub(crate) struct InjectedFault {
    pub(crate) method: String,
    pub(crate) path_prefix: String,
    pub(crate) fault: ArrayFault,
    pub(crate) times: u32,
}

/// The faults that are injected; the first that fits a request meets it.
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
