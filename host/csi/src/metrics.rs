//! What operators see of the connections to drivers. The calls count where all drivers' calls do.

use std::sync::atomic::AtomicI64;

use cofferdam_domain::DriverName;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Driver {
    driver_name: String,
}

/// The metrics of all connections of a process.
#[derive(Clone, Debug, Default)]
pub struct ConnectionMetrics {
    up: Family<Driver, Gauge>,
    lost: Family<Driver, Counter>,
}

impl ConnectionMetrics {
    /// Makes the metrics and adds them to a registry. A process has one of them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "cofferdam_csi_connected",
            "Whether the CSI driver is connected and ready: 1 or 0",
            metrics.up.clone(),
        );
        registry.register(
            "cofferdam_csi_connections_lost",
            "Connections to the CSI driver that ended by themselves",
            metrics.lost.clone(),
        );
        metrics
    }

    pub(crate) fn of(&self, driver: &DriverName) -> DriverConnection {
        let label = Driver { driver_name: driver.as_str().to_owned() };
        DriverConnection {
            up: self.up.get_or_create(&label).clone(),
            lost: self.lost.get_or_create(&label).clone(),
        }
    }
}

/// The connection of one driver.
#[derive(Clone, Debug)]
pub(crate) struct DriverConnection {
    up: Gauge<i64, AtomicI64>,
    lost: Counter,
}

impl DriverConnection {
    pub(crate) fn up(&self) {
        self.up.set(1);
    }

    pub(crate) fn lost(&self) {
        self.up.set(0);
        self.lost.inc();
    }
}
