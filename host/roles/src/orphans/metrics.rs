//! Gauges of what drivers hold.

use cofferdam_domain::DriverName;
use jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

use super::report::Report;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    driver_name: String,
}

/// Handles to the metrics; clones share them.
#[derive(Clone, Debug, Default)]
pub struct OrphanMetrics {
    volumes: Family<Labels, Gauge>,
    bytes: Family<Labels, Gauge>,
    unowned: Family<Labels, Gauge>,
    scanned: Family<Labels, Gauge>,
}

impl OrphanMetrics {
    /// Metrics that a scrape of `registry` shows.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let m = metrics.clone();
        registry.register("cofferdam_orphaned_volumes", "Volumes that nothing speaks for", m.volumes);
        registry.register("cofferdam_orphaned_bytes", "Sizes of the orphaned volumes", m.bytes);
        registry.register(
            "cofferdam_unowned_volumes",
            "Volumes without a PersistentVolume that may not be this cluster's",
            m.unowned,
        );
        registry.register(
            "cofferdam_orphan_scan_timestamp_seconds",
            "End of the last complete scan since the Unix epoch",
            m.scanned,
        );
        metrics
    }

    /// Shows what a report says.
    pub(crate) fn show(&self, report: &Report) {
        let labels = Labels { driver_name: report.driver.to_string() };
        let set = |family: &Family<Labels, Gauge>, value: u64| {
            family.get_or_create(&labels).set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        set(&self.volumes, report.counts.orphan);
        set(&self.bytes, report.orphaned_bytes);
        set(&self.unowned, report.counts.unknown);
    }

    /// Notes the end of a complete scan.
    pub(crate) fn scanned(&self, driver: &DriverName, at: Timestamp) {
        let labels = Labels { driver_name: driver.to_string() };
        self.scanned.get_or_create(&labels).set(at.as_second());
    }
}
