//! Metrics of the provisioner, with the names of external-provisioner.

use std::time::Duration;

use cofferdam_domain::StorageClassName;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

/// Buckets of the duration histograms, in seconds: the default buckets of Prometheus' Go client, which
/// external-provisioner uses.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ProvisionLabels {
    class: String,
    source: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DeleteLabels {
    class: String,
}

/// Handles to the metrics; clones share them.
#[derive(Clone, Debug)]
pub struct ProvisionerMetrics {
    provisions: Family<ProvisionLabels, Counter>,
    provision_failures: Family<ProvisionLabels, Counter>,
    provision_seconds: Family<ProvisionLabels, Histogram>,
    deletions: Family<DeleteLabels, Counter>,
    deletion_failures: Family<DeleteLabels, Counter>,
    deletion_seconds: Family<DeleteLabels, Histogram>,
}

impl ProvisionerMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let metrics = Self {
            provisions: Family::default(),
            provision_failures: Family::default(),
            provision_seconds: Family::new_with_constructor(histogram),
            deletions: Family::default(),
            deletion_failures: Family::default(),
            deletion_seconds: Family::new_with_constructor(histogram),
        };
        let m = metrics.clone();
        let claims = "controller_persistentvolumeclaim";
        let volumes = "controller_persistentvolume";
        registry.register(format!("{claims}_provision"), "Volumes provisioned", m.provisions);
        registry.register(format!("{claims}_provision_failed"), "Provisionings failed", m.provision_failures);
        registry.register_with_unit(
            format!("{claims}_provision_duration"),
            "Time from the driver call to the PersistentVolume",
            Unit::Seconds,
            m.provision_seconds,
        );
        registry.register(format!("{volumes}_delete"), "Volumes deleted", m.deletions);
        registry.register(format!("{volumes}_delete_failed"), "Deletions failed", m.deletion_failures);
        registry.register_with_unit(
            format!("{volumes}_delete_duration"),
            "Time of the driver call",
            Unit::Seconds,
            m.deletion_seconds,
        );
        metrics
    }

    pub(crate) fn record_provision(&self, class: &StorageClassName, took: Duration) {
        let labels = ProvisionLabels { class: class.to_string(), source: "" };
        self.provisions.get_or_create(&labels).inc();
        self.provision_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(crate) fn record_provision_failure(&self, class: &StorageClassName) {
        self.provision_failures
            .get_or_create(&ProvisionLabels { class: class.to_string(), source: "" })
            .inc();
    }

    pub(crate) fn record_deletion(&self, class: &StorageClassName, took: Duration) {
        let labels = DeleteLabels { class: class.to_string() };
        self.deletions.get_or_create(&labels).inc();
        self.deletion_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(crate) fn record_deletion_failure(&self, class: &StorageClassName) {
        self.deletion_failures.get_or_create(&DeleteLabels { class: class.to_string() }).inc();
    }
}
