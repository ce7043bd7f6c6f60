//! What the conformance suite does to a backend that no cluster does on purpose: it ends calls in the middle, and it looks at
//! the same storage through a second process.
//!
//! Nothing here is reached by a role: a backend that [`Engine::load`](crate::Engine::load) makes has an empty [`FaultPlan`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// At which call of the host the next call of a backend dies. Clones are the same plan.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan(Arc<Mutex<Plan>>);

/// What a call that died here says.
pub(crate) const ENDED: &str = "the conformance suite ended the call here";

/// Where a call dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Before the host has done what it was asked for, after this many calls that it has done.
    Before(u32),
    /// After the host has done what it was asked for, after this many calls before it.
    After(u32),
    /// Not at all: after this many HTTP requests one is carried out, and the guest hears that the connection broke.
    Lost(u32),
}

#[derive(Debug, Default)]
struct Plan {
    armed: Option<Fault>,
    calls: u32,
    requests: u32,
}

impl FaultPlan {
    /// Lets the next call of a backend die there, once. Calls of the host are counted from now on, whoever makes them.
    pub fn arm(&self, fault: Fault) {
        *self.lock() = Plan { armed: Some(fault), calls: 0, requests: 0 };
    }

    /// Lets all calls live. Returns whether one has died since [`arm`](Self::arm).
    pub fn disarm(&self) -> bool {
        self.lock().armed.take().is_none()
    }

    /// Does what a guest asked for, unless its call shall die here. For what changes something outside of the call, or tells
    /// what there is: between two of these nothing happens that anybody else could see.
    pub(crate) async fn around<T>(
        &self,
        host: impl Future<Output = wasmtime::Result<T>>,
    ) -> wasmtime::Result<T> {
        let number = {
            let mut plan = self.lock();
            let number = plan.calls;
            plan.calls = number.saturating_add(1);
            number
        };
        self.strike(Fault::Before(number))?;
        let answer = host.await?;
        self.strike(Fault::After(number))?;
        Ok(answer)
    }

    /// Whether the answer to the HTTP request that was just made shall be lost.
    pub(crate) fn loses(&self) -> bool {
        let mut plan = self.lock();
        let loses = plan.armed == Some(Fault::Lost(plan.requests));
        plan.requests = plan.requests.saturating_add(1);
        if loses {
            plan.armed = None;
        }
        loses
    }

    fn strike(&self, here: Fault) -> wasmtime::Result<()> {
        let mut plan = self.lock();
        if plan.armed == Some(here) {
            plan.armed = None;
            return Err(wasmtime::Error::msg(ENDED));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_dies_once_and_at_its_place() {
        let plan = FaultPlan::default();
        let done = std::cell::Cell::new(0);
        let work = async || {
            done.set(done.get() + 1);
            Ok(())
        };
        let call = async || plan.around(work()).await.is_ok();
        plan.arm(Fault::After(1));
        assert_eq!([call().await, call().await, call().await], [true, false, true]);
        plan.arm(Fault::Before(0));
        assert_eq!([call().await, call().await], [false, true]);
        assert!(plan.disarm());
        plan.arm(Fault::Before(9));
        assert!(call().await);
        assert!(!plan.disarm(), "nothing died");
        plan.arm(Fault::Lost(1));
        assert!(call().await);
        assert_eq!([plan.loses(), plan.loses(), plan.loses()], [false, true, false]);
        assert!(plan.disarm() && !plan.loses());
        assert_eq!(done.get(), 6);
    }
}
