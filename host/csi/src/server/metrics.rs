//! Metrics of served CSI calls.

use std::{sync::atomic::AtomicI64, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use tonic::Code;

use crate::status::go_code_name;

/// Bucket bounds in seconds, as in the Go sidecars, so that client and server latencies are comparable.
const LATENCY_BUCKETS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
/// The gRPC paths of all methods of CSI and of kubelet's plugin registration API.
const METHOD_PATHS: &[&str] = include!("../generated/paths.rs");
/// Method label of unknown paths. Clients choose paths, so arbitrary ones would be unbounded labels.
const UNKNOWN_METHOD: &str = "unknown";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServerCallLabels {
    driver_name: String,
    method_name: &'static str,
    grpc_status_code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServerLabels {
    driver_name: String,
}

/// The server metrics of a process.
#[derive(Clone, Debug)]
pub struct ServerMetrics {
    calls: Family<ServerCallLabels, Histogram, fn() -> Histogram>,
    in_flight: Family<ServerLabels, Gauge>,
}

impl Default for ServerMetrics {
    fn default() -> Self {
        Self {
            calls: Family::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS)),
            in_flight: Family::default(),
        }
    }
}

impl ServerMetrics {
    /// Creates and registers the metrics. To be called once per process.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "cofferdam_csi_server_operations_seconds",
            "Duration of served CSI calls, by gRPC status code",
            metrics.calls.clone(),
        );
        registry.register(
            "cofferdam_csi_server_operations_in_flight",
            "CSI calls being served",
            metrics.in_flight.clone(),
        );
        metrics
    }

    pub(super) fn driver_metrics(&self, driver: &str) -> DriverServerMetrics {
        let in_flight =
            self.in_flight.get_or_create(&ServerLabels { driver_name: driver.to_owned() }).clone();
        DriverServerMetrics { server_metrics: self.clone(), driver: driver.to_owned(), in_flight }
    }
}

/// The metrics of one driver's server.
#[derive(Clone, Debug)]
pub(super) struct DriverServerMetrics {
    server_metrics: ServerMetrics,
    driver: String,
    in_flight: Gauge<i64, AtomicI64>,
}

impl DriverServerMetrics {
    pub(super) fn call_started(&self) {
        self.in_flight.inc();
    }

    pub(super) fn call_finished(&self, method: &'static str, code: Code, elapsed: Duration) {
        self.in_flight.dec();
        let label = ServerCallLabels {
            driver_name: self.driver.clone(),
            method_name: method,
            grpc_status_code: go_code_name(code),
        };
        self.server_metrics.calls.get_or_create(&label).observe(elapsed.as_secs_f64());
    }
}

/// Returns the method label of a path: the path itself, or `unknown`.
pub(super) fn method_label(path: &str) -> &'static str {
    METHOD_PATHS.iter().find(|known| **known == path).copied().unwrap_or(UNKNOWN_METHOD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_paths_share_one_method_label() {
        assert_eq!(method_label("/csi.v1.Controller/CreateVolume"), "/csi.v1.Controller/CreateVolume");
        assert_eq!(method_label("/csi.v1.Node/NodeStageVolume"), "/csi.v1.Node/NodeStageVolume");
        assert_eq!(
            method_label("/pluginregistration.Registration/GetInfo"),
            "/pluginregistration.Registration/GetInfo"
        );
        for other in ["", "/", "/csi.v1.Controller/createvolume", "/csi.v1.Controller/CreateVolume/"] {
            assert_eq!(method_label(other), UNKNOWN_METHOD, "{other}");
        }
    }
}
