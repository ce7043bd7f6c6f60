//! Scans drivers, writes reports, and takes requests: one effect at a time, one driver after the other by itself.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use cofferdam_cluster::{
    Change, Event, EventType, Kind, OrphanReport, Seen, Subject, WriteError, hold,
    metrics::Metrics,
    orphans::ReportKey,
    queue::{Backoff, Outcome, Queue},
    writer::Part,
};
use cofferdam_domain::{
    DriverName, ResourceVersion, Uid, VolumeHandle,
    storage::{Ability, Owner, VolumeStatus},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    listing::{Pages, Sights},
    metrics::OrphanMetrics,
    report::{self, Answer, Counts, DELETE, Failure, LeakDetection, MAX_LISTED, Orphan, REPORT, Report},
    rules::{self, Observed, Verdict, View},
};
use crate::act::{Context, Driver, MAX_EFFECTS};

/// Handles that an event names; the report has the others.
const NAMED: usize = 3;

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
}

/// What a scan counts.
#[derive(Default)]
struct Tally {
    counts: Counts,
    bytes: u64,
    /// The first orphans by handle.
    orphans: BTreeMap<VolumeHandle, Orphan>,
    owners: bool,
    /// Volumes of which only our own eyes tell when they changed.
    watched: HashSet<VolumeHandle>,
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
        let backoff = Backoff { first: settings.retry_interval_start, most: settings.retry_interval_max };
        let desk = || {
            Mutex::new(Desk {
                next_scan: Instant::now(),
                report: None,
                answer: None,
                sights: Sights::default(),
            })
        };
        let role = Arc::new(Self {
            desks: context.drivers.keys().map(|name| (name.clone(), desk())).collect(),
            queue: Queue::new("orphans", backoff, metrics),
            metrics: own,
            interval,
            context,
        });
        let me = Arc::downgrade(&role);
        role.context.cache.orphan_reports.subscribe(move |change: &Change<OrphanReport>| {
            let asks = change.new.as_ref().is_some_and(|map| map.text(DELETE).is_some());
            if let Some(me) = me.upgrade().filter(|_| asks) {
                let drivers = me.context.drivers.keys();
                drivers
                    .filter(|driver| me.key(driver) == change.key)
                    .for_each(|name| me.queue.add(name.clone()));
            }
        });
        let me = Arc::downgrade(&role);
        role.context.cache.restore_marks.subscribe(move |_| {
            if let Some(me) = me.upgrade() {
                me.context.drivers.keys().for_each(|name| me.queue.add(name.clone()));
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
        self.context.drivers.keys().for_each(|name| self.queue.add(name.clone()));
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
            let held = hold::is_held(&self.context.cache);
            let result = if let Some(report) = desk.report.take() {
                self.publish(driver, standing, last, report, &mut desk).await
            } else if desk.next_scan <= Instant::now() || last.as_ref().is_some_and(|last| last.held != held)
            {
                let scan = tokio::select! {
                    biased;
                    () = stop.cancelled() => return Outcome::Done,
                    scan = self.scan(driver, &mut desk) => scan,
                };
                desk.report = Some(self.conclude(name, last, held, scan, &mut desk));
                continue;
            } else if let Some((standing, text)) = standing.and_then(|map| Some((map, map.text(DELETE)?))) {
                match self.answer(driver, standing, text, last, &mut desk).await {
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
    async fn scan(&self, driver: &Driver, desk: &mut Desk) -> Result<Report, String> {
        let name = &driver.backend.description().name;
        if !driver.backend.abilities().contains(&Ability::Listing) {
            let why = format!("the driver has no `{}`", Ability::Listing);
            return Ok(Report::new(name.clone(), LeakDetection::None { why }));
        }
        let mut tally = Tally::default();
        let mut pages = Pages::new(&*driver.backend, self.context.settings.timeout);
        while let Some(page) = pages.next().await? {
            let intent = |owner: &Owner| driver.journal.mentions(&owner.claim, &owner.volume);
            let now = self.now();
            for status in page {
                let verdict = self.judge(name, &status, &intent, &mut desk.sights, now);
                tally.take_in(status, verdict);
            }
        }
        desk.sights.keep(&tally.watched);
        Ok(tally.report(name.clone()))
    }

    /// What a volume is, by the cache as it is now.
    pub(super) fn judge(
        &self,
        driver: &DriverName,
        status: &VolumeStatus,
        intent: &dyn Fn(&Owner) -> bool,
        sights: &mut Sights,
        now: Timestamp,
    ) -> Verdict {
        let cluster = &self.context.cluster;
        let view = View { cache: &self.context.cache, driver, cluster, intent, now };
        let verdict = rules::judge(&view, status, None);
        // Only what could be an orphan is worth remembering.
        if status.changed_at_ms.is_none() && matches!(verdict, Verdict::Young { .. }) {
            let observed: Observed = sights.see(status, now);
            return rules::judge(&view, status, Some(observed));
        }
        verdict
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
                desk.next_scan = Instant::now() + self.interval;
                self.metrics.scanned(driver, now);
                Report { time: Some(now), held, ..report }
            }
            Err(message) => {
                tracing::warn!(%driver, "the scan for orphans failed: {message}");
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
                    self.note(driver, &map, EventType::Warning, reason, describe(&report, &grown)).await;
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

    /// Sends an event about a driver: on its CSIDriver, else on the ConfigMap.
    pub(super) async fn note(
        &self,
        driver: &Driver,
        map: &OrphanReport,
        kind: EventType,
        reason: &'static str,
        note: String,
    ) {
        let name = &driver.backend.description().name;
        tracing::info!(driver = %name, "{note}");
        let subject = self.csi_driver(name).await.unwrap_or_else(|| Subject::of(map));
        let component = driver.component.clone();
        self.context.events.publish(Event { subject, kind, reason, note, component });
    }

    async fn csi_driver(&self, name: &DriverName) -> Option<Subject> {
        #[derive(serde::Deserialize)]
        struct Object {
            metadata: Meta,
        }
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            uid: Uid,
            resource_version: String,
        }
        let resource = cofferdam_cluster::Resource {
            group: "storage.k8s.io",
            version: "v1",
            kind: "CSIDriver",
            plural: "csidrivers",
            namespaced: false,
        };
        let path = format!("{}/{name}", resource.collection(None));
        // Absent, or not ours to read: the ConfigMap takes the event.
        let answer = self.context.writer.read(&path, &format!("CSIDriver {name}")).await.ok()?;
        let Object { metadata } = serde_json::from_str(&answer).ok()?;
        Some(Subject {
            resource,
            namespace: "".into(),
            name: name.as_str().into(),
            uid: metadata.uid,
            version: ResourceVersion(metadata.resource_version.parse().unwrap_or_default()),
        })
    }
}

impl Tally {
    fn take_in(&mut self, status: VolumeStatus, verdict: Verdict) {
        self.owners |= status.owner.is_some();
        match verdict {
            Verdict::Known(_) => self.counts.known += 1,
            Verdict::Unknown(_) => self.counts.unknown += 1,
            Verdict::Young { .. } => {
                self.counts.young += 1;
                self.watch(&status);
            }
            Verdict::Orphan { since } => {
                self.watch(&status);
                self.orphan(status, since);
            }
        }
    }

    fn watch(&mut self, status: &VolumeStatus) {
        if status.changed_at_ms.is_none() {
            self.watched.insert(status.volume.handle.clone());
        }
    }

    fn orphan(&mut self, status: VolumeStatus, since: Timestamp) {
        let (Some(owner), bytes) = (status.owner, status.volume.capacity) else { return };
        let handle = status.volume.handle;
        let orphan =
            Orphan { handle: handle.clone(), bytes, claim: owner.claim, volume: owner.volume, since };
        // A listing that moves under our feet may show a volume twice.
        if self.orphans.insert(handle, orphan).is_none() {
            self.counts.orphan += 1;
            self.bytes = self.bytes.saturating_add(bytes.unwrap_or_default());
        }
        if self.orphans.len() > MAX_LISTED {
            self.orphans.pop_last();
        }
    }

    fn report(self, driver: DriverName) -> Report {
        let Counts { known, orphan, young, unknown } = self.counts;
        let leak_detection = if self.owners || known + orphan + young + unknown == 0 {
            LeakDetection::Owner
        } else {
            LeakDetection::None { why: "the driver keeps no owners".to_owned() }
        };
        let mut report = Report::new(driver, leak_detection);
        report.counts = self.counts;
        report.orphaned_bytes = self.bytes;
        report.list(self.orphans);
        report
    }
}

fn describe(report: &Report, grown: &[&VolumeHandle]) -> String {
    let named: Vec<&str> = grown.iter().take(NAMED).map(|handle| handle.as_str()).collect();
    let more = if grown.len() > NAMED { ", …" } else { "" };
    let (orphans, driver) = (report.counts.orphan, &report.driver);
    format!(
        "{orphans} volumes of {driver} belong to nothing in this cluster any more, new among them: {}{more}. See `cofferdam \
         orphans --driver {driver}`",
        named.join(", ")
    )
}
