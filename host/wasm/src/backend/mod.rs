//! A component as a [`Backend`](cofferdam_backend::Backend).

pub(crate) mod methods;

use std::{
    future::Future,
    marker::PhantomData,
    sync::{Arc, PoisonError},
    time::Duration,
};

use cofferdam_domain::{
    DriverName,
    storage::{Description, Secrets, StorageError},
};
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::{
    breaker::{Breaker, BreakerPermit, BreakerSubject},
    call::{self, SharedState},
    digest::Digest,
    engine::EngineInner,
    exports::GuestFunction,
    failure::{BreakerSignal, CallFailure, task_failure},
    inspect::ComponentInterfaces,
    metrics::DriverMetrics,
    usage::CallUsage,
};
use cofferdam_backend::{Call, CallContext, CallRunner, CallSpec, ConcurrencyLimit, Exchange, Redactor};

/// A loaded component. Clones are the same backend.
#[derive(Clone)]
pub struct WasmBackend {
    inner: Arc<BackendInner>,
}

struct BackendInner {
    engine: Arc<EngineInner>,
    /// The component that serves the next call.
    shared_state: std::sync::Mutex<Arc<SharedState>>,
    /// The imports and exports of the component that was loaded first: a component that replaces it has the
    /// same abilities.
    interfaces: ComponentInterfaces,
    description: Description,
    runner: CallRunner,
    concurrency: ConcurrencyLimit,
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
            runner: CallRunner::new(
                shared_state.secrets.clone(),
                limits.deadline(),
                metrics.call_metrics().clone(),
            ),
            concurrency: ConcurrencyLimit::new(limits.concurrent_calls).with_queue(limits.queued_calls),
            breaker: std::sync::Mutex::new(Breaker::new(
                limits.breaker_failures,
                Duration::from_millis(limits.breaker_pause_ms),
            )),
            metrics,
            engine,
            interfaces: shared_state.compiled.interfaces.clone(),
            shared_state: std::sync::Mutex::new(shared_state),
            description,
            last_usage: std::sync::Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Simulates a second process that runs the same driver, for the conformance suite: returns a backend
    /// with its own operation table, limit of concurrent calls, circuit breaker and last usage. Everything
    /// else is shared with this backend: component, configuration, quota of instance slots, HTTP connections
    /// and their limit, and all that the imports store, also sessions.
    #[must_use]
    pub fn second_process(&self) -> Arc<Self> {
        let BackendInner { engine, description, .. } = &*self.inner;
        Arc::new(Self::new(Arc::clone(engine), self.shared_state(), description.clone()))
    }

    /// As [`Self::second_process`], for a process whose configuration has no secrets.
    #[must_use]
    pub fn second_process_without_secrets(&self) -> Arc<Self> {
        let second = self.second_process();
        second.inner.runner.replace_secrets(Secrets::default());
        second
    }

    /// The driver's name.
    pub fn driver(&self) -> &DriverName {
        &self.inner.description.name
    }

    /// SHA-256 of the component.
    pub fn digest(&self) -> Digest {
        self.shared_state().compiled.digest
    }

    /// The imports and exports of the component that was loaded first.
    pub fn interfaces(&self) -> &ComponentInterfaces {
        &self.inner.interfaces
    }

    /// The component that serves the next call.
    pub(crate) fn shared_state(&self) -> Arc<SharedState> {
        self.inner.shared_state()
    }

    /// Replaces the component and the configured secrets, for the next call.
    pub(crate) fn replace(&self, shared_state: Arc<SharedState>) {
        self.inner.metrics.set_limits(&shared_state.limits);
        self.inner.runner.replace_secrets(shared_state.secrets.clone());
        *self.inner.shared_state.lock().unwrap_or_else(PoisonError::into_inner) = shared_state;
    }

