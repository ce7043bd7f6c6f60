//! The connection to one driver: established, supervised and re-established.
//!
//! The Go sidecars exit when the connection is lost, and kubelet restarts them. A process that serves other
//! drivers cannot. Like node-driver-registrar, it reconnects and identifies the driver again before other
//! calls are sent.

use std::{os::unix::fs::FileTypeExt as _, sync::Arc, time::Duration};

use cofferdam_backend::{BackendMetrics, checks::printable};
use cofferdam_domain::DriverName;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    address::Address,
    error::{ConnectError, NotConnected},
    grpc::GrpcConnection,
    identity::{CsiIdentity, IdentityError, IdentityQuery},
    metrics::{ConnectionMetrics, DriverConnectionMetrics},
};

/// Initial delay between attempts to connect. It doubles with each attempt, up to [`MAX_BACKOFF`].
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum delay between attempts to connect, as in the sidecars.
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// Delay between a Probe that a driver answered as not ready, or that timed out, and the next one on the same
/// connection, as in the sidecars. Used for the first connection only.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between log messages while the first connection waits for the driver, as in the sidecars.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum time that a call waits for a connection. Longer than the maximum backoff, so that a restarted
/// driver gets at least one attempt.
const CONNECTION_WAIT: Duration = Duration::from_secs(2);

/// Options of a connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionOptions {
    pub(crate) address: Address,
    /// The expected driver name; `None` for any driver.
    pub(crate) expected_driver: Option<DriverName>,
    /// Timeout of each call that identifies the driver.
    pub(crate) identity_timeout: Duration,
    /// Maximum time for which the first connection is attempted.
    pub(crate) connect_timeout: Duration,
    /// Maximum wait for readiness on the first connection; `None` for no limit.
    pub(crate) ready_timeout: Option<Duration>,
    pub(crate) metrics: BackendMetrics,
}

#[derive(Clone, Debug)]
enum ConnectionState {
    Connected(GrpcConnection),
    Disconnected(Arc<str>),
}

/// A supervised connection to one driver.
#[derive(Debug)]
pub(crate) struct Connection {
    state: watch::Receiver<ConnectionState>,
    _supervisor: AbortOnDropHandle<()>,
}

/// An established connection to an identified driver.
struct DriverSession {
    connection: GrpcConnection,
    closed: AbortOnDropHandle<String>,
    identity: CsiIdentity,
}

/// A session of at least this duration resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Returns the delays between attempts. The sequence is endless.
fn backoff_delays() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(INITIAL_BACKOFF), |delay| Some((*delay * 2).min(MAX_BACKOFF)))
}

impl Connection {
    /// Establishes the first connection and starts its supervisor.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub(crate) async fn open(
        options: ConnectionOptions,
        metrics: &ConnectionMetrics,
    ) -> Result<(Self, CsiIdentity), ConnectError> {
        let session = options.open_first_session().await?;
        let identity = session.identity.clone();
        let driver = identity.description.name.clone();
        let options = ConnectionOptions { expected_driver: Some(driver.clone()), ..options };
        let (sender, state) = watch::channel(ConnectionState::Connected(session.connection.clone()));
        let supervisor = tokio::spawn(options.supervise(session, sender, metrics.driver_metrics(&driver)));
        Ok((Self { state, _supervisor: AbortOnDropHandle::new(supervisor) }, identity))
    }

    /// Waits for a usable connection.
    ///
    /// # Errors
    /// [`NotConnected`] after [`CONNECTION_WAIT`] or at the deadline.
    pub(crate) async fn grpc_connection(&self, deadline: Instant) -> Result<GrpcConnection, NotConnected> {
        let mut state = self.state.clone();
        let wait_deadline = deadline.min(Instant::now() + CONNECTION_WAIT);
        // The supervisor may not have noticed a lost connection yet.
        let is_usable = |state: &ConnectionState| match state {
            ConnectionState::Connected(connection) => !connection.is_closed(),
            ConnectionState::Disconnected(_) => false,
        };
        let current = match timeout_at(wait_deadline, state.wait_for(is_usable)).await {
            Ok(Ok(state)) => state.clone(),
            // Still disconnected, or the supervisor has stopped.
            Ok(Err(_)) | Err(_) => self.state.borrow().clone(),
        };
        match current {
            ConnectionState::Connected(connection) if connection.is_closed() => {
                Err(NotConnected { reason: "the connection is lost".into() })
            }
            ConnectionState::Connected(connection) => Ok(connection),
            ConnectionState::Disconnected(reason) => Err(NotConnected { reason }),
        }
    }

    /// Waits until the driver is connected, or, if `is_connected` is false, until it is disconnected.
    pub(crate) async fn wait_until(&self, is_connected: bool) {
        // An error means that the process is exiting.
        let _ = self
            .state
            .clone()
            .wait_for(|state| matches!(state, ConnectionState::Connected(_)) == is_connected)
            .await;
    }
}

