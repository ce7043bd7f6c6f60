//! Invariant: after a scenario, processes that start anew over the same objects find nothing to do.
//!
//! They start after the scenario's processes have ended, with the same roles and drivers, and run for an
//! hour of paused time. In real time they run until they are idle. Work that they find is work that the
//! earlier processes have missed, or that cannot be completed. Attacher and resizer have a
//! resync, which makes up for a missed change of an object: in the simulation, its period is longer than any
//! run.
//!
//! The simulation judges requests, calls and the metrics of the work queues, not what the roles report. A key
//! that returns for ever without a failure shows in the runs of its queue: in the last half hour, a queue may
//! run once for each object, as the keys of problems do whose Events are repeated.
//!
//! These are not work:
//! - writes of Events: a process emits an Event about every problem that remains, and repeats it each half
//!   hour, because kube-apiserver keeps Events for an hour;
//! - GET requests to the API server, and the driver's Probe, ValidateVolumeCapabilities, GetCapacity and
//!   ListVolumes: they change neither an object nor the array, and ListVolumes is called periodically.
//!
//! No other write is periodic: scenarios run without orphan scans, whose reports are ConfigMaps, and Leases
//! are a matter of the program, not of its controllers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use bytes::Bytes;
use cofferdam_cluster::observer::{Step, StepObserver, StepResult};
use cofferdam_controllers::{Role, attacher, provisioner, resizer};
use http::{Method, Uri};
use parking_lot::Mutex;
use serde_json::Value;

use crate::{api::text, rbac::request_info};

/// Maximum length, in characters, of the body in [`RemainingWork::description`] of a write.
const MAX_BODY_CHARS: usize = 240;
/// Maximum number of steps in a description.
const MAX_STEPS: usize = 5;

/// Kind of [`RemainingWork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkKind {
    /// An API write, also one that failed.
    Write,
    /// A driver call, also one that failed.
    Call,
    /// A key in a work queue, a failed run, which is retried, or more runs than objects in the last half
    /// hour. Not judged in real time, where a run may fail because of the machine.
    Retry,
}

/// Work that a process finds when it starts anew after a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemainingWork {
    /// The kind of the work.
    pub kind: WorkKind,
    /// The roles of the process that found the work; one role if it is known.
    pub roles: String,
    /// The number of requests, calls, queued keys or runs.
    pub count: usize,
    /// The request with its first body, the call or the queue. The first work of a process also has the first
    /// steps that the process reported, which name their roles.
    pub description: String,
}

impl fmt::Display for RemainingWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, roles, count, description } = self;
        write!(f, "{count} × {kind:?} by {roles}: {description}")
    }
}

/// The metrics of a process, in the Prometheus text format, in an hour at rest.
pub(crate) struct QueueMetrics {
    /// After half an hour.
    pub(crate) halfway: String,
    /// At the end.
    pub(crate) end: String,
    /// Number of objects that the queues may have as keys.
    pub(crate) objects: usize,
}

impl QueueMetrics {
    /// The queues that have run more often than there are objects in the last half hour, with the runs.
    fn busy_queues(&self) -> impl Iterator<Item = (&str, usize)> {
        const RUNS: &str = "workqueue_work_duration_seconds_count";
        let earlier: BTreeMap<&str, usize> = queues_above_zero(&self.halfway, RUNS).collect();
        queues_above_zero(&self.end, RUNS)
            .map(move |(queue, runs)| {
                (queue, runs - earlier.get(queue).copied().unwrap_or_default().min(runs))
            })
            .filter(|(_, runs)| *runs > self.objects)
    }
}

