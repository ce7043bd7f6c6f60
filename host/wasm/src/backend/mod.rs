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
    breaker::{Breaker, Pass},
    call::{self, End, Function, Parts},
    capabilities::Context,
    digest::Digest,
    engine::Inner,
    inspect::Manifest,
    metrics::DriverMetrics,
    outcome::{Failure, Sign},
    usage::Usage,
};
use cofferdam_backend::{
    Call, Redactor,
    guard::{Guard, Guards, Intent},
};

/// A vendor's component, loaded.
#[derive(Clone)]
pub struct WasmBackend {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Arc<Inner>,
    parts: Arc<Parts>,
    description: Description,
    running: Semaphore,
    waiting: Semaphore,
    guards: Guards,
    breaker: std::sync::Mutex<Breaker>,
    metrics: DriverMetrics,
    last: std::sync::Mutex<Usage>,
}

impl std::fmt::Debug for WasmBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WasmBackend")
            .field("driver", &self.shared.description.name)
            .field("digest", &self.digest())
            .finish_non_exhaustive()
    }
}

/// Makes an answer of what a guest returned, or says which rule of the contract that breaks.
type Accept<T, U> = dyn FnOnce(T, &Redactor) -> Result<U, String> + Send;

/// One call as the methods describe it.
struct Job<T, U> {
    /// CSI's path of the call, which is what the sidecars' metrics are labelled with.
    method: &'static str,
    /// What it is about; absent for calls that change nothing.
    intent: Option<Intent>,
    function: Function<T>,
    accept: Box<Accept<T, U>>,
    /// What the guard remembers of a success.
    remember: fn(&Guard, &U),
}

impl<T, U> Job<T, U> {
    fn new(
        method: &'static str,
        intent: Option<Intent>,
        function: Function<T>,
        accept: impl FnOnce(T, &Redactor) -> Result<U, String> + Send + 'static,
    ) -> Self {
        Self { method, intent, function, accept: Box::new(accept), remember: |_, _| {} }
    }
}

