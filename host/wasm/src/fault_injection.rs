//! Fault injection for the conformance suite: ends a call at a chosen host call, or loses the response to an
//! HTTP request.
//!
//! Only the conformance suite injects faults: backends from [`Engine::load`](crate::Engine::load) have an
//! empty [`FaultPlan`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The fault that is injected into the next calls of a backend, at most one. Clones share the plan.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan(Arc<Mutex<FaultState>>);

/// Message of a call that was ended by fault injection.
pub(crate) const INJECTED_FAULT: &str = "the conformance suite ended the call here";

/// The host call or HTTP request at which a fault is injected. A host call is a guest's call of an import.
/// Only host calls of `state`, `http` and `pool` are numbered; of `http`, only requests whose URL, headers
/// and size the host accepts. These requests also have a numbering of their own. Both numberings start at 0
/// with [`FaultPlan::arm`] and count over all calls of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPoint {
    /// Ends the guest's call before the host call with this number has an effect.
    Before(u32),
    /// Ends the guest's call after the host call with this number, whose result the guest does not receive.
    After(u32),
    /// Sends the HTTP request with this number. The guest's call continues: it receives a connection error in
    /// place of the response.
    LostResponse(u32),
}

#[derive(Debug, Default)]
struct FaultState {
    armed: Option<FaultPoint>,
    calls: u32,
    requests: u32,
}

impl FaultPlan {
    /// Arms a fault, which is injected once. Host calls and HTTP requests of all calls are counted from now
    /// on.
    pub fn arm(&self, fault: FaultPoint) {
        *self.lock() = FaultState { armed: Some(fault), calls: 0, requests: 0 };
    }

    /// Disables the fault. Returns true if it was injected since [`arm`](Self::arm), or if none was armed.
    pub fn disarm(&self) -> bool {
        self.lock().armed.take().is_none()
    }

    /// Runs a host call, unless the guest's call has to end at this point. Used for the host calls of
    /// `state`, `http` and `pool`: between two of these, the guest changes no storage.
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

    /// Counts an HTTP request. Returns true if its response is to be lost.
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
