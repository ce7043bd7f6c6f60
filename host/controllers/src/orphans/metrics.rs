//! Metrics of the scan for orphaned volumes.

use cofferdam_domain::DriverName;
use jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

use super::report::{LeakDetection, ScanReport};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DriverLabels {
    driver_name: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ClassificationLabels {
    driver_name: String,
    state: &'static str,
}

/// Handles to the metrics; clones share them.
#[derive(Clone, Debug, Default)]
pub struct OrphanMetrics {
    volumes: Family<ClassificationLabels, Gauge>,
    bytes: Family<DriverLabels, Gauge>,
    last_scan: Family<DriverLabels, Gauge>,
    errors: Family<DriverLabels, Counter>,
}

impl OrphanMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let m = metrics.clone();
        registry.register("cofferdam_driver_volumes", "Volumes that the driver lists, by state", m.volumes);
        registry.register("cofferdam_orphaned_bytes", "Sizes of the orphaned volumes", m.bytes);
        registry.register_with_unit(
            "cofferdam_orphan_scan_timestamp",
            "End of the last complete scan since the Unix epoch",
            Unit::Seconds,
            m.last_scan,
        );
        registry.register("cofferdam_orphan_scan_errors", "Failed scans", m.errors);
        metrics
    }

    /// Exports a report. Nothing is exported if no scan has listed the driver's volumes: zero orphans would
    /// be wrong.
    pub(crate) fn record_report(&self, report: &ScanReport) {
        let counts = &report.counts;
        if counts.total() == 0 && matches!(report.leak_detection, LeakDetection::None { .. }) {
            return;
        }
        let driver_name = report.driver.to_string();
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        for (state, count) in [
            ("referenced", counts.referenced),
            ("orphan", counts.orphan),
            ("within_grace_period", counts.within_grace_period),
            ("unmanaged", counts.unmanaged()),
        ] {
            let labels = ClassificationLabels { driver_name: driver_name.clone(), state };
            self.volumes.get_or_create(&labels).set(signed(count));
        }
        self.bytes.get_or_create(&DriverLabels { driver_name }).set(signed(report.orphaned_bytes));
    }

    /// Records the end of a scan without an error. The scan of a driver that cannot list ends at once.
    pub(crate) fn record_scan(&self, driver: &DriverName, at: Timestamp) {
        self.last_scan.get_or_create(&labels(driver)).set(at.as_second());
        // Exports a zero if no scan has failed.
        drop(self.errors.get_or_create(&labels(driver)));
    }

    /// Records a failed scan.
    pub(crate) fn record_scan_failure(&self, driver: &DriverName) {
        self.errors.get_or_create(&labels(driver)).inc();
    }
}

fn labels(driver: &DriverName) -> DriverLabels {
    DriverLabels { driver_name: driver.to_string() }
}
