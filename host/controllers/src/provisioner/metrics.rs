//! Metrics of the provisioner, with the names of external-provisioner, and of the intent journals.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use cofferdam_cluster::{Clock, Intent, Journal};
use cofferdam_domain::{DriverName, StorageClassName, storage::ContentSource};
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, counter::Counter, family::Family, gauge::ConstGauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// Buckets of the duration histograms, in seconds: the default buckets of Prometheus' Go client, which
/// external-provisioner uses.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ProvisionLabels {
    class: String,
    /// Kind of the content source; empty for an empty volume.
    source: &'static str,
}

impl ProvisionLabels {
    fn of(intent: &Intent) -> Self {
        let source = match &intent.request.source {
            None => "",
            Some(ContentSource::Volume(_)) => "PersistentVolumeClaim",
            Some(ContentSource::Snapshot(_)) => "VolumeSnapshot",
        };
        Self { class: intent.class.name.to_string(), source }
    }
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
    journals: JournalMetrics,
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
            journals: JournalMetrics::default(),
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
        registry.register_collector(Box::new(m.journals));
        metrics
    }

    /// Sets the journals of the process's drivers, and the clock for the ages of their intents.
    pub(crate) fn add_journals(
        &self,
        journals: impl Iterator<Item = Journal>,
        clock: &Clock,
        stuck_after: Duration,
    ) {
        let managed = |journal: Journal| {
            let driver = journal.driver().clone();
            (driver, ManagedJournal { journal, clock: Arc::clone(clock), stuck_after })
        };
        self.journals.0.lock().extend(journals.map(managed));
    }

    pub(crate) fn record_provision(&self, intent: &Intent, took: Duration) {
        let labels = ProvisionLabels::of(intent);
        self.provisions.get_or_create(&labels).inc();
        self.provision_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(crate) fn record_provision_failure(&self, intent: &Intent) {
        self.provision_failures.get_or_create(&ProvisionLabels::of(intent)).inc();
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

/// The last journal of a driver in this process.
#[derive(Clone)]
struct ManagedJournal {
    journal: Journal,
    clock: Clock,
    /// An intent of this age is stuck.
    stuck_after: Duration,
}

/// Metrics of the journals, computed on each scrape. Each driver has one after its provisioner is created.
#[derive(Clone, Default)]
struct JournalMetrics(Arc<Mutex<BTreeMap<DriverName, ManagedJournal>>>);

impl fmt::Debug for JournalMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalMetrics").finish_non_exhaustive()
    }
}

/// The intents of a driver's journal at one time.
struct JournalSummary {
    driver: String,
    intents: usize,
    fullest_share: f64,
    oldest: Duration,
    stuck: usize,
}

impl JournalMetrics {
    fn summaries(&self) -> Vec<JournalSummary> {
        let journals = self.0.lock().clone();
        let summary = |(driver, managed): (&DriverName, &ManagedJournal)| {
            let ages = managed.journal.ages((managed.clock)());
            JournalSummary {
                driver: driver.to_string(),
                intents: managed.journal.intent_count(),
                fullest_share: managed.journal.fullest_share(),
                oldest: ages.iter().max().copied().unwrap_or_default(),
                stuck: ages.iter().filter(|age| **age >= managed.stuck_after).count(),
            }
        };
        journals.iter().map(summary).collect()
    }
}

impl Collector for JournalMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        fn number(count: usize) -> f64 {
            f64::from(u32::try_from(count).unwrap_or(u32::MAX))
        }
        let summaries = self.summaries();
        let mut show = |name: &str, help: &str, value: fn(&JournalSummary) -> f64| {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for summary in &summaries {
                let labels = [("driver_name", summary.driver.as_str())];
                ConstGauge::new(value(summary)).encode(metric.encode_family(&labels)?)?;
            }
            Ok(())
        };
        show("cofferdam_journal_intents", "Intents in the driver's journal", |of| number(of.intents))?;
        show(
            "cofferdam_journal_fullest_share_ratio",
            "Largest part of its share of the driver's journal that the claims of a namespace use",
            |of| of.fullest_share,
        )?;
        show(
            "cofferdam_journal_oldest_intent_age_seconds",
            "Age of the oldest intent in the driver's journal",
            |of| of.oldest.as_secs_f64(),
        )?;
        show(
            "cofferdam_journal_stuck_intents",
            "Intents without a final result for 15 minutes or more",
            |of| number(of.stuck),
        )
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_apiserver::{ApiServer, Options};
    use cofferdam_cluster::{Cache, Intent, Writer, metrics::Metrics};
    use cofferdam_domain::DriverName;
    use jiff::Timestamp;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::provisioner::mending::tests::intent;

    fn scrape(registry: &Registry) -> Vec<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text.lines().filter_map(|line| Some(line.strip_prefix("cofferdam_journal_")?.to_owned())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn each_driver_has_its_own_journal_metrics() {
        let api = ApiServer::new(Options::default());
        let client = kube::Client::new(api.service(), "default");
        let writer = Writer::new(client, Arc::new(Cache::default()), Metrics::default());
        let journal = |driver: &str| {
            Journal::new(writer.clone(), "default".to_owned(), driver.into(), Metrics::default())
        };
        let (first, second) = (journal("a"), journal("b"));
        let clock: Clock = Arc::new(|| "2026-06-03T12:15:00Z".parse::<Timestamp>().unwrap());
        let mut registry = Registry::default();
        let metrics = ProvisionerMetrics::register(&mut registry);
        assert!(scrape(&registry).is_empty());
        // Two groups of drivers.
        for journal in [&second, &first] {
            metrics.add_journals([journal.clone()].into_iter(), &clock, Duration::from_secs(900));
        }

        let stop = CancellationToken::new();
        let write = async {
            let of = |driver: &str, uid: &str, time: &str| Intent {
                driver: DriverName::from(driver),
                claim_uid: uid.into(),
                recorded_at: Some(time.parse().unwrap()),
                ..intent("fast")
            };
            for intent in [
                of("a", "1", "2026-06-03T12:00:00Z"),
                of("a", "2", "2026-06-03T12:00:01Z"),
                of("b", "3", "2026-06-03T12:14:00Z"),
            ] {
                let journal = if intent.driver.as_str() == "a" { &first } else { &second };
                journal.write(intent).await.unwrap();
            }
            stop.cancel();
        };
        tokio::join!(first.run(stop.clone()), second.run(stop.clone()), write);
        assert_eq!(
            scrape(&registry),
            [
                "intents{driver_name=\"a\"} 2.0",
                "intents{driver_name=\"b\"} 1.0",
                "fullest_share_ratio{driver_name=\"a\"} 0.00125",
                "fullest_share_ratio{driver_name=\"b\"} 0.000625",
                "oldest_intent_age_seconds{driver_name=\"a\"} 900.0",
                "oldest_intent_age_seconds{driver_name=\"b\"} 60.0",
                "stuck_intents{driver_name=\"a\"} 1.0",
                "stuck_intents{driver_name=\"b\"} 0.0",
            ]
        );
    }
}