impl RemainingWork {
    /// The work of a process: its writes, and what its metrics show of its queues. Without `metrics`, queues
    /// are not judged.
    pub(crate) fn of_process(
        roles: &BTreeSet<Role>,
        log: &WorkLog,
        metrics: Option<&QueueMetrics>,
    ) -> Vec<Self> {
        let roles = roles.iter().map(|role| role.as_str()).collect::<Vec<_>>().join(", ");
        let work = |kind, count, description| Self { kind, roles: roles.clone(), count, description };
        let writes = log.writes.lock();
        let mut found: Vec<Self> = writes
            .iter()
            .map(|(request, (count, body))| work(WorkKind::Write, *count, format!("{request} {body}")))
            .collect();
        if let Some(metrics) = metrics {
            found.extend(metrics.busy_queues().map(|(queue, runs)| {
                let text = format!(
                    "run of the work queue {queue} in the last half hour, for {} objects",
                    metrics.objects
                );
                work(WorkKind::Retry, runs, text)
            }));
        }
        let metrics = metrics.map(|metrics| metrics.end.as_str()).unwrap_or_default();
        found.extend(
            queues_above_zero(metrics, "workqueue_depth")
                .map(|(queue, keys)| work(WorkKind::Retry, keys, format!("key in the work queue {queue}"))),
        );
        found.extend(queues_above_zero(metrics, "workqueue_retries_total").map(|(queue, runs)| {
            work(WorkKind::Retry, runs, format!("failed run of the work queue {queue}"))
        }));
        if let Some(first) = found.first_mut() {
            first.description.push_str(&format!(" [steps: {}]", log.steps.lock().join("; ")));
        }
        found
    }

    /// The work of driver calls, in the form of [`ScriptedDriver::calls`](crate::ScriptedDriver::calls).
    pub(crate) fn of_calls(calls: &[String]) -> Vec<Self> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        calls.iter().for_each(|call| *counts.entry(call).or_default() += 1);
        let work = |(call, count): (&str, usize)| {
            let role = match call.split(' ').next() {
                Some("create" | "delete") => provisioner::ROLE.as_str(),
                Some("publish" | "unpublish") => attacher::ROLE.as_str(),
                Some("expand" | "modify") => resizer::ROLE.as_str(),
                Some(_) | None => "an unknown role",
            };
            Self { kind: WorkKind::Call, roles: role.to_owned(), count, description: call.to_owned() }
        };
        counts.into_iter().map(work).collect()
    }
}

/// The queues for which a metric is not zero, with its value.
fn queues_above_zero<'a>(metrics: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, usize)> {
    metrics.lines().filter_map(move |line| {
        let sample = line.strip_prefix(name)?.strip_prefix("{name=\"")?;
        let (queue, value) = sample.split_once("\"} ")?;
        Some((queue, value.parse().ok()?)).filter(|(_, value)| *value > 0)
    })
}

/// Writes and steps of one process.
#[derive(Debug, Default)]
pub(crate) struct WorkLog {
    /// Writes that the process has requested, without those of Events: the number of each, and its first
    /// body.
    writes: Mutex<BTreeMap<String, (usize, String)>>,
    /// The first [`MAX_STEPS`] different steps that had an effect or failed, in the form `role object: text`.
    steps: Mutex<Vec<String>>,
}

impl WorkLog {
    /// Records a request if it is a write of another kind than Event.
    pub(crate) fn record_request(&self, method: &Method, uri: &Uri, body: &Bytes) {
        if *method == Method::GET {
            return;
        }
        let Some(request) = request_info(method, uri).filter(|request| request.resource != "events") else {
            return;
        };
        // A created object has its name in the body only.
        let name = serde_json::from_slice::<Value>(body)
            .map(|object| text(&object, "/metadata/name").to_owned())
            .unwrap_or_default();
        let created = if request.name.is_empty() { name } else { String::new() };
        let body = || String::from_utf8_lossy(body).chars().take(MAX_BODY_CHARS).collect();
        self.writes.lock().entry(format!("{request}{created}")).or_insert_with(|| (0, body())).0 += 1;
    }
}

impl StepObserver for WorkLog {
    fn on_step(&self, step: Step) {
        let Step { component, object, result, text, .. } = step;
        if matches!(result, StepResult::Applied | StepResult::Failed) {
            let (mut steps, step) = (self.steps.lock(), format!("{component} {object}: {text}"));
            if steps.len() < MAX_STEPS && !steps.contains(&step) {
                steps.push(step);
            }
        }
    }
}
