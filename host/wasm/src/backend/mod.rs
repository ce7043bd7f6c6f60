//! A component as a [`Backend`](crate::Backend).

mod methods;

use std::{
    future::Future,
    sync::{Arc, PoisonError},
    time::Duration,
};

use cofferdam_domain::{
    DriverName,
    storage::{Description, StorageError},
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};
use tracing::Instrument as _;

use crate::{
    breaker::{Breaker, BreakerPermit},
    call::{self, CallOutcome, GuestFunction, SharedState},
    capabilities::CallContext,
    digest::Digest,
    engine::EngineInner,
    failure::{BreakerSignal, CallFailure},
    inspect::ComponentInterfaces,
    metrics::DriverMetrics,
    usage::CallUsage,
};
use cofferdam_backend::{
    Call, Redactor,
    in_flight::{InFlightTable, OperationPermit, OperationRequest},
};

/// A vendor's component, loaded.
#[derive(Clone)]
pub struct WasmBackend {
    inner: Arc<BackendInner>,
}

struct BackendInner {
    engine: Arc<EngineInner>,
    shared_state: Arc<SharedState>,
    description: Description,
    run_permits: Semaphore,
    queue_permits: Semaphore,
    in_flight: InFlightTable,
    breaker: std::sync::Mutex<Breaker>,
    metrics: DriverMetrics,
    last_usage: std::sync::Mutex<CallUsage>,
}

impl std::fmt::Debug for WasmBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WasmBackend")
            .field("driver", &self.inner.description.name)
            .field("digest", &self.digest())
            .finish_non_exhaustive()
    }
}

/// Makes an answer of what a guest returned, or says which rule of the contract that breaks.
type ResponseConverter<T, U> = dyn FnOnce(T, &Redactor) -> Result<U, String> + Send;

/// One call as the methods describe it.
struct CallSpec<T, U> {
    /// CSI's path of the call, which is what the sidecars' metrics are labelled with.
    method: &'static str,
    /// What it is about; absent for calls that change nothing.
    operation: Option<OperationRequest>,
    function: GuestFunction<T>,
    convert: Box<ResponseConverter<T, U>>,
    /// What the guard remembers of a success.
    on_success: fn(&OperationPermit, &U),
}

impl<T, U> CallSpec<T, U> {
    fn new(
        method: &'static str,
        operation: Option<OperationRequest>,
        function: GuestFunction<T>,
        convert: impl FnOnce(T, &Redactor) -> Result<U, String> + Send + 'static,
    ) -> Self {
        Self { method, operation, function, convert: Box::new(convert), on_success: |_, _| {} }
    }
}

