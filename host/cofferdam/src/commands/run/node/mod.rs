//! The roles of a node: `node` serves kubelet, `registrar` tells kubelet of it, `liveness` tells whether it
//! answers. None of them runs a driver: of the driver they know its manifest, or its socket.

mod health;
#[cfg(target_os = "linux")]
mod serve;

use std::{sync::Arc, time::Duration};

use cofferdam_csi::server::{ServerMetrics, SocketError};
use cofferdam_node::{DriverClient, ManifestError, PolicyError, ProbeError, Registrar};
use prometheus_client::registry::Registry;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

#[cfg(target_os = "linux")]
use serve::serve_node;

pub(crate) use health::endpoint;

use crate::{
    config::Configuration,
    error::CommandError,
    process_metrics,
    supervisor::{ProcessOutcome, Signals},
    telemetry::HealthCheck,
};

/// How long the registrar tries to reach a driver at first, as node-driver-registrar does.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two tries.
const CONNECT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// A role of a node, as `--role` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum NodeRole {
    /// The Node service that kubelet calls.
    Node,
    /// Registers the driver with kubelet (node-driver-registrar).
    Registrar,
    /// `/healthz` through Probe (livenessprobe).
    Liveness,
}

impl NodeRole {
    /// Every one.
    pub(crate) const ALL: [Self; 3] = [Self::Node, Self::Registrar, Self::Liveness];

    /// The name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Registrar => "registrar",
            Self::Liveness => "liveness",
        }
    }

    /// The role of a name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

/// Why the roles of a node cannot run. One line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeRoleError {
    #[error("role {role} needs {key}: expected --{key}, or {key} in the configuration")]
    Missing { role: &'static str, key: &'static str },
    #[error(
        "role node touches this machine as root, and other roles of this process run drivers: expected a process of its own, or --single-process"
    )]
    SharedProcess,
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("the node's policy: {0}")]
    Policy(#[from] PolicyError),
    #[error("{0}")]
    Setup(String),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("role registrar: {0}")]
    Driver(#[from] ProbeError),
    #[error("cannot read the labels of node {node}: {problem}")]
    Labels { node: String, problem: String },
    #[error("role {0} ended before it was told to")]
    RoleStopped(&'static str),
}

/// Refuses a privileged role beside those that run drivers, unless the operator wants it.
///
/// # Errors
/// [`NodeFailure::Shared`]
pub(crate) fn check_single_process(configuration: &Configuration) -> Result<(), NodeRoleError> {
    let roles = &configuration.role;
    let shared = roles.has_driver_roles() && roles.node.contains(&NodeRole::Node);
    if shared && !configuration.single_process { Err(NodeRoleError::SharedProcess) } else { Ok(()) }
}

/// Roles of a node that run.
pub(crate) struct RunningNodeRoles {
    tasks: JoinSet<(&'static str, Result<(), SocketError>)>,
    stop: CancellationToken,
    health_probe: health::HealthProbe,
}

/// Runs roles of a node, and nothing else, until a signal.
///
/// # Errors
/// [`Failure`], one line.
pub(crate) async fn run(configuration: &Configuration) -> Result<ProcessOutcome, CommandError> {
    let mut registry = Registry::default();
    process_metrics::register(&mut registry);
    let metrics = ServerMetrics::register(&mut registry);
    let mut node_roles = start(configuration, &metrics).await?;
    let telemetry =
        health::serve(configuration, node_roles.health_probe.clone(), registry, node_roles.stop.clone())
            .await?;
    let mut signals = Signals::install()?;
    let name = tokio::select! {
        name = signals.next() => name,
        error = node_roles.wait_for_exit() => return Err(error.into()),
    };
    let drain_timeout = configuration.drain_timeout.get();
    tracing::info!("{name}: running calls may end within {drain_timeout:?}; a second signal stops at once");
    let end = tokio::select! {
        drained = node_roles.stop(drain_timeout) => if drained { Ok(ProcessOutcome::Drained) } else { Err(CommandError::DrainTimeout(drain_timeout)) },
        name = signals.next() => {
            tracing::warn!("{name} again: stopping at once");
            Ok(ProcessOutcome::Forced)
        }
    };
    telemetry.stop().await;
    end
}

/// Starts the roles of a node in a process that has others too.
///
/// # Errors
/// [`Failure`], one line.
pub(crate) async fn start_if_configured(
    configuration: &Configuration,
    metrics: &ServerMetrics,
) -> Result<Option<RunningNodeRoles>, CommandError> {
    if configuration.role.node.is_empty() {
        return Ok(None);
    }
    Ok(Some(start(configuration, metrics).await?))
}

async fn start(
    configuration: &Configuration,
    metrics: &ServerMetrics,
) -> Result<RunningNodeRoles, CommandError> {
    let roles = &configuration.role.node;
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let mut health_probe = health::HealthProbe::default();
    let mut name = None;
    if roles.contains(&NodeRole::Node) {
        let (server, driver) = serve_node(configuration, metrics).await?;
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
        let (metrics, stop) = (metrics.clone(), stop.clone());
        tasks.spawn(async move { (NodeRole::Registrar.as_str(), registrar.serve(&metrics, stop).await) });
    }
    if roles.contains(&NodeRole::Liveness) {
        health_probe.driver = Some(driver_client(configuration, NodeRole::Liveness)?);
    }
    tracing::info!(roles = ?roles, "started");
    Ok(RunningNodeRoles { tasks, stop, health_probe: health_probe })
}

impl RunningNodeRoles {
    /// Waits for a role to end by itself, which none does in order.
    async fn wait_for_exit(&mut self) -> NodeRoleError {
        match self.tasks.join_next().await {
            Some(Ok((_, Err(error)))) => error.into(),
            Some(Ok((role, Ok(())))) => NodeRoleError::RoleStopped(role),
            Some(Err(panicked)) => {
                tracing::error!(%panicked, "a role's task ended");
                NodeRoleError::RoleStopped("node")
            }
            // Liveness alone has nothing that could end.
            None => std::future::pending().await,
        }
    }

    /// Runs until `stop`, and then until the calls that run have ended.
    ///
    /// # Errors
    /// [`NodeFailure::Ended`], or what made a role end before that.
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

    /// What `/healthz` asks.
    pub(crate) fn health(&self) -> HealthCheck {
        self.health_probe.clone().into_health_check()
    }

    /// One task as a role.
    #[cfg(test)]
    pub(crate) fn from_task(role: &'static str, task: impl Future<Output = ()> + Send + 'static) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            task.await;
            (role, Ok(()))
        });
        Self { tasks, stop: CancellationToken::new(), health_probe: health::HealthProbe::default() }
    }

    /// Lets nobody in any more and lets running calls end; `false` when they did not in time.
    async fn stop(mut self, timeout: Duration) -> bool {
        self.stop.cancel();
        let tasks_ended = async { while self.tasks.join_next().await.is_some() {} };
        tokio::time::timeout(timeout, tasks_ended).await.is_ok()
    }
}

fn required<'a, T>(value: &'a Option<T>, role: NodeRole, key: &'static str) -> Result<&'a T, NodeRoleError> {
    value.as_ref().ok_or(NodeRoleError::Missing { role: role.as_str(), key })
}

/// There is no such machine elsewhere.
#[cfg(not(target_os = "linux"))]
async fn serve_node(
    _: &Configuration,
    _: &ServerMetrics,
) -> Result<(cofferdam_csi::server::Server, String), CommandError> {
    Err(NodeRoleError::Setup("role node needs Linux".to_owned()).into())
}

/// The driver's socket, as another role of this process serves it or as another process does.
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
