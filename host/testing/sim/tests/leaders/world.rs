//! The things that all processes of a run share: the API server, the storage array, and the record of
//! effects, which is checked against the invariants when an effect begins.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use cofferdam_apiserver::{ApiServer, Options};
use cofferdam_sim::test_cluster::START_UNIX_SECONDS;
use fastrand::Rng;
use futures::FutureExt as _;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::runtime::Handle;
use tower::ServiceExt as _;

use crate::{array::Array, watches::Watches};

/// 2026-01-01T00:00:00Z in milliseconds, the start of every run.
pub(crate) const START_UNIX_MS: i64 = START_UNIX_SECONDS * 1_000;

/// Number of a process: each start has a new one.
pub(crate) type ProcessId = usize;

/// The identity of a process in Leases.
pub(crate) fn identity(process: ProcessId) -> String {
    format!("process-{process}")
}

/// A Lease, as the API server has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lease {
    pub(crate) holder: String,
    transitions: i64,
}

/// The record of a process.
#[derive(Debug, Default)]
pub(crate) struct ProcessRecord {
    pub(crate) is_dead: bool,
    /// The last time at which it was stopped or suspended.
    pub(crate) stopped_at: Option<Duration>,
    /// Until then, it cannot reach the API server.
    pub(crate) cut_until: Duration,
    /// The time of its boot clock before the last read of each Lease: an attempt begins with a read.
    attempts: BTreeMap<String, Duration>,
    /// The time of its boot clock before the attempt that last wrote each Lease; absent without the Lease.
    renewals: BTreeMap<String, Duration>,
}

pub(crate) struct State {
    pub(crate) rng: Rng,
    /// False after the end of the faults.
    pub(crate) has_faults: bool,
    pub(crate) api_down_until: Duration,
    pub(crate) leases: BTreeMap<String, Lease>,
    pub(crate) processes: BTreeMap<ProcessId, ProcessRecord>,
    pub(crate) array: Array,
    /// The process that acted while the Leases had these transitions.
    actors: BTreeMap<Vec<i64>, ProcessId>,
    pub(crate) violations: Vec<String>,
    pub(crate) trace: Vec<String>,
    pub(crate) effects: usize,
    /// Number of times that another process than before began an effect.
    pub(crate) handovers: usize,
    last_actor: Option<ProcessId>,
}

pub(crate) struct World {
    pub(crate) api: ApiServer,
    /// The runtime of the API server, the array and the user.
    pub(crate) handle: Handle,
    /// Names of the Leases.
    lease_names: BTreeSet<String>,
    renew_deadline: Duration,
    now_ms: Arc<AtomicU64>,
    pub(crate) watches: Watches,
    state: Mutex<State>,
}

impl World {
    pub(crate) fn new(
        seed: u64,
        rng: Rng,
        handle: Handle,
        lease_names: BTreeSet<String>,
        renew_deadline: Duration,
    ) -> Arc<Self> {
        let now_ms = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&now_ms);
        let now = move || {
            let elapsed = i64::try_from(clock.load(Ordering::SeqCst)).unwrap();
            jiff::Timestamp::from_millisecond(START_UNIX_MS + elapsed).unwrap()
        };
        let api = ApiServer::new(Options { now: Arc::new(now), uid_seed: Some(seed), ..Options::default() });
        let state = State {
            rng,
            has_faults: true,
            api_down_until: Duration::ZERO,
            leases: BTreeMap::new(),
            processes: BTreeMap::new(),
            array: Array::default(),
            actors: BTreeMap::new(),
            violations: Vec::new(),
            trace: Vec::new(),
            effects: 0,
            handovers: 0,
            last_actor: None,
        };
        Arc::new(Self {
            api,
            handle,
            lease_names,
            renew_deadline,
            now_ms,
            watches: Watches::default(),
            state: Mutex::new(state),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The time since the start.
    pub(crate) fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms.load(Ordering::SeqCst))
    }

    pub(crate) fn set_now(&self, now: Duration) {
        self.now_ms.store(u64::try_from(now.as_millis()).unwrap(), Ordering::SeqCst);
    }

    pub(crate) fn trace(&self, line: &str) {
        let line = format!("{:>7} {line}", self.now().as_millis());
        self.lock().trace.push(line);
    }

    pub(crate) fn violate(&self, text: &str) {
        let text = format!("at {:?}: {text}", self.now());
        self.trace(&format!("VIOLATION {text}"));
        self.lock().violations.push(text);
    }

    /// Sends a request to the API server, as a user or for a check. It is complete at once.
    pub(crate) fn request(&self, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
        let content_type = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, content_type)
            .body(Full::new(bytes))
            .unwrap();
        let answer = async {
            let response = self.api.service().oneshot(request).await.unwrap();
            (response.status(), response.into_body().collect().await.unwrap().to_bytes())
        };
        let (status, bytes) = answer.now_or_never().unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    pub(crate) fn list(&self, path: &str) -> Vec<Value> {
        self.request(Method::GET, path, &Value::Null).1["items"].as_array().cloned().unwrap_or_default()
    }

