//! The node roles: `node` serves kubelet, `registrar` registers the driver with kubelet, `liveness` serves
//! health checks. They do not run drivers: they read the description of one from a file, or connect to its
//! socket.

mod error;
mod health;
#[cfg(target_os = "linux")]
mod serve;

use std::{sync::Arc, time::Duration};

use cofferdam_backend::BackendMetrics;
use cofferdam_cluster::journal::LostJournals;
use cofferdam_controllers::StoppedRoles;
use cofferdam_csi::server::{ServerMetrics, SocketError};
use cofferdam_node::{DriverClient, LivenessProbe, Registrar};
use prometheus_client::registry::Registry;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

#[cfg(target_os = "linux")]
use serve::serve_node;

use error::{NodeRoleError, required};

use crate::{
    config::{Configuration, NodeRole},
    error::CommandError,
    process_metrics,
    signals::{ProcessOutcome, Signals},
    telemetry::{self, HealthChecks, RunningTelemetry, TelemetryState},
};

/// Time within which the driver must return its name when the role `registrar` starts, as in
/// node-driver-registrar. With the role `node` in the same process, the driver is not asked: its manifest,
/// the file of the setting `manifest`, has the name.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay between two attempts to connect.
const CONNECT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Rejects the privileged role `node` in a process with roles that load drivers, unless `single-process` is
/// set.
///
/// # Errors
/// [`NodeRoleError::SharedProcess`]
pub(crate) fn check_single_process(configuration: &Configuration) -> Result<(), NodeRoleError> {
    let roles = &configuration.role;
    let shared = roles.has_driver_roles() && roles.node.contains(&NodeRole::Node);
    if shared && !configuration.single_process { Err(NodeRoleError::SharedProcess) } else { Ok(()) }
}

/// The metrics of the node roles.
#[derive(Clone, Debug)]
pub(crate) struct NodeMetrics {
    /// Calls that the roles `node` and `registrar` serve.
    pub(crate) served: ServerMetrics,
    /// Calls of the driver by the role `liveness`.
    pub(crate) calls: BackendMetrics,
}

/// The running node roles of this process. Each has a task, except `liveness`, which is only a check of
/// `/healthz`.
pub(crate) struct RunningNodeRoles {
    tasks: JoinSet<(&'static str, Result<(), SocketError>)>,
    stop: CancellationToken,
    health_probe: health::HealthProbe,
}

/// Runs a process with node roles only, until a signal or until a role ends, which is an error.
///
/// # Errors
/// [`CommandError`], one line.
pub(crate) async fn run(configuration: &Configuration) -> Result<ProcessOutcome, CommandError> {
    let mut registry = Registry::default();
    process_metrics::register(&mut registry);
    let metrics = NodeMetrics {
        served: ServerMetrics::register(&mut registry),
        calls: BackendMetrics::register(&mut registry),
    };
    // Before the roles start: a client that reaches a role may send a signal at once.
    let mut signals = Signals::install()?;
    let mut node_roles = tokio::select! {
        started = start(configuration, &metrics) => started?,
        name = signals.next() => {
            tracing::info!("{name}: ending before the roles have started");
            return Ok(ProcessOutcome::Drained);
        }
    };
    let state = TelemetryState {
        registry: Arc::new(registry),
        ready: watch::channel(true).1,
        stopped_roles: watch::channel(StoppedRoles::new()).1,
        lost_journals: watch::channel(LostJournals::new()).1,
        health: node_roles.health(),
        leader_election: None,
        stopping: node_roles.stop.clone(),
    };
    let mut telemetry = RunningTelemetry::start(&telemetry::endpoints(configuration), state).await?;
    let name = tokio::select! {
        name = signals.next() => name,
        error = node_roles.wait_for_exit() => return Err(error.into()),
    };
    let drain_timeout = configuration.drain_timeout.get();
    tracing::info!(
        "{name}: draining: in-flight calls have {drain_timeout:?}; a second signal ends the process \
         immediately"
    );
    let end = tokio::select! {
        drained = node_roles.stop(drain_timeout) => match drained {
            true => Ok(ProcessOutcome::Drained),
            false => Err(CommandError::DrainTimeout(drain_timeout)),
        },
        name = signals.next() => {
            tracing::warn!("{name} again: ending immediately");
            Ok(ProcessOutcome::Forced)
        }
    };
    telemetry.stop().await;
    end
}

/// Starts the configured node roles in a process that also has other roles; `None` if none is configured.
///
/// # Errors
/// [`CommandError`], one line.
pub(crate) async fn start_if_configured(
    configuration: &Configuration,
    metrics: &NodeMetrics,
) -> Result<Option<RunningNodeRoles>, CommandError> {
    if configuration.role.node.is_empty() {
        return Ok(None);
    }
    Ok(Some(start(configuration, metrics).await?))
}

async fn start(
    configuration: &Configuration,
    metrics: &NodeMetrics,
) -> Result<RunningNodeRoles, CommandError> {
    let roles = &configuration.role.node;
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let mut health_probe = health::HealthProbe::default();
    let mut name = None;
    if roles.contains(&NodeRole::Node) {
        let (server, driver) = serve_node(configuration, &metrics.served).await?;
        name = Some(driver);
        let stop = stop.clone();
        tasks.spawn(async move {
            server.serve(stop).await;
            (NodeRole::Node.as_str(), Ok(()))
        });
    }
    if roles.contains(&NodeRole::Registrar) {
        let registrar = Arc::new(registrar(configuration, name).await?);
        health_probe.registrar = Some(Arc::clone(&registrar));
        let (metrics, stop) = (metrics.served.clone(), stop.clone());
        tasks.spawn(async move { (NodeRole::Registrar.as_str(), registrar.serve(&metrics, stop).await) });
    }
    if roles.contains(&NodeRole::Liveness) {
        let client = driver_client(configuration, NodeRole::Liveness)?;
        health_probe.driver = Some(Arc::new(LivenessProbe::new(client, metrics.calls.clone())));
    }
    tracing::info!(roles = ?roles, "started");
    Ok(RunningNodeRoles { tasks, stop, health_probe })
}

impl RunningNodeRoles {
    /// Waits for a role to end without a signal, which is an error. With the role `liveness` alone it never
    /// returns.
    async fn wait_for_exit(&mut self) -> NodeRoleError {
        match self.tasks.join_next().await {
            Some(Ok((_, Err(error)))) => error.into(),
            Some(Ok((role, Ok(())))) => NodeRoleError::RoleStopped(role),
            Some(Err(panicked)) => {
                tracing::error!(%panicked, "the task of a role panicked");
                NodeRoleError::RoleStopped("node")
            }
            // The role liveness has no task.
            None => std::future::pending().await,
        }
    }

