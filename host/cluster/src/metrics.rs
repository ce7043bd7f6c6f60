//! Metrics of this crate. Metrics with the meaning of client-go's have its names, so that dashboards work.

use cofferdam_domain::DriverName;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Histogram buckets in seconds, from 10 ns to 10 s, as in client-go's work queues.
const QUEUE_BUCKETS: [f64; 10] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    code: String,
}

/// Label of a queue.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct QueueLabels {
    name: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DriverLabels {
    driver_name: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LeaseLabels {
    name: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RoleLabels {
    role: &'static str,
}

/// All metrics of the crate. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    requests: Family<RequestLabels, Counter>,
    relists: Family<KindLabels, Counter>,
    undecodable: Family<KindLabels, Counter>,
    events: Family<OutcomeLabels, Counter>,
    journal_commits: Counter,
    journal_lost: Family<DriverLabels, Gauge>,
    role_stopped: Family<RoleLabels, Gauge>,
    /// 1 while volume deletion is frozen: this process detected a restore, or its cache has the restore
    /// marker.
    pub deletions_frozen: Gauge,
    leader: Family<LeaseLabels, Gauge>,
    depth: Family<QueueLabels, Gauge>,
    adds: Family<QueueLabels, Counter>,
    retries: Family<QueueLabels, Counter>,
    queue_duration: Family<QueueLabels, Histogram>,
    work_duration: Family<QueueLabels, Histogram>,
}

impl Default for Metrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(QUEUE_BUCKETS);
        Self {
            requests: Family::default(),
            relists: Family::default(),
            undecodable: Family::default(),
            events: Family::default(),
            journal_commits: Counter::default(),
            journal_lost: Family::default(),
            role_stopped: Family::default(),
            deletions_frozen: Gauge::default(),
            leader: Family::default(),
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            queue_duration: Family::new_with_constructor(histogram),
            work_duration: Family::new_with_constructor(histogram),
        }
    }
}

impl Metrics {
    /// Registers the metrics in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let m = metrics.clone();
        registry.register(
            "rest_client_requests",
            "Requests to the API server by verb and HTTP code",
            m.requests,
        );
        registry.register("cofferdam_watch_relists", "Lists of reflectors, including the first", m.relists);
        registry.register(
            "cofferdam_undecodable_objects",
            "Objects that could not be decoded",
            m.undecodable,
        );
        registry.register(
            "cofferdam_events",
            "Events sent, aggregated into an earlier one, limited, or dropped",
            m.events,
        );
        registry.register("cofferdam_journal_commits", "Commits of the intent journal", m.journal_commits);
        registry.register(
            "cofferdam_journal_lost",
            "1 while another process owns the intent journal of the driver, which this process owned before",
            m.journal_lost,
        );
        registry.register(
            "cofferdam_role_stopped",
            "1 if the role has stopped because another controller does its work",
            m.role_stopped,
        );
        registry.register(
            "cofferdam_deletions_frozen",
            "1 while volume deletion is frozen because the cluster was restored from a backup",
            m.deletions_frozen,
        );
        registry.register(
            "leader_election_master_status",
            "1 if this process holds the lease, by the lease's name",
            m.leader,
        );
        registry.register("workqueue_depth", "Queued keys", m.depth);
        registry.register("workqueue_adds", "Keys added", m.adds);
        registry.register("workqueue_retries", "Keys requeued after a failure", m.retries);
        registry.register("workqueue_queue_duration_seconds", "Time in the queue", m.queue_duration);
        registry.register("workqueue_work_duration_seconds", "Duration of a run", m.work_duration);
        metrics
    }

    pub(crate) fn request(&self, method: &'static str, code: &str) {
        self.requests.get_or_create(&RequestLabels { method, code: code.to_owned() }).inc();
    }

    pub(crate) fn relist(&self, kind: &'static str) {
        self.relists.get_or_create(&KindLabels { kind }).inc();
    }

    pub(crate) fn undecodable(&self, kind: &'static str) {
        self.undecodable.get_or_create(&KindLabels { kind }).inc();
    }

    pub(crate) fn event(&self, outcome: &'static str) {
        self.events.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    pub(crate) fn journal_commit(&self) {
        self.journal_commits.inc();
    }

    pub(crate) fn set_journal_owned(&self, driver: &DriverName, is_owned: bool) {
        let labels = DriverLabels { driver_name: driver.to_string() };
        self.journal_lost.get_or_create(&labels).set((!is_owned).into());
    }

    /// Records whether a role has stopped because another controller does its work.
    pub fn set_role_stopped(&self, role: &'static str, is_stopped: bool) {
        self.role_stopped.get_or_create(&RoleLabels { role }).set(is_stopped.into());
    }

    /// Number of successful writes of a journal ConfigMap, of all journals with these metrics.
    pub fn journal_commits(&self) -> u64 {
        self.journal_commits.get()
    }

    pub(crate) fn set_leader(&self, lease: &str, is_leader: bool) {
        self.leader.get_or_create(&LeaseLabels { name: lease.to_owned() }).set(is_leader.into());
    }

    pub(crate) fn queue(&self, name: &'static str) -> QueueMetrics {
        let labels = QueueLabels { name };
        QueueMetrics {
            depth: self.depth.get_or_create(&labels).clone(),
            adds: self.adds.get_or_create(&labels).clone(),
            retries: self.retries.get_or_create(&labels).clone(),
            queue_duration: self.queue_duration.get_or_create(&labels).clone(),
            work_duration: self.work_duration.get_or_create(&labels).clone(),
        }
    }
}

/// Metrics of one work queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueMetrics {
    pub(crate) depth: Gauge,
    pub(crate) adds: Counter,
    pub(crate) retries: Counter,
    pub(crate) queue_duration: Histogram,
    pub(crate) work_duration: Histogram,
}
