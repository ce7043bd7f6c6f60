//! Scans drivers, writes reports, and takes requests: one effect at a time, one driver after the other by itself.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use cofferdam_cluster::{
    Change, Event, EventType, Kind, OrphanReport, Seen, Subject, WriteError, hold,
    metrics::Metrics,
    orphans::ReportKey,
    queue::{Outcome, Queue},
    writer::Part,
};
use cofferdam_domain::{
    DriverName, VolumeHandle,
    storage::{Ability, Owner, VolumeStatus},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    listing::{Pages, Sights},
    metrics::OrphanMetrics,
    report::{self, Answer, DELETE, DELETING, Failure, LeakDetection, REPORT, Report, Request},
    rules::{self, Observed, Verdict, View},
    tally::{Tally, describe},
};
use crate::act::{Context, Driver, MAX_EFFECTS};

/// The part of its interval by which a scan may come later.
const JITTER: u32 = 10;

/// The scan of every driver of this process.
pub(crate) struct Orphans {
    pub(super) context: Arc<Context>,
    pub(super) metrics: OrphanMetrics,
    interval: Duration,
    queue: Queue<DriverName>,
    desks: HashMap<DriverName, Mutex<Desk>>,
}

/// What is under way for a driver.
pub(super) struct Desk {
    next_scan: Instant,
    /// A report that is not written yet.
    report: Option<Report>,
    /// An answer that is not written yet.
    pub(super) answer: Option<Answer>,
    pub(super) sights: Sights,
    /// Whether the sights have what the last process had seen.
    recalled: bool,
}

impl Orphans {
    /// The scan, woken by requests from now on.
    pub(crate) fn new(
        context: Arc<Context>,
        interval: Duration,
        metrics: &Metrics,
        own: OrphanMetrics,
    ) -> Arc<Self> {
        let settings = &context.settings;
        let backoff = settings.backoff();
        let desk = || {
            Mutex::new(Desk {
                next_scan: Instant::now(),
                report: None,
                answer: None,
                sights: Sights::default(),
                recalled: false,
            })
        };
        let role = Arc::new(Self {
            // One report a driver: the processes of several nodes would write over each other.
            desks: context
                .drivers
                .keys()
                .filter(|name| !context.is_of_node(name))
                .map(|name| (name.clone(), desk()))
                .collect(),
            queue: Queue::new("orphans", backoff, metrics),
            metrics: own,
            interval,
            context,
        });
        let me = Arc::downgrade(&role);
        role.context.cache.orphan_reports.subscribe(move |change: &Change<OrphanReport>| {
            let asks =
                change.new.as_ref().is_some_and(|map| map.text(DELETE).or(map.text(DELETING)).is_some());
            if let Some(me) = me.upgrade().filter(|_| asks) {
                let drivers = me.desks.keys();
                drivers
                    .filter(|driver| me.key(driver) == change.key)
                    .for_each(|name| me.queue.add(name.clone()));
            }
        });
        let me = Arc::downgrade(&role);
        role.context.cache.restore_marks.subscribe(move |_| {
            if let Some(me) = me.upgrade() {
                me.desks.keys().for_each(|name| me.queue.add(name.clone()));
            }
        });
        role
    }