    /// The process that holds every Lease.
    pub(crate) fn leader(&self) -> Option<ProcessId> {
        let state = self.lock();
        state.processes.keys().copied().find(|process| self.missing_lease(&state, *process).is_none())
    }

    /// A Lease that the process does not hold.
    fn missing_lease(&self, state: &State, process: ProcessId) -> Option<String> {
        let identity = identity(process);
        let is_held = |name: &String| state.leases.get(name).is_some_and(|lease| lease.holder == identity);
        self.lease_names.iter().find(|name| !is_held(name)).cloned()
    }

    /// Checks an effect that begins: a write to the API server or a driver call. `boot` is the time of the
    /// process's boot clock.
    ///
    /// - One actor for each epoch: the process holds every Lease, and no other process has acted between the
    ///   same changes of holders.
    /// - Nothing begins after the end: the attempt of the last renewal began less than the renew deadline ago.
    pub(crate) fn begin_effect(&self, process: ProcessId, boot: Duration, effect: &str) {
        self.trace(&format!("process {process} begins {effect}"));
        let mut found = Vec::new();
        {
            let mut state = self.lock();
            state.effects += 1;
            let former = state.last_actor.replace(process);
            state.handovers += usize::from(former.is_some_and(|former| former != process));
            if let Some(name) = self.missing_lease(&state, process) {
                let holder = state.leases.get(&name).cloned().unwrap_or_default().holder;
                found.push(format!(
                    "one actor: process {process} begins {effect}, and {holder:?} holds lease {name}"
                ));
            }
            let epoch: Vec<i64> = state.leases.values().map(|lease| lease.transitions).collect();
            let actor = *state.actors.entry(epoch).or_insert(process);
            if actor != process {
                found.push(format!(
                    "one actor: process {process} begins {effect} in the epoch of process {actor}"
                ));
            }
            let record = &state.processes[&process];
            for name in &self.lease_names {
                let is_open =
                    record.renewals.get(name).is_some_and(|renewal| boot < *renewal + self.renew_deadline);
                if !is_open {
                    let since = record.renewals.get(name).map(|renewal| boot.saturating_sub(*renewal));
                    found.push(format!(
                        "after the end: process {process} begins {effect}, {since:?} after the renewal of lease \
                         {name}"
                    ));
                }
            }
        }
        found.iter().for_each(|text| self.violate(text));
    }

    /// Notes a request of a process for a Lease that begins.
    pub(crate) fn begin_lease_request(
        &self,
        process: ProcessId,
        boot: Duration,
        method: &Method,
        name: &str,
        body: &Value,
    ) {
        let mut state = self.lock();
        let record = state.processes.get_mut(&process).unwrap();
        if *method == Method::GET {
            record.attempts.insert(name.to_owned(), boot);
        } else if body["spec"]["holderIdentity"].as_str().is_some_and(str::is_empty) {
            record.renewals.remove(name);
        }
    }

    /// Notes that the API server has written a Lease for a process. `attempt` is the time of the boot clock
    /// before the attempt.
    pub(crate) fn lease_written(&self, process: ProcessId, attempt: Option<Duration>, lease: &Value) {
        let text =
            |pointer: &str| lease.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (name, holder) = (text("/metadata/name"), text("/spec/holderIdentity"));
        let transitions = lease["spec"]["leaseTransitions"].as_i64().unwrap_or_default();
        let mut state = self.lock();
        let known = state.leases.entry(name.clone()).or_default();
        let is_change = known.holder != holder;
        *known = Lease { holder: holder.clone(), transitions };
        if let Some(attempt) = attempt.filter(|_| holder == identity(process)) {
            state.processes.get_mut(&process).unwrap().renewals.insert(name.clone(), attempt);
        }
        drop(state);
        if is_change {
            self.trace(&format!("lease {name} is held by {holder:?}, transition {transitions}"));
        }
    }

    /// The time of the boot clock before the running attempt of a process for a Lease.
    pub(crate) fn attempt(&self, process: ProcessId, lease: &str) -> Option<Duration> {
        self.lock().processes[&process].attempts.get(lease).copied()
    }

    /// Returns true if the process can reach the API server.
    pub(crate) fn is_reachable(&self, process: ProcessId) -> bool {
        let (now, state) = (self.now(), self.lock());
        state.api_down_until <= now && state.processes[&process].cut_until <= now
    }

    /// Waits until the process can reach the API server.
    pub(crate) async fn wait_reachable(&self, process: ProcessId) {
        while !self.is_reachable(process) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A random time of up to `max`.
    pub(crate) fn random_time(&self, max: Duration) -> Duration {
        let max = u64::try_from(max.as_millis()).unwrap();
        Duration::from_millis(self.lock().rng.u64(0..=max))
    }

    /// True with this probability while there are faults.
    pub(crate) fn is_fault(&self, probability: f32) -> bool {
        let mut state = self.lock();
        state.has_faults && state.rng.f32() < probability
    }
}
