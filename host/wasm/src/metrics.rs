//! Metrics of backends that are components: memory, CPU time, dropped log lines, limits, circuit breaker, and
//! the use of the imports `session`, `http`, `state` and `pool`.

use std::{
    sync::atomic::{AtomicI64, AtomicU64},
    time::Duration,
};

use cofferdam_backend::{BackendMetrics, CallMetrics};
use cofferdam_domain::DriverName;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::{breaker::BreakerStatus, limits::Limits, usage::CallUsage};

/// Histogram buckets in seconds, from a fast array in the same network to the default timeout of a request.
const EXCHANGE_BUCKETS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// Histogram buckets in bytes: powers of two around the measured memory of guests in all languages.
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
struct LimitLabels {
    driver_name: String,
    limit: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolOperationLabels {
    driver_name: String,
    operation: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Driver {
    driver_name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SessionEventLabels {
    driver_name: String,
    event: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ExchangeLabels {
    driver_name: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DenialLabels {
    driver_name: String,
    reason: &'static str,
}

type HistogramFamily<L> = Family<L, Histogram, fn() -> Histogram>;

/// The metrics of all backends of a process that are components.
#[derive(Clone, Debug)]
pub struct WasmMetrics {
    calls: BackendMetrics,
    memory: HistogramFamily<Driver>,
    breaker: Family<Driver, Gauge>,
    limits: Family<LimitLabels, Gauge>,
    cpu_seconds: Family<Driver, Counter<f64, AtomicU64>>,
    dropped_log_lines: Family<Driver, Counter>,
    sessions: Family<Driver, Gauge>,
    session_events: Family<SessionEventLabels, Counter>,
    exchanges: Family<ExchangeLabels, Counter>,
    exchange_seconds: HistogramFamily<Driver>,
    denials: Family<DenialLabels, Counter>,
    state_entries: Family<Driver, Gauge>,
    state_bytes: Family<Driver, Gauge>,
    pool_operations: Family<PoolOperationLabels, Counter>,
    pool_items: Family<Driver, Gauge>,
    pool_bytes: Family<Driver, Gauge>,
}

impl Default for WasmMetrics {
    fn default() -> Self {
        Self {
            calls: BackendMetrics::default(),
            memory: Family::new_with_constructor(|| Histogram::new(MEMORY_BUCKETS)),
            breaker: Family::default(),
            limits: Family::default(),
            cpu_seconds: Family::default(),
            dropped_log_lines: Family::default(),
            sessions: Family::default(),
            session_events: Family::default(),
            exchanges: Family::default(),
            exchange_seconds: Family::new_with_constructor(|| Histogram::new(EXCHANGE_BUCKETS)),
            denials: Family::default(),
            state_entries: Family::default(),
            state_bytes: Family::default(),
            pool_operations: Family::default(),
            pool_items: Family::default(),
            pool_bytes: Family::default(),
        }
    }
}

impl WasmMetrics {
    /// Registers the metrics of components, once per process. `calls` counts the calls of all drivers, of
    /// components as well as of CSI drivers.
    pub fn register(registry: &mut Registry, calls: BackendMetrics) -> Self {
        let metrics = Self { calls, ..Self::default() };
        registry.register(
            "cofferdam_backend_call_memory_bytes",
            "Most linear memory that a call had at once",
            metrics.memory.clone(),
        );
        registry.register(
            "cofferdam_backend_circuit_breaker_state",
            "State of the breaker: 0 closed, 1 open (calls are refused), 2 half-open (one call is tried)",
            metrics.breaker.clone(),
        );
        registry.register(
            "cofferdam_backend_limit",
            "What the driver may use, by the names of the configuration",
            metrics.limits.clone(),
        );
        registry.register(
            "cofferdam_backend_cpu_seconds",
            "Time that calls computed",
            metrics.cpu_seconds.clone(),
        );
        registry.register(
            "cofferdam_backend_log_lines_dropped",
            "Lines that calls wrote beyond the limit of their log",
            metrics.dropped_log_lines.clone(),
        );
        registry.register(
            "cofferdam_backend_sessions",
            "Values that the `session` import holds",
            metrics.sessions.clone(),
        );
        registry.register(
            "cofferdam_backend_session_events",
            "Uses of the `session` import: hit, miss (the call acquired the lock), put, invalidated",
            metrics.session_events.clone(),
        );
        registry.register(
            "cofferdam_backend_http_exchanges",
            "Requests of the `http` import by the class of their response's status, or by what went wrong",
            metrics.exchanges.clone(),
        );
        registry.register(
            "cofferdam_backend_http_exchange_seconds",
            "Duration of requests of the `http` import, with connection and body",
            metrics.exchange_seconds.clone(),
        );
        registry.register(
            "cofferdam_backend_http_denied",
            "Requests of the `http` import to an origin or address that is not allowed",
            metrics.denials.clone(),
        );
        metrics.register_storage(registry);
        metrics
    }

    fn register_storage(&self, registry: &mut Registry) {
        registry.register(
            "cofferdam_backend_state_entries",
            "Entries that the driver keeps through its `state` import",
            self.state_entries.clone(),
        );
        registry.register(
            "cofferdam_backend_state_bytes",
            "What these entries count against the limit `state-bytes`",
            self.state_bytes.clone(),
        );
        registry.register(
            "cofferdam_backend_pool_operations",
            "Operations on the driver's pool by how they ended",
            self.pool_operations.clone(),
        );
        registry.register(
            "cofferdam_backend_pool_items",
            "Directories and images in the driver's pool",
            self.pool_items.clone(),
        );
        registry.register(
            "cofferdam_backend_pool_bytes",
            "Bytes that are promised to the images of the driver's pool",
            self.pool_bytes.clone(),
        );
    }

    /// The metrics of one driver, labelled with its name.
    pub(crate) fn driver_metrics(&self, driver: &DriverName) -> DriverMetrics {
        let calls = self.calls.call_metrics(Some(driver));
        let driver = driver.to_string();
        let label = Driver { driver_name: driver.clone() };
        DriverMetrics {
            calls,
            breaker: self.breaker.get_or_create(&label).clone(),
            cpu_seconds: self.cpu_seconds.get_or_create(&label).clone(),
            dropped_log_lines: self.dropped_log_lines.get_or_create(&label).clone(),
            memory: self.memory.get_or_create(&label).clone(),
            state_entries: self.state_entries.get_or_create(&label).clone(),
            state_bytes: self.state_bytes.get_or_create(&label).clone(),
            backend_metrics: self.clone(),
            driver,
        }
    }
}

/// The metrics of one driver.
#[derive(Clone, Debug)]
pub(crate) struct DriverMetrics {
    backend_metrics: WasmMetrics,
    driver: String,
    calls: CallMetrics,
    breaker: Gauge<i64, AtomicI64>,
    cpu_seconds: Counter<f64, AtomicU64>,
    dropped_log_lines: Counter,
    memory: Histogram,
    state_entries: Gauge<i64, AtomicI64>,
    state_bytes: Gauge<i64, AtomicI64>,
}

impl DriverMetrics {
    /// The metrics of this driver's `session` import.
    pub(crate) fn session_metrics(&self) -> SessionMetrics {
        let driver_name = self.driver.clone();
        let of = |event| {
            let label = SessionEventLabels { driver_name: driver_name.clone(), event };
            self.backend_metrics.session_events.get_or_create(&label).clone()
        };
        SessionMetrics {
            entries: self
                .backend_metrics
                .sessions
                .get_or_create(&Driver { driver_name: driver_name.clone() })
                .clone(),
            hits: of("hit"),
            misses: of("miss"),
            puts: of("put"),
            invalidations: of("invalidated"),
        }
    }

    /// The metrics of this driver's `http` import.
    pub(crate) fn http_metrics(&self) -> HttpMetrics {
        let label = Driver { driver_name: self.driver.clone() };
        HttpMetrics {
            exchanges: self.backend_metrics.exchanges.clone(),
            denials: self.backend_metrics.denials.clone(),
            seconds: self.backend_metrics.exchange_seconds.get_or_create(&label).clone(),
            driver: self.driver.clone(),
        }
    }

    /// The metrics of this driver's calls.
    pub(crate) fn call_metrics(&self) -> &CallMetrics {
        &self.calls
    }

    /// Records the resource usage of one call.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a memory's size fits a double for all that a histogram shows"
    )]
    pub(crate) fn observe_usage(&self, usage: &CallUsage) {
        self.memory.observe(usage.memory_bytes as f64);
        self.cpu_seconds.inc_by(usage.cpu_time.as_secs_f64());
        self.dropped_log_lines.inc_by(usage.dropped_log_lines);
    }

    /// Publishes the limits of the driver.
    pub(crate) fn set_limits(&self, limits: &Limits) {
        for (limit, value) in limits.entries() {
            let label = LimitLabels { driver_name: self.driver.clone(), limit };
            self.backend_metrics.limits.get_or_create(&label).set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }

    /// Sets the number of entries in the driver's `state`, and their bytes.
    pub(crate) fn set_state_usage(&self, (entries, bytes): (usize, usize)) {
        self.state_entries.set(i64::try_from(entries).unwrap_or(i64::MAX));
        self.state_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Sets the pool's items and reserved bytes. Drivers without a pool have no such metrics.
    pub(crate) fn set_pool_usage(&self, items: usize, bytes: u64) {
        let label = Driver { driver_name: self.driver.clone() };
        self.backend_metrics.pool_items.get_or_create(&label).set(i64::try_from(items).unwrap_or(i64::MAX));
        self.backend_metrics.pool_bytes.get_or_create(&label).set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Counts a finished operation on the pool.
    pub(crate) fn count_pool_operation(&self, operation: &'static str, outcome: &'static str) {
        let label = PoolOperationLabels { driver_name: self.driver.clone(), operation, outcome };
        self.backend_metrics.pool_operations.get_or_create(&label).inc();
    }

    pub(crate) fn set_breaker_status(&self, position: BreakerStatus) {
        self.breaker.set(match position {
            BreakerStatus::Closed => 0,
            BreakerStatus::Open => 1,
            BreakerStatus::HalfOpen => 2,
        });
    }
}

/// Metrics of the `session` import of one driver.
#[derive(Clone, Debug)]
pub(crate) struct SessionMetrics {
    entries: Gauge<i64, AtomicI64>,
    hits: Counter,
    misses: Counter,
    puts: Counter,
    invalidations: Counter,
}

impl SessionMetrics {
    pub(crate) fn set_entries(&self, values: usize) {
        self.entries.set(i64::try_from(values).unwrap_or(i64::MAX));
    }

    pub(crate) fn count_hit(&self) {
        self.hits.inc();
    }

    pub(crate) fn count_miss(&self) {
        self.misses.inc();
    }

    pub(crate) fn count_put(&self) {
        self.puts.inc();
    }

    pub(crate) fn count_invalidation(&self) {
        self.invalidations.inc();
    }
}

/// Metrics of the `http` import of one driver.
#[derive(Clone, Debug)]
pub(crate) struct HttpMetrics {
    exchanges: Family<ExchangeLabels, Counter>,
    denials: Family<DenialLabels, Counter>,
    seconds: Histogram,
    driver: String,
}

impl HttpMetrics {
    /// Records a finished or abandoned request: its outcome and duration.
    pub(crate) fn observe(&self, outcome: &'static str, took: Duration) {
        self.count_exchange(outcome);
        self.seconds.observe(took.as_secs_f64());
    }

    /// Counts a request by its outcome, without a duration.
    pub(crate) fn count_exchange(&self, outcome: &'static str) {
        let driver_name = self.driver.clone();
        self.exchanges.get_or_create(&ExchangeLabels { driver_name, outcome }).inc();
    }

    /// Counts a request to an `origin` or `address` that is not allowed; `reason` says which of them.
    pub(crate) fn count_denial(&self, reason: &'static str) {
        let driver_name = self.driver.clone();
        self.denials.get_or_create(&DenialLabels { driver_name, reason }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrape_after_known_calls() {
        let mut registry = Registry::default();
        let calls = BackendMetrics::register(&mut registry);
        let metrics =
            WasmMetrics::register(&mut registry, calls).driver_metrics(&DriverName::new("array.example"));
        metrics.observe_usage(&CallUsage {
            memory_bytes: 1 << 20,
            cpu_time: Duration::from_millis(30),
            dropped_log_lines: 5,
        });
        metrics.set_breaker_status(BreakerStatus::Open);
        metrics.set_limits(&Limits { cpu_ms: 77, ..Limits::default() });
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            r#"cofferdam_backend_cpu_seconds_total{driver_name="array.example"} 0.03"#.to_owned(),
            r#"cofferdam_backend_log_lines_dropped_total{driver_name="array.example"} 5"#.to_owned(),
            r#"cofferdam_backend_limit{driver_name="array.example",limit="cpu-ms"} 77"#.to_owned(),
            r#"cofferdam_backend_call_memory_bytes_bucket{le="1048576.0",driver_name="array.example"} 1"#
                .to_owned(),
            r#"cofferdam_backend_circuit_breaker_state{driver_name="array.example"} 1"#.to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "expected {line} in\n{text}");
        }
    }
}
