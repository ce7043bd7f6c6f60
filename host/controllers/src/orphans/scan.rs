//! Scans drivers for orphaned volumes or snapshots, writes reports and handles requests to delete. For each
//! driver, it performs one effect at a time; drivers do not delay each other.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use cofferdam_cluster::{
    ApiError, Change, Kind, Lookup, OrphanReport, deletion_freeze,
    orphan_report::{OrphanKind, OrphanReportKey},
    queue::{Action, Queue},
    writer::PatchTarget,
};
use cofferdam_domain::{DriverName, ResourceHandle};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    context::OrphanContext,
    history::ObservationHistory,
    reads::{ScanError, has_intent},
    report::{
        self, DELETE, DELETING, DRIVER, DeletionRequest, DeletionResponse, KIND, LeakDetection, REPORT,
        ScanFailure, ScanReport,
    },
    resource::Resource,
    rules::{self, Classification, ClassificationInput, LastChange},
    summary::{ScanSummary, describe},
};
use crate::{
    drivers::ManagedDriver,
    events::EventSpec,
    reconcile::{MAX_EFFECTS, action_for_write_error, subscribe},
    snapshotter,
};

/// The maximum delay that is added to the scan interval is the interval divided by this number.
const JITTER: u32 = 10;

/// Scans the drivers of this process that are not node-local, for orphans of one kind.
pub(crate) struct OrphanScanner {
    pub(super) context: OrphanContext,
    queue: Queue<DriverName>,
    scan_states: HashMap<DriverName, Mutex<DriverScanState>>,
}

/// State of the scans and the deletion requests of one driver.
pub(super) struct DriverScanState {
    next_scan: Instant,
    /// A report that is not yet written to the ConfigMap.
    pending_report: Option<ScanReport>,
    /// The response to a request. It is not yet written to the ConfigMap.
    pub(super) pending_response: Option<DeletionResponse>,
    pub(super) history: ObservationHistory,
    /// The observations of the last report were added to `history`, or there was no report that can be
    /// decoded.
    is_history_restored: bool,
}

impl OrphanScanner {
    pub(crate) fn new(context: OrphanContext) -> Arc<Self> {
        let scan_state = || {
            Mutex::new(DriverScanState {
                next_scan: Instant::now(),
                pending_report: None,
                pending_response: None,
                history: ObservationHistory::default(),
                is_history_restored: false,
            })
        };
        Arc::new(Self {
            scan_states: context.drivers.keys().map(|name| (name.clone(), scan_state())).collect(),
            queue: Queue::new(queue_name(context.kind), context.calls.backoff(), &context.queue_metrics),
            context,
        })
    }

    /// Subscribes to the reports and to the restore marker. Enqueues a driver after a change of its report
    /// that has a request to delete, and all drivers after a change of the marker.
    pub(crate) fn subscribe(self: &Arc<Self>) {
        let cache = &self.context.cache;
        subscribe(self, &cache.orphan_reports, |controller: &Self, change: &Change<OrphanReport>| {
            let has_request = change
                .new
                .as_ref()
                .is_some_and(|map| map.data_value(DELETE).or(map.data_value(DELETING)).is_some());
            if has_request {
                let drivers = controller.scan_states.keys();
                drivers
                    .filter(|driver| controller.report_key(driver) == change.key)
                    .for_each(|name| controller.queue.add(name.clone()));
            }
        });
        subscribe(self, &cache.restore_markers, |controller: &Self, _| {
            controller.scan_states.keys().for_each(|name| controller.queue.add(name.clone()));
        });
    }

    /// Processes the queue until `stop`. Waits for the first lists of the optional watches itself, because
    /// the manager does not wait for them.
    pub(crate) async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let cache = &self.context.cache;
        let synced = async {
            cache.orphan_reports.wait_synced().await;
            if self.context.kind == OrphanKind::Snapshot {
                cache.snapshots.wait_synced().await;
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = synced => {}
        }
        self.scan_states.keys().for_each(|name| self.queue.add(name.clone()));
        let controller = Arc::clone(self);
        let stopping = stop.clone();
        let work = move |name: DriverName| {
            let (controller, stopping) = (Arc::clone(&controller), stopping.clone());
            async move { controller.reconcile(&name, &stopping).await }
        };
        self.queue.run(self.scan_states.len(), stop, work).await;
    }

