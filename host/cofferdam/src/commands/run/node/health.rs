//! `/healthz` of the roles of a node.

use std::sync::Arc;

use cofferdam_node::{DriverClient, Registrar};
use futures::FutureExt as _;
use prometheus_client::registry::Registry;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::NodeRole;
use crate::{
    config::{Configuration, HttpEndpoint},
    error::CommandError,
    telemetry::{HealthCheck, TelemetryServer, TelemetryState},
};

/// Port of livenessprobe.
const LIVENESS_PORT: u16 = 9808;

/// What is asked when somebody asks for health.
#[derive(Clone, Debug, Default)]
pub(super) struct HealthProbe {
    /// Role `liveness`: the driver, on its socket.
    pub(super) driver: Option<DriverClient>,
    /// Role `registrar`.
    pub(super) registrar: Option<Arc<Registrar>>,
}

impl HealthProbe {
    async fn check(&self) -> Result<(), String> {
        if let Some(driver) = &self.driver {
            driver.probe().await.map_err(|error| error.to_string())?;
        }
        self.registrar
            .as_ref()
            .map_or(Ok(()), |registrar| registrar.check_health().map_err(|error| error.to_string()))
    }

    /// The same as the pages ask it.
    pub(super) fn into_health_check(self) -> HealthCheck {
        Arc::new(move || {
            let probe = self.clone();
            async move { probe.check().await }.boxed()
        })
    }
}

/// The pages of a process that has roles of a node only.
pub(super) struct RunningTelemetry {
    task: Option<JoinHandle<()>>,
    stop: CancellationToken,
    /// Pages are ready for as long as this lives.
    _ready: watch::Sender<bool>,
}

impl RunningTelemetry {
    /// Ends the pages, after everything that they show.
    pub(super) async fn stop(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take()
            && let Err(panicked) = task.await
        {
            tracing::error!(%panicked, "the telemetry task ended");
        }
    }
}

/// Where the pages are: at the endpoint that was given, or at the one that the role `liveness` brings.
pub(crate) fn endpoint(configuration: &Configuration) -> Option<HttpEndpoint> {
    let liveness_endpoint = || {
        let port = configuration.health_port.unwrap_or(LIVENESS_PORT);
        let liveness = configuration.role.node.contains(&NodeRole::Liveness);
        liveness.then_some(HttpEndpoint { host: None, port })
    };
    configuration.http_endpoint.clone().or_else(liveness_endpoint)
}

/// Serves `/healthz`, `/readyz` and `/metrics` where an endpoint is given, or the role `liveness` brings its
/// own.
///
/// # Errors
/// [`Failure::Listen`]
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
