//! Health and metrics of node roles.

use std::sync::Arc;

use cofferdam_node::{DriverClient, Registrar};
use futures::FutureExt as _;
use prometheus_client::registry::Registry;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Configuration, HttpEndpoint, NodeRole},
    error::CommandError,
    telemetry::{HealthCheck, TelemetryServer, TelemetryState, Unhealthy},
};

/// Default port of livenessprobe.
const LIVENESS_PORT: u16 = 9808;

/// The checks of `/healthz`. A field is `None` if the process does not have the role.
#[derive(Clone, Debug, Default)]
pub(super) struct HealthProbe {
    /// The driver on its socket, for the role `liveness`.
    pub(super) driver: Option<DriverClient>,
    /// The registrar, for the role `registrar`.
    pub(super) registrar: Option<Arc<Registrar>>,
}

impl HealthProbe {
    async fn check(&self) -> Result<(), Unhealthy> {
        if let Some(driver) = &self.driver {
            driver.probe().await.map_err(|error| Unhealthy(error.to_string()))?;
        }
        self.registrar.as_ref().map_or(Ok(()), |registrar| {
            registrar.check_health().map_err(|error| Unhealthy(error.to_string()))
        })
    }

    /// Converts the checks to the health check of the telemetry server.
    pub(super) fn into_health_check(self) -> HealthCheck {
        Arc::new(move || {
            let probe = self.clone();
            async move { probe.check().await }.boxed()
        })
    }
}

/// The telemetry server of a process with node roles only.
pub(super) struct RunningTelemetry {
    task: Option<JoinHandle<()>>,
    stop: CancellationToken,
    /// Keeps the readiness channel open.
    _ready: watch::Sender<bool>,
}

impl RunningTelemetry {
    /// Stops the server if there is one. The caller does so after the drain, also if the roles have not ended
    /// in time.
    pub(super) async fn stop(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take()
            && let Err(panicked) = task.await
        {
            tracing::error!(%panicked, "the telemetry task panicked");
        }
    }
}

/// Address of the telemetry server of `run`, with or without node roles: `http-endpoint` if it is set. Else,
/// with the role `liveness`, it is the port `health-port` (default 9808) on every address of the machine.
/// Without both it is `None`: only the role `liveness` reads `health-port`.
pub(crate) fn endpoint(configuration: &Configuration) -> Option<HttpEndpoint> {
    let liveness_endpoint = || {
        let port = configuration.health_port.unwrap_or(LIVENESS_PORT);
        let liveness = configuration.role.node.contains(&NodeRole::Liveness);
        liveness.then_some(HttpEndpoint { host: None, port })
    };
    configuration.http_endpoint.clone().or_else(liveness_endpoint)
}

/// Serves `/healthz`, `/readyz` and `/metrics` if [`endpoint`] returns an address.
///
/// # Errors
/// [`CommandError::Listen`]
pub(super) async fn serve(
    configuration: &Configuration,
    probe: HealthProbe,
    registry: Registry,
    stopping: CancellationToken,
) -> Result<RunningTelemetry, CommandError> {
    let (sender, ready) = watch::channel(true);
    let stop = CancellationToken::new();
    let task = match endpoint(configuration) {
        None => None,
        Some(endpoint) => {
            let telemetry = TelemetryServer::bind(&endpoint).await?;
            if let Some(address) = telemetry.address() {
                tracing::info!(%address, "serving /healthz, /readyz and /metrics");
            }
            let health = Some(probe.into_health_check());
            let state = TelemetryState { registry: Arc::new(registry), ready, health, stopping };
            Some(tokio::spawn(telemetry.serve(state, stop.clone())))
        }
    };
    Ok(RunningTelemetry { task, stop, _ready: sender })
}