impl WasmBackend {
    pub(crate) fn new(engine: Arc<Inner>, parts: Arc<Parts>, description: Description) -> Self {
        let limits = &parts.limits;
        let metrics = engine.metrics.of(&description.name);
        metrics.state(parts.shared.state.usage());
        metrics.limits(limits);
        if let Some(pool) = &parts.shared.pool {
            pool.observe(metrics.clone());
        }
        let shared = Shared {
            running: Semaphore::new(limits.concurrent_calls),
            waiting: Semaphore::new(limits.queued_calls),
            guards: Guards::default(),
            breaker: std::sync::Mutex::new(Breaker::new(
                limits.breaker_failures,
                Duration::from_millis(limits.breaker_pause_ms),
            )),
            metrics,
            engine,
            parts,
            description,
            last: std::sync::Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The same backend as a second process would have it: the same component, settings and state, with guards and a breaker
    /// of its own. For the conformance suite, which asks what happens when two processes call a driver at once.
    #[must_use]
    pub fn twin(&self) -> Arc<Self> {
        let Shared { engine, parts, description, .. } = &*self.shared;
        Arc::new(Self::new(Arc::clone(engine), Arc::clone(parts), description.clone()))
    }

    /// The driver's name.
    pub fn driver(&self) -> &DriverName {
        &self.shared.description.name
    }

    /// SHA-256 of the component.
    pub fn digest(&self) -> Digest {
        self.shared.parts.compiled.digest
    }

    /// What the component imports and exports.
    pub fn manifest(&self) -> &Manifest {
        &self.shared.parts.compiled.manifest
    }

    /// What the call that ended last used; of calls at the same time it is any.
    pub fn last_usage(&self) -> Usage {
        *self.shared.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keys that the backend keeps through its `state` import, in their order.
    pub fn state_keys(&self) -> Vec<String> {
        self.shared.parts.shared.state.keys()
    }

    /// How many entries the backend keeps through its `state` import, and how many bytes they take.
    pub fn state_usage(&self) -> (usize, usize) {
        self.shared.parts.shared.state.usage()
    }

    /// Runs a call in a task of its own. The task goes on when the caller goes away: the volume stays guarded until the guest
    /// has stopped.
    fn run<T: Send + 'static, U: Send + 'static>(
        &self,
        call: Call,
        job: Job<T, U>,
    ) -> impl Future<Output = Result<U, StorageError>> + Send + 'static {
        let begun = Instant::now();
        let method = job.method;
        let shared = Arc::clone(&self.shared);
        let span = tracing::debug_span!("backend", driver = %self.driver(), method);
        let task = {
            let shared = Arc::clone(&self.shared);
            async move { shared.perform(begun, call, job).await }
        };
        async move {
            shared.engine.guests().spawn(task.instrument(span)).await.unwrap_or_else(|error| {
                let driver = &shared.description.name;
                tracing::error!(%driver, method, %error, "the host failed while it ran a backend");
                shared.conclude(begun, method, None, Err(Failure::Panic))
            })
        }
    }
}

impl Shared {
    async fn perform<T: Send + 'static, U>(
        self: Arc<Self>,
        begun: Instant,
        call: Call,
        job: Job<T, U>,
    ) -> Result<U, StorageError> {
        let Job { method, intent, function, accept, remember } = job;
        let _in_flight = self.metrics.calls().begin();
        let secrets = self.parts.secrets.and(&call.secrets);
        let redactor = Redactor::new(secrets.clone());
        let allowed = call.deadline.min(self.parts.limits.deadline());
        // Bound first: the lock must be free when the refusal is counted.
        let admitted = self.breaker().admit(begun, allowed);
        let pass = match admitted {
            Ok(pass) => pass,
            Err(pause) => return self.conclude(begun, method, None, Err(Failure::Tripped(pause))),
        };
        let guard = match intent.map(|intent| self.guards.take(intent)).transpose() {
            Ok(guard) => guard,
            Err(refusal) => return self.conclude(begun, method, Some(pass), Err(Failure::Guarded(refusal))),
        };
        let context =
            Context { deadline: begun + allowed, secrets, redactor: redactor.clone(), guard: guard.clone() };
        let (end, pass) = self.admitted(context, method, pass, function).await;
        if let Some(usage) = end.usage {
            self.metrics.used(&usage);
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = usage;
        }
        // What breaks the contract is quoted, and may be a secret.
        let accepted =
            |value| accept(value, &redactor).map_err(|reason| Failure::Untrue(redactor.blot_quoted(&reason)));
        let answer = self.conclude(begun, method, pass, end.answer.and_then(accepted));
        let answer = answer.map_err(|error| guard.iter().fold(error, |error, guard| guard.doubt(error)));
        if let Some(guard) = guard {
            guard.settle(answer.as_ref().err());
            if let Ok(value) = &answer {
                remember(&guard, value);
            }
        }
        self.metrics.calls().unsettled(self.guards.unsettled());
        self.metrics.state(self.parts.shared.state.usage());
        answer
    }

    /// Lets a call through to the guest when the limits allow it. The pass is the one that counts when it ends.
    async fn admitted<T: Send + 'static>(
        &self,
        context: Context,
        method: &'static str,
        pass: Pass,
        function: Function<T>,
    ) -> (End<T>, Option<Pass>) {
        let Ok(_place) = self.waiting.try_acquire() else {
            return (End::without_guest(Failure::Overloaded), Some(pass));
        };
        let Ok(Ok(_turn)) = timeout_at(context.deadline, self.running.acquire()).await else {
            return (End::without_guest(Failure::Overloaded), Some(pass));
        };
        // Before anything is said of the volume: who finds no room has not called.
        let _room = match self.parts.room(context.deadline).await {
            Ok(room) => room,
            Err(failure) => return (End::without_guest(failure), Some(pass)),
        };
        let now = Instant::now();
        // The turn may come with the deadline.
        if now >= context.deadline {
            return (End::without_guest(Failure::Overloaded), Some(pass));
        }
        // The calls before this one may have shown that nobody should call.
        let still = self.breaker().admit_again(pass, now, context.deadline - now);
        let pass = match still {
            Ok(pass) => pass,
            Err(pause) => return (End::without_guest(Failure::Tripped(pause)), None),
        };
        if let Some(guard) = &context.guard {
            guard.reach();
        }
        (call::run(Arc::clone(&self.parts), context, method, function).await, Some(pass))
    }

    /// Counts a call's end, tells the breaker, and says what the caller hears.
    fn conclude<U>(
        &self,
        begun: Instant,
        method: &'static str,
        pass: Option<Pass>,
        answer: Result<U, Failure>,
    ) -> Result<U, StorageError> {
        let now = Instant::now();
        {
            let mut breaker = self.breaker();
            if let Some(pass) = pass {
                match answer.as_ref().err().map_or(Sign::Alive, Failure::sign) {
                    Sign::Alive => breaker.succeeded(pass),
                    Sign::Broken => breaker.failed(pass, now),
                    Sign::Unreached => breaker.undecided(pass, now),
                }
            }
            self.metrics.breaker(breaker.position());
        }
        let outcome = answer.as_ref().map_or_else(Failure::label, |_| "ok");
        let answer = answer.map_err(Failure::into_error);
        let code = answer.as_ref().map_or_else(|error| error.kind.as_str(), |_| "OK");
        self.metrics.calls().ended(method, code, outcome, now.saturating_duration_since(begun));
        answer
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
