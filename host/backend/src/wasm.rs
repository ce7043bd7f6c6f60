//! A component as a [`Backend`].

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use cofferdam_domain::{
    DriverName, VolumeHandle,
    storage::{
        CreateVolume, CreatedVolume, Description, Readiness, StorageError, ValidateVolume, Validation,
    },
};
use futures::future::BoxFuture;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};
use tracing::Instrument as _;

use crate::{
    backend::{Backend, Call},
    breaker::Breaker,
    call::{self, End, Function, Parts},
    checks, convert,
    engine::Inner,
    guard::{Guards, Subject},
    inspect::Manifest,
    loader::Digest,
    metrics::DriverMetrics,
    outcome::{Failure, Sign},
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
    digest: Digest,
    manifest: Manifest,
    running: Semaphore,
    waiting: Semaphore,
    guards: Guards,
    breaker: std::sync::Mutex<Breaker>,
    metrics: DriverMetrics,
}

impl std::fmt::Debug for WasmBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WasmBackend")
            .field("driver", &self.shared.description.name)
            .field("digest", &self.shared.digest)
            .finish_non_exhaustive()
    }
}

/// CSI's path of a call, which is what the sidecars' metrics are labelled with.
mod method {
    pub(super) const PROBE: &str = "/csi.v1.Identity/Probe";
    pub(super) const CREATE: &str = "/csi.v1.Controller/CreateVolume";
    pub(super) const DELETE: &str = "/csi.v1.Controller/DeleteVolume";
    pub(super) const VALIDATE: &str = "/csi.v1.Controller/ValidateVolumeCapabilities";
}

impl WasmBackend {
    pub(crate) fn new(
        engine: Arc<Inner>,
        parts: Arc<Parts>,
        description: Description,
        digest: Digest,
        manifest: Manifest,
    ) -> Self {
        let limits = &parts.limits;
        let shared = Shared {
            running: Semaphore::new(limits.concurrent_calls),
            waiting: Semaphore::new(limits.queued_calls),
            guards: Guards::default(),
            breaker: std::sync::Mutex::new(Breaker::new(
                limits.breaker_failures,
                Duration::from_millis(limits.breaker_pause_ms),
            )),
            metrics: engine.metrics.of(&description.name),
            engine,
            parts,
            description,
            digest,
            manifest,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The driver's name.
    pub fn driver(&self) -> &DriverName {
        &self.shared.description.name
    }

    /// SHA-256 of the component.
    pub fn digest(&self) -> Digest {
        self.shared.digest
    }

    /// What the component imports and exports.
    pub fn manifest(&self) -> &Manifest {
        &self.shared.manifest
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
    async fn call<T, U>(
        &self,
        call: Call,
        method: &'static str,
        subject: Option<Subject>,
        function: Function<T>,
        convert: impl FnOnce(T) -> Result<U, Failure> + Send + 'static,
    ) -> Result<U, StorageError>
    where
        T: Send + 'static,
        U: Send + 'static,
    {
        let begun = Instant::now();
        let shared = Arc::clone(&self.shared);
        let span = tracing::debug_span!("backend", driver = %self.driver(), method);
        let task = async move {
            let _in_flight = shared.metrics.begin();
            let end = shared.admitted(begun, call, method, subject, function).await;
            if let Some(bytes) = end.memory {
                shared.metrics.memory(bytes);
            }
            shared.conclude(begun, method, end.answer.and_then(convert))
        };
        self.shared.engine.guests().spawn(task.instrument(span)).await.unwrap_or_else(|error| {
            tracing::error!(driver = %self.driver(), method, %error, "the host failed while it ran a backend");
            self.shared.conclude(begun, method, Err(Failure::Panic))
        })
    }
}

impl Shared {
    /// Lets a call through to the guest when the breaker, the volume and the limits allow it.
    async fn admitted<T>(
        &self,
        begun: Instant,
        call: Call,
        method: &'static str,
        subject: Option<Subject>,
        function: Function<T>,
    ) -> End<T> {
        let allowed = call.deadline.min(self.parts.limits.deadline());
        if let Err(pause) = self.breaker().admit(begun, allowed) {
            return End::without_guest(Failure::Tripped(pause));
        }
        let _guard = match subject.map(|subject| self.guards.take(subject)) {
            Some(None) => return End::without_guest(Failure::Busy),
            Some(guard) => guard,
            None => None,
        };
        let Ok(_place) = self.waiting.try_acquire() else {
            return End::without_guest(Failure::Overloaded);
        };
        let deadline = begun + allowed;
        let Ok(Ok(_turn)) = timeout_at(deadline, self.running.acquire()).await else {
            return End::without_guest(Failure::Overloaded);
        };
        call::run(&self.parts, deadline, method, function).await
    }

    /// Counts a call's end, tells the breaker, and says what the caller hears.
    fn conclude<U>(
        &self,
        begun: Instant,
        method: &'static str,
        answer: Result<U, Failure>,
    ) -> Result<U, StorageError> {
        let now = Instant::now();
        {
            let mut breaker = self.breaker();
            match answer.as_ref().err().map_or(Sign::Alive, Failure::sign) {
                Sign::Alive => breaker.succeeded(),
                Sign::Broken => breaker.failed(now),
                Sign::Unreached => breaker.undecided(now),
                Sign::Refused => {}
            }
            self.metrics.breaker(breaker.position());
        }
        let outcome = answer.as_ref().map_or_else(Failure::label, |_| "ok");
        let answer = answer.map_err(Failure::into_error);
        let code = answer.as_ref().map_or_else(|error| error.kind.as_str(), |_| "OK");
        self.metrics.ended(method, code, outcome, now.saturating_duration_since(begun));
        answer
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for WasmBackend {
    fn description(&self) -> &Description {
        &self.shared.description
    }

    fn probe(&self, call: Call) -> BoxFuture<'_, Result<Readiness, StorageError>> {
        let convert = |readiness| Ok(convert::readiness(readiness));
        Box::pin(self.call(call, method::PROBE, None, call::probe(), convert))
    }

    fn create_volume(
        &self,
        call: Call,
        request: CreateVolume,
    ) -> BoxFuture<'_, Result<CreatedVolume, StorageError>> {
        let subject = Subject::Name(request.name.as_str().into());
        let function = call::create(convert::create_request(request));
        let convert = move |volume| {
            let volume = convert::created(volume).map_err(Failure::Untrue)?;
            checks::created(&volume).map_err(Failure::Untrue)?;
            Ok(volume)
        };
        Box::pin(self.call(call, method::CREATE, Some(subject), function, convert))
    }

    fn delete_volume(&self, call: Call, handle: VolumeHandle) -> BoxFuture<'_, Result<(), StorageError>> {
        let function = call::delete(handle.as_str().to_owned());
        Box::pin(self.call(call, method::DELETE, Some(Subject::Handle(handle)), function, Ok))
    }

    fn validate_volume(
        &self,
        call: Call,
        request: ValidateVolume,
    ) -> BoxFuture<'_, Result<Validation, StorageError>> {
        let function = call::validate(convert::validate_request(request));
        let convert = |validation| Ok(convert::validation(validation));
        Box::pin(self.call(call, method::VALIDATE, None, function, convert))
    }
}
