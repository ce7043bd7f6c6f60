//! One driver's connection over its whole life: it is made, watched, and made again.
//!
//! The Go sidecars end their process when it is lost, to be started again by kubelet. A process that serves
//! other drivers and other roles cannot: as node-driver-registrar does, it tries again, and asks the driver
//! anew who it is before any call goes through.

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
    error::ConnectError,
    grpc::GrpcConnection,
    identity::{CsiIdentity, IdentityError, IdentityQuery},
    metrics::{ConnectionMetrics, DriverConnectionMetrics},
};

/// First pause before the next try; it doubles with each.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
/// Longest pause, as the sidecars' connections have it.
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// Pause between two probes of a driver that is not ready, as in the sidecars.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How often a wait is told in the log, as in the sidecars.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// How long a call waits for a connection: longer than the longest pause, so that it does not fail while a
/// driver that is back has not been tried.
const CONNECTION_WAIT: Duration = Duration::from_secs(2);

/// What a connection is made with.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionOptions {
    pub(crate) address: Address,
    /// The driver that has to be there.
    pub(crate) expected_driver: Option<DriverName>,
    /// How long one answer may take.
    pub(crate) call_timeout: Duration,
    /// How long to try to connect at first.
    pub(crate) connect_timeout: Duration,
    /// How long to wait for a driver that is not ready; absent for ever.
    pub(crate) ready_timeout: Option<Duration>,
    pub(crate) metrics: BackendMetrics,
}

#[derive(Clone, Debug)]
enum ConnectionState {
    Connected(GrpcConnection),
    Disconnected(Arc<str>),
}

/// A driver's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    state: watch::Receiver<ConnectionState>,
    _supervisor: AbortOnDropHandle<()>,
}

/// A connection whose driver has said who it is.
struct DriverSession {
    connection: GrpcConnection,
    closed: AbortOnDropHandle<String>,
    identity: CsiIdentity,
}

/// A session that lasted this long was one: the next loss is met without a long pause.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Pauses between tries, without end.
fn backoff_delays() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(INITIAL_BACKOFF), |delay| Some((*delay * 2).min(MAX_BACKOFF)))
}

impl Connection {
    /// Connects for the first time.
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

    /// The connection, once there is one.
    ///
    /// # Errors
    /// Why there is none, when that takes too long.
    pub(crate) async fn grpc_connection(&self, deadline: Instant) -> Result<GrpcConnection, String> {
        let mut state = self.state.clone();
        let wait_deadline = deadline.min(Instant::now() + CONNECTION_WAIT);
        // A connection that has just ended may not be known as lost yet.
        let is_usable =
            |state: &ConnectionState| matches!(state, ConnectionState::Connected(wire) if !wire.is_closed());
        let current = match timeout_at(wait_deadline, state.wait_for(is_usable)).await {
            Ok(Ok(state)) => state.clone(),
            // Still down, or the supervisor is gone with the process.
            Ok(Err(_)) | Err(_) => self.state.borrow().clone(),
        };
        match current {
            ConnectionState::Connected(wire) if wire.is_closed() => Err("the connection is lost".to_owned()),
            ConnectionState::Connected(wire) => Ok(wire),
            ConnectionState::Disconnected(reason) => Err(reason.to_string()),
        }
    }

    /// Waits until the connection is there, or until it is not.
    pub(crate) async fn wait_until(&self, is_connected: bool) {
        // An error means that the process ends.
        let _ = self
            .state
            .clone()
            .wait_for(|state| matches!(state, ConnectionState::Connected(_)) == is_connected)
            .await;
    }
}

impl ConnectionOptions {
    /// The first session. Whoever does not listen yet is waited for; whoever answers with a refusal is not.
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

    /// Connects, waits until the driver is ready, and asks who it is.
    async fn open_session(&self, ready_timeout: Option<Duration>) -> Result<DriverSession, IdentityError> {
        let (connection, closed) =
            GrpcConnection::connect(&self.address).await.map_err(IdentityError::ConnectionLost)?;
        let closed = AbortOnDropHandle::new(tokio::spawn(closed));
        let identity_query =
            IdentityQuery { connection: &connection, timeout: self.call_timeout, metrics: &self.metrics };
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

    /// Watches a session, and makes the next one when it ends; for ever.
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
            tracing::info!(%driver, version = session.identity.description.version, "connected to the CSI driver");
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

    /// The next session of the same driver.
    async fn reconnect(
        &self,
        expected: &CsiIdentity,
        state: &watch::Sender<ConnectionState>,
        delays: &mut impl Iterator<Item = Duration>,
    ) -> DriverSession {
        loop {
            sleep(delays.next().unwrap_or(MAX_BACKOFF)).await;
            // A driver that starts slowly is looked at again on a new connection, so that the state tells of
            // it.
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

/// Tells of a driver that came back with other capabilities: what is offered here was fixed when it was
/// connected first.
fn warn_if_capabilities_changed(before: &CsiIdentity, now: &CsiIdentity) {
    if (&before.controller_capabilities, &before.plugin_capabilities)
        != (&now.controller_capabilities, &now.plugin_capabilities)
    {
        let driver = &before.description.name;
        tracing::warn!(%driver, "the CSI driver has other capabilities than before: they count from the next start on");
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
