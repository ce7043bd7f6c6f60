//! What operators see of the calls.

use std::{sync::atomic::AtomicI64, time::Duration};

use cofferdam_domain::DriverName;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::breaker::Position;

/// Buckets of the Go sidecars, so that their dashboards and alerts go on working. In seconds.
const SIDECAR_BUCKETS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
/// Powers of two around what guests of all languages were seen to use. In bytes.
const MEMORY_BUCKETS: [f64; 9] = [
    262_144.0,
    1_048_576.0,
    2_097_152.0,
    4_194_304.0,
    8_388_608.0,
    16_777_216.0,
    33_554_432.0,
    67_108_864.0,
    134_217_728.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    driver_name: String,
    method_name: &'static str,
    grpc_status_code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ending {
    driver_name: String,
    method_name: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Driver {
    driver_name: String,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// The metrics of all backends of a process.
#[derive(Clone, Debug)]
pub struct BackendMetrics {
    operations: Histograms<Operation>,
    outcomes: Family<Ending, Counter>,
    memory: Histograms<Driver>,
    in_flight: Family<Driver, Gauge>,
    unsettled: Family<Driver, Gauge>,
    breaker: Family<Driver, Gauge>,
}

impl Default for BackendMetrics {
    fn default() -> Self {
        Self {
            operations: Family::new_with_constructor(|| Histogram::new(SIDECAR_BUCKETS)),
            outcomes: Family::default(),
            memory: Family::new_with_constructor(|| Histogram::new(MEMORY_BUCKETS)),
            in_flight: Family::default(),
            unsettled: Family::default(),
            breaker: Family::default(),
        }
    }
}

impl BackendMetrics {
    /// Makes the metrics and adds them to a registry. A process has one of them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "csi_sidecar_operations_seconds",
            "Duration of driver calls with their gRPC status code",
            metrics.operations.clone(),
        );
        registry.register(
            "cofferdam_backend_calls",
            "Driver calls by how they ended in the sandbox",
            metrics.outcomes.clone(),
        );
        registry.register(
            "cofferdam_backend_call_memory_bytes",
            "Most linear memory that a call had at once",
            metrics.memory.clone(),
        );
        registry.register(
            "cofferdam_backend_calls_in_flight",
            "Driver calls that run or wait",
            metrics.in_flight.clone(),
        );
        registry.register(
            "cofferdam_backend_unsettled",
            "Volumes and snapshots whose last call has an open outcome",
            metrics.unsettled.clone(),
        );
        registry.register(
            "cofferdam_backend_breaker_state",
            "State of the breaker: 0 closed, 1 open (calls are refused), 2 half-open (one call is tried)",
            metrics.breaker.clone(),
        );
        metrics
    }

    /// The part of one driver.
    pub(crate) fn of(&self, driver: &DriverName) -> DriverMetrics {
        let driver = driver.as_str().to_owned();
        let label = Driver { driver_name: driver.clone() };
        DriverMetrics {
            in_flight: self.in_flight.get_or_create(&label).clone(),
            unsettled: self.unsettled.get_or_create(&label).clone(),
            breaker: self.breaker.get_or_create(&label).clone(),
            memory: self.memory.get_or_create(&label).clone(),
            all: self.clone(),
            driver,
        }
    }
}

/// The metrics of one driver.
#[derive(Clone, Debug)]
pub(crate) struct DriverMetrics {
    all: BackendMetrics,
    driver: String,
    in_flight: Gauge<i64, AtomicI64>,
    unsettled: Gauge<i64, AtomicI64>,
    breaker: Gauge<i64, AtomicI64>,
    memory: Histogram,
}

impl DriverMetrics {
    /// A call began; it ends when the value is dropped.
    pub(crate) fn begin(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    /// A call ended.
    pub(crate) fn ended(
        &self,
        method_name: &'static str,
        grpc_status_code: &'static str,
        outcome: &'static str,
        took: Duration,
    ) {
        let driver_name = self.driver.clone();
        let operation = Operation { driver_name: driver_name.clone(), method_name, grpc_status_code };
        self.all.operations.get_or_create(&operation).observe(took.as_secs_f64());
        self.all.outcomes.get_or_create(&Ending { driver_name, method_name, outcome }).inc();
    }

    /// A guest had this much memory at most.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a memory's size fits a double for all that a histogram shows"
    )]
    pub(crate) fn memory(&self, bytes: usize) {
        self.memory.observe(bytes as f64);
    }

    /// So many outcomes are open.
    pub(crate) fn unsettled(&self, subjects: usize) {
        self.unsettled.set(i64::try_from(subjects).unwrap_or(i64::MAX));
    }

    pub(crate) fn breaker(&self, position: Position) {
        self.breaker.set(match position {
            Position::Closed => 0,
            Position::Open => 1,
            Position::HalfOpen => 2,
        });
    }
}

/// A call that runs or waits.
#[derive(Debug)]
pub(crate) struct InFlight(Gauge<i64, AtomicI64>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
