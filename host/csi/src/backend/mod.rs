//! An existing CSI driver as a [`Backend`](cofferdam_backend::Backend).

mod methods;
mod response_warnings;
mod snapshots;

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
    connection::{Connection, ConnectionOptions},
    error::ConnectError,
    grpc::GrpcMethod,
    identity::CsiIdentity,
    metrics::ConnectionMetrics,
    status::{CsiCallFailure, ResourceExhaustedMeaning},
};
use response_warnings::WarningsLogged;

/// Calls of one driver at once, those of attachments not counted; others wait within their deadline. Few
/// enough for drivers that were written for the sidecars' ten to hundred.
const MAX_VOLUME_CALLS: usize = 128;
/// Publications at once, and what takes them back: volumes that hang while they are made hold up no pod.
const MAX_PUBLISH_CALLS: usize = 128;

/// What an existing driver is connected with.
#[derive(Clone, Debug)]
pub struct CsiConfig {
    /// Where it listens.
    pub address: Address,
    /// The driver that has to be there; absent takes whichever answers.
    pub expected_driver: Option<DriverName>,
    /// What the operator gives every call that takes secrets.
    pub secrets: Secrets,
    /// How long one call may take in all. The caller's own deadline may be shorter.
    pub call_timeout: Duration,
    /// How long to try to connect at first.
    pub connect_timeout: Duration,
    /// How long to wait at first for a driver that is not ready; absent for ever, as the sidecars do.
    pub ready_timeout: Option<Duration>,
}

impl CsiConfig {
    /// The sidecars' values, for a driver at an address.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            expected_driver: None,
            secrets: Secrets::default(),
            call_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(30),
            ready_timeout: None,
        }
    }
}

/// An existing CSI driver on a unix socket.
pub struct CsiBackend {
    config: CsiConfig,
    identity: CsiIdentity,
    connection: Connection,
    in_flight: InFlightTable,
    volume_permits: Semaphore,
    publish_permits: Semaphore,
    metrics: CallMetrics,
    warnings_logged: Arc<WarningsLogged>,
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
type CsiResponseConverter<R, U> = Box<dyn FnOnce(R) -> Result<U, String> + Send>;

/// Which calls wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CsiCallQueue {
    Volumes,
    Publishing,
}

/// One call as the methods describe it.
struct CsiCallSpec<Q, R, U> {
    /// CSI's path of the call.
    path: &'static str,
    /// What it is about; absent for calls that change nothing.
    operation: Option<OperationRequest>,
    request: Q,
    method: GrpcMethod<Q, R>,
    convert: CsiResponseConverter<R, U>,
    resource_exhausted: ResourceExhaustedMeaning,
    queue: CsiCallQueue,
    /// What the guard remembers of a success.
    on_success: fn(&OperationPermit, &U),
}

