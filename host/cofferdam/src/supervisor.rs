//! Runs the roles of a process until a signal, then drains the process: the roles start no new work and
//! finish in-flight calls. If the roles end by themselves, the process ends without a drain.

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{campaign::Campaign, journal::LostJournals};
use cofferdam_controllers::{ControllerManager, DriverGroup, StoppedRoles};
use cofferdam_csi::server::Server;
use futures::future::join_all;
use prometheus_client::registry::Registry;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    error::CommandError,
    leader_election::health_check,
    reload::Reloader,
    roles::{csi_server, node::RunningNodeRoles},
    signals::{ProcessOutcome, Signals},
    telemetry::{RunningTelemetry, TelemetryEndpoint, TelemetryState},
};

/// Running roles, and the servers of their health and metrics.
pub(crate) struct SupervisedProcess {
    roles: JoinHandle<Result<(), CommandError>>,
    telemetry: RunningTelemetry,
    stop_roles: CancellationToken,
}

/// The work of a process.
#[derive(Default)]
pub(crate) struct Workload {
    /// Roles that reconcile a cluster.
    pub(crate) controllers: Option<Arc<ControllerManager>>,
    /// Campaigns for the Leases of these roles; empty to run them at once.
    pub(crate) campaigns: Vec<Campaign>,
    /// Servers of CSI sockets, with the names of their drivers in the configuration.
    pub(crate) servers: Vec<(String, Server)>,
    /// Node roles.
    pub(crate) node_roles: Option<RunningNodeRoles>,
    /// Takes over changes of the configuration.
    pub(crate) reloader: Option<Reloader>,
}

impl Workload {
    /// Readiness of the controllers. Without controllers the process is always ready: the sockets of the
    /// CSI servers and of the role `node` are bound before the workload is created.
    fn readiness(&self) -> watch::Receiver<bool> {
        match &self.controllers {
            Some(controllers) => controllers.ready(),
            None => watch::channel(true).1,
        }
    }

    /// The roles that have stopped because another controller does their work.
    fn stopped_roles(&self) -> watch::Receiver<StoppedRoles> {
        match &self.controllers {
            Some(controllers) => controllers.stopped_roles(),
            None => watch::channel(StoppedRoles::new()).1,
        }
    }

    /// The drivers whose journals other processes have taken.
    fn lost_journals(&self) -> watch::Receiver<LostJournals> {
        match &self.controllers {
            Some(controllers) => controllers.lost_journals(),
            None => watch::channel(LostJournals::new()).1,
        }
    }

