//! An existing CSI driver as a [`Backend`](cofferdam_backend::Backend).

mod methods;
mod response_warnings;
mod snapshots;

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use cofferdam_backend::{
    BackendMetrics, Call, CallContext, CallRunner, CallSpec, ConcurrencyLimit, Exchange, Redactor,
};
use cofferdam_domain::{
    DriverName,
    storage::{
        Secrets, StorageError,
        ability::{ControllerCapability, PluginCapability},
    },
    term::Permit,
};
use tokio::time::Instant;

use crate::{
    address::Address,
    connection::{Connection, ConnectionOptions},
    error::ConnectError,
    grpc::{GrpcConnection, GrpcMethod},
    identity::CsiIdentity,
    metrics::ConnectionMetrics,
    status::{CsiCallFailure, ResourceExhaustedMeaning, RpcError},
};
use response_warnings::WarningsLogged;

/// Maximum concurrent calls of one driver, except publish and unpublish calls. Further calls wait for the end
/// of another one, at most until their deadline. The sidecars' limits are 10 to 100.
const MAX_VOLUME_CALLS: usize = 128;
/// Maximum concurrent publish and unpublish calls. They have a limit of their own: hanging creations must not
/// block pods.
const MAX_PUBLISH_CALLS: usize = 128;

/// Connection options of an existing driver.
#[derive(Clone, Debug)]
pub struct CsiConfig {
    /// The driver's socket.
    pub address: Address,
    /// The expected driver; any driver if absent.
    pub expected_driver: Option<DriverName>,
    /// Secrets that the operator configured. They are sent with each call whose message has secrets, together
    /// with the secrets of the call, which take precedence.
    pub secrets: Secrets,
    /// Maximum duration of a call. The caller's deadline may be shorter.
    pub call_timeout: Duration,
    /// Timeout of each call that identifies the driver.
    pub identity_timeout: Duration,
    /// Maximum time for which the first connection is attempted.
    pub connect_timeout: Duration,
    /// Maximum wait for a driver that is not ready, at the first connection; unlimited if absent, as in the
    /// sidecars.
    pub ready_timeout: Option<Duration>,
}

impl CsiConfig {
    /// Creates the options of a driver at an address: any driver name, no secrets, 60 s for a call, 30 s for
    /// the first connection, and no limit for readiness.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            expected_driver: None,
            secrets: Secrets::default(),
            call_timeout: Duration::from_secs(60),
            identity_timeout: Duration::from_secs(60),
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
    runner: CallRunner,
    volume_calls: ConcurrencyLimit,
    publish_calls: ConcurrencyLimit,
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

/// Selects the concurrency limit of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CsiCallQueue {
    Volumes,
    Publishing,
}

/// One request with its gRPC method.
struct CsiRequest<Q, R> {
    message: Q,
    method: GrpcMethod<Q, R>,
    resource_exhausted: ResourceExhaustedMeaning,
    queue: CsiCallQueue,
}

impl<Q, R> CsiRequest<Q, R> {
    fn new(message: Q, method: GrpcMethod<Q, R>) -> Self {
        Self {
            message,
            method,
            resource_exhausted: ResourceExhaustedMeaning::Final,
            queue: CsiCallQueue::Volumes,
        }
    }

    /// Marks the request's ResourceExhausted status as not final: the driver may still be working.
    fn with_resource_exhausted_in_doubt(self) -> Self {
        Self { resource_exhausted: ResourceExhaustedMeaning::InDoubt, ..self }
    }

    /// Puts the request under the concurrency limit of publish and unpublish calls.
    fn in_publish_queue(self) -> Self {
        Self { queue: CsiCallQueue::Publishing, ..self }
    }
}

