//! What the conformance suite does to a backend that no cluster does on purpose: it ends calls in the middle,
//! and it looks at the same storage through a second process.
//!
//! Nothing here is reached by a role: a backend that [`Engine::load`](crate::Engine::load) makes has an empty
//! [`FaultPlan`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// At which call of the host the next call of a backend dies. Clones are the same plan.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan(Arc<Mutex<FaultState>>);

/// What a call that died here says.
pub(crate) const INJECTED_FAULT: &str = "the conformance suite ended the call here";

/// Where a call dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPoint {
    /// Before the host has done what it was asked for, after this many calls that it has done.
    Before(u32),
    /// After the host has done what it was asked for, after this many calls before it.
    After(u32),
    /// Not at all: after this many HTTP requests one is carried out, and the guest hears that the connection
    /// broke.
    LostResponse(u32),
}

#[derive(Debug, Default)]
struct FaultState {
    armed: Option<FaultPoint>,
    calls: u32,
    requests: u32,
}

impl FaultPlan {
    /// Lets the next call of a backend die there, once. Calls of the host are counted from now on, whoever
    /// makes them.
    pub fn arm(&self, fault: FaultPoint) {
        *self.lock() = FaultState { armed: Some(fault), calls: 0, requests: 0 };
    }

    /// Lets all calls live. Returns whether one has died since [`arm`](Self::arm).
    pub fn disarm(&self) -> bool {
        self.lock().armed.take().is_none()
    }

    /// Does what a guest asked for, unless its call shall die here. For what changes something outside of the
    /// call, or tells what there is: between two of these nothing happens that anybody else could see.
    pub(crate) async fn wrap<T>(
        &self,
        host: impl Future<Output = wasmtime::Result<T>>,
    ) -> wasmtime::Result<T> {
        let number = {
            let mut plan = self.lock();
            let number = plan.calls;
            plan.calls = number.saturating_add(1);
            number
        };
        self.fail_at(FaultPoint::Before(number))?;
        let answer = host.await?;
        self.fail_at(FaultPoint::After(number))?;
        Ok(answer)
    }

    /// Whether the answer to the HTTP request that was just made shall be lost.
    pub(crate) fn is_response_lost(&self) -> bool {
        let mut plan = self.lock();
        let loses = plan.armed == Some(FaultPoint::LostResponse(plan.requests));
        plan.requests = plan.requests.saturating_add(1);
        if loses {
            plan.armed = None;
        }
        loses
    }

    fn fail_at(&self, point: FaultPoint) -> wasmtime::Result<()> {
        let mut plan = self.lock();
        if plan.armed == Some(point) {
            plan.armed = None;
            return Err(wasmtime::Error::msg(INJECTED_FAULT));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, FaultState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn injected_fault_fails_one_call_at_the_given_point() {
        let plan = FaultPlan::default();
        let done = std::cell::Cell::new(0);
        let work = async || {
            done.set(done.get() + 1);
            Ok(())
        };
        let call = async || plan.wrap(work()).await.is_ok();
        plan.arm(FaultPoint::After(1));
        assert_eq!([call().await, call().await, call().await], [true, false, true]);
        plan.arm(FaultPoint::Before(0));
        assert_eq!([call().await, call().await], [false, true]);
        assert!(plan.disarm());
        plan.arm(FaultPoint::Before(9));
        assert!(call().await);
        assert!(!plan.disarm(), "nothing died");
        plan.arm(FaultPoint::LostResponse(1));
        assert!(call().await);
        assert_eq!(
            [plan.is_response_lost(), plan.is_response_lost(), plan.is_response_lost()],
            [false, true, false]
        );
        assert!(plan.disarm() && !plan.is_response_lost());
        assert_eq!(done.get(), 6);
    }
}
