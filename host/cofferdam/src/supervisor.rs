//! Runs the roles until a signal or until they cannot go on, and ends them in order.

use std::{sync::Arc, time::Duration};

use cofferdam_controllers::ControllerManager;
use cofferdam_csi::server::Server;
use prometheus_client::registry::Registry;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    commands::run::csi_server,
    commands::run::node::Local,
    config::Endpoint,
    failure::Failure,
    telemetry::{Pages, Telemetry},
};

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over, so that they no longer end the process by themselves.
    ///
    /// # Errors
    /// [`Failure::Signals`]
    pub(crate) fn take() -> Result<Self, Failure> {
        let take = |kind| signal(kind).map_err(Failure::Signals);
        Ok(Self { terminate: take(SignalKind::terminate())?, interrupt: take(SignalKind::interrupt())? })
    }

    /// The next one, by name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Roles that run, with the pages that show them.
pub(crate) struct Running {
    roles: JoinHandle<Result<(), Failure>>,
    pages: Option<JoinHandle<()>>,
    stop_roles: CancellationToken,
    stop_pages: CancellationToken,
}

/// How a supervised process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// In order.
    Drained,
    /// In order, and what was asked for did not hold; the output says what.
    Failed,
    /// A second signal: at once.
    Forced,
}

/// What a process does.
#[derive(Default)]
pub(crate) struct Work {
    /// The roles that work on a cluster.
    pub(crate) process: Option<Arc<ControllerManager>>,
    /// The sockets that are served, by their drivers' names.
    pub(crate) servers: Vec<(String, Server)>,
    /// Roles of a node.
    pub(crate) local: Option<Local>,
}

impl Work {
    /// Whether everything is up. Sockets are: they were listened on before anything began.
    fn ready(&self) -> watch::Receiver<bool> {
        match &self.process {
            Some(process) => process.ready(),
            None => watch::channel(true).1,
        }
    }

    /// Works until `stop`. Whatever ends before that, by itself or by an error, ends all the rest: half a process looks like a whole
    /// one, and nobody restarts it.
    async fn run(self, stop: CancellationToken) -> Result<(), Failure> {
        let Self { process, servers, local } = self;
        let roles = async {
            match process {
                Some(process) => process.run(stop.clone()).await?,
                None => stop.cancelled().await,
            }
            if stop.is_cancelled() { Ok(()) } else { Err(Failure::Ended) }
        };
        let servers = servers.into_iter().map(|(name, server)| (name, server.serve(stop.clone())));
        let serving = csi_server::serve(servers, stop.clone());
        let local = async {
            match local {
                Some(local) => local.run(stop.clone()).await,
                None => Ok(()),
            }
        };
        tokio::try_join!(roles, serving, local).map(drop)
    }
}

/// Starts the roles, and the pages where an endpoint is given.
///
/// # Errors
/// [`Failure::Listen`]
pub(crate) async fn start(
    work: Work,
    registry: Registry,
    endpoint: Option<&Endpoint>,
) -> Result<Running, Failure> {
    let (stop_roles, stop_pages) = (CancellationToken::new(), CancellationToken::new());
    let pages = match endpoint {
        None => None,
        Some(endpoint) => {
            let telemetry = Telemetry::bind(endpoint).await?;
            if let Some(address) = telemetry.address() {
                tracing::info!(%address, "serving /healthz, /readyz and /metrics");
            }
            let pages = Pages {
                registry: Arc::new(registry),
                ready: work.ready(),
                health: work.local.as_ref().map(Local::health),
                stopping: stop_roles.clone(),
            };
            Some(tokio::spawn(telemetry.serve(pages, stop_pages.clone())))
        }
    };
    let roles = tokio::spawn(work.run(stop_roles.clone()));
    Ok(Running { roles, pages, stop_roles, stop_pages })
}

impl Running {
    /// Runs until a signal, then drains. The first signal asks, the second insists. `broken`: what else ends it.
    ///
    /// # Errors
    /// What made the roles stop, what was broken, or that they did not within `drain`.
    pub(crate) async fn until_signal(
        mut self,
        signals: &mut Signals,
        drain: Duration,
        broken: impl Future<Output = Failure>,
    ) -> Result<End, Failure> {
        let name = tokio::select! {
            failure = broken => {
                self.abandon(drain).await;
                return Err(failure);
            }
            ended = &mut self.roles => {
                self.finish().await;
                return Err(premature(ended));
            }
            name = signals.next() => name,
        };
        tracing::info!(
            "{name}: no new work, running calls may end within {drain:?}; a second signal stops at once"
        );
        tokio::select! {
            drained = self.drain(drain) => drained,
            name = signals.next() => {
                tracing::warn!("{name} again: stopping at once");
                Ok(End::Forced)
            }
        }
    }

    /// Waits for the roles to end by themselves, which they never do in order.
    pub(crate) async fn failed(&mut self) -> Failure {
        premature((&mut self.roles).await)
    }

    /// Takes no new work, lets running calls end, flushes.
    ///
    /// # Errors
    /// [`Failure::Drain`], or what the roles ended with.
    pub(crate) async fn drain(mut self, limit: Duration) -> Result<End, Failure> {
        self.stop_roles.cancel();
        let ended = tokio::time::timeout(limit, &mut self.roles).await;
        self.finish().await;
        match ended {
            Err(_) => Err(Failure::Drain(limit)),
            Ok(Ok(result)) => result.map(|()| End::Drained),
            Ok(Err(panicked)) => {
                tracing::error!(%panicked, "the roles' task ended");
                Err(Failure::Ended)
            }
        }
    }

    /// Drains after something else has gone wrong, which is what is told.
    pub(crate) async fn abandon(self, limit: Duration) {
        if let Err(undrained) = self.drain(limit).await {
            tracing::warn!(error = %undrained, "when it was to end");
        }
    }

    async fn finish(&mut self) {
        self.stop_pages.cancel();
        if let Some(pages) = self.pages.take()
            && let Err(panicked) = pages.await
        {
            tracing::error!(%panicked, "the telemetry task ended");
        }
    }
}

fn premature(ended: Result<Result<(), Failure>, tokio::task::JoinError>) -> Failure {
    match ended {
        Ok(Err(failure)) => failure,
        Ok(Ok(())) => Failure::Ended,
        Err(panicked) => {
            tracing::error!(%panicked, "the roles' task ended");
            Failure::Ended
        }
    }
}

#[cfg(test)]
#[path = "supervisor_tests.rs"]
mod tests;