    async fn reconcile(&self, name: &DriverName, stop: &CancellationToken) -> Action {
        let (Some(driver), Some(scan_state)) = (self.context.drivers.get(name), self.scan_states.get(name))
        else {
            return Action::Done;
        };
        let mut scan_state = scan_state.lock().await;
        for _ in 0..MAX_EFFECTS {
            let config_map = match self.context.cache.orphan_reports.get(&self.report_key(name)) {
                Lookup::Found(config_map) => Some(config_map),
                Lookup::Missing => None,
                // A ConfigMap that cannot be decoded may not be a report: leave it.
                Lookup::Undecodable(_) => return Action::RequeueAfter(self.context.interval),
            };
            let config_map = config_map.as_deref();
            let last_report = config_map.and_then(ScanReport::read);
            if !std::mem::replace(&mut scan_state.is_history_restored, true)
                && let Some(last_report) = &last_report
            {
                scan_state.history.restore(last_report, self.now());
            }
            let is_frozen = deletion_freeze::is_frozen(&self.context.cache);
            let result = if let Some(report) = scan_state.pending_report.take() {
                self.publish_report(driver, config_map, last_report, report, &mut scan_state).await
            } else if scan_state.next_scan <= Instant::now()
                || last_report.as_ref().is_some_and(|last_report| last_report.deletions_frozen != is_frozen)
            {
                let scan = tokio::select! {
                    biased;
                    () = stop.cancelled() => return Action::Done,
                    scan = self.scan(driver, config_map, &mut scan_state) => scan,
                };
                scan_state.pending_report =
                    Some(self.build_report(name, last_report, is_frozen, scan, &mut scan_state));
                continue;
            } else if let Some(config_map) =
                config_map.filter(|map| map.data_value(DELETE).or(map.data_value(DELETING)).is_some())
            {
                match self.handle_request(driver, config_map, last_report, &mut scan_state).await {
                    Ok(result) => result,
                    Err(outcome) => return outcome,
                }
            } else {
                return Action::RequeueAfter(scan_state.next_scan.saturating_duration_since(Instant::now()));
            };
            if let Err(error) = result {
                return action_for_write_error::<OrphanReport>(
                    &self.context.writer,
                    &self.report_key(name),
                    &error,
                )
                .await;
            }
        }
        Action::Requeue
    }

    pub(super) fn report_key(&self, driver: &DriverName) -> OrphanReportKey {
        OrphanReportKey::for_driver(&self.context.namespace, self.context.kind, driver)
    }

    /// The wall clock, truncated to milliseconds as in reports.
    pub(super) fn now(&self) -> Timestamp {
        let now = (self.context.clock)();
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }

    /// Classifies every volume or snapshot that the driver lists, and updates the history. Writes no object.
    async fn scan(
        &self,
        driver: &ManagedDriver,
        config_map: Option<&OrphanReport>,
        scan_state: &mut DriverScanState,
    ) -> Result<ScanReport, ScanError> {
        let (name, kind) = (&driver.backend.description().name, self.context.kind);
        let deleting = config_map.and_then(|map| DeletionRequest::parse(map.data_value(DELETING)?).ok());
        let deleting = deleting.as_ref().map(|request| &request.handle);
        let mut summary = ScanSummary::default();
        let listed = async {
            let mut pages = self.context.list(driver).await?;
            let sources = self.context.requested_sources(driver).await?;
            let intent = |resource: &Resource| has_intent(driver, &sources, resource);
            while let Some(page) = self.context.next_page(&mut pages).await? {
                let now = self.now();
                for resource in page {
                    let input = self.classification_input(name, &intent, deleting, now);
                    let classification = classify_with_history(&input, &resource, &mut scan_state.history);
                    summary.add(&resource, classification);
                }
            }
            Ok(())
        };
        match listed.await {
            Ok(()) => {}
            Err(ScanError::Unlistable(reason)) => {
                let message = reason.to_string();
                return Ok(ScanReport::new(name.clone(), kind, LeakDetection::None { message }));
            }
            Err(error) => return Err(error),
        }
        summary.observed_handles.extend(deleting.cloned());
        scan_state.history.retain(&summary.observed_handles);
        Ok(summary.into_report(name.clone(), kind))
    }