    /// Runs until `stop`. If one part ends earlier, with or without an error, all others end too: a partly
    /// running process would look healthy and would not be restarted.
    async fn run(self, stop: CancellationToken) -> Result<(), CommandError> {
        let Self { controllers, campaigns, servers, node_roles, reloader } = self;
        let roles = async {
            match controllers {
                Some(controllers) if campaigns.is_empty() => controllers.run(stop.clone()).await?,
                Some(controllers) => run_elected(&controllers, campaigns, &stop).await?,
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
        let reloading = async {
            if let Some(reloader) = reloader {
                reloader.run(stop.clone()).await;
            }
            Ok(())
        };
        tokio::try_join!(roles, serving, node_roles, reloading).map(drop)
    }
}

/// Runs the controllers in the terms of the campaigns. Returns after they have ended and the Leases are
/// released.
///
/// # Errors
/// [`CommandError::Controllers`]; [`CommandError::OnlyOwner`], after which the roles of all drivers have
/// ended.
async fn run_elected(
    controllers: &ControllerManager,
    campaigns: Vec<Campaign>,
    stop: &CancellationToken,
) -> Result<(), CommandError> {
    let group = |campaign: &Campaign| DriverGroup {
        drivers: campaign.drivers().clone(),
        leadership: campaign.leadership(),
        is_ready_as_standby: !campaign.is_only_owner(),
    };
    let groups: Vec<_> = campaigns.iter().map(group).collect();
    let stop = stop.child_token();
    let elections = campaigns.into_iter().map(async |campaign| {
        let drivers = campaign.drivers().clone();
        let elected = campaign.run(controllers.lost_journals()).await;
        elected.map_err(|in_use| {
            stop.cancel();
            CommandError::OnlyOwner { drivers, in_use }
        })
    });
    let (controllers, elections) =
        tokio::join!(controllers.run_groups(stop.clone(), &groups), join_all(elections));
    elections.into_iter().collect::<Result<(), _>>()?;
    Ok(controllers?)
}

/// Starts the roles, and a telemetry server for each endpoint.
///
/// # Errors
/// [`CommandError::Listen`]
pub(crate) async fn start(
    workload: Workload,
    registry: Registry,
    endpoints: &[TelemetryEndpoint],
) -> Result<SupervisedProcess, CommandError> {
    let stop_roles = CancellationToken::new();
    let state = TelemetryState {
        registry: Arc::new(registry),
        ready: workload.readiness(),
        stopped_roles: workload.stopped_roles(),
        lost_journals: workload.lost_journals(),
        health: workload.node_roles.as_ref().map(RunningNodeRoles::health).unwrap_or_default(),
        leader_election: (!workload.campaigns.is_empty()).then(|| health_check(&workload.campaigns)),
        stopping: stop_roles.clone(),
    };
    let telemetry = RunningTelemetry::start(endpoints, state).await?;
    let roles = tokio::spawn(workload.run(stop_roles.clone()));
    Ok(SupervisedProcess { roles, telemetry, stop_roles })
}

impl SupervisedProcess {
    /// Runs until a signal, then drains; a second signal ends the process immediately. Also drains if
    /// `external_failure` completes. If the roles end by themselves, there is no drain.
    ///
    /// # Errors
    /// The error of the roles, [`CommandError::RolesStopped`] if they panic or end by themselves without an
    /// error, `external_failure`, or [`CommandError::DrainTimeout`].
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
                self.telemetry.stop().await;
                return Err(early_exit_error(exit));
            }
            name = signals.next() => name,
        };
        tracing::info!(
            "{name}: draining: no new work, in-flight calls have {drain_timeout:?}; a second signal ends the \
             process \
             immediately"
        );
        tokio::select! {
            drained = self.drain(drain_timeout) => drained,
            name = signals.next() => {
                tracing::warn!("{name} again: ending immediately");
                Ok(ProcessOutcome::Forced)
            }
        }
    }

    /// Waits for the roles to end without a signal, which is an error.
    pub(crate) async fn wait_for_failure(&mut self) -> CommandError {
        early_exit_error((&mut self.roles).await)
    }

    /// Starts no new work, waits until the roles have finished in-flight calls and flushed journals and
    /// events, or until the timeout, and stops the telemetry servers.
    ///
    /// # Errors
    /// [`CommandError::DrainTimeout`], the error of the roles, or [`CommandError::RolesStopped`] if they
    /// panic.
    pub(crate) async fn drain(mut self, timeout: Duration) -> Result<ProcessOutcome, CommandError> {
        self.stop_roles.cancel();
        let exit = tokio::time::timeout(timeout, &mut self.roles).await;
        self.telemetry.stop().await;
        match exit {
            Err(_) => Err(CommandError::DrainTimeout(timeout)),
            Ok(Ok(result)) => result.map(|()| ProcessOutcome::Drained),
            Ok(Err(panicked)) => {
                tracing::error!(%panicked, "the task of the roles panicked");
                Err(CommandError::RolesStopped)
            }
        }
    }

    /// Drains after another error, which the caller reports.
    pub(crate) async fn drain_after_failure(self, timeout: Duration) {
        if let Err(error) = self.drain(timeout).await {
            tracing::warn!(error = %error, "draining failed");
        }
    }
}

fn early_exit_error(exit: Result<Result<(), CommandError>, tokio::task::JoinError>) -> CommandError {
    match exit {
        Ok(Err(failure)) => failure,
        Ok(Ok(())) => CommandError::RolesStopped,
        Err(panicked) => {
            tracing::error!(%panicked, "the task of the roles panicked");
            CommandError::RolesStopped
        }
    }
}

#[cfg(test)]
#[path = "supervisor_tests.rs"]
mod tests;
