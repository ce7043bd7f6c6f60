//! The watches of all processes. After a change, the API server wakes its watches in a random order: the
//! simulation delivers their events in the order in which they were opened.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use bytes::Bytes;
use cofferdam_apiserver::ApiBody;
use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::world::{ProcessId, World};

/// Probability that events are delivered in the step of their change, and not later.
const PROMPT: f32 = 0.7;

/// Set when a watch may have an event.
#[derive(Debug)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct OpenWatch {
    process: ProcessId,
    body: ApiBody,
    frames: mpsc::UnboundedSender<Bytes>,
    woken: Arc<Woken>,
}

/// The open watches of all processes, in the order of their begin.
#[derive(Default)]
pub(crate) struct Watches(Mutex<Vec<OpenWatch>>);

impl Watches {
    /// Adds a watch, whose events go to `frames`.
    pub(crate) fn add(&self, process: ProcessId, body: ApiBody, frames: mpsc::UnboundedSender<Bytes>) {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        self.0.lock().push(OpenWatch { process, body, frames, woken });
    }

    /// Delivers events to the processes. Call it in the runtime of the API server.
    pub(crate) fn deliver(&self, world: &World) {
        self.0.lock().retain_mut(|watch| watch.deliver(world));
    }
}

impl OpenWatch {
    /// Returns false if the watch has ended. An event that the process cannot receive waits, or ends the
    /// watch.
    fn deliver(&mut self, world: &World) -> bool {
        if self.frames.is_closed() {
            return false;
        }
        if !self.woken.0.load(Ordering::SeqCst) {
            return true;
        }
        if !world.is_reachable(self.process) {
            return !world.is_fault(0.02);
        }
        if world.lock().rng.f32() >= PROMPT {
            return true;
        }
        self.woken.0.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.woken));
        loop {
            match self.body.frame().poll_unpin(&mut Context::from_waker(&waker)) {
                Poll::Pending => return true,
                Poll::Ready(Some(Ok(frame))) => {
                    if frame.into_data().is_ok_and(|bytes| self.frames.send(bytes).is_err()) {
                        return false;
                    }
                }
                Poll::Ready(_) => return false,
            }
        }
    }
}