    /// Runs until `stop`, then waits for in-flight calls.
    ///
    /// # Errors
    /// [`NodeRoleError::RoleStopped`], or the error of a role that ended earlier.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), CommandError> {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            error = self.wait_for_exit() => return Err(error.into()),
        }
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
        Ok(())
    }

    /// The checks of `/healthz`.
    pub(crate) fn health(&self) -> HealthChecks {
        self.health_probe.clone().into_health_checks()
    }

    /// Node roles that consist of one task with the name of a role.
    #[cfg(test)]
    pub(crate) fn from_task(role: &'static str, task: impl Future<Output = ()> + Send + 'static) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            task.await;
            (role, Ok(()))
        });
        Self { tasks, stop: CancellationToken::new(), health_probe: health::HealthProbe::default() }
    }

    /// Accepts no new calls and waits for in-flight calls; returns `false` after the timeout.
    async fn stop(mut self, timeout: Duration) -> bool {
        self.stop.cancel();
        let tasks_ended = async { while self.tasks.join_next().await.is_some() {} };
        tokio::time::timeout(timeout, tasks_ended).await.is_ok()
    }
}

/// The role node is implemented for Linux only.
#[cfg(not(target_os = "linux"))]
async fn serve_node(
    _: &Configuration,
    _: &ServerMetrics,
) -> Result<(cofferdam_csi::server::Server, String), CommandError> {
    Err(NodeRoleError::Setup("role node needs Linux".to_owned()).into())
}

/// A client of the driver's socket in `csi-address`, or without `csi-address` in `csi-endpoint`. This process
/// or another one serves the socket.
fn driver_client(configuration: &Configuration, role: NodeRole) -> Result<DriverClient, NodeRoleError> {
    let socket = configuration.csi_address.as_ref().or(configuration.csi_endpoint.as_ref());
    let socket = socket.ok_or(NodeRoleError::Missing { role: role.as_str(), key: "csi-address" })?;
    Ok(DriverClient::new(socket.0.clone(), configuration.probe_timeout.get()))
}

async fn registrar(configuration: &Configuration, name: Option<String>) -> Result<Registrar, NodeRoleError> {
    let name = match name {
        Some(name) => name,
        None => {
            let driver = driver_client(configuration, NodeRole::Registrar)?;
            let deadline = Instant::now() + CONNECT_TIMEOUT;
            loop {
                match driver.name().await {
                    Ok(name) => break name,
                    Err(error) if Instant::now() >= deadline => return Err(error.into()),
                    Err(error) => tracing::info!(%error, "waiting for the driver"),
                }
                sleep(CONNECT_RETRY_DELAY).await;
            }
        }
    };
    let own_endpoint = configuration.csi_endpoint.as_ref().map(|socket| socket.0.to_string());
    let endpoint = configuration.kubelet_registration_path.clone().or(own_endpoint);
    let endpoint = required(&endpoint, NodeRole::Registrar, "kubelet-registration-path")?.clone();
    Ok(Registrar::new(name, endpoint, &configuration.plugin_registration_path))
}