impl<Q, R, U> CsiCallSpec<Q, R, U> {
    fn new(
        path: &'static str,
        operation: Option<OperationRequest>,
        request: Q,
        method: GrpcMethod<Q, R>,
        convert: impl FnOnce(R) -> Result<U, String> + Send + 'static,
    ) -> Self {
        let convert = Box::new(convert);
        Self {
            path,
            operation,
            request,
            method,
            convert,
            resource_exhausted: ResourceExhaustedMeaning::Final,
            queue: CsiCallQueue::Volumes,
            on_success: |_, _| {},
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
        let options = ConnectionOptions {
            address: config.address.clone(),
            expected_driver: config.expected_driver.clone(),
            call_timeout: config.call_timeout,
            connect_timeout: config.connect_timeout,
            ready_timeout: config.ready_timeout,
            metrics: calls.clone(),
        };
        let (connection, identity) = Connection::open(options, connections).await?;
        Ok(Arc::new(Self {
            metrics: calls.call_metrics(Some(&identity.description.name)),
            config,
            identity,
            connection,
            in_flight: InFlightTable::default(),
            volume_permits: Semaphore::new(MAX_VOLUME_CALLS),
            publish_permits: Semaphore::new(MAX_PUBLISH_CALLS),
            warnings_logged: Arc::default(),
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
        self.identity.controller_capabilities.iter().copied()
    }

    /// What the driver says that it has.
    pub fn plugin_capabilities(&self) -> impl Iterator<Item = PluginCapability> + '_ {
        self.identity.plugin_capabilities.iter().copied()
    }

    /// Waits until the driver is connected and ready, or until it is not.
    pub async fn wait_connected(&self, connected: bool) {
        self.connection.wait_until(connected).await;
    }

    /// Makes one call under its guard and its deadline.
    async fn call<Q, R, U>(&self, call: Call, spec: CsiCallSpec<Q, R, U>) -> Result<U, StorageError>
    where
        Q: fmt::Debug,
        R: fmt::Debug,
    {
        let started = Instant::now();
        let _in_flight = self.metrics.start();
        let CsiCallSpec { path, operation, request, method, convert, resource_exhausted, queue, on_success } =
            spec;
        let redactor = Redactor::new(self.config.secrets.merged_with(&call.secrets));
        let permit = match operation.map(|operation| self.in_flight.acquire(operation)).transpose() {
            Ok(permit) => permit,
            Err(conflict) => {
                let failure = Err(CsiCallFailure::Conflict(conflict));
                return self.finish_call(started, path, resource_exhausted, &redactor, failure);
            }
        };
        let deadline = started + call.deadline.min(self.config.call_timeout);
        let semaphore = match queue {
            CsiCallQueue::Volumes => &self.volume_permits,
            CsiCallQueue::Publishing => &self.publish_permits,
        };
        let result = match timeout_at(deadline, semaphore.acquire()).await {
            Ok(Ok(_queue_permit)) => {
                self.send(path, deadline, permit.as_deref(), request, method, &redactor).await
            }
            Ok(Err(_)) | Err(_) => Err(CsiCallFailure::Overloaded),
        };
        let result = result.and_then(|result| convert(result).map_err(CsiCallFailure::ContractViolation));
        let result = self.finish_call(started, path, resource_exhausted, &redactor, result);
        let result =
            result.map_err(|error| permit.iter().fold(error, |error, permit| permit.keep_in_doubt(error)));
        if let Some(permit) = permit {
            permit.finish(result.as_ref().err());
            if let Ok(value) = &result {
                on_success(&permit, value);
            }
        }
        self.metrics.set_in_doubt(self.in_flight.in_doubt_count());
        result
    }

    async fn send<Q, R>(
        &self,
        path: &'static str,
        deadline: Instant,
        operation_permit: Option<&OperationPermit>,
        request: Q,
        method: GrpcMethod<Q, R>,
        redactor: &Redactor,
    ) -> Result<R, CsiCallFailure>
    where
        Q: fmt::Debug,
        R: fmt::Debug,
    {
        let connection = self
            .connection
            .grpc_connection(deadline)
            .await
            .map_err(|error| CsiCallFailure::NotConnected(error.to_string()))?;
        if Instant::now() >= deadline {
            return Err(CsiCallFailure::Overloaded);
        }
        if let Some(operation_permit) = operation_permit {
            operation_permit.reached();
        }
        let driver = self.driver();
        tracing::trace!(%driver, method = path, ?request, "CSI call");
        let result = connection.call(request, deadline, method).await.map_err(CsiCallFailure::Rpc);
        if tracing::enabled!(tracing::Level::TRACE) {
            let redacted = redactor.redact_escaped(&format!("{result:?}"));
            tracing::trace!(%driver, method = path, answer = redacted, "CSI answer");
        }
        result
    }

    /// Counts a call's end, and says what the caller hears.
    fn finish_call<U>(
        &self,
        started: Instant,
        path: &'static str,
        resource_exhausted: ResourceExhaustedMeaning,
        redactor: &Redactor,
        result: Result<U, CsiCallFailure>,
    ) -> Result<U, StorageError> {
        let outcome = result.as_ref().map_or_else(CsiCallFailure::label, |_| "ok");
        let result = result.map_err(|failure| failure.into_error(resource_exhausted, redactor));
        let code = result.as_ref().map_or_else(|error| error.kind.as_str(), |_| "OK");
        self.metrics.observe(path, code, outcome, started.elapsed());
        result
    }
}
