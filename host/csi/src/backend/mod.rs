//! An existing CSI driver as a [`Backend`](cofferdam_backend::Backend).

mod methods;
mod snapshots;
mod watch;

use std::{fmt, sync::Arc, time::Duration};

use cofferdam_backend::{
    BackendMetrics, Call, CallMetrics, Redactor,
    in_flight::{InFlightTable, OperationPermit, OperationRequest},
};
use cofferdam_domain::{
    DriverName,
    storage::{
        Secrets, StorageError,
        ability::{ControllerCapability, PluginCapability},
    },
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use crate::{
    address::Address,
    connection::{Connection, Options},
    error::ConnectError,
    identity::Identity,
    metrics::ConnectionMetrics,
    status::{Exhausted, Failure},
    wire::Method,
};
use watch::Told;

/// Calls of one driver at once, those of attachments not counted; others wait within their deadline. Few
/// enough for drivers that were written for the sidecars' ten to hundred.
const CONCURRENT: usize = 128;
/// Publications at once, and what takes them back: volumes that hang while they are made hold up no pod.
const ATTACHING: usize = 128;

/// What an existing driver is connected with.
#[derive(Clone, Debug)]
pub struct CsiConfig {
    /// Where it listens.
    pub address: Address,
    /// The driver that has to be there; absent takes whichever answers.
    pub driver: Option<DriverName>,
    /// What the operator gives every call that takes secrets.
    pub secrets: Secrets,
    /// How long one call may take in all. The caller's own deadline may be shorter.
    pub deadline: Duration,
    /// How long to try to connect at first.
    pub connect: Duration,
    /// How long to wait at first for a driver that is not ready; absent for ever, as the sidecars do.
    pub ready: Option<Duration>,
}

impl CsiConfig {
    /// The sidecars' values, for a driver at an address.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            driver: None,
            secrets: Secrets::default(),
            deadline: Duration::from_secs(60),
            connect: Duration::from_secs(30),
            ready: None,
        }
    }
}

/// An existing CSI driver on a unix socket.
pub struct CsiBackend {
    config: CsiConfig,
    identity: Identity,
    connection: Connection,
    guards: InFlightTable,
    running: Semaphore,
    attaching: Semaphore,
    metrics: CallMetrics,
    told: Arc<Told>,
}

impl fmt::Debug for CsiBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CsiBackend")
            .field("driver", &self.identity.description.name)
            .field("address", &self.config.address)
            .finish_non_exhaustive()
    }
}

/// Makes an answer of what a driver sent, or says which rule that breaks.
type Accept<R, U> = Box<dyn FnOnce(R) -> Result<U, String> + Send>;

/// Which calls wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Volumes,
    Attachments,
}

/// One call as the methods describe it.
struct Job<Q, R, U> {
    /// CSI's path of the call.
    path: &'static str,
    /// What it is about; absent for calls that change nothing.
    intent: Option<OperationRequest>,
    request: Q,
    method: Method<Q, R>,
    accept: Accept<R, U>,
    exhausted: Exhausted,
    lane: Lane,
    /// What the guard remembers of a success.
    remember: fn(&OperationPermit, &U),
}

impl<Q, R, U> Job<Q, R, U> {
    fn new(
        path: &'static str,
        intent: Option<OperationRequest>,
        request: Q,
        method: Method<Q, R>,
        accept: impl FnOnce(R) -> Result<U, String> + Send + 'static,
    ) -> Self {
        let accept = Box::new(accept);
        Self {
            path,
            intent,
            request,
            method,
            accept,
            exhausted: Exhausted::Final,
            lane: Lane::Volumes,
            remember: |_, _| {},
        }
    }
}

