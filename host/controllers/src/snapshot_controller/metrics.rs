//! Metrics of the snapshot controller, with the names of external-snapshotter.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicI64},
};

use cofferdam_domain::{DriverName, Uid, VolumeSnapshot, volume_snapshot::VolumeSnapshotSource};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use tokio::time::Instant;

/// Seconds; the buckets of external-snapshotter.
const BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0];
/// Label of a driver that is not known.
const UNKNOWN_DRIVER: &str = "unknown";

/// An operation whose duration is measured. Each starts when the controller first sees the VolumeSnapshot in
/// this term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SnapshotOperation {
    /// Until the status has a creation time.
    Create,
    /// Until the snapshot is ready.
    CreateAndReady,
    /// From the deletion, once no claim waits for the snapshot, until the VolumeSnapshot is gone.
    Delete,
}

impl SnapshotOperation {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CreateSnapshot",
            Self::CreateAndReady => "CreateSnapshotAndReady",
            Self::Delete => "DeleteSnapshot",
        }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabels {
    driver_name: String,
    operation_name: &'static str,
    snapshot_type: &'static str,
    operation_status: &'static str,
}

#[derive(Debug)]
struct Running {
    started: Instant,
    snapshot_type: &'static str,
}

/// Handles to the metrics; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotControllerMetrics {
    seconds: Family<OperationLabels, Histogram>,
    in_flight: Gauge<i64, AtomicI64>,
    running: Arc<Mutex<HashMap<(Uid, SnapshotOperation), Running>>>,
}

impl SnapshotControllerMetrics {
    /// Registers the metrics.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let metrics = Self {
            seconds: Family::new_with_constructor(histogram),
            in_flight: Gauge::default(),
            running: Arc::default(),
        };
        registry.register_with_unit(
            "snapshot_controller_operation_total",
            "Time from the first sight of a VolumeSnapshot, or of its deletion, to the end of the operation",
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        registry.register(
            "snapshot_controller_operations_in_flight",
            "Operations of VolumeSnapshots that have not ended",
            metrics.in_flight.clone(),
        );
        metrics
    }

    /// Forgets the operations of an earlier term: another process may have ended them.
    pub(super) fn begin_term(&self) {
        self.running.lock().clear();
        self.in_flight.set(0);
    }

    /// An operation starts, unless it runs already.
    pub(super) fn start(&self, snapshot: &VolumeSnapshot, operation: SnapshotOperation) {
        let snapshot_type = match &snapshot.source {
            VolumeSnapshotSource::Content(_) => "pre-provisioned",
            VolumeSnapshotSource::Claim(_) | VolumeSnapshotSource::Invalid(_) => "dynamic",
        };
        let mut running = self.running.lock();
        running
            .entry((snapshot.meta.uid.clone(), operation))
            .or_insert_with(|| Running { started: Instant::now(), snapshot_type });
        self.in_flight.set(running.len().try_into().unwrap_or(i64::MAX));
    }

    /// An operation has succeeded, if it runs. `driver` is called only then.
    pub(super) fn succeed(
        &self,
        snapshot: &Uid,
        operation: SnapshotOperation,
        driver: impl FnOnce() -> Option<DriverName>,
    ) {
        self.end(snapshot, operation, driver, "success");
    }

    /// A VolumeSnapshot is gone: its deletion has succeeded, and other operations end with it.
    pub(super) fn forget(&self, snapshot: &Uid, driver: impl Fn() -> Option<DriverName>) {
        self.succeed(snapshot, SnapshotOperation::Delete, &driver);
        for operation in [SnapshotOperation::Create, SnapshotOperation::CreateAndReady] {
            self.end(snapshot, operation, &driver, "cancel");
        }
    }

    fn end(
        &self,
        snapshot: &Uid,
        operation: SnapshotOperation,
        driver: impl FnOnce() -> Option<DriverName>,
        operation_status: &'static str,
    ) {
        let mut running = self.running.lock();
        let Some(Running { started, snapshot_type }) = running.remove(&(snapshot.clone(), operation)) else {
            return;
        };
        self.in_flight.set(running.len().try_into().unwrap_or(i64::MAX));
        drop(running);
        let labels = OperationLabels {
            driver_name: driver().map_or_else(|| UNKNOWN_DRIVER.to_owned(), |name| name.to_string()),
            operation_name: operation.as_str(),
            snapshot_type,
            operation_status,
        };
        self.seconds.get_or_create(&labels).observe(started.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cofferdam_cluster::decode;
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn operations_are_measured_until_they_end() {
        let mut registry = Registry::default();
        let metrics = SnapshotControllerMetrics::register(&mut registry);
        let snapshot = |uid: &str| -> VolumeSnapshot {
            let json = json!({
                "metadata": {"namespace": "ns", "name": uid, "uid": uid, "resourceVersion": "1"},
                "spec": {"source": {"persistentVolumeClaimName": "c"}},
            });
            decode::object(&json.to_string()).unwrap().unwrap()
        };
        let encoded = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            let has_value =
                |line: &&str| !line.starts_with('#') && (line.contains("_sum") || line.contains("in_flight"));
            let lines: Vec<_> = text.lines().filter(has_value).map(ToOwned::to_owned).collect();
            lines
        };
        let driver = DriverName::from("drv");
        let (ready, cancelled) = (snapshot("1"), snapshot("2"));
        for object in [&ready, &cancelled] {
            metrics.start(object, SnapshotOperation::Create);
            metrics.start(object, SnapshotOperation::CreateAndReady);
        }
        tokio::time::advance(Duration::from_secs(2)).await;
        metrics.start(&ready, SnapshotOperation::Create);
        metrics.succeed(&ready.meta.uid, SnapshotOperation::Create, || Some(driver.clone()));
        tokio::time::advance(Duration::from_secs(1)).await;
        metrics.succeed(&ready.meta.uid, SnapshotOperation::CreateAndReady, || Some(driver.clone()));
        metrics.succeed(&ready.meta.uid, SnapshotOperation::CreateAndReady, || Some(driver.clone()));
        assert!(encoded().contains(&"snapshot_controller_operations_in_flight 2".to_owned()));
        metrics.start(&cancelled, SnapshotOperation::Delete);
        tokio::time::advance(Duration::from_secs(1)).await;
        metrics.forget(&cancelled.meta.uid, || None);
        let sum = |driver: &str, operation: &str, status: &str, seconds: &str| {
            format!(
                "snapshot_controller_operation_total_seconds_sum{{driver_name=\"{driver}\",operation_name=\
                 \"{operation}\",snapshot_type=\"dynamic\",operation_status=\"{status}\"}} {seconds}"
            )
        };
        let mut expected = vec![
            "snapshot_controller_operations_in_flight 0".to_owned(),
            sum("drv", "CreateSnapshot", "success", "2.0"),
            sum("drv", "CreateSnapshotAndReady", "success", "3.0"),
            sum("unknown", "CreateSnapshot", "cancel", "4.0"),
            sum("unknown", "CreateSnapshotAndReady", "cancel", "4.0"),
            sum("unknown", "DeleteSnapshot", "success", "1.0"),
        ];
        let mut found = encoded();
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
    }
}