impl CsiBackend {
    /// Connects to a driver, waits until it is ready, and reads its identity and capabilities. A lost
    /// connection is re-established in the background. Requires a tokio runtime for the backend's whole
    /// lifetime.
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
            identity_timeout: config.identity_timeout,
            connect_timeout: config.connect_timeout,
            ready_timeout: config.ready_timeout,
            metrics: calls.clone(),
        };
        let (connection, identity) = Connection::open(options, connections).await?;
        Ok(Arc::new(Self {
            runner: CallRunner::new(
                config.secrets.clone(),
                config.call_timeout,
                calls.call_metrics(Some(&identity.description.name)),
            ),
            config,
            identity,
            connection,
            volume_calls: ConcurrencyLimit::new(MAX_VOLUME_CALLS),
            publish_calls: ConcurrencyLimit::new(MAX_PUBLISH_CALLS),
            warnings_logged: Arc::default(),
        }))
    }

    /// Replaces the secrets that the operator configured. Calls that have started keep theirs.
    pub fn replace_secrets(&self, secrets: Secrets) {
        self.runner.replace_secrets(secrets);
    }

    /// The driver's name.
    pub fn driver(&self) -> &DriverName {
        &self.identity.description.name
    }

    /// The driver's socket.
    pub fn address(&self) -> &Address {
        &self.config.address
    }

    /// Capabilities that the driver's controller service announces.
    pub fn controller_capabilities(&self) -> impl Iterator<Item = ControllerCapability> + '_ {
        self.identity.controller_capabilities.iter().copied()
    }

    /// Capabilities that the driver's identity service announces.
    pub fn plugin_capabilities(&self) -> impl Iterator<Item = PluginCapability> + '_ {
        self.identity.plugin_capabilities.iter().copied()
    }

    /// Waits until the driver is connected and ready, or, if `connected` is false, until it is not.
    pub async fn wait_connected(&self, connected: bool) {
        self.connection.wait_until(connected).await;
    }

    /// Runs one call.
    async fn call<Q, R, U>(
        &self,
        call: Call,
        spec: CallSpec<R, U>,
        request: CsiRequest<Q, R>,
    ) -> Result<U, StorageError>
    where
        Q: fmt::Debug + Send,
        R: fmt::Debug + Send,
    {
        let limit = match request.queue {
            CsiCallQueue::Volumes => &self.volume_calls,
            CsiCallQueue::Publishing => &self.publish_calls,
        };
        let exchange = GrpcExchange {
            backend: self,
            path: spec.method(),
            resource_exhausted: request.resource_exhausted,
            messages: PhantomData,
        };
        self.runner.run(Instant::now(), call, spec, limit, exchange, request).await
    }
}

/// Sends a request and waits for its response.
async fn begin_call<Q, R>(
    _: Permit,
    connection: GrpcConnection,
    message: Q,
    deadline: Instant,
    method: GrpcMethod<Q, R>,
) -> Result<R, RpcError> {
    connection.call(message, deadline, method).await
}

/// A gRPC exchange with the driver.
struct GrpcExchange<'a, Q, R> {
    backend: &'a CsiBackend,
    path: &'static str,
    resource_exhausted: ResourceExhaustedMeaning,
    messages: PhantomData<fn(Q) -> R>,
}

impl<Q, R> Exchange for GrpcExchange<'_, Q, R>
where
    Q: fmt::Debug + Send,
    R: fmt::Debug + Send,
{
    type Request = CsiRequest<Q, R>;
    type Response = R;
    type Failure = CsiCallFailure;

    async fn perform(
        &mut self,
        context: CallContext,
        request: CsiRequest<Q, R>,
    ) -> Result<R, CsiCallFailure> {
        let (backend, path, deadline) = (self.backend, self.path, context.deadline);
        let connection = backend
            .connection
            .grpc_connection(deadline)
            .await
            .map_err(|error| CsiCallFailure::NotConnected(error.to_string()))?;
        if Instant::now() >= deadline {
            return Err(CsiCallFailure::Overloaded);
        }
        let permit = context.begin()?;
        connection.set_term(context.term.clone());
        let CsiRequest { message, method, .. } = request;
        let driver = backend.driver();
        tracing::trace!(%driver, method = path, request = ?message, "CSI call");
        let result = begin_call(permit, connection, message, deadline, method).await;
        let result = result.map_err(CsiCallFailure::Rpc);
        if tracing::enabled!(tracing::Level::TRACE) {
            let response = context.redactor.redact(&format!("{result:?}")).into_owned();
            tracing::trace!(%driver, method = path, response, "CSI response");
        }
        result
    }

    fn outcome_label(failure: &CsiCallFailure) -> &'static str {
        failure.label()
    }

    fn storage_error(&self, failure: CsiCallFailure, redactor: &Redactor) -> StorageError {
        failure.into_error(self.resource_exhausted, redactor)
    }
}