impl ConnectionOptions {
    /// Opens the first session. Repeats lost and refused connections, and temporary failures of
    /// NodeGetCapabilities, until `connect_timeout`. Returns `NotReady` after `ready_timeout`. Returns all
    /// other errors immediately: other failed calls, an invalid description, another driver's name, and a
    /// path that is not a socket.
    async fn open_first_session(&self) -> Result<DriverSession, ConnectError> {
        let started = Instant::now();
        let mut last_logged = started;
        let mut delays = backoff_delays();
        loop {
            let address = self.address.clone();
            let (reason, elapsed) = match self.open_session(self.ready_timeout).await {
                Ok(session) => return self.check_driver_name(session),
                Err(IdentityError::ConnectionLost(reason)) => (reason, started.elapsed()),
                Err(IdentityError::NotReady(reason)) => {
                    return Err(ConnectError::NotReady { address, elapsed: started.elapsed(), reason });
                }
                Err(IdentityError::CallFailed(method, source)) => {
                    return Err(ConnectError::CallFailed { address, method, source });
                }
                Err(IdentityError::InvalidResponse(reason)) => {
                    return Err(ConnectError::InvalidIdentity { address, reason });
                }
            };
            if self.is_not_a_socket() {
                return Err(ConnectError::NotASocket { address });
            }
            if elapsed >= self.connect_timeout {
                return Err(ConnectError::Unreachable { address, elapsed, reason });
            }
            if last_logged.elapsed() >= LOG_INTERVAL {
                last_logged = Instant::now();
                tracing::warn!(%address, %reason, "still waiting for the CSI driver");
            }
            sleep(delays.next().unwrap_or(MAX_BACKOFF).min(self.connect_timeout - elapsed)).await;
        }
    }

    fn is_not_a_socket(&self) -> bool {
        std::fs::metadata(self.address.path()).is_ok_and(|metadata| !metadata.file_type().is_socket())
    }

    fn check_driver_name(&self, session: DriverSession) -> Result<DriverSession, ConnectError> {
        let driver = &session.identity.description.name;
        match &self.expected_driver {
            Some(expected) if expected != driver => Err(ConnectError::WrongDriver {
                address: self.address.clone(),
                found: driver.clone(),
                expected: expected.clone(),
            }),
            Some(_) | None => Ok(session),
        }
    }