impl CsiBackend {
    /// Connects to a driver, waits until it is ready, and asks who it is and what it can do. From then on a
    /// lost connection is made anew in the background. Needs a tokio runtime, also later.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub async fn connect(
        config: CsiConfig,
        calls: &BackendMetrics,
        connections: &ConnectionMetrics,
    ) -> Result<Arc<Self>, ConnectError> {
        let options = Options {
            address: config.address.clone(),
            driver: config.driver.clone(),
            answer: config.deadline,
            connect: config.connect,
            ready: config.ready,
            metrics: calls.clone(),
        };
        let (connection, identity) = Connection::open(options, connections).await?;
        Ok(Arc::new(Self {
            metrics: calls.call_metrics(Some(&identity.description.name)),
            config,
            identity,
            connection,
            guards: InFlightTable::default(),
            running: Semaphore::new(CONCURRENT),
            attaching: Semaphore::new(ATTACHING),
            told: Arc::default(),
        }))
    }

    /// The driver's name.
    pub fn driver(&self) -> &DriverName {
        &self.identity.description.name
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.config.address
    }

    /// What the driver says that its controller service can do.
    pub fn controller_capabilities(&self) -> impl Iterator<Item = ControllerCapability> + '_ {
        self.identity.controller.iter().copied()
    }

    /// What the driver says that it has.
    pub fn plugin_capabilities(&self) -> impl Iterator<Item = PluginCapability> + '_ {
        self.identity.plugin.iter().copied()
    }

    /// Waits until the driver is connected and ready, or until it is not.
    pub async fn until_connected(&self, connected: bool) {
        self.connection.until(connected).await;
    }

    /// Makes one call under its guard and its deadline.
    async fn perform<Q, R, U>(&self, call: Call, job: Job<Q, R, U>) -> Result<U, StorageError>
    where
        Q: fmt::Debug,
        R: fmt::Debug,
    {
        let begun = Instant::now();
        let _in_flight = self.metrics.start();
        let Job { path, intent, request, method, accept, exhausted, lane, remember } = job;
        let redactor = Redactor::new(self.config.secrets.merged_with(&call.secrets));
        let guard = match intent.map(|intent| self.guards.acquire(intent)).transpose() {
            Ok(guard) => guard,
            Err(refusal) => {
                let failed = Err(Failure::Guarded(refusal));
                return self.conclude(begun, path, exhausted, &redactor, failed);
            }
        };
        let deadline = begun + call.deadline.min(self.config.deadline);
        let turns = match lane {
            Lane::Volumes => &self.running,
            Lane::Attachments => &self.attaching,
        };
        let answer = match timeout_at(deadline, turns.acquire()).await {
            Ok(Ok(_turn)) => {
                self.exchange(path, deadline, guard.as_deref(), request, method, &redactor).await
            }
            Ok(Err(_)) | Err(_) => Err(Failure::Overloaded),
        };
        let answer = answer.and_then(|answer| accept(answer).map_err(Failure::Untrue));
        let answer = self.conclude(begun, path, exhausted, &redactor, answer);
        let answer =
            answer.map_err(|error| guard.iter().fold(error, |error, guard| guard.keep_in_doubt(error)));
        if let Some(guard) = guard {
            guard.finish(answer.as_ref().err());
            if let Ok(value) = &answer {
                remember(&guard, value);
            }
        }
        self.metrics.set_in_doubt(self.guards.in_doubt_count());
        answer
    }

    async fn exchange<Q, R>(
        &self,
        path: &'static str,
        deadline: Instant,
        guard: Option<&OperationPermit>,
        request: Q,
        method: Method<Q, R>,
        redactor: &Redactor,
    ) -> Result<R, Failure>
    where
        Q: fmt::Debug,
        R: fmt::Debug,
    {
        let wire = self.connection.wire(deadline).await.map_err(Failure::Unconnected)?;
        if Instant::now() >= deadline {
            return Err(Failure::Overloaded);
        }
        if let Some(guard) = guard {
            guard.reached();
        }
        let driver = self.driver();
        tracing::trace!(%driver, method = path, ?request, "CSI call");
        let answer = wire.call(request, deadline, method).await.map_err(Failure::Fault);
        if tracing::enabled!(tracing::Level::TRACE) {
            let shown = redactor.redact_escaped(&format!("{answer:?}"));
            tracing::trace!(%driver, method = path, answer = shown, "CSI answer");
        }
        answer
    }

    /// Counts a call's end, and says what the caller hears.
    fn conclude<U>(
        &self,
        begun: Instant,
        path: &'static str,
        exhausted: Exhausted,
        redactor: &Redactor,
        answer: Result<U, Failure>,
    ) -> Result<U, StorageError> {
        let outcome = answer.as_ref().map_or_else(Failure::label, |_| "ok");
        let answer = answer.map_err(|failure| failure.into_error(exhausted, redactor));
        let code = answer.as_ref().map_or_else(|error| error.kind.as_str(), |_| "OK");
        self.metrics.observe(path, code, outcome, begun.elapsed());
        answer
    }
}
