//! Metrics of driver calls.

use std::{sync::atomic::AtomicI64, time::Duration};

use cofferdam_domain::DriverName;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Histogram buckets of the Go sidecars, in seconds: dashboards and alerts that were written for the sidecars
/// keep working.
const SIDECAR_BUCKETS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
/// Value of the label `driver_name` before the driver has reported its name, as in the sidecars.
const UNKNOWN_DRIVER: &str = "unknown-driver";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    driver_name: String,
    method_name: &'static str,
    grpc_status_code: &'static str,
    migrated: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallOutcomeLabels {
    driver_name: String,
    method_name: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DriverLabels {
    driver_name: String,
}

/// Metrics of the calls of all drivers of a process.
#[derive(Clone, Debug)]
pub struct BackendMetrics {
    operations: Family<CallLabels, Histogram, fn() -> Histogram>,
    outcomes: Family<CallOutcomeLabels, Counter>,
    in_flight: Family<DriverLabels, Gauge>,
    in_doubt: Family<DriverLabels, Gauge>,
}

impl Default for BackendMetrics {
    fn default() -> Self {
        Self {
            operations: Family::new_with_constructor(|| Histogram::new(SIDECAR_BUCKETS)),
            outcomes: Family::default(),
            in_flight: Family::default(),
            in_doubt: Family::default(),
        }
    }
}

impl BackendMetrics {
    /// Registers the metrics. A process has one instance of them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "csi_sidecar_operations_seconds",
            "Duration of driver calls with their gRPC status code",
            metrics.operations.clone(),
        );
        registry.register("cofferdam_backend_calls", "Driver calls by outcome", metrics.outcomes.clone());
        registry.register(
            "cofferdam_backend_calls_in_flight",
            "Driver calls that are running or waiting",
            metrics.in_flight.clone(),
        );
        registry.register(
            "cofferdam_backend_operations_in_doubt",
            "Operations whose result is unknown: only a retry or the inverse operation may follow",
            metrics.in_doubt.clone(),
        );
        metrics
    }

    /// Call metrics of one driver. `None`: the driver has not reported its name yet.
    pub fn call_metrics(&self, driver: Option<&DriverName>) -> CallMetrics {
        let driver = driver.map_or(UNKNOWN_DRIVER, DriverName::as_str).to_owned();
        let label = DriverLabels { driver_name: driver.clone() };
        CallMetrics {
            in_flight: self.in_flight.get_or_create(&label).clone(),
            in_doubt: self.in_doubt.get_or_create(&label).clone(),
            backend_metrics: self.clone(),
            driver,
        }
    }
}

/// Call metrics of one driver.
#[derive(Clone, Debug)]
pub struct CallMetrics {
    backend_metrics: BackendMetrics,
    driver: String,
    in_flight: Gauge<i64, AtomicI64>,
    in_doubt: Gauge<i64, AtomicI64>,
}

impl CallMetrics {
    /// Counts a call as in flight until the returned value is dropped.
    pub fn start(&self) -> InFlightGuard {
        self.in_flight.inc();
        InFlightGuard(self.in_flight.clone())
    }

    /// Records a finished call: the gRPC path of the CSI method, the gRPC code in Go's spelling, the outcome,
    /// which is `ok` or [`Exchange::outcome_label`](crate::Exchange::outcome_label), and the duration of the
    /// call, in which the waiting for a permit is included.
    pub fn observe(
        &self,
        method_name: &'static str,
        grpc_status_code: &'static str,
        outcome: &'static str,
        duration: Duration,
    ) {
        let driver_name = self.driver.clone();
        let operation = CallLabels {
            driver_name: driver_name.clone(),
            method_name,
            grpc_status_code,
            // In-tree volumes are not translated.
            migrated: "false",
        };
        self.backend_metrics.operations.get_or_create(&operation).observe(duration.as_secs_f64());
        self.backend_metrics
            .outcomes
            .get_or_create(&CallOutcomeLabels { driver_name, method_name, outcome })
            .inc();
    }

    /// Sets the number of operations in doubt, see [`in_flight`](crate::in_flight).
    pub fn set_in_doubt(&self, operations: usize) {
        self.in_doubt.set(i64::try_from(operations).unwrap_or(i64::MAX));
    }
}

/// Counts a call in the gauge of calls in flight until it is dropped.
#[derive(Debug)]
pub struct InFlightGuard(Gauge<i64, AtomicI64>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrape_after_known_calls() {
        let mut registry = Registry::default();
        let calls =
            BackendMetrics::register(&mut registry).call_metrics(Some(&DriverName::new("array.example")));
        let running = calls.start();
        drop(calls.start());
        for took in [50, 700] {
            calls.observe("/csi.v1.Controller/CreateVolume", "OK", "ok", Duration::from_millis(took));
        }
        calls.observe("/csi.v1.Controller/DeleteVolume", "Internal", "trap", Duration::from_secs(1));
        calls.set_in_doubt(3);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let create = r#"driver_name="array.example",method_name="/csi.v1.Controller/CreateVolume""#;
        let delete = r#"driver_name="array.example",method_name="/csi.v1.Controller/DeleteVolume""#;
        let (created, deleted) = (
            format!(r#"{create},grpc_status_code="OK",migrated="false""#),
            format!(r#"{delete},grpc_status_code="Internal",migrated="false""#),
        );
        for line in [
            format!("csi_sidecar_operations_seconds_count{{{created}}} 2"),
            format!("csi_sidecar_operations_seconds_sum{{{created}}} 0.75"),
            format!(r#"csi_sidecar_operations_seconds_bucket{{le="0.1",{created}}} 1"#),
            format!("csi_sidecar_operations_seconds_count{{{deleted}}} 1"),
            format!(r#"cofferdam_backend_calls_total{{{create},outcome="ok"}} 2"#),
            format!(r#"cofferdam_backend_calls_total{{{delete},outcome="trap"}} 1"#),
            r#"cofferdam_backend_calls_in_flight{driver_name="array.example"} 1"#.to_owned(),
            r#"cofferdam_backend_operations_in_doubt{driver_name="array.example"} 3"#.to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "expected {line} in\n{text}");
        }
        drop(running);
    }
}
