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
    identity::{Identity, Questions, Unfit},
    metrics::{ConnectionMetrics, DriverConnection},
    wire::Wire,
};

/// First pause before the next try; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause, as the sidecars' connections have it.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Pause between two probes of a driver that is not ready, as in the sidecars.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
/// How often a wait is told in the log, as in the sidecars.
const TELL: Duration = Duration::from_secs(10);
/// How long a call waits for a connection: longer than the longest pause, so that it does not fail while a
/// driver that is back has not been tried.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a connection is made with.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) address: Address,
    /// The driver that has to be there.
    pub(crate) driver: Option<DriverName>,
    /// How long one answer may take.
    pub(crate) answer: Duration,
    /// How long to try to connect at first.
    pub(crate) connect: Duration,
    /// How long to wait for a driver that is not ready; absent for ever.
    pub(crate) ready: Option<Duration>,
    pub(crate) metrics: BackendMetrics,
}

#[derive(Clone, Debug)]
enum State {
    Up(Wire),
    Down(Arc<str>),
}

/// A driver's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    state: watch::Receiver<State>,
    _supervisor: AbortOnDropHandle<()>,
}

/// A connection whose driver has said who it is.
struct Session {
    wire: Wire,
    closed: AbortOnDropHandle<String>,
    identity: Identity,
}

/// A session that lasted this long was one: the next loss is met without a long pause.
const STEADY: Duration = Duration::from_secs(10);

/// Pauses between tries, without end.
fn pauses() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(FIRST_PAUSE), |pause| Some((*pause * 2).min(LONGEST_PAUSE)))
}

impl Connection {
    /// Connects for the first time.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub(crate) async fn open(
        options: Options,
        metrics: &ConnectionMetrics,
    ) -> Result<(Self, Identity), ConnectError> {
        let session = options.first().await?;
        let identity = session.identity.clone();
        let driver = identity.description.name.clone();
        let options = Options { driver: Some(driver.clone()), ..options };
        let (sender, state) = watch::channel(State::Up(session.wire.clone()));
        let supervisor = tokio::spawn(options.supervise(session, sender, metrics.of(&driver)));
        Ok((Self { state, _supervisor: AbortOnDropHandle::new(supervisor) }, identity))
    }

    /// The connection, once there is one.
    ///
    /// # Errors
    /// Why there is none, when that takes too long.
    pub(crate) async fn wire(&self, deadline: Instant) -> Result<Wire, String> {
        let mut state = self.state.clone();
        let until = deadline.min(Instant::now() + PATIENCE);
        // A connection that has just ended may not be known as lost yet.
        let up = |state: &State| matches!(state, State::Up(wire) if !wire.is_closed());
        let found = match timeout_at(until, state.wait_for(up)).await {
            Ok(Ok(state)) => state.clone(),
            // Still down, or the supervisor is gone with the process.
            Ok(Err(_)) | Err(_) => self.state.borrow().clone(),
        };
        match found {
            State::Up(wire) if wire.is_closed() => Err("the connection is lost".to_owned()),
            State::Up(wire) => Ok(wire),
            State::Down(reason) => Err(reason.to_string()),
        }
    }

    /// Waits until the connection is there, or until it is not.
    pub(crate) async fn until(&self, up: bool) {
        // An error means that the process ends.
        let _ = self.state.clone().wait_for(|state| matches!(state, State::Up(_)) == up).await;
    }
}

impl Options {
    /// The first session. Whoever does not listen yet is waited for; whoever answers with a refusal is not.
    async fn first(&self) -> Result<Session, ConnectError> {
        let begun = Instant::now();
        let mut told = begun;
        let mut pauses = pauses();
        loop {
            let address = self.address.clone();
            let (reason, waited) = match self.session(self.ready).await {
                Ok(session) => return self.of_this_name(session),
                Err(Unfit::Broken(reason)) => (reason, begun.elapsed()),
                Err(Unfit::NotReady(reason)) => {
                    return Err(ConnectError::NotReady { address, waited: begun.elapsed(), reason });
                }
                Err(Unfit::Refused(method, source)) => {
                    return Err(ConnectError::Refused { address, method, source });
                }
                Err(Unfit::Untrue(reason)) => return Err(ConnectError::Description { address, reason }),
            };
            if self.is_no_socket() {
                return Err(ConnectError::NoSocket { address });
            }
            if waited >= self.connect {
                return Err(ConnectError::Unreachable { address, waited, reason });
            }
            if told.elapsed() >= TELL {
                told = Instant::now();
                tracing::warn!(%address, %reason, "still waiting for the CSI driver");
            }
            sleep(pauses.next().unwrap_or(LONGEST_PAUSE).min(self.connect - waited)).await;
        }
    }

