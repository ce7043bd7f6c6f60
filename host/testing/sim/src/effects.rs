//! Effects of a simulated process, its faults and its crash.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// An effect of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A write that the API server accepted: method and path.
    Write(String),
    /// A driver call that reached the array, in the form of `ScriptedDriver::calls`. It may have failed
    /// there, e.g. because the array has no capacity. Calls with an injected error or a lost request do not
    /// reach the array. Reads such as ListVolumes and GetCapacity are not effects.
    Call(String),
}

/// A fault of one API request of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiFault {
    /// The request's method.
    pub method: &'static str,
    /// Prefix of the request's path, without its query.
    pub path_prefix: &'static str,
    /// Text that the request's body contains; empty for any body.
    pub body_contains: &'static str,
    /// The kind of the fault.
    pub kind: FaultKind,
}

/// Kind of an [`ApiFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The write takes effect; the process gets 503 Service Unavailable instead of the response.
    LostResponse,
    /// The write has no effect; the process gets 503 Service Unavailable.
    LostRequest,
    /// As [`LostRequest`](Self::LostRequest), for every matching request.
    LostRequestAlways,
    /// The process gets 503 Service Unavailable at once; the write takes effect after this time.
    Delayed(Duration),
    /// The write is rejected with 409 Conflict, as for an outdated resource version.
    Conflict,
    /// Another client sets `status.phase` of the object to this value; then the write is sent. It requires a
    /// write of the status.
    ForeignPhase(&'static str),
    /// The request is rejected with 403 Forbidden, as by RBAC or an admission webhook.
    Forbidden,
    /// Every matching request is rejected with 403 Forbidden.
    ForbiddenAlways,
    /// Every matching watch is sent after this time: the processes get the changes until then late. It
    /// requires the method GET, and matches watches only.
    LateWatch(Duration),
}

impl FaultKind {
    /// Returns true if the fault applies to every matching request.
    pub(crate) const fn is_lasting(self) -> bool {
        matches!(self, Self::ForbiddenAlways | Self::LostRequestAlways | Self::LateWatch(_))
    }
}

/// The effects of one process. After the effect that it crashes at, the process receives no response to any
/// API request or driver call.
#[derive(Debug, Default)]
pub struct Effects {
    count: AtomicUsize,
    crash_after: Option<usize>,
    crashed: AtomicBool,
    /// The fault in place of a crash.
    interruption: Interruption,
    /// True between the interruption and the begin of the next term.
    term_lost: AtomicBool,
    /// True between the end of the term, which follows the interruption, and the begin of the next one.
    term_ended: AtomicBool,
    pub(crate) watches_blocked: AtomicBool,
    crash_notify: Notify,
    log: Mutex<Vec<Effect>>,
    /// Number of starts and ends of API requests and driver calls so far.
    activity: AtomicUsize,
    /// API requests in progress.
    pub(crate) pending_requests: AtomicUsize,
    /// Driver calls in progress.
    pending_calls: AtomicUsize,
}

/// The interruption of a process after one of its effects, whose response it does not receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interruption {
    /// The process dies, and another one starts.
    #[default]
    Crash,
    /// The process loses its Lease, and holds it again a moment later.
    TermLoss,
}

/// An API request or a driver call, in progress until the guard is dropped.
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
    /// Creates the effects of a process that crashes after effect number `crash_after`, counted from 1. With
    /// `None` it does not crash.
    pub fn new(crash_after: Option<usize>) -> Arc<Self> {
        Arc::new(Self { crash_after, ..Self::default() })
    }

    /// As [`Effects::new`], with another interruption.
    pub(crate) fn with_interruption(crash_after: Option<usize>, interruption: Interruption) -> Arc<Self> {
        Arc::new(Self { crash_after, interruption, ..Self::default() })
    }

    /// The effects so far.
    pub fn log(&self) -> Vec<Effect> {
        self.log.lock().clone()
    }

    /// Waits until the process is interrupted.
    pub async fn wait_for_crash(&self) {
        loop {
            let crashed = self.crash_notify.notified();
            if self.crashed.load(Ordering::SeqCst) || self.term_lost.load(Ordering::SeqCst) {
                return;
            }
            crashed.await;
        }
    }

    /// Number of starts and ends of API requests and driver calls so far. `None` while one is in progress,
    /// and after a crash. With `in_call`, driver calls in progress are ignored, because the caller is one of
    /// them.
    pub(crate) fn activity(&self, in_call: bool) -> Option<usize> {
        let is_pending = self.pending_requests.load(Ordering::SeqCst) > 0
            || (!in_call && self.pending_calls.load(Ordering::SeqCst) > 0)
            || self.crashed.load(Ordering::SeqCst)
            || self.term_lost.load(Ordering::SeqCst);
        (!is_pending).then(|| self.activity.load(Ordering::SeqCst))
    }

    /// Counts a driver call as in progress until the guard is dropped.
    pub(crate) fn start_call(self: &Arc<Self>) -> ActivityGuard {
        self.start_activity(|effects| &effects.pending_calls)
    }

    pub(crate) fn start_activity(self: &Arc<Self>, counter: fn(&Self) -> &AtomicUsize) -> ActivityGuard {
        counter(self).fetch_add(1, Ordering::SeqCst);
        self.activity.fetch_add(1, Ordering::SeqCst);
        ActivityGuard { effects: Arc::clone(self), counter }
    }

    /// Records an effect. Never returns if the process is interrupted after it.
    pub(crate) async fn record(&self, effect: Effect) {
        self.log.lock().push(effect);
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        if self.crash_after == Some(count) {
            match self.interruption {
                Interruption::Crash => self.kill(),
                Interruption::TermLoss => {
                    self.term_lost.store(true, Ordering::SeqCst);
                    self.crash_notify.notify_waiters();
                }
            }
        }
        // The work of the lost term is dropped with it.
        if self.term_lost.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.wait_if_crashed().await;
    }

    /// The term has ended: no effect may begin.
    pub(crate) fn end_term(&self) {
        self.term_ended.store(true, Ordering::SeqCst);
    }

    /// Returns true between two terms.
    pub(crate) fn has_term_ended(&self) -> bool {
        self.term_ended.load(Ordering::SeqCst)
    }

    /// The process holds its Lease again.
    pub(crate) fn begin_term(&self) {
        self.term_ended.store(false, Ordering::SeqCst);
        self.term_lost.store(false, Ordering::SeqCst);
    }

    /// Never returns if the process has crashed.
    pub(crate) async fn wait_if_crashed(&self) {
        if self.crashed.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    /// Makes new watches of the process hang: they get no response.
    pub(crate) fn block_watches(&self) {
        self.watches_blocked.store(true, Ordering::SeqCst);
    }

    /// Crashes the process: its API requests and driver calls receive no responses any more.
    pub fn kill(&self) {
        self.crashed.store(true, Ordering::SeqCst);
        self.crash_notify.notify_waiters();
    }
}
