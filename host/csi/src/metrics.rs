//! Metrics of the connections to CSI drivers. Calls are counted by `BackendMetrics`.

use std::sync::atomic::AtomicI64;

use cofferdam_domain::DriverName;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConnectionLabels {
    driver_name: String,
}

/// The connection metrics of a process.
#[derive(Clone, Debug, Default)]
pub struct ConnectionMetrics {
    connected: Family<ConnectionLabels, Gauge>,
    connections_lost: Family<ConnectionLabels, Counter>,
}

impl ConnectionMetrics {
    /// Creates and registers the metrics. To be called once per process.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "cofferdam_csi_connected",
            "Whether the CSI driver is connected and ready: 1 or 0",
            metrics.connected.clone(),
        );
        registry.register(
            "cofferdam_csi_connections_lost",
            "Connections to the CSI driver that were lost",
            metrics.connections_lost.clone(),
        );
        metrics
    }

    pub(crate) fn driver_metrics(&self, driver: &DriverName) -> DriverConnectionMetrics {
        let label = ConnectionLabels { driver_name: driver.as_str().to_owned() };
        DriverConnectionMetrics {
            connected: self.connected.get_or_create(&label).clone(),
            connections_lost: self.connections_lost.get_or_create(&label).clone(),
        }
    }
}

/// The metrics of one driver's connection.
#[derive(Clone, Debug)]
pub(crate) struct DriverConnectionMetrics {
    connected: Gauge<i64, AtomicI64>,
    connections_lost: Counter,
}

impl DriverConnectionMetrics {
    pub(crate) fn set_connected(&self) {
        self.connected.set(1);
    }

    pub(crate) fn count_lost_connection(&self) {
        self.connected.set(0);
        self.connections_lost.inc();
    }
}