    fn is_no_socket(&self) -> bool {
        std::fs::metadata(self.address.path()).is_ok_and(|found| !found.file_type().is_socket())
    }

    fn of_this_name(&self, session: Session) -> Result<Session, ConnectError> {
        let found = &session.identity.description.name;
        match &self.driver {
            Some(expected) if expected != found => Err(ConnectError::Name {
                address: self.address.clone(),
                found: found.clone(),
                expected: expected.clone(),
            }),
            Some(_) | None => Ok(session),
        }
    }

    /// Connects, waits until the driver is ready, and asks who it is.
    async fn session(&self, patience: Option<Duration>) -> Result<Session, Unfit> {
        let (wire, closed) = Wire::connect(&self.address).await.map_err(Unfit::Broken)?;
        let closed = AbortOnDropHandle::new(tokio::spawn(closed));
        let questions = Questions { wire: &wire, patience: self.answer, metrics: &self.metrics };
        let begun = Instant::now();
        let mut told = begun;
        loop {
            match questions.probe(self.driver.as_ref()).await {
                Ok(()) => break,
                Err(Unfit::NotReady(reason)) => {
                    if patience.is_some_and(|patience| begun.elapsed() >= patience) {
                        return Err(Unfit::NotReady(reason));
                    }
                    if told == begun || told.elapsed() >= TELL {
                        told = Instant::now();
                        tracing::warn!(address = %self.address, %reason, "the CSI driver is not ready");
                    }
                }
                Err(unfit) => return Err(unfit),
            }
            sleep(PROBE_PAUSE).await;
        }
        let identity = questions.identity().await?;
        Ok(Session { wire, closed, identity })
    }

    /// Watches a session, and makes the next one when it ends; for ever.
    async fn supervise(self, mut session: Session, state: watch::Sender<State>, metrics: DriverConnection) {
        let known = session.identity.clone();
        let driver = &known.description.name;
        let mut pauses = pauses();
        loop {
            let begun = Instant::now();
            metrics.up();
            tracing::info!(%driver, version = session.identity.description.version, "connected to the CSI driver");
            let reason = session.closed.await.unwrap_or_else(|error| error.to_string());
            metrics.lost();
            let reason = printable(&reason);
            tracing::warn!(%driver, %reason, "lost connection to the CSI driver");
            state.send_replace(State::Down(format!("the connection is lost: {reason}").into()));
            if begun.elapsed() >= STEADY {
                pauses = self::pauses();
            }
            session = self.again(&known, &state, &mut pauses).await;
            state.send_replace(State::Up(session.wire.clone()));
        }
    }

    /// The next session of the same driver.
    async fn again(
        &self,
        known: &Identity,
        state: &watch::Sender<State>,
        pauses: &mut impl Iterator<Item = Duration>,
    ) -> Session {
        loop {
            sleep(pauses.next().unwrap_or(LONGEST_PAUSE)).await;
            // A driver that starts slowly is looked at again on a new connection, so that the state tells of
            // it.
            let reason = match self.session(Some(Duration::ZERO)).await {
                Ok(session) => match self.of_this_name(session) {
                    Ok(session) => {
                        compare(known, &session.identity);
                        return session;
                    }
                    Err(other) => other.to_string(),
                },
                Err(Unfit::Broken(reason) | Unfit::Untrue(reason)) => reason,
                Err(Unfit::NotReady(reason)) => format!("not ready: {reason}"),
                Err(Unfit::Refused(method, error)) => format!("{method} failed: {error}"),
            };
            let reason = printable(&reason);
            tracing::debug!(address = %self.address, %reason, "not connected to the CSI driver");
            state.send_replace(State::Down(reason.into()));
        }
    }
}

/// Tells of a driver that came back with other capabilities: what is offered here was fixed when it was
/// connected first.
fn compare(known: &Identity, found: &Identity) {
    if (&known.controller, &known.plugin) != (&found.controller, &found.plugin) {
        let driver = &known.description.name;
        tracing::warn!(%driver, "the CSI driver has other capabilities than before: they count from the next start on");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second() {
        let pauses: Vec<_> = pauses().take(6).map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1_000, 1_000]);
        assert!(PATIENCE > LONGEST_PAUSE);
    }
}