    /// Works until `stop`. Waits for the reports by itself: where they may not be watched, nothing else shall wait.
    pub(crate) async fn run(self: &Arc<Self>, stop: CancellationToken) {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = self.context.cache.orphan_reports.synced() => {}
        }
        self.desks.keys().for_each(|name| self.queue.add(name.clone()));
        let me = Arc::clone(self);
        let stopping = stop.clone();
        let work = move |name: DriverName| {
            let (me, stopping) = (Arc::clone(&me), stopping.clone());
            async move { me.work(&name, &stopping).await }
        };
        self.queue.run(self.desks.len(), stop, work).await;
    }

    async fn work(&self, name: &DriverName, stop: &CancellationToken) -> Outcome {
        let (Some(driver), Some(desk)) = (self.context.drivers.get(name), self.desks.get(name)) else {
            return Outcome::Done;
        };
        let mut desk = desk.lock().await;
        for _ in 0..MAX_EFFECTS {
            let standing = match self.context.cache.orphan_reports.get(&self.key(name)) {
                Seen::Known(standing) => Some(standing),
                Seen::Absent => None,
                // Somebody else's ConfigMap under our name: hands off.
                Seen::Opaque(_) => return Outcome::After(self.interval),
            };
            let standing = standing.as_deref();
            let last = standing.and_then(Report::read);
            if !std::mem::replace(&mut desk.recalled, true)
                && let Some(last) = &last
            {
                desk.sights.recall(last, self.now());
            }
            let held = hold::is_held(&self.context.cache);
            let result = if let Some(report) = desk.report.take() {
                self.publish(driver, standing, last, report, &mut desk).await
            } else if desk.next_scan <= Instant::now() || last.as_ref().is_some_and(|last| last.held != held)
            {
                let scan = tokio::select! {
                    biased;
                    () = stop.cancelled() => return Outcome::Done,
                    scan = self.scan(driver, standing, &mut desk) => scan,
                };
                desk.report = Some(self.conclude(name, last, held, scan, &mut desk));
                continue;
            } else if let Some(standing) =
                standing.filter(|map| map.text(DELETE).or(map.text(DELETING)).is_some())
            {
                match self.answer(driver, standing, last, &mut desk).await {
                    Ok(result) => result,
                    Err(outcome) => return outcome,
                }
            } else {
                return Outcome::After(desk.next_scan.saturating_duration_since(Instant::now()));
            };
            if let Err(error) = result {
                return self.context.after_failure::<OrphanReport>(&self.key(name), &error).await;
            }
        }
        Outcome::Again
    }

    pub(super) fn key(&self, driver: &DriverName) -> ReportKey {
        ReportKey::of(&self.context.settings.namespace, driver)
    }

    /// The wall clock, in the whole milliseconds that reports show.
    pub(super) fn now(&self) -> Timestamp {
        let now = self.context.now();
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }

    /// Judges everything that the driver lists. No effect.
    async fn scan(
        &self,
        driver: &Driver,
        standing: Option<&OrphanReport>,
        desk: &mut Desk,
    ) -> Result<Report, String> {
        let name = &driver.backend.description().name;
        if !driver.backend.abilities().contains(&Ability::Listing) {
            let why = format!("the driver has no `{}`", Ability::Listing);
            return Ok(Report::new(name.clone(), LeakDetection::None { why }));
        }
        let deleting = standing.and_then(|map| Request::parse(map.text(DELETING)?).ok());
        let deleting = deleting.as_ref().map(|request| &request.handle);
        let mut tally = Tally::default();
        let mut pages = Pages::new(&*driver.backend, self.context.settings.timeout);
        while let Some(page) = pages.next().await? {
            let intent = |owner: &Owner| driver.journal.mentions(&owner.claim, &owner.volume);
            let now = self.now();
            for status in page {
                let view = self.view(name, &intent, deleting, now);
                let verdict = judge(&view, &status, &mut desk.sights);
                tally.take_in(status, verdict);
            }
        }
        desk.sights.keep(&tally.watched);
        Ok(tally.report(name.clone()))
    }

    /// What verdicts rest on: the cache as it is now.
    pub(super) fn view<'a>(
        &'a self,
        driver: &'a DriverName,
        intent: &'a dyn Fn(&Owner) -> bool,
        deleting: Option<&'a VolumeHandle>,
        now: Timestamp,
    ) -> View<'a> {
        View { cache: &self.context.cache, driver, cluster: &self.context.cluster, intent, deleting, now }
    }

    /// The report after a scan, and when the next one is due.
    fn conclude(
        &self,
        driver: &DriverName,
        last: Option<Report>,
        held: bool,
        scan: Result<Report, String>,
        desk: &mut Desk,
    ) -> Report {
        let now = self.now();
        match scan {
            Ok(report) => {
                desk.next_scan =
                    Instant::now() + pause(self.interval, driver, &self.context.settings.identity, now);
                self.metrics.scanned(driver, now);
                Report { time: Some(now), held, ..report }
            }
            Err(message) => {
                tracing::warn!(%driver, "the scan for orphans failed: {message}");
                self.metrics.failed(driver);
                desk.next_scan = Instant::now() + self.interval.min(self.context.settings.retry_interval_max);
                let why = "no scan has come to its end yet".to_owned();
                let last = last.unwrap_or_else(|| Report::new(driver.clone(), LeakDetection::None { why }));
                Report { held, failure: Some(Failure { time: now, message }), ..last }
            }
        }
    }

    /// The effect after a scan: the report. What goes wrong leaves it on the desk.
    async fn publish(
        &self,
        driver: &Driver,
        standing: Option<&OrphanReport>,
        last: Option<Report>,
        report: Report,
        desk: &mut Desk,
    ) -> Result<(), WriteError> {
        self.metrics.show(&report);
        if last.as_ref().is_some_and(|last| !report.replaces(last)) {
            return Ok(());
        }
        let data = json!({"driver": report.driver, REPORT: json!(report).to_string()});
        match self.write(&report.driver, standing, data).await {
            Ok(map) => {
                let grown = report.grown(last.as_ref());
                if !grown.is_empty() {
                    let reason = "OrphanedVolumes";
                    self.note(driver, &map, EventType::Warning, reason, describe(&report, &grown));
                }
                Ok(())
            }
            Err(error) => {
                desk.report = Some(report);
                Err(error)
            }
        }
    }

    /// Writes members of the ConfigMap's data as a decision over the whole of it.
    pub(super) async fn write(
        &self,
        driver: &DriverName,
        standing: Option<&OrphanReport>,
        data: Value,
    ) -> Result<OrphanReport, WriteError> {
        let (key, labels) = (self.key(driver), report::labels());
        let writer = &self.context.writer;
        match standing {
            Some(map) => {
                let patch = json!({"metadata": {"labels": labels}, "data": data});
                writer.merge::<OrphanReport>(&key, Part::Object, map.meta.version, patch).await
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

    /// Sends an event on the ConfigMap.
    pub(super) fn note(
        &self,
        driver: &Driver,
        map: &OrphanReport,
        kind: EventType,
        reason: &'static str,
        note: String,
    ) {
        let name = &driver.backend.description().name;
        tracing::info!(driver = %name, "{note}");
        let subject = Subject::of(map);
        let component = driver.component.clone();
        self.context.events.publish(Event { subject, kind, reason, note, component });
    }
}

/// What a volume is.
pub(super) fn judge(view: &View<'_>, status: &VolumeStatus, sights: &mut Sights) -> Verdict {
    let verdict = rules::judge(view, status, None);
    // Only what could be an orphan is worth remembering.
    if status.changed_at_ms.is_none() && matches!(verdict, Verdict::Young { .. }) {
        let observed: Observed = sights.see(status, view.now);
        return rules::judge(view, status, Some(observed));
    }
    verdict
}

/// The pause before the next scan: up to a tenth longer than the interval, so that processes that started together part.
fn pause(interval: Duration, driver: &DriverName, process: &str, now: Timestamp) -> Duration {
    let mut hasher = DefaultHasher::new();
    (driver, process, now).hash(&mut hasher);
    let part = u32::try_from(hasher.finish() % 1_000).unwrap_or_default();
    interval + interval / JITTER * part / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_part_and_none_comes_early_or_late() {
        let hour = Duration::from_secs(3600);
        let of =
            |process: usize| pause(hour, &"drv".into(), &format!("process-{process}"), Timestamp::UNIX_EPOCH);
        let pauses: std::collections::BTreeSet<Duration> = (0..100).map(of).collect();
        assert!(pauses.len() > 80, "{pauses:?}");
        assert!(pauses.iter().all(|pause| (hour..hour + hour / 10).contains(pause)), "{pauses:?}");
    }
}
