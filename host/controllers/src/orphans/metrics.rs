//! Metrics of the scans for orphaned volumes and orphaned snapshots.

use cofferdam_cluster::orphan_report::OrphanKind;
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

/// Names and help texts of the metrics of one kind.
struct MetricNames {
    listed: (&'static str, &'static str),
    bytes: (&'static str, &'static str),
    last_scan: (&'static str, &'static str),
    errors: (&'static str, &'static str),
}

const fn names(kind: OrphanKind) -> MetricNames {
    match kind {
        OrphanKind::Volume => MetricNames {
            listed: ("cofferdam_driver_volumes", "Volumes that the driver lists, by state"),
            bytes: ("cofferdam_orphaned_bytes", "Sizes of the orphaned volumes"),
            last_scan: (
                "cofferdam_orphan_scan_timestamp",
                "End of the last complete scan since the Unix epoch",
            ),
            errors: ("cofferdam_orphan_scan_errors", "Failed scans"),
        },
        OrphanKind::Snapshot => MetricNames {
            listed: ("cofferdam_driver_snapshots", "Snapshots that the driver lists, by state"),
            bytes: ("cofferdam_orphaned_snapshot_bytes", "Sizes of the orphaned snapshots"),
            last_scan: (
                "cofferdam_snapshot_scan_timestamp",
                "End of the last complete scan of snapshots since the Unix epoch",
            ),
            errors: ("cofferdam_snapshot_scan_errors", "Failed scans of snapshots"),
        },
    }
}

/// Handles to the metrics of one kind; clones share them.
#[derive(Clone, Debug, Default)]
pub struct OrphanMetrics {
    listed: Family<ClassificationLabels, Gauge>,
    bytes: Family<DriverLabels, Gauge>,
    last_scan: Family<DriverLabels, Gauge>,
    errors: Family<DriverLabels, Counter>,
}

impl OrphanMetrics {
    /// Registers the metrics of a kind.
    pub fn register(registry: &mut Registry, kind: OrphanKind) -> Self {
        let metrics = Self::default();
        let (m, names) = (metrics.clone(), names(kind));
        registry.register(names.listed.0, names.listed.1, m.listed);
        registry.register(names.bytes.0, names.bytes.1, m.bytes);
        registry.register_with_unit(names.last_scan.0, names.last_scan.1, Unit::Seconds, m.last_scan);
        registry.register(names.errors.0, names.errors.1, m.errors);
        metrics
    }

    /// Exports a report. Nothing is exported if no scan has listed anything: zero orphans would
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
            self.listed.get_or_create(&labels).set(signed(count));
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