    /// Connects, waits for readiness and identifies the driver.
    async fn open_session(&self, ready_timeout: Option<Duration>) -> Result<DriverSession, IdentityError> {
        let (connection, closed) = GrpcConnection::connect(&self.address)
            .await
            .map_err(|error| IdentityError::ConnectionLost(error.to_string()))?;
        let closed = AbortOnDropHandle::new(tokio::spawn(closed));
        let identity_query =
            IdentityQuery { connection: &connection, timeout: self.identity_timeout, metrics: &self.metrics };
        let started = Instant::now();
        let mut last_logged = started;
        loop {
            match identity_query.probe(self.expected_driver.as_ref()).await {
                Ok(()) => break,
                Err(IdentityError::NotReady(reason)) => {
                    if ready_timeout.is_some_and(|ready_timeout| started.elapsed() >= ready_timeout) {
                        return Err(IdentityError::NotReady(reason));
                    }
                    if last_logged == started || last_logged.elapsed() >= LOG_INTERVAL {
                        last_logged = Instant::now();
                        tracing::warn!(address = %self.address, %reason, "the CSI driver is not ready");
                    }
                }
                Err(error) => return Err(error),
            }
            sleep(PROBE_INTERVAL).await;
        }
        let identity = identity_query.fetch_identity().await?;
        Ok(DriverSession { connection, closed, identity })
    }

    /// Supervises the session and re-establishes it whenever it ends. Never returns.
    async fn supervise(
        self,
        mut session: DriverSession,
        state: watch::Sender<ConnectionState>,
        metrics: DriverConnectionMetrics,
    ) {
        let expected = session.identity.clone();
        let driver = &expected.description.name;
        let mut delays = backoff_delays();
        loop {
            let connected_at = Instant::now();
            metrics.set_connected();
            let version = &session.identity.description.version;
            tracing::info!(%driver, version, "connected to the CSI driver");
            let reason = session.closed.await.unwrap_or_else(|error| error.to_string());
            metrics.count_lost_connection();
            let reason = printable(&reason);
            tracing::warn!(%driver, %reason, "lost connection to the CSI driver");
            state.send_replace(ConnectionState::Disconnected(
                format!("the connection is lost: {reason}").into(),
            ));
            if connected_at.elapsed() >= STABLE_AFTER {
                delays = self::backoff_delays();
            }
            session = self.reconnect(&expected, &state, &mut delays).await;
            state.send_replace(ConnectionState::Connected(session.connection.clone()));
        }
    }

    /// Opens a new session with the same driver. Retries until it succeeds.
    async fn reconnect(
        &self,
        expected: &CsiIdentity,
        state: &watch::Sender<ConnectionState>,
        delays: &mut impl Iterator<Item = Duration>,
    ) -> DriverSession {
        loop {
            sleep(delays.next().unwrap_or(MAX_BACKOFF)).await;
            // A driver that is not ready is probed on a new connection, so that the state shows the reason.
            let reason = match self.open_session(Some(Duration::ZERO)).await {
                Ok(session) => match self.check_driver_name(session) {
                    Ok(session) => {
                        warn_if_capabilities_changed(expected, &session.identity);
                        return session;
                    }
                    Err(wrong_driver) => wrong_driver.to_string(),
                },
                Err(IdentityError::ConnectionLost(reason) | IdentityError::InvalidResponse(reason)) => reason,
                Err(IdentityError::NotReady(reason)) => format!("not ready: {reason}"),
                Err(IdentityError::CallFailed(method, error)) => format!("{method} failed: {error}"),
            };
            let reason = printable(&reason);
            tracing::debug!(address = %self.address, %reason, "not connected to the CSI driver");
            state.send_replace(ConnectionState::Disconnected(reason.into()));
        }
    }
}

/// Warns if the driver's controller or plugin capabilities changed. The backend keeps the abilities of the
/// first connection.
fn warn_if_capabilities_changed(before: &CsiIdentity, now: &CsiIdentity) {
    if (&before.controller_capabilities, &before.plugin_capabilities)
        != (&now.controller_capabilities, &now.plugin_capabilities)
    {
        let driver = &before.description.name;
        tracing::warn!(
            %driver,
            "the CSI driver's capabilities have changed; restart this process to use the new ones"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconnect_backoff_doubles_up_to_one_second() {
        let delays: Vec<_> = backoff_delays().take(6).map(|delay| delay.as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1_000, 1_000]);
        assert!(CONNECTION_WAIT > MAX_BACKOFF);
    }
}