    /// Returns the input to classify a volume or snapshot of the driver by the objects that are in the cache
    /// now.
    pub(super) fn classification_input<'a>(
        &'a self,
        driver: &'a DriverName,
        has_intent: &'a dyn Fn(&Resource) -> bool,
        deleting: Option<&'a ResourceHandle>,
        now: Timestamp,
    ) -> ClassificationInput<'a> {
        ClassificationInput {
            cache: &self.context.cache,
            driver,
            cluster: &self.context.cluster,
            has_intent,
            deleting,
            now,
        }
    }

    /// Builds the report of a scan, complete or failed, records the scan in the metrics, and schedules the
    /// next scan.
    fn build_report(
        &self,
        driver: &DriverName,
        last_report: Option<ScanReport>,
        is_frozen: bool,
        scan: Result<ScanReport, ScanError>,
        scan_state: &mut DriverScanState,
    ) -> ScanReport {
        let now = self.now();
        match scan {
            Ok(report) => {
                scan_state.next_scan =
                    Instant::now() + scan_delay(self.context.interval, driver, &self.context.identity, now);
                self.context.metrics.record_scan(driver, now);
                ScanReport { time: Some(now), deletions_frozen: is_frozen, ..report }
            }
            Err(error) => {
                let message = error.to_string();
                tracing::warn!(%driver, "cannot scan for orphaned {}s: {message}", self.context.kind);
                self.context.metrics.record_scan_failure(driver);
                scan_state.next_scan =
                    Instant::now() + self.context.interval.min(self.context.calls.retry_interval_max);
                let reason = "no scan has completed yet".to_owned();
                let last_report = last_report.unwrap_or_else(|| {
                    ScanReport::new(
                        driver.clone(),
                        self.context.kind,
                        LeakDetection::None { message: reason },
                    )
                });
                ScanReport {
                    deletions_frozen: is_frozen,
                    failure: Some(ScanFailure { time: now, message }),
                    ..last_report
                }
            }
        }
    }

    /// Exports the report of a scan as metrics and writes it, unless [`ScanReport::is_update_of`] finds the
    /// written one current. Emits an event if a written report has new orphans. A report whose write failed
    /// stays pending.
    async fn publish_report(
        &self,
        driver: &ManagedDriver,
        config_map: Option<&OrphanReport>,
        last_report: Option<ScanReport>,
        report: ScanReport,
        scan_state: &mut DriverScanState,
    ) -> Result<(), ApiError> {
        self.context.metrics.record_report(&report);
        if last_report.as_ref().is_some_and(|last_report| !report.is_update_of(last_report)) {
            return Ok(());
        }
        let data = json!({DRIVER: report.driver, KIND: report.kind, REPORT: json!(report).to_string()});
        match self.write(&report.driver, config_map, data).await {
            Ok(map) => {
                let new_orphans = report.new_orphans(last_report.as_ref());
                if !new_orphans.is_empty() {
                    let text = describe(&report, &new_orphans, &map.key.namespace);
                    let reason = match report.kind {
                        OrphanKind::Volume => "OrphanedVolumes",
                        OrphanKind::Snapshot => "OrphanedSnapshots",
                    };
                    self.emit_event(driver, &map, EventSpec::warning(reason, text));
                }
                Ok(())
            }
            Err(error) => {
                scan_state.pending_report = Some(report);
                Err(error)
            }
        }
    }

    /// Patches the data of the ConfigMap at the version that was read, or creates the ConfigMap.
    pub(super) async fn write(
        &self,
        driver: &DriverName,
        config_map: Option<&OrphanReport>,
        data: Value,
    ) -> Result<OrphanReport, ApiError> {
        let (key, labels) = (self.report_key(driver), report::labels());
        let writer = &self.context.writer;
        match config_map {
            Some(map) => {
                let patch = json!({"metadata": {"labels": labels}, "data": data});
                writer
                    .merge_patch::<OrphanReport>(&key, PatchTarget::Object, map.meta.resource_version, patch)
                    .await
            }
            None => {
                let body = json!({
                    "apiVersion": "v1",
                    "kind": OrphanReport::RESOURCE.kind,
                    "metadata": {"name": key.name, "namespace": key.namespace, "labels": labels},
                    "data": data,
                });
                writer.create::<OrphanReport>(Some(&key.namespace), &body).await
            }
        }
    }

    /// Emits an event on the ConfigMap.
    pub(super) fn emit_event(&self, driver: &ManagedDriver, map: &OrphanReport, event: EventSpec) {
        let name = &driver.backend.description().name;
        tracing::info!(driver = %name, "{}", event.text);
        match self.context.kind {
            OrphanKind::Volume => self.context.events.emit(map, &driver.component, event),
            OrphanKind::Snapshot => self.context.events.emit(map, &snapshotter::event_component(name), event),
        }
    }
}

/// Name of the work queue of a kind.
const fn queue_name(kind: OrphanKind) -> &'static str {
    match kind {
        OrphanKind::Volume => "orphans",
        OrphanKind::Snapshot => "orphaned_snapshots",
    }
}

/// Classifies a volume or snapshot. If the driver reports no change time of one that may be an orphan, takes
/// the time of its last change from the history, which also records its current state.
pub(super) fn classify_with_history(
    input: &ClassificationInput<'_>,
    resource: &Resource,
    history: &mut ObservationHistory,
) -> Classification {
    let classification = rules::classify(input, resource, None);
    // The history is needed only for those that may be orphans.
    let may_be_orphan = matches!(classification, Classification::WithinGracePeriod { .. });
    if resource.changed_at_ms().is_none() && may_be_orphan {
        let last_change: LastChange = history.observe(resource, input.now);
        return rules::classify(input, resource, Some(last_change));
    }
    classification
}

/// The delay of the next scan: up to a tenth longer than the interval, so that the scans of processes that
/// started together spread.
fn scan_delay(interval: Duration, driver: &DriverName, process: &str, now: Timestamp) -> Duration {
    let mut hasher = DefaultHasher::new();
    (driver, process, now).hash(&mut hasher);
    let part = u32::try_from(hasher.finish() % 1_000).unwrap_or_default();
    interval + interval / JITTER * part / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scan_delay_is_spread_within_a_tenth_of_the_interval() {
        let hour = Duration::from_secs(3600);
        let of = |process: usize| {
            scan_delay(hour, &"drv".into(), &format!("process-{process}"), Timestamp::UNIX_EPOCH)
        };
        let pauses: std::collections::BTreeSet<Duration> = (0..100).map(of).collect();
        assert!(pauses.len() > 80, "{pauses:?}");
        assert!(pauses.iter().all(|pause| (hour..hour + hour / 10).contains(pause)), "{pauses:?}");
    }
}