impl WasmBackend {
    pub(crate) fn new(
        engine: Arc<EngineInner>,
        shared_state: Arc<SharedState>,
        description: Description,
    ) -> Self {
        let limits = &shared_state.limits;
        let metrics = engine.metrics.driver_metrics(&description.name);
        metrics.set_state_usage(shared_state.capabilities.state.usage());
        metrics.set_limits(limits);
        if let Some(pool) = &shared_state.capabilities.pool {
            pool.set_metrics(metrics.clone());
        }
        let inner = BackendInner {
            run_permits: Semaphore::new(limits.concurrent_calls),
            queue_permits: Semaphore::new(limits.queued_calls),
            in_flight: InFlightTable::default(),
            breaker: std::sync::Mutex::new(Breaker::new(
                limits.breaker_failures,
                Duration::from_millis(limits.breaker_pause_ms),
            )),
            metrics,
            engine,
            shared_state,
            description,
            last_usage: std::sync::Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The same backend as a second process would have it: the same component, settings and state, with
    /// guards and a breaker of its own. For the conformance suite, which asks what happens when two processes
    /// call a driver at once.
    #[must_use]
    pub fn second_process(&self) -> Arc<Self> {
        let BackendInner { engine, shared_state: parts, description, .. } = &*self.inner;
        Arc::new(Self::new(Arc::clone(engine), Arc::clone(parts), description.clone()))
    }

    /// The driver's name.
    pub fn driver(&self) -> &DriverName {
        &self.inner.description.name
    }

    /// SHA-256 of the component.
    pub fn digest(&self) -> Digest {
        self.inner.shared_state.compiled.digest
    }

    /// What the component imports and exports.
    pub fn interfaces(&self) -> &ComponentInterfaces {
        &self.inner.shared_state.compiled.interfaces
    }

    /// What the call that ended last used; of calls at the same time it is any.
    pub fn last_usage(&self) -> CallUsage {
        *self.inner.last_usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keys that the backend keeps through its `state` import, in their order.
    pub fn state_keys(&self) -> Vec<String> {
        self.inner.shared_state.capabilities.state.keys()
    }

    /// How many entries the backend keeps through its `state` import, and how many bytes they take.
    pub fn state_usage(&self) -> (usize, usize) {
        self.inner.shared_state.capabilities.state.usage()
    }

    /// Runs a call in a task of its own. The task goes on when the caller goes away: the volume stays guarded
    /// until the guest has stopped.
    fn run<T: Send + 'static, U: Send + 'static>(
        &self,
        call: Call,
        spec: CallSpec<T, U>,
    ) -> impl Future<Output = Result<U, StorageError>> + Send + 'static {
        let started = Instant::now();
        let method = spec.method;
        let shared = Arc::clone(&self.inner);
        let span = tracing::debug_span!("backend", driver = %self.driver(), method);
        let task = {
            let shared = Arc::clone(&self.inner);
            async move { shared.execute(started, call, spec).await }
        };
        async move {
            shared.engine.guest_runtime().spawn(task.instrument(span)).await.unwrap_or_else(|error| {
                let driver = &shared.description.name;
                tracing::error!(%driver, method, %error, "the host failed while it ran a backend");
                shared.finish(started, method, None, Err(CallFailure::Panic))
            })
        }
    }
}

impl BackendInner {
    async fn execute<T: Send + 'static, U>(
        self: Arc<Self>,
        started: Instant,
        call: Call,
        spec: CallSpec<T, U>,
    ) -> Result<U, StorageError> {
        let CallSpec { method, operation: intent, function, convert: accept, on_success: remember } = spec;
        let _in_flight = self.metrics.call_metrics().start();
        let secrets = self.shared_state.secrets.merged_with(&call.secrets);
        let redactor = Redactor::new(secrets.clone());
        let timeout = call.deadline.min(self.shared_state.limits.deadline());
        // Bound first: the lock must be free when the refusal is counted.
        let admitted = self.breaker().admit(started, timeout);
        let pass = match admitted {
            Ok(pass) => pass,
            Err(pause) => return self.finish(started, method, None, Err(CallFailure::CircuitOpen(pause))),
        };
        let operation_permit = match intent.map(|intent| self.in_flight.acquire(intent)).transpose() {
            Ok(operation_permit) => operation_permit,
            Err(refusal) => {
                return self.finish(started, method, Some(pass), Err(CallFailure::Conflict(refusal)));
            }
        };
        let context = CallContext {
            deadline: started + timeout,
            secrets,
            redactor: redactor.clone(),
            operation_permit: operation_permit.clone(),
        };
        let (outcome, pass) = self.run_admitted(context, method, pass, function).await;
        if let Some(usage) = outcome.usage {
            self.metrics.observe_usage(&usage);
            *self.last_usage.lock().unwrap_or_else(PoisonError::into_inner) = usage;
        }
        // What breaks the contract is quoted, and may be a secret.
        let convert_value = |value| {
            accept(value, &redactor)
                .map_err(|reason| CallFailure::ContractViolation(redactor.redact_escaped(&reason)))
        };
        let answer = self.finish(started, method, pass, outcome.result.and_then(convert_value));
        let answer = answer.map_err(|error| {
            operation_permit
                .iter()
                .fold(error, |error, operation_permit| operation_permit.keep_in_doubt(error))
        });
        if let Some(operation_permit) = operation_permit {
            operation_permit.finish(answer.as_ref().err());
            if let Ok(value) = &answer {
                remember(&operation_permit, value);
            }
        }
        self.metrics.call_metrics().set_in_doubt(self.in_flight.in_doubt_count());
        self.metrics.set_state_usage(self.shared_state.capabilities.state.usage());
        answer
    }

    /// Lets a call through to the guest when the limits allow it. The pass is the one that counts when it
    /// ends.
    async fn run_admitted<T: Send + 'static>(
        &self,
        context: CallContext,
        method: &'static str,
        pass: BreakerPermit,
        function: GuestFunction<T>,
    ) -> (CallOutcome<T>, Option<BreakerPermit>) {
        let Ok(_queue_permit) = self.queue_permits.try_acquire() else {
            return (CallOutcome::not_started(CallFailure::Overloaded), Some(pass));
        };
        let Ok(Ok(_run_permit)) = timeout_at(context.deadline, self.run_permits.acquire()).await else {
            return (CallOutcome::not_started(CallFailure::Overloaded), Some(pass));
        };
        // Before anything is said of the volume: who finds no room has not called.
        let _instance_permit = match self.shared_state.acquire_instance(context.deadline).await {
            Ok(room) => room,
            Err(failure) => return (CallOutcome::not_started(failure), Some(pass)),
        };
        let now = Instant::now();
        // The turn may come with the deadline.
        if now >= context.deadline {
            return (CallOutcome::not_started(CallFailure::Overloaded), Some(pass));
        }
        // The calls before this one may have shown that nobody should call.
        let readmission = self.breaker().readmit(pass, now, context.deadline - now);
        let pass = match readmission {
            Ok(pass) => pass,
            Err(pause) => return (CallOutcome::not_started(CallFailure::CircuitOpen(pause)), None),
        };
        if let Some(guard) = &context.operation_permit {
            guard.reached();
        }
        (call::run(Arc::clone(&self.shared_state), context, method, function).await, Some(pass))
    }

    /// Counts a call's end, tells the breaker, and says what the caller hears.
    fn finish<U>(
        &self,
        started: Instant,
        method: &'static str,
        pass: Option<BreakerPermit>,
        answer: Result<U, CallFailure>,
    ) -> Result<U, StorageError> {
        let now = Instant::now();
        {
            let mut breaker = self.breaker();
            if let Some(pass) = pass {
                match answer.as_ref().err().map_or(BreakerSignal::Success, CallFailure::breaker_signal) {
                    BreakerSignal::Success => breaker.record_success(pass),
                    BreakerSignal::Failure => breaker.record_failure(pass, now),
                    BreakerSignal::NotReached => breaker.record_not_reached(pass, now),
                }
            }
            self.metrics.set_breaker_status(breaker.status());
        }
        let outcome = answer.as_ref().map_or_else(CallFailure::label, |_| "ok");
        let answer = answer.map_err(CallFailure::into_error);
        let code = answer.as_ref().map_or_else(|error| error.kind.as_str(), |_| "OK");
        self.metrics.call_metrics().observe(method, code, outcome, now.saturating_duration_since(started));
        answer
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
