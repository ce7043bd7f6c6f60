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
    commands::run::node::RunningNodeRoles,
    config::HttpEndpoint,
    error::CommandError,
    telemetry::{TelemetryServer, TelemetryState},
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
    pub(crate) fn install() -> Result<Self, CommandError> {
        let install = |kind| signal(kind).map_err(CommandError::Signals);
        Ok(Self {
            terminate: install(SignalKind::terminate())?,
            interrupt: install(SignalKind::interrupt())?,
        })
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
pub(crate) struct SupervisedProcess {
    roles: JoinHandle<Result<(), CommandError>>,
    telemetry: Option<JoinHandle<()>>,
    stop_roles: CancellationToken,
    stop_telemetry: CancellationToken,
}

/// How a supervised process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessOutcome {
    /// In order.
    Drained,
    /// In order, and what was asked for did not hold; the output says what.
    Failed,
    /// A second signal: at once.
    Forced,
}

/// What a process does.
#[derive(Default)]
pub(crate) struct Workload {
    /// The roles that work on a cluster.
    pub(crate) controllers: Option<Arc<ControllerManager>>,
    /// The sockets that are served, by their drivers' names.
    pub(crate) servers: Vec<(String, Server)>,
    /// Roles of a node.
    pub(crate) node_roles: Option<RunningNodeRoles>,
}

impl Workload {
    /// Whether everything is up. Sockets are: they were listened on before anything began.
    fn readiness(&self) -> watch::Receiver<bool> {
        match &self.controllers {
            Some(process) => process.ready(),
            None => watch::channel(true).1,
        }
    }

    /// Works until `stop`. Whatever ends before that, by itself or by an error, ends all the rest: half a
    /// process looks like a whole one, and nobody restarts it.
    async fn run(self, stop: CancellationToken) -> Result<(), CommandError> {
        let Self { controllers: process, servers, node_roles } = self;
        let roles = async {
            match process {
                Some(process) => process.run(stop.clone()).await?,
                None => stop.cancelled().await,
            }
            if stop.is_cancelled() { Ok(()) } else { Err(CommandError::RolesStopped) }
        };
        let servers = servers.into_iter().map(|(name, server)| (name, server.serve(stop.clone())));
        let serving = csi_server::serve(servers, stop.clone());
        let node_roles = async {
            match node_roles {
                Some(node_roles) => node_roles.run(stop.clone()).await,
                None => Ok(()),
            }
        };
        tokio::try_join!(roles, serving, node_roles).map(drop)
    }
}

/// Starts the roles, and the pages where an endpoint is given.
///
/// # Errors
/// [`Failure::Listen`]
pub(crate) async fn start(
    workload: Workload,
    registry: Registry,
    endpoint: Option<&HttpEndpoint>,
) -> Result<SupervisedProcess, CommandError> {
    let (stop_roles, stop_telemetry) = (CancellationToken::new(), CancellationToken::new());
    let telemetry_task = match endpoint {
        None => None,
        Some(endpoint) => {
            let telemetry = TelemetryServer::bind(endpoint).await?;
            if let Some(address) = telemetry.address() {
                tracing::info!(%address, "serving /healthz, /readyz and /metrics");
            }
            let telemetry_task = TelemetryState {
                registry: Arc::new(registry),
                ready: workload.readiness(),
                health: workload.node_roles.as_ref().map(RunningNodeRoles::health),
                stopping: stop_roles.clone(),
            };
            Some(tokio::spawn(telemetry.serve(telemetry_task, stop_telemetry.clone())))
        }
    };
    let roles = tokio::spawn(workload.run(stop_roles.clone()));
    Ok(SupervisedProcess { roles, telemetry: telemetry_task, stop_roles, stop_telemetry })
}

impl SupervisedProcess {
    /// Runs until a signal, then drains. The first signal asks, the second insists. `broken`: what else ends
    /// it.
    ///
    /// # Errors
    /// What made the roles stop, what was broken, or that they did not within `drain`.
    pub(crate) async fn run_until_signal(
        mut self,
        signals: &mut Signals,
        drain_timeout: Duration,
        external_failure: impl Future<Output = CommandError>,
    ) -> Result<ProcessOutcome, CommandError> {
        let name = tokio::select! {
            failure = external_failure => {
                self.drain_after_failure(drain_timeout).await;
                return Err(failure);
            }
            exit = &mut self.roles => {
                self.shutdown_telemetry().await;
                return Err(early_exit_error(exit));
            }
            name = signals.next() => name,
        };
        tracing::info!(
            "{name}: no new work, running calls may end within {drain_timeout:?}; a second signal stops at once"
        );
        tokio::select! {
            drained = self.drain(drain_timeout) => drained,
            name = signals.next() => {
                tracing::warn!("{name} again: stopping at once");
                Ok(ProcessOutcome::Forced)
            }
        }
    }

    /// Waits for the roles to end by themselves, which they never do in order.
    pub(crate) async fn wait_for_failure(&mut self) -> CommandError {
        early_exit_error((&mut self.roles).await)
    }

    /// Takes no new work, lets running calls end, flushes.
    ///
    /// # Errors
    /// [`Failure::Drain`], or what the roles ended with.
    pub(crate) async fn drain(mut self, timeout: Duration) -> Result<ProcessOutcome, CommandError> {
        self.stop_roles.cancel();
        let exit = tokio::time::timeout(timeout, &mut self.roles).await;
        self.shutdown_telemetry().await;
        match exit {
            Err(_) => Err(CommandError::DrainTimeout(timeout)),
            Ok(Ok(result)) => result.map(|()| ProcessOutcome::Drained),
            Ok(Err(panicked)) => {
                tracing::error!(%panicked, "the roles' task ended");
                Err(CommandError::RolesStopped)
            }
        }
    }

    /// Drains after something else has gone wrong, which is what is told.
    pub(crate) async fn drain_after_failure(self, timeout: Duration) {
        if let Err(error) = self.drain(timeout).await {
            tracing::warn!(error = %error, "when it was to end");
        }
    }

    async fn shutdown_telemetry(&mut self) {
        self.stop_telemetry.cancel();
        if let Some(task) = self.telemetry.take()
            && let Err(panicked) = task.await
        {
            tracing::error!(%panicked, "the telemetry task ended");
        }
    }
}

fn early_exit_error(exit: Result<Result<(), CommandError>, tokio::task::JoinError>) -> CommandError {
    match exit {
        Ok(Err(failure)) => failure,
        Ok(Ok(())) => CommandError::RolesStopped,
        Err(panicked) => {
            tracing::error!(%panicked, "the roles' task ended");
            CommandError::RolesStopped
        }
    }
}

#[cfg(test)]
#[path = "supervisor_tests.rs"]
mod tests;