    /// Resource usage of the last finished call that reached the guest; all zero before the first. The calls
    /// that load the component do not count.
    pub fn last_usage(&self) -> CallUsage {
        *self.inner.last_usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keys that the backend stores through its `state` import, sorted. Empty, with a warning in the log, if
    /// the state file cannot be read.
    pub fn state_keys(&self) -> Vec<String> {
        self.shared_state().capabilities.state.keys()
    }

    /// Number of entries that the backend stores through its `state` import, and their bytes as counted
    /// against the limit `state-bytes`.
    pub fn state_usage(&self) -> (usize, usize) {
        self.shared_state().capabilities.state.usage()
    }

    /// Runs a call in a task of its own. The task continues when the caller drops the future, until the guest
    /// responds or is stopped, at the latest at the deadline or the end of the call's term. Until then, calls
    /// that conflict with this one on a volume or snapshot are rejected.
    fn run<T: Send + 'static, U: Send + 'static>(
        &self,
        call: Call,
        spec: CallSpec<T, U>,
        function: GuestFunction<T>,
    ) -> impl Future<Output = Result<U, StorageError>> + Send + 'static {
        let started = Instant::now();
        let method = spec.method();
        let backend = Arc::clone(&self.inner);
        let span = tracing::debug_span!("backend", driver = %self.driver(), method);
        let subject = backend.breaker().subject(&spec.subject());
        let exchange = GuestExchange::new(&backend, method, subject).checking_secrets(&call);
        async move {
            // Before the task starts: a call that follows an abandoned one conflicts with it.
            let registered = span.in_scope(|| backend.runner.register(started, call, spec, exchange))?;
            let task = {
                let backend = Arc::clone(&backend);
                async move {
                    let result = backend.runner.finish(registered, &backend.concurrency, function).await;
                    backend.metrics.set_state_usage(backend.shared_state().capabilities.state.usage());
                    result
                }
            };
            backend.engine.guest_runtime().spawn(task.instrument(span)).await.unwrap_or_else(|error| {
                let driver = &backend.description.name;
                let error = task_failure(&error);
                tracing::error!(%driver, method, error, "the host failed while it ran a backend");
                let exchange = GuestExchange::<T>::new(&backend, method, subject);
                Err(backend.runner.record_lost_call(started, method, exchange, CallFailure::Panic))
            })
        }
    }
}

impl BackendInner {
    fn shared_state(&self) -> Arc<SharedState> {
        Arc::clone(&self.shared_state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call into a guest, behind the backend's circuit breaker.
struct GuestExchange<T> {
    backend: Arc<BackendInner>,
    method: &'static str,
    subject: BreakerSubject,
    /// The circuit breaker's permit; `None` until admission, after a rejected readmission, and once the
    /// result is recorded.
    breaker_permit: Option<BreakerPermit>,
    /// True if the caller passed secrets that the operator has not granted to the backend.
    has_denied_secrets: bool,
    response: PhantomData<fn() -> T>,
}

impl<T> GuestExchange<T> {
    fn new(backend: &Arc<BackendInner>, method: &'static str, subject: BreakerSubject) -> Self {
        Self {
            backend: Arc::clone(backend),
            method,
            subject,
            breaker_permit: None,
            has_denied_secrets: false,
            response: PhantomData,
        }
    }

    /// Checks that the backend may have the secrets that the caller passed.
    fn checking_secrets(self, call: &Call) -> Self {
        let is_granted = self.backend.shared_state().class_secrets;
        Self { has_denied_secrets: !is_granted && !call.secrets.is_empty(), ..self }
    }
}

impl<T: Send + 'static> Exchange for GuestExchange<T> {
    type Request = GuestFunction<T>;
    type Response = T;
    type Failure = CallFailure;

    fn admit(&mut self, started: Instant, timeout: Duration) -> Result<(), CallFailure> {
        let admission = self.backend.breaker().admit(self.subject, started, timeout);
        self.breaker_permit = Some(admission.map_err(CallFailure::CircuitOpen)?);
        Ok(())
    }

    async fn perform(&mut self, context: CallContext, function: GuestFunction<T>) -> Result<T, CallFailure> {
        if self.has_denied_secrets {
            return Err(CallFailure::SecretsNotGranted);
        }
        let backend = Arc::clone(&self.backend);
        // Before `reached`: a call without an instance has no effect.
        let shared_state = backend.shared_state();
        let _instance_permit = shared_state.acquire_instance(context.deadline).await?;
        let now = Instant::now();
        // The permit may have become free at the deadline.
        if now >= context.deadline {
            return Err(CallFailure::Overloaded);
        }
        // Other calls may have opened the circuit while this one waited.
        if let Some(permit) = self.breaker_permit.take() {
            let readmission = backend.breaker().readmit(permit, now, context.deadline - now);
            self.breaker_permit = Some(readmission.map_err(CallFailure::CircuitOpen)?);
        }
        let permit = context.begin()?;
        let outcome = call::run(permit, Arc::clone(&shared_state), context, self.method, function).await;
        if let Some(usage) = outcome.usage {
            backend.metrics.observe_usage(&usage);
            *backend.last_usage.lock().unwrap_or_else(PoisonError::into_inner) = usage;
        }
        outcome.result
    }

    fn conclude(&mut self, result: Result<(), &CallFailure>) {
        let mut breaker = self.backend.breaker();
        if let Some(permit) = self.breaker_permit.take() {
            match result.err().map_or(BreakerSignal::Success, CallFailure::breaker_signal) {
                BreakerSignal::Success => breaker.record_success(permit),
                BreakerSignal::Failure => breaker.record_failure(permit, Instant::now()),
                BreakerSignal::Ignored => breaker.record_ignored(permit, Instant::now()),
            }
        }
        self.backend.metrics.set_breaker_status(breaker.status());
    }

    fn outcome_label(failure: &CallFailure) -> &'static str {
        failure.label()
    }

    fn storage_error(&self, failure: CallFailure, redactor: &Redactor) -> StorageError {
        failure.into_error(redactor)
    }
}
