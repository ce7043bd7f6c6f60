//! The liveness probe of a driver, counted in the metrics of the sidecars.

use std::{sync::OnceLock, time::Instant};

use cofferdam_backend::{BackendMetrics, CallMetrics};
use cofferdam_csi::{PROBE_METHOD, go_code_name};
use cofferdam_domain::DriverName;
use tonic::Code;

use crate::driver_client::{DriverClient, ProbeError};

/// Probes a driver, and records each Probe call. As in livenessprobe, the metrics have the driver's name once
/// the driver has responded.
#[derive(Debug)]
pub struct LivenessProbe {
    client: DriverClient,
    metrics: BackendMetrics,
    /// Metrics with the driver's name.
    named: OnceLock<CallMetrics>,
}

impl LivenessProbe {
    /// Creates a probe. Sends no request.
    pub const fn new(client: DriverClient, metrics: BackendMetrics) -> Self {
        Self { client, metrics, named: OnceLock::new() }
    }

    /// Checks that the driver is ready.
    ///
    /// # Errors
    /// [`ProbeError`]
    pub async fn check(&self) -> Result<(), ProbeError> {
        let probe = async {
            let started = Instant::now();
            (self.client.probe().await, started.elapsed())
        };
        // At the same time: together they must not take longer than one timeout.
        let ((), (result, duration)) = tokio::join!(self.find_name(), probe);
        if let Some((code, outcome)) = labels(&result) {
            let calls = self.named.get().cloned().unwrap_or_else(|| self.metrics.call_metrics(None));
            calls.observe(PROBE_METHOD, go_code_name(code), outcome, duration);
        }
        result
    }

    async fn find_name(&self) {
        if self.named.get().is_none()
            && let Ok(name) = self.client.name().await
        {
            let metrics = self.metrics.call_metrics(Some(&DriverName::from(name.as_str())));
            // A concurrent check has the same name.
            let _ = self.named.set(metrics);
        }
    }
}

/// The gRPC code and the outcome of a Probe call; `None` if there was no call.
const fn labels(result: &Result<(), ProbeError>) -> Option<(Code, &'static str)> {
    match result {
        Ok(()) | Err(ProbeError::NotReady { .. }) => Some((Code::Ok, "ok")),
        Err(ProbeError::Status { code, .. }) => Some((*code, "error")),
        Err(ProbeError::Timeout { .. }) => Some((Code::DeadlineExceeded, "deadline")),
        Err(ProbeError::Connect { .. }) => None,
    }
}
